# SPDX-License-Identifier: Apache-2.0
"""What of a jtop client's dictionaries is told, by a client of the shape of jetson-stats'.

tests/jtop has the real client and service.
"""

from types import SimpleNamespace
from typing import Any

from tegra_device_plugin.telemetry.jtop_client import _telemetry


def client(**changed: Any) -> Any:
    """A client with every fact, in the units of jetson-stats: KiB, kHz, percent, degrees Celsius."""
    facts: dict[str, Any] = {
        "gpu": {"gpu": {"status": {"load": 12.5}, "freq": {"cur": 306000}}},
        "memory": {"RAM": {"tot": 8, "used": 4, "shared": 2}},
        "temperature": {"cpu": {"temp": 50.0}, "gpu": {"temp": 41.5, "online": True}},
        "nvpmodel": SimpleNamespace(name="15W"),
        "board": {"hardware": {"Module": "Orin Nano", "P-Number": "p3767-0005", "Jetpack": "6.2"}},
    }
    return SimpleNamespace(**(facts | changed))


def test_what_a_version_does_not_tell_is_left_out() -> None:
    assert _telemetry(client(board={}, gpu={}, memory=None, nvpmodel=None, temperature={})) == {}


def test_a_sensor_that_is_off_is_not_believed() -> None:
    off = {"GPU": {"temp": -256.0, "online": False}}
    assert "gpu_temperature_celsius" not in _telemetry(client(temperature=off))
