# SPDX-License-Identifier: Apache-2.0
"""The devices of a claim, conflicts between claims, and the health that a kubelet gets."""

from typing import Any

import pytest
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import dra_pb2 as health
from tegra_device_plugin.dra.claims import ClaimError, Device, conflict, devices
from tegra_device_plugin.dra.driver_sockets import HealthFeed
from tegra_device_plugin.system.kubernetes import GIB

from tests.unit.plugin.dra.objects import CLAIM, NODE, claim, result


def test_only_devices_of_this_driver_and_this_node_count() -> None:
    found = devices(
        claim(result(), result(driver="gpu.example.com"), result(pool="jetson-2"), result("other")),
        CLAIM,
        NODE,
    )
    assert [one.name for one in found] == ["igpu-0", "other"]


def test_a_subrequest_counts_as_its_request() -> None:
    (found,) = devices(claim(result(request="gpu/small")), CLAIM, NODE)
    assert found.request == "gpu"


def test_tolerations_of_the_taint_are_found() -> None:
    tolerations = [
        [{"key": "gpu.jetson-k3s.github.io/unhealthy", "operator": "Exists"}],
        [{"operator": "Exists"}],
        [{"key": "example.com/other", "operator": "Exists"}],
        [],
    ]
    found = devices(claim(*(result(tolerations=one) for one in tolerations)), CLAIM, NODE)
    assert [one.tolerates_unhealthy for one in found] == [True, True, False, False]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (claim(result(), uid="2222-b"), "default/a got replaced: its uid is 2222-b, not 1111-a"),
        ({"metadata": {"uid": CLAIM.uid}, "status": {}}, "default/a is not allocated"),
        (claim(result(pool="jetson-2")), "no device of gpu.jetson-k3s.github.io in the pool jetson-1"),
        (
            claim(result(), config=[{"opaque": {"driver": "gpu.jetson-k3s.github.io", "parameters": {}}}]),
            "takes none: leave `config` out",
        ),
        (claim(result(shareID="s", consumedCapacity={"memory": "much"})), "memory 'much': a quantity"),
    ],
)
def test_an_invalid_claim_is_rejected_with_the_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimError, match=message.replace("[", r"\[")):
        devices(given, CLAIM, NODE)


def test_parameters_for_another_driver_are_ignored() -> None:
    config = [{"opaque": {"driver": "gpu.example.com", "parameters": {}}}]
    assert devices(claim(result(), config=config), CLAIM, NODE)


WHOLE = Device("gpu", "igpu-0")
ADMIN = Device("gpu", "igpu-0", admin=True)
FIRST, SECOND = Device("gpu", "igpu-0-share-0"), Device("gpu", "igpu-0-share-1")
THIS, THAT = Device("gpu", "igpu-0", "s1", GIB), Device("gpu", "igpu-0", "s2", GIB)


@pytest.mark.parametrize(
    ("wanted", "other", "together"),
    [
        (WHOLE, WHOLE, False),
        (FIRST, FIRST, False),
        (FIRST, SECOND, True),
        (THIS, THIS, False),
        (THIS, THAT, True),
        (WHOLE, FIRST, False),
        (THIS, WHOLE, False),
        (FIRST, THIS, False),
        (ADMIN, WHOLE, True),
        (WHOLE, ADMIN, True),
    ],
)
def test_two_claims_share_the_gpu_only_in_one_mode(wanted: Device, other: Device, together: bool) -> None:
    assert conflict((wanted,), (other,)) == (None if together else other)


def test_health_of_devices_follows_the_gpu() -> None:
    feed = HealthFeed("node", ("a", "b"))
    seen = []
    for observed in (
        None,
        Health(True, "ok", "runtime_status active"),
        Health(False, "too-hot", "101 °C"),
        Health(False, "unknown", "the GPU could not be observed"),
    ):
        if observed:
            feed.update(observed)
        first, second = feed.message().devices
        assert (first.device.device_name, second.device.device_name) == ("a", "b")
        assert {one.device.pool_name for one in (first, second)} == {"node"}
        assert first.health_check_timeout_seconds > 0
        assert (first.last_updated_time > 0) == (observed is not None)
        seen.append((first.health, first.message))
    assert seen == [
        (health.UNKNOWN, "not observed yet"),
        (health.HEALTHY, ""),
        (health.UNHEALTHY, "too-hot: 101 °C"),
        (health.UNKNOWN, "unknown: the GPU could not be observed"),
    ]
