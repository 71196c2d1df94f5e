# SPDX-License-Identifier: Apache-2.0
"""A board of boards.json from a snapshot of a real one, so that each test of every board runs on it, too."""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tegra_device_plugin.board import cards
from tegra_device_plugin.board.detection import Detection, detect, read_power
from tegra_device_plugin.board.labels import node_labels
from tegra_device_plugin.snapshot import snapshot_archive
from tegra_device_plugin.snapshot.snapshot_archive import Snapshot
from tegra_device_plugin.system.hosttree import HostTree

from tests.boards import fixture, tree
from tests.boards.fixture import Fixture

Facts = dict[str, Any]

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
# Of the module: that of the carrier board comes before the plus.
_PART_NUMBERS = (re.compile(r"\+(p[0-9]{4}-[0-9]{4})"), re.compile(r",(p[0-9]{4}-[0-9]{4})"))
_DEVICE_TREES = ("/sys/firmware/devicetree/base", "/proc/device-tree")
_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=[0-9]+\s+NAME=(\S+)\s*>")
_DEFAULT_MODE = re.compile(r"<\s*PM_CONFIG\s+DEFAULT=([0-9]+)")
_MEM_TOTAL = re.compile(r"MemTotal:\s+([0-9]+) kB")
_WIDTH = 140


class UnfitError(Exception):
    """The snapshot makes no board of the tests; the message says why."""


def add(archive: Path, name: str, like: str = "", data: Path | None = None) -> str:
    """Put the board of a snapshot into boards.json by this id. Gives its entry's text. Raises UnfitError.

    Facts that no snapshot has, such as a sleeping GPU's nodes, are those of the board that it is `like`.
    """
    data = data or fixture.DATA
    known = fixture.load(data)
    if not _ID.fullmatch(name) or name in known:
        raise UnfitError(f"{name}: give it a new id as the others have one, such as orinnx8-jp6")
    try:
        snapshot = snapshot_archive.load(str(archive))
    except snapshot_archive.ArchiveError as error:
        raise UnfitError(f"{archive}: {error}") from error
    with TemporaryDirectory() as directory:
        root, rebuilt = Path(directory, "captured"), Path(directory, "rebuilt")
        root.mkdir()
        snapshot_archive.unpack(snapshot, str(root))
        found = detect(root)
        base = _base(known, like, found)
        entry = _entry(snapshot, root, found, base)
        try:
            tree.build(Fixture(name, {**base.data, **entry}), rebuilt, state=_state(found))
        except KeyError as error:
            raise UnfitError(
                f"tests/boards/fixture.py or userland.py has nothing about {error}: add it"
            ) from error
        _compare(found, detect(rebuilt))
    changed = {key: value for key, value in entry.items() if base.data.get(key) != value}
    text = _text({"id": name, "like": base.id, **changed})
    before = data.read_text(encoding="utf-8")
    end = "\n ]\n}\n"
    data.write_text(f"{before.removesuffix(end)},\n{text}{end}", encoding="utf-8")
    return text


def _state(found: Detection) -> tree.State:
    return "ready" if found.gpu.state == "ready" else "unpowered"


def _base(known: Mapping[str, Fixture], like: str, found: Detection) -> Fixture:
    """The board that the new one is like: of the same SoC, and of the nearest L4T release."""
    if found.gpu.sysfs is None:
        raise UnfitError("the snapshot has no Tegra GPU: tegra-device-plugin detect --from says what it has")
    if like:
        if like not in known:
            raise UnfitError(f"--like: there is no board {like}")
        return known[like]
    same = [one for one in known.values() if one.soc == found.board.soc]
    if not same:
        raise UnfitError(f"no board has the SoC {found.board.soc}: name the nearest one with --like")
    line = int((found.board.l4t or "0").partition(".")[0])
    return min(
        same,
        key=lambda one: (abs(one.l4t_major - line), one.reported_module != found.board.module),
    )


def _entry(snapshot: Snapshot, root: Path, found: Detection, base: Fixture) -> Facts:
    """What the snapshot says, under the names of boards.json."""
    host, board, gpu = HostTree(root), found.board, found.gpu
    device = gpu.sysfs or ""
    compatible = next((one for at in _DEVICE_TREES if (one := host.strings(f"{at}/compatible"))), ())
    parts = (form.search(one) for form in _PART_NUMBERS for one in compatible)
    part = next((match[1] for match in parts if match), None)
    scaling = host.names(f"{device}/devfreq")
    first = f"{device}/devfreq/{scaling[0]}" if scaling else None
    memory = _MEM_TOTAL.search(host.text("/proc/meminfo") or "")
    modes = (snapshot.contents.get("tree/etc/nvpmodel.conf") or b"").decode("utf-8", "replace")
    default = _DEFAULT_MODE.search(modes)
    mask = host.text(f"{device}/tpc_pg_mask")
    facts: Facts = {
        "module": board.module,
        "reported_module": board.module,
        "l4t": board.l4t,
        "jetpack": board.jetpack,
        "soc": board.soc,
        "soc0": {
            name: value for name in ("family", "soc_id") if (value := host.text(f"/sys/devices/soc0/{name}"))
        },
        "p_number": part,
        "dt_model": board.model,
        "dt_compatible": list(compatible),
        "gpu_device": device.removeprefix("/sys/"),
        "of_compatible": next(iter(host.strings(f"{device}/of_node/compatible")), None),
        "driver": gpu.driver,
        "devfreq": scaling[0] if scaling else None,
        "devfreq_extra": scaling[1:] or None,
        "devfreq_min": _number(host, first, "min_freq"),
        "devfreq_max": _number(host, first, "max_freq"),
        "thermal": _zones(host) or None,
        "cc": gpu.compute_capability,
        "tpc_pg_mask": int(mask) if mask and mask.isdigit() else None,
        "sm": read_power(root, gpu).multiprocessors,
        "mem_total_kb": int(memory[1]) if memory else None,
        "devicequery_mb": int(memory[1]) // 1024 if memory else None,
        "nv_tegra_release": (snapshot.contents.get("tree/etc/nv_tegra_release") or b"").decode(),
        "nvpmodel": _MODE.findall(modes) or None,
        "nvpmodel_default": int(default[1]) if default else None,
        "cards": _cards(host, device),
        **_nodes(snapshot, found, base),
    }
    if board.module == base.reported_module:
        facts["module"] = base.module
    if facts["mem_total_kb"] == base.memory_bytes // 1024:
        del facts["mem_total_kb"]
    made = time.strftime("%Y-%m-%d", time.gmtime(snapshot.manifest["created"]))
    simulated = any(one["path"] == "/var/lib/simulated-tegra" for one in snapshot.manifest["tree"])
    kept = {key: value for key, value in facts.items() if value not in (None, {}, "")}
    told = "SIMULATED" if simulated else "F"
    return {**kept, "confidence": f"{told}: snapshot of {made}; what it lacks is that of {base.id}"}


def _cards(host: HostTree, device: str) -> Facts:
    """Discrete GPUs by PCI address, if the driver tells their minors."""
    drm = {
        name: posixpath.basename(host.link(f"/sys/class/drm/{name}/device") or "")
        for name in host.names("/sys/class/drm")
    }
    found = {}
    for address in host.names("/proc/driver/nvidia/gpus"):
        number = cards.minor(host, address)
        if number is not None and address != posixpath.basename(device):
            own = [f"dri/{name}" for name, place in drm.items() if place == address]
            found[address] = {"minor": number, "nodes": [f"nvidia{number}", *own]}
    return found


def _number(host: HostTree, directory: str | None, name: str) -> int | None:
    text = host.text(f"{directory}/{name}") if directory else None
    return int(text) if text and text.isdigit() else None


def _zones(host: HostTree) -> list[str]:
    places = [one for one in host.names("/sys/class/thermal") if one.startswith("thermal_zone")]
    places.sort(key=lambda one: int(one.removeprefix("thermal_zone") or 0))
    return [host.text(f"/sys/class/thermal/{one}/type") or "" for one in places]


def _nodes(snapshot: Snapshot, found: Detection, base: Fixture) -> Facts:
    """Device nodes. Those that come with the first power-on are those of the other board."""
    if found.gpu.state != "ready":
        return {}
    there = sorted(
        entry["path"].removeprefix("/dev/")
        for entry in snapshot.manifest["tree"]
        if posixpath.dirname(entry["path"]).startswith("/dev") and entry["type"] in ("char", "file")
    )
    late = [name for name in base.nodes_after_poweron if name in there]
    always = [name for name in base.nodes_always if name in there]
    always += [name for name in there if name not in {*late, *always}]
    return {"dev_nodes_always": always, "dev_nodes_after_first_poweron": late}


def _compare(captured: Detection, rebuilt: Detection) -> None:
    """UnfitError unless the plugin says the same of the board as the tests make it."""
    ways = (
        lambda one: {key: value for key, value in one.as_dict().items() if key != "evidence"},
        node_labels,
    )
    for way in ways:
        first, second = way(captured), way(rebuilt)
        differing = [
            f"{key}: {first.get(key)!r}, and {second.get(key)!r} of the board as the tests make it"
            for key in {**first, **second}
            if first.get(key) != second.get(key)
        ]
        if differing:
            raise UnfitError(
                "tests/boards/tree.py cannot make this board yet: "
                + "; ".join(differing)
                + ". Extend it first."
            )


def _text(entry: Facts) -> str:
    """The entry as the file has the others: a line for each fact, long lists in several lines."""
    lines = []
    for key, value in entry.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and len(text) > _WIDTH - 20:
            text = "[\n" + _wrapped([json.dumps(one, ensure_ascii=False) for one in value]) + "\n   ]"
        lines.append(f'   "{key}": {text}')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _wrapped(words: list[str]) -> str:
    lines = [""]
    for number, word in enumerate(words, 1):
        piece = word + ("," if number < len(words) else "")
        if len(lines[-1]) + len(piece) + 5 > _WIDTH:
            lines.append("")
        lines[-1] += f" {piece}" if lines[-1] else piece
    return "\n".join(f"    {line}" for line in lines)
