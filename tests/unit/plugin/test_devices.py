# SPDX-License-Identifier: Apache-2.0
"""`devices` of the file: what is accepted, and the devices of a host's tree."""

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.config.devices import DeviceResource
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import load_dra
from tegra_device_plugin.sharing.allocation import DeviceNode, RejectedRequestError, Resource
from tegra_device_plugin.sharing.device_nodes import MAX_REMEMBERED, Found, find, make_resource, remember
from tegra_device_plugin.sharing.memory_limit import Mount
from tegra_device_plugin.system.hosttree import HostTree

CAMERA = "jetson-k3s.github.io/camera"
BY_PATH = "/dev/v4l/by-path/platform-3610000.usb-usb-0:2.1:1.0-video-index0"


def read(tmp_path: Path, text: str) -> tuple[DeviceResource, ...]:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\n{text}\n")
    return read_file(path).devices


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return "\n".join(caught.value.problems)


class Host(HostTree):
    """A host's tree whose files below /dev stand for nodes; `numbers` are those of nodes that differ."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.numbers: dict[str, tuple[int, int, int]] = {}

    def node(
        self, path: str, *links: str, kind: int = stat.S_IFCHR, number: tuple[int, int] = (81, 0)
    ) -> None:
        self.write(path, "")
        self.numbers[path] = (kind, *number)
        for link in links:
            self.link_to(link, path)

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link_to(self, link: str, path: str) -> None:
        file = self.root / link.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(os.path.relpath(path, os.path.dirname(link)))  # noqa: PTH120 - host paths

    def unplug(self, *paths: str) -> None:
        for path in paths:
            (self.root / path.lstrip("/")).unlink()

    def status(self, path: str) -> os.stat_result | None:
        found = super().status(path)
        if found is None or path not in self.numbers:
            return found
        kind, major, minor = self.numbers[path]
        # The third is st_rdev, after the ten of the tuple.
        return os.stat_result((kind | 0o660, *found[1:]), {"st_rdev": os.makedev(major, minor)})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    return Host(root)


def resource(found: Found, configured: tuple[DeviceResource, ...]) -> Resource:
    (one,) = configured
    return make_resource(one, found.devices[one.name])


def healths(found: Mapping[str, object]) -> dict[str, str]:
    return {one.id: one.health.reason for one in found[CAMERA]}  # type: ignore[attr-defined]


def camera(paths: str, more: str = "") -> str:
    return f"devices: [{{name: camera, groups: [{{paths: [{{path: '{paths}'}}]{more}}}]}}]"


# --- the file


def test_generic_device_plugins_schema_is_accepted(tmp_path: Path) -> None:
    text = """devices:
  - name: capture
    groups:
      - count: 2
        paths:
          - path: /dev/snd/pcmC0D0c
          - path: /dev/snd/controlC0
            mountPath: /dev/snd/control
            permissions: rw
            type: Device
"""
    (one,) = read(tmp_path, text)
    assert one.name == "jetson-k3s.github.io/capture"
    assert one.groups[0].containers == 2
    assert [match.mount_path for match in one.groups[0].matches] == [None, "/dev/snd/control"]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{groups: []}", "devices[0].name is missing"),
        ("{name: a}", "devices[0].groups is missing"),
        ("{name: a, groups: [{}]}", "devices[0].groups[0].paths is missing"),
        ("{name: a, groups: [{paths: [{}]}]}", "devices[0].groups[0].paths[0].path is missing"),
        ("{name: a, group: []}", "devices[0].group is not known; allowed: groups, name, preset"),
        ("{name: a, groups: [{usb: []}]}", "groups[0].usb is not known; allowed: count, paths"),
        ("{name: a, groups: [{count: 0, paths: [{path: /dev/a}]}]}", "count: '0': allowed: 1 to 128"),
        ("{preset: gpu}", "'gpu': allowed: argus, dla, encoder, decoder"),
        ("{preset: dla, groups: []}", "devices[0].groups is not known; allowed: count, name, preset"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, entry: str, expected: str) -> None:
    assert expected in problem(tmp_path, f"devices: [{entry}]")


@pytest.mark.parametrize(
    "name",
    [
        *("nvidia.com/gpu", "nvidia.com/camera", "kubernetes.io/camera", "x.k8s.io/camera", "amd.com/gpu"),
        *("aliyun.com/gpu-mem", "koordinator.sh/camera", "gpu-memory", "jetson-k3s.github.io/gpu"),
    ],
)
def test_a_name_that_is_not_ours_to_give(tmp_path: Path, name: str) -> None:
    text = problem(tmp_path, f"devices: [{{name: {name}, groups: [{{paths: [{{path: /dev/video0}}]}}]}}]")
    assert text.startswith(f"{tmp_path}/config.yaml:2: devices[0].name: '{name}': ")
    assert "use " in text or "not the name of an extended resource" in text


def test_a_name_of_the_owner_is_accepted_and_only_once(tmp_path: Path) -> None:
    entry = "{name: robot.example.com/arm, groups: [{paths: [{path: /dev/ttyACM%s}]}]}"
    assert read(tmp_path, f"devices: [{entry % 0}]")[0].name == "robot.example.com/arm"
    assert "use another name" in problem(tmp_path, f"devices: [{entry % 0}, {entry % 1}]")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/mem", "no container gets /dev/mem: all memory"),
        ("/dev/kmsg", "the kernel's log"),
        ("/dev/sda", "a disk"),
        ("/dev/mmcblk0p1", "a disk"),
        ("/dev/nvme0", "a disk"),
        ("/dev/disk/by-id/x", "disks"),
        ("/dev/nvhost-as-gpu", "the GPU, which has a resource of its own"),
        ("/dev/nvgpu/igpu0/power", "the GPU, which has a resource of its own"),
        ("/dev/nvhost-*", "the pattern also matches /dev/nvhost-gpu, the GPU"),
        ("/dev/tty0", "the console"),
        ("/dev/*", "the pattern also matches /dev/sda, a disk: use a narrower pattern"),
        ("/dev/mmc*", "the pattern also matches /dev/mmcblk0, a disk"),
        ("/dev/tty*", "the pattern also matches /dev/tty, the console"),
        ("/dev/*/*", "the pattern also matches /dev/disk/by-id, disks"),
        ("/etc/shadow", "an absolute path below /dev is needed"),
        ("/dev/../etc/shadow", "without `..`"),
        ("/dev/", "an absolute path below /dev is needed"),
        ("video0", "an absolute path below /dev is needed"),
    ],
)
def test_a_path_that_gives_the_machine_away_is_rejected(tmp_path: Path, path: str, expected: str) -> None:
    text = problem(tmp_path, camera(path))
    assert f"devices[0].groups[0].paths[0].path: '{path}': " in text
    assert expected in text


@pytest.mark.parametrize("path", ["/dev/video*", "/dev/ttyUSB*", "/dev/ttyTHS1", "/dev/serial/by-id/usb-*"])
def test_a_usual_path_is_accepted(tmp_path: Path, path: str) -> None:
    assert read(tmp_path, camera(path))[0].groups[0].matches[0].path == path


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("permissions: rwm", "m lets a container make device nodes; allowed: r, w, rw"),
        ("permissions: x", "allowed: r, w, rw"),
        ("mountPath: /etc/passwd", "an absolute path below /dev is needed"),
        ("mountPath: '/dev/video*'", "a path without a pattern is needed"),
        ("type: Mount", "allowed: Device, Interface; to mount files of the host, use generic-device-plugin"),
        ("udev: {ID VENDOR: x}", "'ID VENDOR' is not the name of a udev property, such as ID_VENDOR_ID"),
        ("udev: {ID_VENDOR_ID: ''}", "a value is needed; `*` stands for any"),
        ("limit: 2", "limit is not known; allowed: mountPath, path, permissions, type, udev"),
    ],
)
def test_a_wrong_key_of_a_path_is_named(tmp_path: Path, key: str, expected: str) -> None:
    text = f"devices: [{{name: a, groups: [{{paths: [{{path: /dev/video0, {key}}}]}}]}}]"
    assert expected in problem(tmp_path, text)


def test_an_interface_is_only_counted(tmp_path: Path) -> None:
    path = "{path: /sys/class/net/can0, type: Interface%s}"
    entry = f"devices: [{{name: can, groups: [{{paths: [{path}]}}]}}]"
    assert read(tmp_path, entry % "")[0].groups[0].matches[0].kind == "Interface"
    assert "leave mountPath, permissions and udev out" in problem(tmp_path, entry % ", permissions: r")
    assert "below /sys/class/net is needed" in problem(tmp_path, entry.replace("/sys/class/net", "/dev") % "")


def test_two_groups_with_the_same_device_are_rejected(tmp_path: Path) -> None:
    group = "{paths: [{path: /dev/video0}]}"
    text = problem(tmp_path, f"devices: [{{name: a, groups: [{group}]}}, {{name: b, groups: [{group}]}}]")
    assert "devices[1]: /dev/video0 is the device of another group as well: let one group have it" in text


def test_the_dra_driver_does_not_serve_devices(tmp_path: Path) -> None:
    read(tmp_path, camera("/dev/video0"))
    with pytest.raises(ConfigError, match="devices is served by the command `run`"):
        load_dra(tmp_path / "config.yaml", {}, {"node_name": "a"})


# --- the host's tree


def test_a_fixed_path_is_unplugged_until_it_is_there(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera(BY_PATH))
    found = find(host, configured)
    (device,) = found.devices[CAMERA]
    assert (device.health.reason, device.health.detail) == ("unplugged", f"there is no {BY_PATH}")
    host.node("/dev/video0", BY_PATH)
    (plugged,) = find(host, configured).devices[CAMERA]
    assert plugged.id == device.id
    assert device.id == "platform-3610000.usb-usb-0:2.1:1.0-video-index0"
    assert plugged.nodes == (DeviceNode(BY_PATH, BY_PATH),)


def test_a_long_name_becomes_an_id_of_63_characters_at_most(tmp_path: Path, host: Host) -> None:
    for number in range(2):
        host.node(f"/dev/serial/by-id/usb-{'x' * 60}-{number}")
    configured = read(tmp_path, camera("/dev/serial/by-id/*", ", count: 128"))
    ids = resource(find(host, configured), configured).ids
    assert len(set(ids)) == 256
    assert max(map(len, ids)) <= 63


def test_a_replugged_device_keeps_its_id_under_another_number(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/video*"))
    host.node("/dev/video0", BY_PATH)
    first = remember(find(host, configured), {})
    host.unplug("/dev/video0", BY_PATH)
    gone = remember(find(host, configured), first)
    host.node("/dev/video2", BY_PATH)
    back = remember(find(host, configured), gone)
    assert list(healths(gone).values()) == ["unplugged"]
    assert list(healths(back).values()) == ["ok"]
    assert healths(first) == healths(back)
    (device,) = back[CAMERA]
    assert device.nodes == (DeviceNode(BY_PATH, "/dev/video2"),)


def test_a_node_that_comes_before_its_link_is_one_device(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/video*"))
    host.node("/dev/video0")
    before = remember(find(host, configured), {})
    host.link_to(BY_PATH, "/dev/video0")
    assert len(remember(find(host, configured), before)[CAMERA]) == 1


def test_unplugged_devices_are_remembered_up_to_a_limit(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/ttyUSB*"))
    before: Mapping[str, tuple[object, ...]] = {}
    for number in range(MAX_REMEMBERED + 5):
        host.node(f"/dev/ttyUSB{number}")
        before = remember(find(host, configured), before)  # type: ignore[arg-type]
        host.unplug(f"/dev/ttyUSB{number}")
    assert len(remember(find(host, configured), before)[CAMERA]) == MAX_REMEMBERED  # type: ignore[arg-type]


def test_a_group_of_paths_is_one_device_with_all_nodes(tmp_path: Path, host: Host) -> None:
    text = camera("/dev/video0").replace(
        "}]}", "}, {path: /dev/media0, mountPath: /dev/media, permissions: r}]}", 1
    )
    configured = read(tmp_path, text)
    host.node("/dev/video0")
    assert healths(find(host, configured).devices) == {"video0": "unplugged"}
    host.node("/dev/media0")
    (device,) = find(host, configured).devices[CAMERA]
    assert device.nodes == (
        DeviceNode("/dev/video0", "/dev/video0"),
        DeviceNode("/dev/media0", "/dev/media", "r"),
    )


@pytest.mark.parametrize(
    ("kind", "number", "why"),
    [
        (stat.S_IFBLK, (259, 0), "a block device"),
        (stat.S_IFCHR, (1, 1), "memory or the kernel's log"),
        (stat.S_IFCHR, (4, 1), "the console"),
        (stat.S_IFCHR, (21, 0), "raw access to a disk"),
        (stat.S_IFSOCK, (0, 0), "not a device node"),
    ],
)
def test_a_node_that_gives_the_machine_away_is_refused_under_any_name(
    tmp_path: Path, host: Host, kind: int, number: tuple[int, int], why: str
) -> None:
    configured = read(tmp_path, camera("/dev/video*"))
    host.node("/dev/video0")
    host.node("/dev/video1", kind=kind, number=number)
    found = find(host, configured)
    assert found.problems == (f"{CAMERA}: no container gets /dev/video1: {why}",)
    assert healths(found.devices) == {"video*": "refused"}
    one = resource(found, configured)
    with pytest.raises(
        RejectedRequestError, match=f"unhealthy: refused: no container gets /dev/video1: {why}"
    ):
        one.check(list(one.ids))


def test_a_link_to_the_root_disk_is_refused_with_its_name(tmp_path: Path, host: Host) -> None:
    host.node("/dev/mmcblk0p1", "/dev/camera", kind=stat.S_IFBLK, number=(179, 1))
    found = find(host, read(tmp_path, camera("/dev/cam*")))
    assert found.problems == (
        f"{CAMERA}: no container gets /dev/camera: it leads to /dev/mmcblk0p1, a block device",
    )


def test_the_serial_console_is_refused(tmp_path: Path, host: Host) -> None:
    host.write("/sys/class/tty/console/active", "tty0 ttyTCU0\n")
    host.node("/dev/ttyTCU0", number=(241, 0))
    (text,) = find(host, read(tmp_path, camera("/dev/ttyTCU0"))).problems
    assert text.endswith("no container gets /dev/ttyTCU0: the console")


def test_a_usb_disk_is_refused_and_another_usb_device_is_not(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/bus/usb/001/*"))
    host.node("/dev/bus/usb/001/002", number=(189, 1))
    host.write("/sys/dev/char/189:1/1-1:1.0/bInterfaceClass", "ff\n")
    assert healths(find(host, configured).devices) == {"bus.usb.001.002": "ok"}
    host.node("/dev/bus/usb/001/003", number=(189, 2))
    host.write("/sys/dev/char/189:2/1-2:1.0/bInterfaceClass", "08\n")
    (text,) = find(host, configured).problems
    assert text.endswith("no container gets /dev/bus/usb/001/003: a USB disk")


def test_a_link_out_of_dev_is_refused(tmp_path: Path, host: Host) -> None:
    host.write("/etc/shadow", "")
    host.link_to("/dev/camera", "/etc/shadow")
    (text,) = find(host, read(tmp_path, camera("/dev/camera"))).problems
    assert text.endswith("it leads to /etc/shadow, not below /dev")


def test_a_node_of_two_resources_is_a_device_of_the_first(tmp_path: Path, host: Host) -> None:
    host.node("/dev/video0", BY_PATH)
    group = "groups: [{{paths: [{{path: '{}'}}]}}]"
    text = f"devices: [{{name: camera, {group.format('/dev/video*')}}}, {{name: b, {group.format(BY_PATH)}}}]"
    found = find(host, read(tmp_path, text))
    assert healths(found.devices)
    assert not found.devices["jetson-k3s.github.io/b"]
    assert found.problems == (f"jetson-k3s.github.io/b: /dev/video0 is a device of {CAMERA} already",)


def test_udev_properties_choose_the_device(tmp_path: Path, host: Host) -> None:
    for number, model in enumerate(["0825", "0825", "08e5"]):
        host.node(f"/dev/video{number}", number=(81, number))
        capabilities = ":capture:" if number != 1 else ":"
        properties = {"ID_VENDOR_ID": "046d", "ID_MODEL_ID": model, "ID_V4L_CAPABILITIES": capabilities}
        lines = [f"E:{key}={value}" for key, value in properties.items()]
        host.write(f"/run/udev/data/c81:{number}", "\n".join(["S:v4l/by-id/x", *lines, ""]))
        host.write(f"/sys/dev/char/81:{number}/uevent", f"MAJOR=81\nDEVNAME=video{number}\n")
    host.write("/run/udev/data/b179:0", "E:ID_VENDOR_ID=046d\n")
    udev = "udev: {ID_VENDOR_ID: 046d, ID_MODEL_ID: '0825', ID_V4L_CAPABILITIES: '*:capture:*'}"
    for path in ("path: '/dev/video*', ", ""):
        text = f"devices: [{{name: camera, groups: [{{paths: [{{{path}{udev}}}]}}]}}]"
        assert healths(find(host, read(tmp_path, text)).devices) == {"video0": "ok"}


def test_a_can_interface_is_counted_while_it_is_there(tmp_path: Path, host: Host) -> None:
    entry = "{name: camera, groups: [{paths: [{path: /sys/class/net/can0, type: Interface}]}]}"
    configured = read(tmp_path, f"devices: [{entry}]")
    assert healths(find(host, configured).devices) == {"can0": "unplugged"}
    (host.root / "sys/class/net/can0").mkdir(parents=True)
    one = resource(find(host, configured), configured)
    assert list(one.ids) == ["can0"]
    assert not one.allocation_for(["can0"]).other_nodes


UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 17054 /run/systemd/private
0000000000000000: 00000002 00000000 {flags} 0001 01 17055 /tmp/argus_socket
0000000000000000: 00000003 00000000 00000000 0001 03 17056
"""


@pytest.mark.parametrize(("flags", "reason"), [("00010000", "ok"), ("00000000", "unplugged")])
def test_argus_is_healthy_while_its_daemon_listens(
    tmp_path: Path, host: Host, flags: str, reason: str
) -> None:
    configured = read(tmp_path, "devices: [{preset: argus, count: 2}]")
    assert configured[0].name == "jetson-k3s.github.io/argus"
    padding = "0000000000000000: 00000003 00000000 00000000 0001 03 1 @x\n" * 200
    host.write("/proc/1/net/unix", UNIX.format(flags=flags) + padding)
    one = resource(find(host, configured), configured)
    assert {key[1] for key in one.healths} == {reason}
    assert one.registration.pre_start
    if reason == "ok":
        assert len(one.ids) == 2
        socket = Mount("/tmp/argus_socket", "/tmp/argus_socket")
        assert one.allocation_for([next(iter(one.ids))]).mounts == (socket,)
    else:
        with pytest.raises(RejectedRequestError, match="unplugged"):
            one.prepare([next(iter(one.ids))])


def test_engines_are_advertised_where_the_board_has_them(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, "devices: [{preset: dla}, {preset: encoder, count: 4}, {preset: decoder}]")
    host.node("/dev/nvhost-ctrl-nvdla0")
    host.node("/dev/v4l2-nvenc", number=(1, 3))
    found = find(host, configured).devices
    assert {name.partition("/")[2]: [one.id for one in devices] for name, devices in found.items()} == {
        "dla": ["nvhost-ctrl-nvdla0"],
        "encoder": ["v4l2-nvenc"],
        "decoder": [],
    }


# --- the resource


def test_shares_of_one_device_are_chosen_from_different_devices(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/video*", ", count: 2"))
    host.node("/dev/video0")
    host.node("/dev/video1")
    one = resource(find(host, configured), configured)
    assert list(one.ids) == ["video0::0", "video0::1", "video1::0", "video1::1"]
    assert one.preferred(list(one.ids), [], 2) == ["video0::0", "video1::0"]
    assert one.preferred(list(one.ids), ["video0::1"], 2) == ["video0::1", "video1::0"]
    assert one.preferred(["video0::0", "x"], [], 5) == ["video0::0", "x"]
    one.check(["video0::0", "video0::1"])
    assert len(one.allocation_for(["video0::0", "video0::1"]).other_nodes) == 1


def test_two_devices_at_one_path_of_a_container_are_rejected(tmp_path: Path, host: Host) -> None:
    text = camera("/dev/video*").replace("video*'", "video*', mountPath: /dev/camera")
    configured = read(tmp_path, text)
    host.node("/dev/video0")
    host.node("/dev/video1")
    one = resource(find(host, configured), configured)
    one.check(["video1"])
    with pytest.raises(RejectedRequestError, match="several devices would be /dev/camera in the container"):
        one.check(["video0", "video1"])


def test_one_unhealthy_device_leaves_the_others(tmp_path: Path, host: Host) -> None:
    configured = read(tmp_path, camera("/dev/video*"))
    host.node("/dev/video0")
    host.node("/dev/video1")
    before = remember(find(host, configured), {})
    host.unplug("/dev/video1")
    one = make_resource(configured[0], remember(find(host, configured), before)[CAMERA])
    assert one.unhealthy_ids == {"video1"}
    assert one.healths == {(True, "ok"): 1, (False, "unplugged"): 1}
    one.check(["video0"])
    with pytest.raises(RejectedRequestError, match="camera: unhealthy: unplugged: there is no /dev/video1"):
        one.check(["video0", "video1"])


# --- the commands


def test_command_devices_prints_what_a_board_has(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    front = "groups: [{count: 2, paths: [{path: /dev/video0, mountPath: /dev/front}]}]"
    rear = "groups: [{paths: [{path: /dev/video1}]}]"
    read(tmp_path, f"devices: [{{name: front, {front}}}, {{name: rear, {rear}}}, {{preset: dla}}]")
    options = ["devices", f"--host-root={host.root}", f"--config={tmp_path}/config.yaml"]
    host.node("/dev/video0")
    assert main(options) == 1
    assert capsys.readouterr().out.splitlines() == [
        "jetson-k3s.github.io/front: video0: ok: /dev/video0 as /dev/front, for 2 containers at a time",
        "jetson-k3s.github.io/rear: video1: unplugged: there is no /dev/video1",
        "jetson-k3s.github.io/dla: no device on this board",
    ]
    host.node("/dev/video1")
    assert main(options) == 0
    assert main(["devices", f"--host-root={host.root}"]) == 2
    assert "--config: a configuration with `devices` is needed" in capsys.readouterr().err


def test_config_check_prints_the_meaning_of_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    udev = "groups: [{count: 3, paths: [{path: '/dev/video*', udev: {ID_MODEL_ID: '0825'}}]}]"
    read(tmp_path, f"devices: [{{name: camera, {udev}}}, {{preset: argus}}]")
    assert main(["config", "check", f"{tmp_path}/config.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{CAMERA}: /dev/video* ID_MODEL_ID=0825, for 3 containers at a time",
        "jetson-k3s.github.io/argus: /tmp/argus_socket, exclusive",
    ]


def test_labels_name_the_resources_that_the_board_has(
    tmp_path: Path, orin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = "groups: [{paths: [{path: /dev/video%s}]}]"
    read(tmp_path, f"devices: [{{name: b, {group % 0}}}, {{name: a, {group % 1}}}, {{name: c, {group % 2}}}]")
    options = ["labels", f"--host-root={orin}", f"--config={tmp_path}/config.yaml"]
    for number in range(2):
        (orin / f"dev/video{number}").touch()
    assert main(options) == 0
    assert "jetson-k3s.github.io/devices=a_b" in capsys.readouterr().out.splitlines()
    (orin / "dev/video2").symlink_to("../etc/nv_tegra_release")
    assert main(options) == 2
    assert "c: no container gets /dev/video2: it leads to /etc/nv_tegra_release" in capsys.readouterr().err


IMPORTED = """
import sys
from pathlib import Path
from tegra_device_plugin.config.settings import load_plugin
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources
from tegra_device_plugin.plugin import _device_watch

_device_watch(load_plugin(Path(sys.argv[1]), {}, {}), AdvertisedResources("devices"))
names = {name.rpartition(".")[2] for name in sys.modules if name.startswith("tegra_device_plugin.")}
print(*names & {"devices", "device_nodes", "devicewatch"})
"""


@pytest.mark.parametrize(("text", "modules"), [("", 0), ("devices: [{preset: dla}]", 3)])
def test_run_imports_nothing_for_devices_unless_they_are_configured(
    tmp_path: Path, text: str, modules: int
) -> None:
    read(tmp_path, text)
    command = [sys.executable, "-c", IMPORTED, str(tmp_path / "config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == modules
