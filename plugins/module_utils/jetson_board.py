# SPDX-License-Identifier: Apache-2.0
"""A board's identity, memory and disk, from its files.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re
import shutil
from typing import Any, Dict, Iterable, Optional

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_releases import JETPACK

L4T_LINE = re.compile(r"^# R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
SOC = re.compile(r"^nvidia,(tegra\d+)$")  # not "tegra23x", which JetPack 5 lists after tegra234
PART_NUMBER = re.compile(r"\+(p\d{4}-\d{4})")
DEVICE_TREE = ("sys/firmware/devicetree/base", "proc/device-tree")
# The PCI address of Thor's GPU, which no card in a slot has (nvidia-container-toolkit, isIntegratedGPU).
THOR_GPU = "0000:01:00.0"
SIMULATED = "var/lib/simulated-tegra"
FACT_FILE_BYTES = 1 << 20  # more than any file read here; limits our use of memory


def read(root: str, path: str, limit: int = FACT_FILE_BYTES) -> Optional[str]:
    """Text of a file below root without trailing NULs and newlines, None if it cannot be read."""
    try:
        with open(os.path.join(root, path), "rb") as handle:
            return handle.read(limit).decode("utf-8", "replace").rstrip("\0\n")
    except OSError:
        return None


def first(values: Iterable[Optional[str]]) -> Optional[str]:
    """The first value that is not None, else None."""
    return next((value for value in values if value is not None), None)


def parse_version(pattern: str, text: Optional[str]) -> Optional[str]:
    """First group of the pattern in the text, None without a match."""
    match = re.search(pattern, text or "")
    return match.group(1) if match else None


def l4t_release(release_text: Optional[str]) -> Optional[str]:
    """L4T release such as 36.4.3 from the text of /etc/nv_tegra_release, None if it names none."""
    match = L4T_LINE.match(release_text or "")
    return "{}.{}".format(*match.groups()) if match else None


def jetpack_release(l4t: str) -> Optional[str]:
    """JetPack of an L4T release, None when its line has no earlier one.

    A release that is not listed gets a part of the nearest earlier one's version. Of 6.2.2: `6.2` if only the
    patch differs, else `6`. The device plugin has the same rule (its board/catalogue.py).
    """
    wanted = tuple([int(part) for part in l4t.split(".")] + [0, 0])[:3]
    earlier = [release for release in JETPACK if release[0] == wanted[0] and release <= wanted]
    if not earlier:
        return None
    nearest = max(earlier)
    if nearest == wanted:
        return JETPACK[nearest]
    certain = 2 if nearest[:2] == wanted[:2] else 1
    return ".".join(JETPACK[nearest].split()[0].split(".")[:certain])


def board_identity(root: str) -> Dict[str, Optional[str]]:
    """The board's platform ('tegra' or 'none'), SoC, module, model, L4T and JetPack.

    The release file says nothing about the hardware: L4T's container images have it on any machine.
    """
    compatible = first(read(root, tree + "/compatible") for tree in DEVICE_TREE) or ""
    socs = [match.group(1) for match in map(SOC.match, compatible.split("\0")) if match]
    modules = sorted(set(PART_NUMBER.findall(compatible)))
    family = read(root, "sys/devices/soc0/family") or ""
    l4t = l4t_release(read(root, "etc/nv_tegra_release"))
    is_tegra = bool(socs) or family.lower().startswith("tegra")
    return {
        "platform": "tegra" if is_tegra else "none",
        "soc": socs[0] if socs else None,
        # Some JetPack 5 trees list several modules: then the module is unknown.
        "module": modules[0] if len(modules) == 1 else None,
        "model": first(read(root, tree + "/model") for tree in DEVICE_TREE),
        "l4t": l4t,
        "jetpack": jetpack_release(l4t) if l4t else None,
    }


def simulated(root: str) -> bool:
    """Whether it is a virtual board of the tests (tests/lab), whose GPU is simulated by these files."""
    return os.path.isdir(os.path.join(root, SIMULATED))


def memory_bytes(root: str) -> Optional[int]:
    """MemTotal of /proc/meminfo in bytes."""
    kib = parse_version(r"MemTotal:\s+(\d+) kB", read(root, "proc/meminfo"))
    return int(kib) * 1024 if kib else None


def swap_bytes(root: str) -> int:
    """Bytes of swap; JetPack's zram is swap, too."""
    return sum(int(line.split()[2]) * 1024 for line in (read(root, "proc/swaps") or "").splitlines()[1:])


def disk(path: str) -> Dict[str, Any]:
    """The file system below path, or below its nearest parent that exists: which one, its type and its bytes.

    Free bytes are those that the kubelet counts as available, without those reserved for root.
    """
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    usage = shutil.disk_usage(there)
    return {
        "path": path,
        "filesystem": os.stat(there).st_dev,
        "type": filesystem_type("/", os.path.realpath(there)),
        "read_only": bool(os.statvfs(there).f_flag & os.ST_RDONLY),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
    }


def filesystem_type(root: str, path: str) -> Optional[str]:
    """The type of the file system that is mounted at or above path, such as `ext4`; null if unknown."""
    mounts = [line.split() for line in (read(root, "proc/mounts") or "").splitlines()]
    above = [
        (mount[1], mount[2]) for mount in mounts if mount[1] == "/" or (path + "/").startswith(mount[1] + "/")
    ]
    # The longest mount point, and of several mounts on it the last one.
    return max(enumerate(above), key=lambda one: (len(one[1][0]), one[0]))[1][1] if above else None


def power_mode(text: str) -> Dict[str, Any]:
    """Number and name of the power mode from `nvpmodel -q`; null where there is no nvpmodel."""
    match = re.search(r"^NV Power Mode: *(\S+)\s+(\d+)\s*$", text, re.MULTILINE)
    return {"id": int(match.group(2)), "name": match.group(1)} if match else {"id": None, "name": None}


def mig_instances(root: str) -> int:
    """How many instances MIG has divided the Tegra's GPU into; 0 without MIG. Those of a card do not count.

    The directory of a GPU has the minor that the driver has given it; cards are GPUs at other addresses.
    """
    answers = glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information"))
    cards = [path for path in answers if os.path.basename(os.path.dirname(path)) != THOR_GPU]
    minors = [parse_version(r"(?m)^Device Minor:\s+(\d+)$", read(root, path)) for path in cards]
    instances = glob.glob(os.path.join(root, "proc/driver/nvidia/capabilities/gpu*/mig/gi*"))
    return sum(path.split("/")[-3] not in ["gpu{}".format(minor) for minor in minors] for path in instances)
