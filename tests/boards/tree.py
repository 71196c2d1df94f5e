# SPDX-License-Identifier: Apache-2.0
"""Builds the part of a board's file system that tells what it is: /sys, /dev, /etc, /proc and libcuda.

Every path, link and file format is the kernel's (nvgpu os/linux/{sysfs,ioctl,scale,module}.c, the devfreq,
thermal and soc classes) or L4T's; the values come from boards.json. The tree is a SIMULATION: its device
nodes do nothing and its libcuda is a text file that says so.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.boards import userland
from tests.boards.fixture import Fixture

State = Literal["ready", "unpowered", "dead", "masked"]
Nodes = Literal["files", "char"]

_NULL_DEVICE = os.makedev(1, 3)
_VIDEO_GID = 44  # group `video` on Debian and Ubuntu; L4T's udev rules give it the GPU's nodes, 0660

_R32, _R36 = 32, 36

# Attributes of the GPU's device, as nvgpu has them.
_NVGPU = {
    "load": "0",
    "railgate_enable": "1",
    "railgate_delay": "500",
    "enable_3d_scaling": "1",
}

# Trips of the GPU's thermal zone in m°C (passive, critical). tegra194, tegra234: L4T's device trees (Xavier
# NX is 1 K lower, not distinguished here); tegra264: critical seen on a board; tegra210, tegra186: assumed.
_GPU_TRIPS = {
    "tegra210": (97000, 102500),
    "tegra186": (95500, 101000),
    "tegra194": (92500, 98000),
    "tegra234": (99000, 104500),
    "tegra264": (104000, 114500),
}
_PMIC_DIE = 100000  # this zone always reads 100 °C, on a cold board too
_OFFLINE = "-256000"  # what R35 reports for a zone whose power domain is off


def build(fixture: Fixture, root: Path, *, state: State = "ready", nodes: Nodes = "files") -> None:
    """Write the board's tree below `root` (made if absent).

    `state`: `ready`; `unpowered`, the GPU was never switched on since boot (Thor: its driver is not loaded
    yet); `dead`, switching it on failed (Thor: it fell off the bus); `masked`, ready but seen from a
    container, where /sys/firmware is hidden.
    `nodes`: what stands for the device nodes, plain files (unit tests) or real null devices (needs root).

    Raises FileExistsError when `root` has such a tree already.
    """
    _Tree(fixture, root, state).write(nodes)


class _Tree:
    def __init__(self, fixture: Fixture, root: Path, state: State) -> None:
        self._fixture = fixture
        self._data = fixture.data
        self._root = root
        self._sys = root / "sys"
        self._state = state
        self._powered = state in ("ready", "masked")
        self._gpu = self._sys / fixture.gpu_device
        self._bus = self._sys / "bus" / ("pci" if fixture.is_pci else "platform")

    def write(self, nodes: Nodes) -> None:
        self._device_tree()
        self._soc()
        self._gpu_device()
        self._gpu_driver()
        if self._has_devfreq():
            for name in (self._data["devfreq"], *self._data.get("devfreq_extra", ())):
                self._devfreq(name)
        for number, kind in enumerate(self._data["thermal"]):
            self._thermal_zone(number, kind)
        for address, card in self._fixture.cards.items():
            self._card(address, card["nodes"])
        for name in self._present_nodes():
            _device_node(self._root / "dev" / name, nodes)
        self._proc()
        userland.write(self._fixture, self._root)

    def _device_tree(self) -> None:
        (self._sys / "firmware").mkdir(parents=True)
        if self._state == "masked":
            return
        base = self._sys / "firmware" / "devicetree" / "base"
        _put(base / "model", self._data["dt_model"] + "\0")
        _put(base / "compatible", "".join(f"{entry}\0" for entry in self._data["dt_compatible"]))
        _put(base / "serial-number", "1423000000000\0")
        if self._data["of_compatible"]:
            node = base / self._of_path()
            _put(node / "name", self._data["of_node_name"] + "\0")
            _put(node / "compatible", self._data["of_compatible"] + "\0")

    def _of_path(self) -> str:
        """The GPU's node below the device tree's root.

        Below bus@0 since R36; until then at the top: `gpu@<address>` on Tegra X1, then the chip's name.
        """
        name, _, _ = self._data["devfreq"].partition(".")
        if self._data["of_node_name"] != "gpu":
            return str(self._data["of_node_name"])
        unit = f"gpu@{name}"
        return f"bus@0/{unit}" if "bus@0" in self._fixture.gpu_device else unit

    def _soc(self) -> None:
        soc0 = self._sys / "devices" / "soc0"
        for name, value in self._data["soc0"].items():
            _put(soc0 / name, f"{value}\n")
        _put(soc0 / "machine", self._data["dt_model"] + "\n")
        _put(soc0 / "revision", "A01\n")
        _link(self._sys / "bus" / "soc" / "devices" / "soc0", soc0)
        _link(soc0 / "subsystem", self._sys / "bus" / "soc")

    def _gpu_device(self) -> None:
        _put(self._gpu / "power" / "control", f"{'on' if self._state == 'dead' else 'auto'}\n")
        _put(self._gpu / "power" / "runtime_status", f"{self._runtime_status()}\n")
        if self._fixture.is_pci:
            self._pci_identity()
        else:
            self._platform_identity()

    def _runtime_status(self) -> str:
        if self._powered:
            return "active"
        if self._fixture.is_pci:
            return "active"  # runtime power management of Thor's GPU is off by default
        # A failed power-on shows as `error` on R32 and as `suspended` under control=on on later releases.
        return "error" if self._state == "dead" and self._fixture.l4t_major == _R32 else "suspended"

    def _platform_identity(self) -> None:
        of_path = self._of_path()
        compatible = self._data["of_compatible"]
        of_name = self._data["of_node_name"]
        _put(
            self._gpu / "uevent",
            f"DRIVER={self._data['driver']}\nOF_NAME={of_name}\nOF_FULLNAME=/{of_path}\n"
            f"OF_COMPATIBLE_0={compatible}\nOF_COMPATIBLE_N=1\nMODALIAS=of:N{of_name}T<NULL>C{compatible}\n",
        )
        # Dangles when masked, as in a container.
        _link(self._gpu / "of_node", self._sys / "firmware" / "devicetree" / "base" / of_path)
        is_r32 = self._fixture.l4t_major == _R32
        on, off = ("1", "0") if is_r32 else ("on", "off")
        states = {
            "tpc_pg_mask": self._data["tpc_pg_mask"],
            "gpu_powered_on": on if self._powered else off,
            "is_railgated": "no" if self._powered else "yes",
        }
        for name, value in (_NVGPU | states).items():
            _put(self._gpu / name, f"{value}\n")
        # Since R35, the former places of the device are links, too.
        above = self._gpu.parent
        _link(above / "gpu.0", self._gpu)
        if not is_r32:
            _link(above.parent / "gpu.0", self._gpu)
            _link(above.parent / self._gpu.name, self._gpu)

    def _pci_identity(self) -> None:
        # A device that fell off the bus answers every configuration read with ones.
        config = b"\xff" * 64 if self._state == "dead" else b"\xde\x10\x00\x2b".ljust(64, b"\0")
        (self._gpu / "config").write_bytes(config)
        _put(self._gpu / "device", "0x2b00\n")
        _put(self._gpu / "vendor", "0x10de\n")

    def _card(self, address: str, nodes: Sequence[str]) -> None:
        """A discrete GPU in a slot, with its devices of DRM."""
        domain = address.partition(":")[0]
        device = self._sys / f"devices/platform/bus@0/slot.pcie/pci{domain}:00/{domain}:00:00.0" / address
        for name, value in (("vendor", "0x10de"), ("device", "0x2bb1"), ("class", "0x030000")):
            _put(device / name, f"{value}\n")
        bus = self._sys / "bus/pci"
        _link(bus / "devices" / address, device)
        _link(device / "driver", bus / "drivers/nvidia")
        for name in (node.partition("/")[2] for node in nodes if node.startswith("dri/")):
            _put(device / "drm" / name / "uevent", f"DEVNAME=dri/{name}\n")
            _link(device / "drm" / name / "device", device)
            _link(self._sys / "class/drm" / name, device / "drm" / name)

    def _driver_bound(self) -> bool:
        """Only Thor's driver is a module that comes late: until then its GPU is `unpowered`."""
        return not (self._fixture.is_pci and self._state == "unpowered")

    def _gpu_driver(self) -> None:
        driver = self._bus / "drivers" / self._data["driver"]
        for attribute in ("bind", "unbind", "uevent"):
            _put(driver / attribute, "")
        module = self._sys / "module" / ("nvidia" if self._fixture.is_pci else "nvgpu")
        _put(module / "initstate", "live\n")
        _link(driver / "module", module)
        _link(self._gpu / "subsystem", self._bus)
        _link(self._bus / "devices" / self._gpu.name, self._gpu)
        if self._driver_bound():
            _link(self._gpu / "driver", driver)
            _link(driver / self._gpu.name, self._gpu)

    def _has_devfreq(self) -> bool:
        if self._data["devfreq_after_first_poweron"]:
            return self._powered
        return self._driver_bound()

    def _devfreq(self, name: str) -> None:
        low, high = self._data["devfreq_min"], self._data["devfreq_max"]
        directory = self._gpu / "devfreq" / name
        values = {
            "cur_freq": low,
            "target_freq": low,
            "min_freq": low,
            "max_freq": high,
            "available_frequencies": f"{low} {high}",
            "governor": "nvhost_podgov",
            "available_governors": "nvhost_podgov userspace performance simple_ondemand",
            "polling_interval": 25,
        }
        for key, value in values.items():
            _put(directory / key, f"{value}\n")
        _link(directory / "device", self._gpu)
        _link(directory / "subsystem", self._sys / "class" / "devfreq")
        _link(self._sys / "class" / "devfreq" / name, directory)
        if not self._fixture.is_pci:
            _link(self._gpu / "devfreq_dev", directory)

    def _thermal_zone(self, number: int, kind: str) -> None:
        zone = self._sys / "devices" / "virtual" / "thermal" / f"thermal_zone{number}"
        _put(zone / "type", f"{kind}\n")
        _put(zone / "mode", "enabled\n")
        _put(zone / "policy", "step_wise\n")
        is_gpu = kind.lower().startswith("gpu")
        offline = self._data["thermal_offline"]
        if not is_gpu or self._powered or offline == "n/a":
            _put(zone / "temp", f"{_PMIC_DIE if kind == 'PMIC-Die' else 48000 + 125 * number}\n")
        elif offline == "EAGAIN":
            (zone / "temp").mkdir()  # stands for EAGAIN: it opens, and reading it fails
        else:
            _put(zone / "temp", f"{_OFFLINE}\n")
        if is_gpu:
            for index, (trip, temp) in enumerate(
                zip(("passive", "critical"), _GPU_TRIPS[self._fixture.soc], strict=True)
            ):
                _put(zone / f"trip_point_{index}_type", f"{trip}\n")
                _put(zone / f"trip_point_{index}_temp", f"{temp}\n")
                _put(zone / f"trip_point_{index}_hyst", "0\n")
        _link(zone / "subsystem", self._sys / "class" / "thermal")
        _link(self._sys / "class" / "thermal" / zone.name, zone)

    def _present_nodes(self) -> tuple[str, ...]:
        nodes = self._fixture.nodes_always
        if self._powered:
            nodes += self._fixture.nodes_after_poweron
        if self._driver_bound():
            return nodes
        return tuple(name for name in nodes if not name.startswith("nvidia"))

    def _proc(self) -> None:
        proc = self._root / "proc"
        total = self._fixture.memory_bytes // 1024
        _put(
            proc / "meminfo",
            f"MemTotal:       {total:8d} kB\nMemFree:        {total // 2:8d} kB\n"
            f"MemAvailable:   {total * 3 // 4:8d} kB\nSwapTotal:      {0:8d} kB\nSwapFree:       {0:8d} kB\n",
        )
        if self._driver_bound():
            self._driver_answers(proc / "driver/nvidia")
        (proc / "device-tree").symlink_to("../sys/firmware/devicetree/base")

    def _driver_answers(self, driver: Path) -> None:
        """What the driver `nvidia` says of PCI devices: those of a Tegra's display are none (nv-procfs.c).

        L4T has the driver since R36.
        """
        if self._fixture.l4t_major < _R36:
            return
        minors = {address: card["minor"] for address, card in self._fixture.cards.items()}
        if self._fixture.is_pci:
            minors[self._gpu.name] = 0
        (driver / "gpus").mkdir(parents=True)
        for address, minor in minors.items():
            text = f"Model: \t\t NVIDIA\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            _put(driver / "gpus" / address / "information", text)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _link(link: Path, target: Path) -> None:
    """Link as sysfs does: relatively, up to a directory above the target, then down (fs/kernfs/symlink.c)."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path(os.path.relpath(target.parent, link.parent), target.name))


def _device_node(path: Path, nodes: Nodes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if nodes == "files":
        path.touch()
        return
    os.mknod(path, stat.S_IFCHR | 0o660, _NULL_DEVICE)
    path.chmod(0o660)
    os.chown(path, 0, _VIDEO_GID)
