# SPDX-License-Identifier: Apache-2.0
"""The messages' bytes, and the names by which a kubelet calls."""

from __future__ import annotations

from pathlib import Path

from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import dra_pb2 as dra
from tegra_device_plugin.dra import health_pb2 as health
from tegra_device_plugin.dra import pluginregistration_pb2 as messages
from tegra_device_plugin.dra import registration, server

# With podresources.proto's package v1 in the same descriptor pool.
from tegra_device_plugin.kubelet import podresources_pb2


def test_messages_on_the_wire_are_those_of_kubernetes() -> None:
    """Bytes written by hand after kubelet's pkg/apis/{dra,dra-health,pluginregistration}."""
    assert podresources_pb2.DESCRIPTOR.package == "v1"
    claim = b"\x0a\x02ns\x12\x01u\x1a\x01n"
    wanted = dra.Claim(namespace="ns", uid="u", name="n")
    assert dra.NodePrepareResourcesRequest.FromString(b"\x0a\x0a" + claim).claims[0] == wanted
    assert dra.NodeUnprepareResourcesRequest.FromString(b"\x0a\x0a" + claim).claims[0] == wanted
    device = b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    one = dra.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert one.SerializeToString() == device
    prepared = dra.NodePrepareResourceResponse(devices=[one], error="e")
    assert prepared.SerializeToString() == b"\x0a\x0f" + device + b"\x12\x01e"
    info = messages.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    status = messages.RegistrationStatus(plugin_registered=True, error="e")
    assert messages.RegistrationStatus.FromString(b"\x08\x01\x12\x01e") == status
    answer = health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name="p", device_name="d"),
                health=health.UNHEALTHY,
                last_updated_time=5,
                health_check_timeout_seconds=30,
                message="m",
            )
        ]
    )
    inside = b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x05\x20\x1e\x2a\x01m"
    assert answer.SerializeToString() == b"\x0a" + bytes([len(inside)]) + inside


def test_services_have_the_names_that_kubelets_call() -> None:
    board = server.HealthBoard("node", ("igpu-0",))
    services = server.dra_services(None, board, "node")  # type: ignore[arg-type] # nothing is prepared
    assert sorted(services) == [
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    assert list(registration.registration_services(Path("/x"), lambda _ok, _why: None)) == [
        "pluginregistration.Registration"
    ]
    assert server.SUPPORTED[:2] == ("v1.DRAPlugin", "v1beta1.DRAPlugin")


def test_health_says_what_is_known() -> None:
    board = server.HealthBoard("node", ("a", "b"))
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
        seen.append((first.health, first.message))
    assert seen == [
        (health.UNKNOWN, "not observed yet"),
        (health.HEALTHY, ""),
        (health.UNHEALTHY, "too-hot: 101 °C"),
        (health.UNKNOWN, "unknown: the GPU could not be looked at"),
    ]
