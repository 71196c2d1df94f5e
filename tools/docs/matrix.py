# SPDX-License-Identifier: Apache-2.0
"""What works with what, by JetPack: preflight's own rules, asked about each release that boards may have."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import yaml
from tegra_device_plugin.board import catalogue

from tools.cache import CHECKOUT

sys.path.append(str(CHECKOUT / ".collections"))  # The checkout, as the collection that it is.
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, preflight_rules

Rule = dict[str, Any]

RULES = CHECKOUT / "roles/preflight/vars/main/compatibility.yml"
BOARDS = CHECKOUT / "tests/boards/boards.json"
# Boards by system on chip, in the order of their age.
FAMILIES = {
    "tegra210": "Nano, TX1",
    "tegra186": "TX2",
    "tegra194": "Xavier",
    "tegra234": "Orin",
    "tegra264": "Thor",
}
# Python and cgroup version of each Ubuntu as it is installed: https://packages.ubuntu.com/python3, and the
# default-hierarchy of its systemd (hybrid before 22.04).
SYSTEMS = {"bionic": ("3.6", 1), "focal": ("3.8", 1), "jammy": ("3.10", 2), "noble": ("3.12", 2)}
# Releases that the rules tell apart. Newer ones are as the last.
K3S = [f"1.{minor}" for minor in range(20, 39)]
# Warnings that end a range as errors do: the oldest JetPack, the newest ansible-core.
UPPER = ("jetpack-unknown", "ansible-core-untested")
TOOLKIT = [f"1.{minor}" for minor in range(0, 22)]
ANSIBLE_CORE = [f"2.{minor}" for minor in range(15, 24)]


def rules() -> list[Rule]:
    """The rules of preflight that are about one board's releases."""
    found: list[Rule] = yaml.safe_load(RULES.read_text())["__preflight_rules"]
    return found


def ranges(releases: Sequence[str], fits: Callable[[str], bool]) -> str:
    """Those of ordered releases that fit, in words: `1.0, 1.7 and newer`.

    A range that goes on beyond the last release is `and newer`.
    """
    texts = []
    for good, same in groupby(releases, fits):
        if good:
            found = list(same)
            first, last = found[0], found[-1]
            newest = last == releases[-1]
            texts.append(f"{first} and newer" if newest else first if first == last else f"{first} to {last}")
    return ", ".join(texts)


def fit(releases: Sequence[str], fact: str, board: dict[str, Any], of: Sequence[Rule]) -> str:
    """The releases with which no rule that reads `fact` finds anything on a board."""
    reads = [
        rule
        for rule in of
        if fact in (rule["require"]["fact"], *(condition["fact"] for condition in rule.get("when", [])))
    ]
    outer, _, inner = fact.partition(".")
    bounds = [
        str(condition[bound])
        for rule in reads
        for condition in (rule["require"], *rule.get("when", []))
        for bound in ("from", "below")
        if condition["fact"] == fact and bound in condition
    ]
    if len(releases) > 1 and not set(bounds) <= set(releases[1:]):
        raise ValueError(f"rules about {fact} have other releases than {releases}: {bounds}")

    def fits(release: str) -> bool:
        facts = {"host_kind": "board", **board, outer: {inner: release} if inner else release}
        return not preflight_rules.findings_of_rules(facts, reads)

    return ranges(releases, fits)


def socs() -> dict[int, list[str]]:
    """The systems on chip of each line of L4T, such as 36: those of the boards in the tests."""
    boards = {one["id"]: one for one in json.loads(BOARDS.read_text())["boards"]}

    def value(board: dict[str, Any], key: str) -> str:
        return str(board[key]) if key in board else value(boards[board["like"]], key)

    found: dict[int, set[str]] = {}
    for board in boards.values():
        found.setdefault(int(value(board, "l4t").partition(".")[0]), set()).add(value(board, "soc"))
    return {line: sorted(found[line], key=list(FAMILIES).index) for line in sorted(found)}


def jetpacks(line: int, of: Sequence[Rule]) -> list[str]:
    """The releases of JetPack that a line of L4T is in and that preflight does not warn of."""
    known = [
        jetpack
        for l4t, jetpack in catalogue.load().jetpack.items()
        if catalogue.version(l4t)[0] == line and " " not in jetpack  # "DP" and "EA" are previews.
    ]
    return [one for one in known if fit([one], "jetpack", {"platform": "tegra"}, of)]


def table() -> str:
    """A row for each line of L4T."""
    of = [rule for rule in rules() if rule.get("level", "error") == "error" or rule["id"] in UPPER]
    rows = []
    for line, chips in socs().items():
        releases = jetpacks(line, of)
        python, cgroup = SYSTEMS[board_release.codename(releases[-1])]
        board = {
            "platform": "tegra",
            "jetpack": releases[-1],
            "python": python,
            "cgroup_version": cgroup,
            # The one runtime that a release of K3s may not have.
            "container_runtime": "containerd",
        }
        first, last = (".".join(release.split(".")[:2]) for release in (releases[0], releases[-1]))
        cells = [
            first if first == last else f"{first} to {last}",
            f"R{line}",
            ", ".join(FAMILIES[chip] for chip in chips),
            f"v{cgroup}",
            fit(K3S, "bundle.k3s_version", board, of),
            fit(TOOLKIT, "nvidia_runtime.version", board, of),
            fit(ANSIBLE_CORE, "controller.ansible_core", board, of),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    head = ["JetPack", "L4T", "boards", "cgroup", "K3s", "NVIDIA's container toolkit", "ansible-core"]
    return "\n".join(["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows, ""])
