# SPDX-License-Identifier: Apache-2.0
"""What is advertised and allocated."""

from __future__ import annotations

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.settings import PluginSettings, Sharing
from tegra_device_plugin.sharing.allocation import Mount, RejectedRequestError, Resource
from tegra_device_plugin.sharing.resources import make_resources

GOOD = Health(True, "ok", "")
NODES = ("/dev/nvmap", "/dev/nvhost-gpu")


def resource(settings: PluginSettings | None = None, health: Health = GOOD) -> Resource:
    """Resource of a board with two nodes."""
    (only,) = make_resources(settings or PluginSettings(), NODES, health)
    return only


def test_an_exclusive_gpu_is_one_device() -> None:
    assert resource().ids == ("igpu0",)
    assert resource().allocation.envs == (("NVIDIA_VISIBLE_DEVICES", "all"),)
    assert resource().allocation.device_nodes == NODES


def test_replicas_are_numbered_as_nvidia_does() -> None:
    assert resource(PluginSettings(sharing=Sharing(replicas=3))).ids == ("igpu0::0", "igpu0::1", "igpu0::2")


def test_index_asks_for_the_first_gpu() -> None:
    assert resource(PluginSettings(device_id_strategy="index")).allocation.envs == (
        ("NVIDIA_VISIBLE_DEVICES", "0"),
    )


def test_volume_mounts_name_the_gpu_by_a_mount() -> None:
    allocation = resource(PluginSettings(device_list_strategy=("volume-mounts",))).allocation
    assert allocation.envs == (("NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"),)
    assert allocation.mounts == (Mount("/dev/null", "/var/run/nvidia-container-devices/all"),)


def test_cdi_alone_sets_no_environment() -> None:
    allocation = resource(
        PluginSettings(device_list_strategy=("cdi-cri",), device_id_strategy="index")
    ).allocation
    assert allocation.cdi_devices == (cdi.device("0"),)
    assert allocation.envs == ()


def test_cdi_beside_the_environment() -> None:
    allocation = resource(PluginSettings(device_list_strategy=("envvar", "cdi-cri"))).allocation
    assert allocation.cdi_devices == (cdi.device("all"),)
    assert allocation.envs == (("NVIDIA_VISIBLE_DEVICES", "all"),)


def test_nodes_can_be_left_to_the_runtime() -> None:
    assert resource(PluginSettings(pass_device_specs=False)).allocation.device_nodes == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [(["x"], "unknown device 'x'"), ([], "no device"), (["igpu0", "igpu0"], "twice")],
)
def test_requests_that_cannot_be_met(asked: list[str], why: str) -> None:
    with pytest.raises(RejectedRequestError, match=why):
        resource().check(asked)


def test_an_unhealthy_gpu_is_not_given() -> None:
    with pytest.raises(RejectedRequestError, match="too-hot"):
        resource(health=Health(False, "too-hot", "")).check(["igpu0"])


def test_two_shares_are_given_only_where_that_is_wanted() -> None:
    asked = ["igpu0::0", "igpu0::1"]
    resource(PluginSettings(sharing=Sharing(4, fail_requests_greater_than_one=False))).check(asked)
    with pytest.raises(RejectedRequestError, match="request 1"):
        resource(PluginSettings(sharing=Sharing(4))).check(asked)
