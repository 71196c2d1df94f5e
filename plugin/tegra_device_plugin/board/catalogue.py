# SPDX-License-Identifier: Apache-2.0
"""The tables of catalogue.yaml, typed, and the look-ups that degrade for what the tables do not have."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from tegra_device_plugin.system.yamlloader import Loader


@dataclass(frozen=True)
class Soc:
    """A system on chip."""

    soc_id: int
    chip: str
    bus: Literal["platform", "pci"]


@dataclass(frozen=True)
class Chip:
    """An integrated GPU's chip."""

    compute_capability: str
    product: str
    family: str
    compatible: str | None = None
    node: str | None = None
    tpcs: int | None = None


@dataclass(frozen=True)
class Driver:
    """A GPU driver's device nodes, as patterns and names below /dev."""

    nodes: tuple[str, ...]
    required: tuple[tuple[str, ...], ...]
    nodes_from_r36: tuple[str, ...] = ()


@dataclass(frozen=True)
class Catalogue:
    """All tables; see catalogue.yaml for what the keys are."""

    socs: Mapping[str, Soc]
    chips: Mapping[str, Chip]
    drivers: Mapping[str, Driver]
    modules: Mapping[str, str]
    jetpack: Mapping[str, str]
    cuda: Mapping[str, str]
    gpu_memory_cgroup_charged: Mapping[str, str]


@functools.cache
def load() -> Catalogue:
    """The catalogue that the package ships."""
    text = Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8")
    tables = yaml.load(text, Loader=Loader)  # noqa: S506 - both loaders it can be are safe ones
    return Catalogue(
        socs={name: Soc(**entry) for name, entry in tables["socs"].items()},
        chips={name: Chip(**entry) for name, entry in tables["chips"].items()},
        drivers={
            name: Driver(
                nodes=tuple(entry["nodes"]),
                required=tuple(tuple(names) for names in entry["required"]),
                nodes_from_r36=tuple(entry.get("nodes_from_r36", ())),
            )
            for name, entry in tables["drivers"].items()
        },
        modules=tables["modules"],
        jetpack=tables["jetpack"],
        cuda=tables["cuda"],
        gpu_memory_cgroup_charged=tables["gpu_memory_cgroup_charged"],
    )


def version(release: str) -> tuple[int, int, int]:
    """`36.4.3` as numbers; missing parts are 0 (`32.5` is 32.5.0), a fourth and later ones are ignored."""
    numbers = [int(part) for part in release.split(".")[:3]]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


def nearest(table: Mapping[str, str], release: str) -> str | None:
    """The table's key for an L4T release: itself, or the latest earlier one of the same line (R36)."""
    wanted = version(release)
    earlier = [key for key in table if version(key)[0] == wanted[0] and version(key) <= wanted]
    return max(earlier, key=version, default=None)


def jetpack(release: str) -> tuple[str, str] | None:
    """JetPack of an L4T release and the listed release that says so; None when its line has none earlier.

    A release that is not listed gets what is certain of the nearest earlier one's JetPack 6.2.2: `6.2` when
    only the patch differs, else `6`.
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
