# SPDX-License-Identifier: Apache-2.0
"""The board's integrated GPU: its place in sysfs, chip, device nodes, memory, power and state."""

import fnmatch
import math
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tegra_device_plugin.board import cards, catalogue
from tegra_device_plugin.board.identity import Board, Evidence, identify, nvgpu_devices
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.meminfo import memory_bytes

State = Literal["ready", "unpowered", "unsupported", "absent"]

_DEVFREQ = "/sys/class/devfreq"
_PLATFORM_DEVICES = "/sys/bus/platform/devices"
# The integrated PCI GPU (Thor) always has this address, a card in a slot never has
# (nvidia-container-toolkit).
_PCI_GPU = "/sys/bus/pci/devices/0000:01:00.0"
_NVIDIA_VENDOR = "0x10de"
# Where R34 and later put the user device nodes when the GPU is first switched on (nvgpu os/linux/ioctl.c).
_SWITCHED_ON_NODE = "/dev/nvgpu/igpu0/ctrl"
# The L4T line from which on nodes of the driver `nvidia` are the Tegra's.
_NUMBERED_SINCE = 36
# Where nvpmodel writes the mode's number. The name is in /etc/nvpmodel.conf, a file that some boards lack and
# that no pod can mount without failing or leaving one there.
POWER_MODE_DIRECTORY = "/var/lib/nvpmodel"
_POWER_MODE = f"{POWER_MODE_DIRECTORY}/status"
_MODE_NUMBER = re.compile(r"pmode:([0-9]{1,8})")
_MASK = re.compile(r"[0-9]{1,10}")
_MULTIPROCESSORS_PER_TPC = 2  # of Volta and Ampere


class Gpu(NamedTuple):
    """The integrated GPU as far as it was found. Paths are the host's.

    `unpowered`: the device exists but is not in use yet. It was never switched on since boot (its devfreq
    entry and, since R34, its user device nodes appear at that moment), switching it on failed, or its driver
    is not loaded. A later observation can differ. `unsupported`: the board's L4T release is older than those
    whose device nodes are known. `absent`: there is no such device.
    """

    chip: str | None
    compute_capability: str | None
    state: State
    sysfs: str | None
    device_nodes: tuple[str, ...]
    memory_bytes: int | None
    evidence: tuple[Evidence, ...]
    driver: str | None = None  # the driver that serves this kind of GPU, bound or not


class Power(NamedTuple):
    """The board's power mode; None is unknown."""

    mode: int | None = None
    multiprocessors: int | None = None
    """Multiprocessors that have power."""


def find_gpu(root: Path, board: Board) -> Gpu:
    """Find the integrated GPU of `board` in the host file system at `root`."""
    host = HostTree(root)
    if board.platform == "none":
        return _absent(Evidence("gpu", False, "not searched: this machine is not a Tegra"))
    places = list(_places(host, board))
    evidence = [place.evidence for place in places]
    place = next((place for place in places if place.device), None)
    if place is None or place.device is None:
        return _absent(*evidence)

    chip, chip_evidence = _chip(host, place.device, board.soc)
    state, state_evidence = _state(host, place.device, place.driver, board.l4t)
    known = catalogue.load().chips.get(chip or "")
    return Gpu(
        chip=chip,
        compute_capability=known.compute_capability if known else None,
        state=state,
        sysfs=place.device,
        device_nodes=_device_nodes(host, board.l4t, place.device),
        memory_bytes=memory_bytes(host),
        evidence=(*evidence, chip_evidence, state_evidence),
        driver=place.driver,
    )


def read_power(root: Path, gpu: Gpu) -> Power:
    """Read the board's power mode. Takes less than a millisecond."""
    host = HostTree(root)
    return Power(power_mode(host), _multiprocessors(host, gpu))


def power_mode(host: HostTree) -> int | None:
    """Give the mode's number as nvpmodel has stored it, None without one."""
    number = _MODE_NUMBER.match(host.text(_POWER_MODE) or "")
    return int(number[1]) if number else None


def missing_nodes(host: HostTree, driver: str, device: str | None) -> tuple[str, ...]:
    """Give the required device nodes (host paths) of the GPU at a path of sysfs that do not exist."""
    number = cards.minor(host, device) or 0
    alternatives = (
        [f"/dev/{name.format(minor=number)}" for name in names] for names in catalogue.load().drivers[driver]
    )
    missing = (tuple(path for path in paths if not host.is_node(path)) for paths in alternatives)
    return min(missing, key=len)


def bound_driver(host: HostTree, device: str) -> str | None:
    """Name of the driver that serves the device, None without one."""
    driver = host.link(f"{device}/driver")
    return posixpath.basename(driver) if driver else None


def devfreq(host: HostTree, device: str) -> str | None:
    """The GPU's devfreq directory; of Thor's several, gpu-gpc-0 (the compute clusters) sorts first."""
    names = host.names(f"{device}/devfreq")
    return f"{device}/devfreq/{names[0]}" if names else None


class _Place(NamedTuple):
    """A searched place: the device found there and the driver that serves GPUs there."""

    device: str | None
    driver: str
    evidence: Evidence


def _absent(*evidence: Evidence) -> Gpu:
    return Gpu(None, None, "absent", None, (), None, evidence)


def _places(host: HostTree, board: Board) -> Iterator[_Place]:
    """Search the places of this SoC's GPU, all places for an unknown SoC; the best source first."""
    soc = catalogue.load().socs.get(board.soc or "")
    if soc is None or soc.bus == "platform":
        yield from _platform_places(host)
    if soc is None or soc.bus == "pci":
        yield _pci_place(host)


def _platform_places(host: HostTree) -> Iterator[_Place]:
    scaled = (host.link(f"{_DEVFREQ}/{name}/device") for name in host.names(_DEVFREQ))
    # By name first: a board has some 300 platform devices.
    named = (name for name in host.names(_PLATFORM_DEVICES) if _chip_suffix(name) is not None)
    sources = {
        _DEVFREQ: (device for device in scaled if device and _is_gpu(host, device)),
        "driver gk20a": iter(nvgpu_devices(host)),
        _PLATFORM_DEVICES: (host.link(f"{_PLATFORM_DEVICES}/{name}") for name in named),
    }
    for source, devices in sources.items():
        device = next(devices, None)
        yield _Place(device, "gk20a", Evidence(source, device is not None, device or "no GPU there"))


def _pci_place(host: HostTree) -> _Place:
    device = host.link(_PCI_GPU)
    if device is None:
        return _Place(None, "nvidia", Evidence(_PCI_GPU, False, "no such PCI device"))
    vendor = host.text(f"{device}/vendor")
    if vendor != _NVIDIA_VENDOR:
        return _Place(
            None, "nvidia", Evidence(_PCI_GPU, False, f"vendor {vendor}, not {_NVIDIA_VENDOR} (NVIDIA)")
        )
    return _Place(device, "nvidia", Evidence(_PCI_GPU, True, device))


def _chip_suffix(name: str) -> str | None:
    """Give the end of a platform GPU's name: `gpu`, or the chip up to kernel 5.10; None if it is none."""
    suffix = name.rpartition(".")[2]
    nodes = {chip.node for chip in catalogue.load().chips.values()}
    return suffix if suffix == "gpu" or suffix in nodes else None


def _compatible(host: HostTree, device: str) -> tuple[str, ...]:
    """The device's `compatible`. Where /sys/firmware is hidden, of_node dangles but `uevent` still has it."""
    from_tree = host.strings(f"{device}/of_node/compatible")
    if from_tree:
        return from_tree
    lines = (host.text(f"{device}/uevent") or "").splitlines()
    pairs = (line.partition("=") for line in lines)
    return tuple(
        value for key, _, value in pairs if key.startswith("OF_COMPATIBLE_") and key != "OF_COMPATIBLE_N"
    )


def _is_gpu(host: HostTree, device: str) -> bool:
    known = {chip.compatible for chip in catalogue.load().chips.values()}
    return _chip_suffix(device) is not None or any(entry in known for entry in _compatible(host, device))


def _chip(host: HostTree, device: str, soc: str | None) -> tuple[str | None, Evidence]:
    """The GPU's chip: by its own `compatible`, else by its name, else by the SoC around it."""
    compatible = _compatible(host, device)
    suffix = _chip_suffix(device)
    soc_entry = catalogue.load().socs.get(soc or "")
    of_soc = soc_entry.chip if soc_entry else None
    by_source = {
        f"compatible {' '.join(compatible)}": _chip_with(lambda chip: chip.compatible in compatible),
        "its name": _chip_with(lambda chip: suffix is not None and chip.node == suffix),
        f"SoC {soc}": of_soc,
    }
    for source, chip in by_source.items():
        if chip:
            detail = f"{chip} by {source}"
            if of_soc and of_soc != chip:
                detail += f"; but SoC {soc} has {of_soc}"
            return chip, Evidence("gpu chip", True, detail)
    names = " ".join(compatible) or "unreadable"
    return None, Evidence("gpu chip", False, f"compatible {names}, SoC {soc}: unknown")


def _chip_with(fits: Callable[[catalogue.Chip], bool]) -> str | None:
    return next((name for name, chip in catalogue.load().chips.items() if fits(chip)), None)


def _state(host: HostTree, device: str, driver: str, l4t: str | None) -> tuple[State, Evidence]:
    if l4t and catalogue.version(l4t)[0] < (oldest := catalogue.oldest_line()):
        detail = f"L4T {l4t} is older than R{oldest}, the first line whose device nodes are known"
        return "unsupported", Evidence("gpu state", False, detail)
    bound = bound_driver(host, device)
    if bound != driver:
        return "unpowered", Evidence("gpu state", False, f"driver {bound or 'none'} instead of {driver}")
    if driver == "gk20a" and devfreq(host, device) is None and not host.is_node(_SWITCHED_ON_NODE):
        status = host.text(f"{device}/power/runtime_status")
        return "unpowered", Evidence(
            "gpu state",
            False,
            f"never switched on since boot, or switching it on failed (runtime_status {status})",
        )
    missing = missing_nodes(host, driver, device)
    if missing:
        return "unpowered", Evidence("gpu state", False, f"no {' '.join(missing)}")
    return "ready", Evidence("gpu state", True, f"driver {driver}, device nodes are there")


def _device_nodes(host: HostTree, l4t: str | None, device: str) -> tuple[str, ...]:
    """The device nodes (host paths) that a container gets; of an unknown L4T release those of all."""
    line = catalogue.version(l4t)[0] if l4t else math.inf
    by_directory: dict[str, list[str]] = {}
    for since, patterns in catalogue.load().nodes.items():
        if int(since) <= line:
            for directory, name in map(posixpath.split, patterns):
                by_directory.setdefault(posixpath.join("/dev", directory), []).append(name)
    nodes = (
        f"{directory.rstrip('/')}/{name}"
        for directory, patterns in by_directory.items()
        for name in host.names(directory)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    )
    of_driver = cards.find_nodes(host, device)
    own = of_driver.own if line >= _NUMBERED_SINCE else ()
    return tuple(sorted(path for path in {*nodes, *own} - of_driver.others if host.is_node(path)))


def _multiprocessors(host: HostTree, gpu: Gpu) -> int | None:
    """Give the number of multiprocessors that have power, None if unknown.

    tpc_pg_mask has a bit for each TPC of the chip that is off, also for TPCs that the module lacks
    (nvpmodel's configurations: 240 on an Orin NX, which has 4 of 8). Reading it does not wake the GPU.
    """
    chip = catalogue.load().chips.get(gpu.chip or "")
    if gpu.sysfs is None or chip is None or chip.tpcs is None:
        return None
    mask = host.text(f"{gpu.sysfs}/tpc_pg_mask")
    if mask is None or not _MASK.fullmatch(mask):
        return None
    off = (int(mask) & ((1 << chip.tpcs) - 1)).bit_count()
    return (chip.tpcs - off) * _MULTIPROCESSORS_PER_TPC or None


class Detection(NamedTuple):
    board: Board
    gpu: Gpu
    power: Power = Power()
    """Unknown by default: a separate read (`with_power`)."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (*self.board.evidence, *self.gpu.evidence)

    def as_dict(self) -> dict[str, Any]:
        board, gpu = self.board, self.gpu
        return {
            "platform": board.platform,
            "soc": board.soc,
            "l4t": board.l4t,
            "jetpack": board.jetpack,
            "module": board.module,
            "model": board.model,
            "gpu": {
                "chip": gpu.chip,
                "compute_capability": gpu.compute_capability,
                "state": gpu.state,
                "sysfs": gpu.sysfs,
                "device_nodes": list(gpu.device_nodes),
                "memory_bytes": gpu.memory_bytes,
            },
            "evidence": [entry._asdict() for entry in self.evidence],
        }


def with_power(root: Path, found: Detection) -> Detection:
    """Give the detection with the board's present power mode."""
    return found._replace(power=read_power(root, found.gpu))


def detect(root: Path) -> Detection:
    """Identify the board below the host root `root` and find its GPU."""
    board = identify(root)
    return Detection(board, find_gpu(root, board))
