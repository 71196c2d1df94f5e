# SPDX-License-Identifier: Apache-2.0
"""Child process: reads the jtop service with jetson-stats' own client, prints a JSON line per sample.

Usage: python -m tegra_device_plugin.telemetry.jtop_client SOCKET INTERVAL

Only this module imports jetson-stats (AGPL-3.0, the extra `jtop`), and only these lines leave the process.
The client may block for ever, for example when the service is stopped. So the parent kills it after a
deadline. The client also ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_KIB = 1024


def main(socket: str, interval: float) -> int:
    """Print a line per sample until the service ends; the last line has the reason, as {"error": text}."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        import jtop  # noqa: PLC0415 - optional
        from jtop import service  # noqa: PLC0415 - optional
    except ImportError:
        return _fail("jetson-stats is not installed (the extra `jtop`)")
    service.JTOP_PIPE = socket  # fixed to /run there; a container has the host's /run elsewhere
    try:
        with jtop.jtop(interval=interval) as client:
            while client.ok():
                _print(_telemetry(client))
    except Exception as error:  # EOFError, pickle's, KeyError: all mean "no telemetry"
        return _fail(f"{type(error).__name__}: {error}")
    return _fail("the jtop service sends no more samples")


def _telemetry(client: Any) -> dict[str, Any]:
    """Give the facts that the plugin uses, without facts that this version or board does not report."""
    readings: dict[str, Callable[[], Any]] = {
        "gpu_load_percent": lambda: _gpu(client)["status"]["load"],
        "gpu_frequency_hz": lambda: _gpu(client)["freq"]["cur"] * 1000,
        "memory_total_bytes": lambda: client.memory["RAM"]["tot"] * _KIB,
        "memory_used_bytes": lambda: client.memory["RAM"]["used"] * _KIB,
        "gpu_memory_bytes": lambda: client.memory["RAM"]["shared"] * _KIB,
        "gpu_temperature_celsius": lambda: _gpu_temperature(client),
        "power_mode": lambda: client.nvpmodel.name,
        "module": lambda: client.board["hardware"]["Module"],
        "part_number": lambda: client.board["hardware"]["P-Number"],
        "jetpack": lambda: client.board["hardware"]["Jetpack"],
    }
    telemetry = {}
    for key, read in readings.items():
        try:
            value = read()
        except Exception:  # noqa: S112 - jetson-stats raises many kinds
            continue
        if value not in (None, ""):
            telemetry[key] = value
    return telemetry


def _gpu(client: Any) -> dict[str, Any]:
    """Give the first GPU: its key is its name in the device tree, which differs between releases."""
    gpu: dict[str, Any] = next(iter(client.gpu.values()))
    return gpu


def _gpu_temperature(client: Any) -> float | None:
    """`GPU` up to JetPack 5, `gpu` since; a zone that is off has an invalid value and `online` false."""
    for name, zone in client.temperature.items():
        if name.lower() == "gpu" and zone.get("online", True):
            return float(zone["temp"])
    return None


def _print(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _fail(reason: str) -> int:
    _print({"error": " ".join(reason.split())})
    return 1


def _end_with_parent() -> None:
    # The descriptor itself: Python aborts at its end if a thread still reads from `sys.stdin`.
    with suppress(OSError):  # a socket that was closed with unread lines in it answers with an error
        while os.read(0, 4096):
            pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
