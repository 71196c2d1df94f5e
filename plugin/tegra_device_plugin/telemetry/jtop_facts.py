# SPDX-License-Identifier: Apache-2.0
"""jtop's facts about board and GPU, compared with those of the board's own files.

jtop's facts are evidence only: the files count. jtop reads some of them itself, but module and part number
come from the module's EEPROM, and the L4T release from the package database if the release file is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.identity import Board, Evidence
from tegra_device_plugin.telemetry.jtop import Telemetry

SOURCE = "jtop"
DISAGREES = "disagrees"

logger = logging.getLogger(__name__)


class Fact(NamedTuple):
    """A fact of jtop, and the same one of the board's files."""

    name: str
    """The end of the label's name, such as `l4t` of `jetson-k3s.github.io/jtop.l4t`."""
    value: str
    own: str | None
    """None if the files do not have it."""
    agrees: bool | None
    """None if the two cannot be compared."""

    @property
    def evidence(self) -> Evidence:
        detail = self.value
        if self.agrees is not None:
            detail += "; the board's files agree" if self.agrees else f"; the board's files have {self.own}"
        return Evidence(f"{SOURCE} {self.name}", True, detail)


def compare(found: Detection, telemetry: Telemetry) -> tuple[Fact, ...]:
    """Give jtop's facts. Raises nothing for any telemetry."""
    board, gpu = found.board, found.gpu
    number, capability = telemetry.part_number, telemetry.compute_capability
    # A part number is certain, a name in words is jtop's own.
    module = ", ".join(filter(None, (telemetry.module, number)))
    facts = (
        _fact("model", telemetry.model, board.model, _same_words),
        _fact("module", module, board.module, lambda _, own: _same_module(number, own, board)),
        _fact("l4t", telemetry.l4t, board.l4t, _same_version),
        _fact("jetpack", telemetry.jetpack, board.jetpack, _same_jetpack_of(board.l4t)),
        _gpu(telemetry.gpu, found),
        _fact("compute-capability", capability, gpu.compute_capability, str.__eq__),
    )
    return tuple(fact for fact in facts if fact)


def disagreeing(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.agrees is False]


def as_dict(facts: Sequence[Fact]) -> dict[str, Any]:
    """Give the facts by name, and the names of those that disagree."""
    by_name = {fact.name.replace("-", "_"): fact.value for fact in facts}
    return {**by_name, DISAGREES: [fact.name for fact in disagreeing(facts)]}


def by_label(facts: Sequence[Fact]) -> dict[str, str]:
    """Give the facts by the end of their label's name."""
    values = {fact.name: fact.value for fact in facts}
    values[DISAGREES] = "_".join(fact.name for fact in disagreeing(facts))
    return {f"{SOURCE}.{name}": value for name, value in values.items()}


class DisagreementLog:
    """Logs each change of the facts in which jtop and the board's files disagree."""

    def __init__(self, detection: Callable[[], Detection | None]) -> None:
        self._detection = detection
        self._logged: list[Fact] = []

    def note(self, telemetry: Telemetry) -> None:
        found = self._detection()
        if found is None or (facts := disagreeing(compare(found, telemetry))) == self._logged:
            return
        self._logged = facts
        if facts:
            listed = "; ".join(f"{fact.name} {fact.value} (files: {fact.own})" for fact in facts)
            logger.warning("jtop disagrees with the board's files, which are used: %s", listed)
        else:
            logger.info("jtop agrees with the board's files again")


def _fact(
    name: str, value: str | None, own: str | None, same: Callable[[str, str], bool | None]
) -> Fact | None:
    if not value:
        return None
    return Fact(name, value, own, same(value, own) if own else None)


def _same_words(value: str, own: str) -> bool:
    return value.split() == own.split()


def _same_module(part_number: str | None, own: str, board: Board) -> bool | None:
    """Compare the EEPROM's number with the device tree.

    A developer kit's device tree lists the numbers of several modules, or has no number and a name that is
    less exact, such as `Jetson AGX Xavier` for one of 32 GB.
    """
    name = catalogue.load().modules.get(part_number or "")
    if name is None:
        return None
    return part_number in board.part_numbers or name == own or name.startswith(f"{own} ")


def _same_version(value: str, own: str) -> bool:
    return catalogue.version(value) == catalogue.version(own)


def _same_jetpack_of(l4t: str | None) -> Callable[[str, str], bool]:
    """Compare the numbers: words such as `GA` and `(rev1)` are not in both tables.

    Of a release that the catalogue lacks, only the first numbers are known.
    """
    listed = l4t is not None and any(_same_version(l4t, one) for one in catalogue.load().jetpack)

    def same(value: str, own: str) -> bool:
        told, known = (text.split()[0] for text in (value, own))
        return _same_version(told, known) if listed else f"{told}.".startswith(f"{known}.")

    return same


def _gpu(name: str | None, found: Detection) -> Fact | None:
    """Compare the chip of a name that tells it: a device tree node of the kernel's `gpu` tells none."""
    if not name:
        return None
    board, gpu = found.board, found.gpu
    if board.platform == "tegra" and gpu.state == "absent":
        return Fact("gpu", name, "no GPU", False)
    chips = catalogue.load().chips.items()
    chip = next((key for key, one in chips if name in (one.node, one.product.removeprefix("NVIDIA "))), None)
    return Fact("gpu", name, gpu.chip, None if None in (chip, gpu.chip) else chip == gpu.chip)
