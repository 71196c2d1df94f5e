# SPDX-License-Identifier: Apache-2.0
"""The health of the devices, as the kubelet is told of it."""

from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import dra_pb2 as health
from tegra_device_plugin.dra.driver_sockets import HealthBoard


def test_health_says_what_is_known() -> None:
    board = HealthBoard("node", ("a", "b"))
    seen = []
    for verdict in (
        None,
        Health(True, "ok", "runtime_status active"),
        Health(False, "too-hot", "101 °C"),
        Health(False, "unknown", "the GPU could not be looked at"),
    ):
        if verdict:
            board.show(verdict)
        first, second = board.message().devices
        assert (first.device.device_name, second.device.device_name) == ("a", "b")
        assert {one.device.pool_name for one in (first, second)} == {"node"}
        assert first.health_check_timeout_seconds > 0
        assert (first.last_updated_time > 0) == (verdict is not None)
        seen.append((first.health, first.message))
    assert seen == [
        (health.UNKNOWN, "not observed yet"),
        (health.HEALTHY, ""),
        (health.UNHEALTHY, "too-hot: 101 °C"),
        (health.UNKNOWN, "unknown: the GPU could not be looked at"),
    ]
