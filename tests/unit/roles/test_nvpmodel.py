# SPDX-License-Identifier: Apache-2.0
"""Power modes: which there are, which one it is, what needs a reboot. With a SIMULATED nvpmodel."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import answer

module = load("power_mode/library/nvpmodel.py")

SIMULATED = ROLES.parent / "tests/lab/simulated_power"
CONFIG = (SIMULATED / "nvpmodel.conf").read_text()


@pytest.mark.parametrize(("wanted", "number"), [("2", 2), ("MODE_30W", 2), ("maxn", 0)])
def test_mode_is_found_by_number_and_name(wanted: str, number: int) -> None:
    assert module.find(module.parse_models(CONFIG), wanted) == number


def test_unknown_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(module.PowerModeError, match=r"0 \(MAXN\), 2 \(MODE_30W\)"):
        module.find(module.parse_models(CONFIG), "15W")


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [(0, 0, False), (0, 3, False), (0, 2, True), (2, 3, True), (9, 3, True)],
)
def test_another_mask_needs_a_reboot(present: int, wanted: int, expected: bool) -> None:
    assert module.needs_reboot(module.parse_models(CONFIG), present, wanted) is expected


def test_answer_without_a_mode_is_an_error() -> None:
    with pytest.raises(module.PowerModeError, match="does not say a mode"):
        module.parse_query("NVPM ERROR: no nvpmodel")


def run(board: Path, mode: str, *, check: bool = False) -> dict[str, Any]:
    arguments = {"mode": mode, "config": str(SIMULATED / "nvpmodel.conf"), "_ansible_check_mode": check}
    places = {"PATH": f"{SIMULATED}:/usr/bin:/bin", "SIMULATED_NVPMODEL_STATE": str(board / "state")}
    return answer("power_mode", "nvpmodel", arguments, **places)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    (tmp_path / "state").write_text("0\n")
    return tmp_path


def state(board: Path) -> str:
    return (board / "state").read_text().strip()


def test_check_mode_says_so_and_changes_nothing(board: Path) -> None:
    assert run(board, "3", check=True)["changed"] is True
    assert state(board) == "0"


@pytest.mark.parametrize("asks", [False, True])
def test_change_that_needs_a_reboot_is_left_to_the_role(board: Path, asks: bool) -> None:
    mode = "MODE_30W"
    if asks:  # a need that the file does not show
        (board / "state.asks").touch()
        mode = "MODE_50W"
    said = run(board, mode)
    assert (said["changed"], said["reboot_required"], state(board)) == (False, True, "0")
