# SPDX-License-Identifier: Apache-2.0
"""What the lab writes (inventory, checksums, image archives, known_hosts) and what it refuses."""

import pytest

from tests.lab import cli, lab
from tests.lab.board import Board
from tools.process import ToolError


@pytest.mark.parametrize(
    ("name", "board", "grade", "words"),
    [
        *((name, "nano-jp4", "container", "no name for a lab") for name in ("", "Lab", "a/b", "x" * 31)),
        ("demo", "nano-jp99", "container", r"no such board type: nano-jp99; boards\.json has .*nano-jp4"),
        ("demo", "nano-jp4", "silver", "no such grade of boards: silver; there are container, arm64"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_with_what_can(name: str, board: str, grade: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        lab.up_graded(name, [board], [grade])


@pytest.mark.parametrize(
    ("arguments", "types"),
    [
        ([], ["agxorin-jp6"]),
        (["--boards", "2"], ["agxorin-jp6", "agxorin-jp6"]),
        (["--board-type", "nano-jp4,thor5000-jp70"], ["nano-jp4", "thor5000-jp70"]),
        (["--board-type", "nano-jp4,tx2-jp4", "--boards", "3"], ["nano-jp4", "tx2-jp4", "tx2-jp4"]),
    ],
)
def test_board_types_are_repeated_to_the_number_of_boards(
    arguments: list[str], types: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def up(_name: str, wanted: list[str], grades: list[str], _which: str) -> list[Board]:
        assert grades == ["container"]
        asked.append(wanted)
        return []

    monkeypatch.setattr(lab, "names", list)
    monkeypatch.setattr(lab, "up_graded", up)
    assert cli.main(["up", *arguments]) == 0
    assert asked == [types]


def test_an_interrupted_up_takes_away_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[Board]:
        raise KeyboardInterrupt

    gone: list[str] = []
    monkeypatch.setattr(lab, "up_graded", interrupted)
    monkeypatch.setattr(lab, "down", gone.append)
    monkeypatch.setattr(lab, "names", list)
    assert cli.main(["up", "--name", "fresh"]) == 130
    assert gone == ["fresh"]
    monkeypatch.setattr(lab, "names", lambda: ["old"])
    assert cli.main(["up", "--name", "old"]) == 130
    assert gone == ["fresh"]


def test_an_error_is_one_line_and_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "names", list)
    assert cli.main(["up", "--name", "Bad_Name"]) == 1
    assert "error: 'Bad_Name' is no name for a lab" in capsys.readouterr().err
