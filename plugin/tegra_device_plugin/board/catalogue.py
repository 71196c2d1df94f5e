# SPDX-License-Identifier: Apache-2.0
"""The typed tables of catalogue.json, and lookups with an approximate result for missing entries.

The tables have the facts that cannot be read from a board. A new board or release is added there, not in
code.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple


class Soc(NamedTuple):
    soc_id: int
    """/sys/devices/soc0/soc_id. Kernel fuse-tegra.c: tegra210 0x21, tegra186 0x18, tegra194 0x19, tegra234
    0x23; tegra264's 0x26 is inferred."""
    chip: str
    """A key of `chips`."""
    bus: Literal["platform", "pci"]
    """Where the integrated GPU is."""


class Chip(NamedTuple):
    """An integrated GPU's chip.

    It has no multiprocessor count: the power mode switches some `tpcs` off.
    """

    compute_capability: str
    product: str
    """The name CUDA gives it."""
    family: str
    """NVIDIA's architecture."""
    compatible: str | None = None
    """Of the GPU's device tree node."""
    node: str | None = None
    """The device tree node's name on kernels up to 5.10. Since 5.15, and on tegra210, it is `gpu`."""
    tpcs: int | None = None
    """Texture processing clusters of the chip, with two multiprocessors each."""


class Catalogue(NamedTuple):
    """All tables. The keys of those by L4T release are releases in full, such as `36.4.0`."""

    socs: Mapping[str, Soc]
    chips: Mapping[str, Chip]
    drivers: Mapping[str, Sequence[Sequence[str]]]
    """Alternatives of device nodes below /dev: without all nodes of at least one, nothing can run. nvgpu's
    platform driver is called gk20a on every release; `nvidia` is Thor's, which gives its device a minor."""
    nodes: Mapping[str, Sequence[str]]
    """Device nodes below /dev that a container gets where they exist, as patterns of fnmatch, by the L4T line
    from which on they are the GPU's: all `dev` entries of NVIDIA's lists (l4t.csv, since R36 devices.csv, in
    host-files-for-container.d) and the other nodes of nvgpu. Before R36, nvidia0 and nvidia-modeset are nodes
    of a display or of a discrete GPU; so is nvidia1 before R38. From R36 on, the driver's answers about
    nvidia0, nvidia1 and further ones have priority (cards.py)."""
    modules: Mapping[str, str]
    """By the device tree's `compatible`: module numbers without revision, or names in older device trees."""
    jetpack: Mapping[str, str]
    """By L4T release (NVIDIA's release notes), the oldest first. The roles' list is a copy of it."""
    gpu_memory_cgroup_charged: Mapping[str, str]
    """Whether a container's memory limit counts its GPU memory, by L4T release: does nvmap
    allocate pages with __GFP_ACCOUNT? From its sources: no in R32, R35.3.1 and R36.2 to R36.4.3; yes in one
    of 2025; the first such release is unknown."""
    cuda: Mapping[str, str]
    """CUDA version of an L4T release's driver."""


@functools.cache
def load() -> Catalogue:
    tables = json.loads(Path(__file__).with_name("catalogue.json").read_bytes())
    return Catalogue(
        **tables
        | {
            "socs": {name: Soc(**entry) for name, entry in tables["socs"].items()},
            "chips": {name: Chip(**entry) for name, entry in tables["chips"].items()},
        }
    )


def version(release: str) -> tuple[int, int, int]:
    """`36.4.3` as numbers; missing parts are 0 (`32.5` is 32.5.0), a fourth and later ones are ignored."""
    numbers = [int(part) for part in release.split(".")[:3]]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


def oldest_line() -> int:
    """Give the first L4T line whose device nodes are known."""
    return min(map(int, load().nodes))


def nearest(table: Mapping[str, str], release: str) -> str | None:
    """The table's key for an L4T release: itself, or the latest earlier one of the same line (R36)."""
    wanted = version(release)
    earlier = [key for key in table if version(key)[0] == wanted[0] and version(key) <= wanted]
    return max(earlier, key=version, default=None)


def jetpack(release: str) -> tuple[str, str] | None:
    """JetPack of an L4T release and the listed release with that JetPack; None if its line has no earlier
    release.

    A release that is not listed gets the certain part of the nearest earlier JetPack, such as 6.2.2: `6.2`
    when only the patch differs, else `6`.
    """
    table = load().jetpack
    key = nearest(table, release)
    if key is None:
        return None
    known, wanted = version(key), version(release)
    if known == wanted:
        return table[key], key
    certain = 2 if known[:2] == wanted[:2] else 1
    return ".".join(table[key].split()[0].split(".")[:certain]), key
