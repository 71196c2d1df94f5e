# SPDX-License-Identifier: Apache-2.0
"""What is advertised and allocated."""

from typing import Any

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.file import Sharing
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.sharing.allocation import Allocation, RejectedRequestError, Resource
from tegra_device_plugin.sharing.memory_limit import Mount
from tegra_device_plugin.sharing.resources import make_resources

GOOD = Health(True, "ok", "")
NODES = ("/dev/nvmap", "/dev/nvhost-gpu")


def resource(settings: PluginSettings | None = None, health: Health = GOOD) -> Resource:
    """Resource of a board with two nodes."""
    (only,) = make_resources(settings or PluginSettings(), NODES, health)
    return only


ALL = (("NVIDIA_VISIBLE_DEVICES", "all"),)
LIST = "/var/run/nvidia-container-devices"
# Of other settings than the default ones, what a container gets otherwise.
ALLOCATIONS: list[tuple[dict[str, Any], Allocation]] = [
    ({}, Allocation(ALL, NODES)),
    ({"device_id_strategy": "index"}, Allocation((("NVIDIA_VISIBLE_DEVICES", "0"),), NODES)),
    (
        {"device_list_strategy": ("volume-mounts",)},
        Allocation((("NVIDIA_VISIBLE_DEVICES", LIST),), NODES, mounts=(Mount("/dev/null", f"{LIST}/all"),)),
    ),
    (
        {"device_list_strategy": ("cdi-cri",), "device_id_strategy": "index"},
        Allocation((), NODES, cdi_devices=(cdi.device("0"),)),
    ),
    (
        {"device_list_strategy": ("envvar", "cdi-cri")},
        Allocation(ALL, NODES, cdi_devices=(cdi.device("all"),)),
    ),
    ({"pass_device_specs": False}, Allocation(ALL, ())),
]


@pytest.mark.parametrize(("settings", "allocation"), ALLOCATIONS, ids=str)
def test_a_container_gets_the_gpu_as_the_settings_say(
    settings: dict[str, Any], allocation: Allocation
) -> None:
    assert resource(PluginSettings()._replace(**settings)).allocation == allocation


def test_two_shares_are_allocated_only_if_configured() -> None:
    ids = ["igpu0::0", "igpu0::1"]
    resource(PluginSettings(sharing=Sharing(4, fail_requests_greater_than_one=False))).check(ids)
    with pytest.raises(RejectedRequestError, match="request 1"):
        resource(PluginSettings(sharing=Sharing(4))).check(ids)
