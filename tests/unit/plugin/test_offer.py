# SPDX-License-Identifier: Apache-2.0
"""What is advertised and granted."""

from __future__ import annotations

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Verdict
from tegra_device_plugin.config.settings import Settings, Sharing
from tegra_device_plugin.sharing.offer import Mount, Offer, RefusedRequestError, make_offers

GOOD = Verdict(True, "ok", "")
NODES = ("/dev/nvmap", "/dev/nvhost-gpu")


def offer(settings: Settings | None = None, verdict: Verdict = GOOD) -> Offer:
    """Offer of a board with two nodes."""
    (only,) = make_offers(settings or Settings(), NODES, verdict)
    return only


def test_an_exclusive_gpu_is_one_device() -> None:
    assert offer().ids == ("igpu0",)
    assert offer().grant.envs == (("NVIDIA_VISIBLE_DEVICES", "all"),)
    assert offer().grant.device_nodes == NODES


def test_replicas_are_numbered_as_nvidia_does() -> None:
    assert offer(Settings(sharing=Sharing(replicas=3))).ids == ("igpu0::0", "igpu0::1", "igpu0::2")


def test_index_asks_for_the_first_gpu() -> None:
    assert offer(Settings(device_id_strategy="index")).grant.envs == (("NVIDIA_VISIBLE_DEVICES", "0"),)


def test_volume_mounts_name_the_gpu_by_a_mount() -> None:
    grant = offer(Settings(device_list_strategy=("volume-mounts",))).grant
    assert grant.envs == (("NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"),)
    assert grant.mounts == (Mount("/dev/null", "/var/run/nvidia-container-devices/all"),)


def test_cdi_alone_sets_no_environment() -> None:
    grant = offer(Settings(device_list_strategy=("cdi-cri",), device_id_strategy="index")).grant
    assert grant.cdi_devices == (cdi.device("0"),)
    assert grant.envs == ()


def test_cdi_beside_the_environment() -> None:
    grant = offer(Settings(device_list_strategy=("envvar", "cdi-cri"))).grant
    assert grant.cdi_devices == (cdi.device("all"),)
    assert grant.envs == (("NVIDIA_VISIBLE_DEVICES", "all"),)


def test_nodes_can_be_left_to_the_runtime() -> None:
    assert offer(Settings(pass_device_specs=False)).grant.device_nodes == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [(["x"], "unknown device 'x'"), ([], "no device"), (["igpu0", "igpu0"], "twice")],
)
def test_requests_that_cannot_be_met(asked: list[str], why: str) -> None:
    with pytest.raises(RefusedRequestError, match=why):
        offer().check(asked)


def test_an_unhealthy_gpu_is_not_given() -> None:
    with pytest.raises(RefusedRequestError, match="too-hot"):
        offer(verdict=Verdict(False, "too-hot", "")).check(["igpu0"])


def test_two_shares_are_given_only_where_that_is_wanted() -> None:
    asked = ["igpu0::0", "igpu0::1"]
    offer(Settings(sharing=Sharing(4, fail_requests_greater_than_one=False))).check(asked)
    with pytest.raises(RefusedRequestError, match="ask for 1"):
        offer(Settings(sharing=Sharing(4))).check(asked)
