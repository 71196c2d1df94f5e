# SPDX-License-Identifier: Apache-2.0
"""The messages' bytes."""

from tegra_device_plugin.kubelet import api_pb2 as api


def test_messages_on_the_wire_are_those_of_kubernetes() -> None:
    """Bytes written by hand after the field numbers of pkg/apis/deviceplugin/v1beta1/api.proto."""
    register = b"\x0a\x07v1beta1\x12\x01s\x1a\x01r\x22\x02\x10\x01"
    assert api.RegisterRequest.FromString(register) == api.RegisterRequest(
        version="v1beta1",
        endpoint="s",
        resource_name="r",
        options=api.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    devices = b"\x0a\x0e\x0a\x01g\x12\x02OK\x1a\x05\x0a\x03\x08\x90\x03"
    node = api.TopologyInfo(nodes=[api.NUMANode(ID=400)])
    assert api.ListAndWatchResponse(devices=[api.Device(ID="g", health="OK", topology=node)]) == (
        api.ListAndWatchResponse.FromString(devices)
    )
    container = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01"
    container += b"\x1a\x09\x0a\x01c\x12\x01h\x1a\x01r\x2a\x03\x0a\x01n"
    answer = b"\x0a" + bytes([len(container)]) + container
    assert api.AllocateResponse.FromString(answer).container_responses[0] == api.ContainerAllocateResponse(
        envs={"k": "v"},
        mounts=[api.Mount(container_path="c", host_path="h", read_only=True)],
        devices=[api.DeviceSpec(container_path="c", host_path="h", permissions="r")],
        cdi_devices=[api.CDIDevice(name="n")],
    )
    preferred = b"\x0a\x08\x0a\x01a\x12\x01b\x18\x02"
    assert api.PreferredAllocationRequest.FromString(preferred).container_requests[0] == (
        api.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=2
        )
    )
    assert api.AllocateRequest.FromString(b"\x0a\x03\x0a\x01a").container_requests[0].devices_ids == ["a"]
