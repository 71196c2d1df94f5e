# SPDX-License-Identifier: Apache-2.0
"""Which board is this: SoC, module, L4T, JetPack, with the evidence for each answer."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.system.hosttree import HostTree

# The second is the older name of the first; a container may have one of the two.
_DEVICE_TREES = ("/sys/firmware/devicetree/base", "/proc/device-tree")
_SOC0 = "/sys/devices/soc0"
_RELEASE_FILE = "/etc/nv_tegra_release"
_NVGPU_DRIVER = "/sys/bus/platform/drivers/gk20a"

# The chip stands anywhere in the list: JetPack 5 ends it with the family's `nvidia,tegra23x`.
_SOC_COMPATIBLE = re.compile(r"nvidia,(tegra[0-9]{3})")
_SOC_FAMILY = re.compile(r"tegra[0-9]{3}")
_RELEASE_LINE = re.compile(r"# R([0-9]{1,4}) \(release\), REVISION: ([0-9]{1,4}(?:\.[0-9]{1,4})*)")
# A module or carrier number at the start of `p3767-0005-super` or `p3448-0000-b00`.
_PART_NUMBER = re.compile(r"[ep][0-9]{4}-[0-9]{4}")


class Evidence(NamedTuple):
    """A searched place, and its content."""

    source: str
    found: bool
    detail: str


class Board(NamedTuple):
    """A machine as far as it could be identified; `platform` is `none` when it is not a Tegra."""

    platform: Literal["tegra", "none"]
    soc: str | None
    l4t: str | None
    jetpack: str | None
    module: str | None
    model: str | None
    evidence: tuple[Evidence, ...]
    part_numbers: tuple[str, ...] = ()
    """Numbers of modules and carriers in the device tree's `compatible`, such as `p3767-0005`."""


def identify(root: Path) -> Board:
    """Identify the board whose host file system is seen at `root`.

    The device tree decides. Where it is hidden (a container's /sys/firmware is), soc0 does, and the GPU's
    driver still shows that this is a Tegra. The release file has the L4T release and no hardware facts:
    L4T container images have this file, too.
    """
    host = HostTree(root)
    compatible, tree = _compatible(host)
    family, soc0 = _soc0(host)
    nvgpu = bool(nvgpu_devices(host))
    l4t, release = _l4t(host)

    soc = _soc_from_compatible(compatible) or family.soc
    is_tegra = (
        soc is not None or family.is_tegra or nvgpu or any("nvidia,tegra" in entry for entry in compatible)
    )
    module = _module(compatible)
    jetpack, jetpack_evidence = _jetpack(l4t)
    return Board(
        platform="tegra" if is_tegra else "none",
        soc=soc,
        l4t=l4t,
        jetpack=jetpack,
        module=module if is_tegra else None,
        model=_model(host),
        evidence=(
            tree,
            soc0,
            Evidence(_NVGPU_DRIVER, nvgpu, "bound to a device" if nvgpu else "no device is bound to it"),
            release,
            *jetpack_evidence,
        ),
        part_numbers=tuple(_part_numbers(_names(compatible))),
    )


def nvgpu_devices(host: HostTree) -> list[str]:
    """Host paths of the devices that nvgpu's platform driver has bound; there before the first power-on."""
    entries = [host.link(f"{_NVGPU_DRIVER}/{name}") for name in host.names(_NVGPU_DRIVER)]
    # A driver's directory also has attributes (bind, unbind) and a link to its module.
    return [entry for entry in entries if entry and entry.startswith("/sys/devices/")]


class _Family(NamedTuple):
    is_tegra: bool = False
    soc: str | None = None


def _compatible(host: HostTree) -> tuple[tuple[str, ...], Evidence]:
    for tree in _DEVICE_TREES:
        path = f"{tree}/compatible"
        entries = host.strings(path)
        if entries:
            return entries, Evidence(path, True, " ".join(entries))
    return (), Evidence(
        f"{_DEVICE_TREES[0]}/compatible", False, "no device tree, or hidden from this container"
    )


def _soc_from_compatible(compatible: Sequence[str]) -> str | None:
    matches = (_SOC_COMPATIBLE.fullmatch(entry) for entry in compatible)
    return next((match[1] for match in matches if match), None)


def _soc0(host: HostTree) -> tuple[_Family, Evidence]:
    text = host.text(f"{_SOC0}/family")
    if text is None:
        return _Family(), Evidence(_SOC0, False, "not there, or /sys is not the host's")
    family, soc_id = text.lower(), host.text(f"{_SOC0}/soc_id")
    detail = f"family {text}, soc_id {soc_id or 'not given'}"
    if not family.startswith("tegra"):  # `tegra186` on old kernels, `Tegra` on newer kernels
        return _Family(), Evidence(_SOC0, False, f"{detail}: not a Tegra")
    by_id = {str(entry.soc_id): name for name, entry in catalogue.load().socs.items()}
    soc = family if _SOC_FAMILY.fullmatch(family) else by_id.get(soc_id or "")
    return _Family(True, soc), Evidence(_SOC0, True, f"{detail}: {soc or 'a chip not in the catalogue'}")


def _module(compatible: Sequence[str]) -> str | None:
    """The module's name; its bare number when the catalogue does not have it.

    A developer kit's device tree lists `carrier+module` numbers, sometimes of several modules it fits (they
    differ in nothing that counts here): the first that is known wins, numbers before names.
    """
    modules = catalogue.load().modules
    entries = _names(compatible)
    known = next((modules[key] for key in (*_part_numbers(entries), *entries) if key in modules), None)
    if known:
        return known
    plugged = [entry.partition("+")[2] for entry in entries if "+" in entry]
    return next((match[0] for part in plugged if (match := _PART_NUMBER.match(part))), None)


def _names(compatible: Sequence[str]) -> list[str]:
    return [entry.removeprefix("nvidia,") for entry in compatible]


def _part_numbers(entries: Sequence[str]) -> list[str]:
    parts = (_PART_NUMBER.match(part) for entry in entries for part in entry.split("+"))
    return [match[0] for match in parts if match]


def _l4t(host: HostTree) -> tuple[str | None, Evidence]:
    text = host.text(_RELEASE_FILE)
    if text is None:
        return None, Evidence(_RELEASE_FILE, False, "not there: the L4T release stays unknown")
    line = text.partition("\n")[0]
    match = _RELEASE_LINE.match(line)
    if match is None:
        return None, Evidence(_RELEASE_FILE, False, f"not a release line: {line[:80]!r}")
    release = f"{match[1]}.{match[2]}"
    return release, Evidence(_RELEASE_FILE, True, release)


def _jetpack(l4t: str | None) -> tuple[str | None, tuple[Evidence, ...]]:
    if l4t is None:
        return None, ()
    found = catalogue.jetpack(l4t)
    if found is None:
        return None, (Evidence("catalogue: jetpack", False, f"no release of the line of L4T {l4t}"),)
    jetpack, release = found
    detail = f"L4T {l4t} is JetPack {jetpack}"
    if catalogue.version(release) != catalogue.version(l4t):
        detail += f", after the nearest one, {release}"
    return jetpack, (Evidence("catalogue: jetpack", True, detail),)


def _model(host: HostTree) -> str | None:
    """The device tree's `model`, which soc0 repeats as `machine`: free text of the carrier's maker."""
    sources = (*(f"{tree}/model" for tree in _DEVICE_TREES), f"{_SOC0}/machine")
    return next(filter(None, map(host.text, sources)), None)
