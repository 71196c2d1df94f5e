# SPDX-License-Identifier: Apache-2.0
"""What the Molecule scenarios must have in common, read from their files, and how their command says no."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.molecule.__main__ import HARDWARE, HERE, main, scenarios

REMEMBER, UNCHANGED = "side_effect ../shared/remember.yml", "verify ../shared/unchanged.yml"
# A run that only looks, one that acts, one that finds nothing to do; looks around them judge the outer two.
EVERY_SCENARIO = (
    *("create", REMEMBER, "check", UNCHANGED),
    *("converge", REMEMBER, "idempotence", UNCHANGED, "verify", "destroy"),
)
VIRTUAL = [name for name in scenarios() if name != HARDWARE]


def config(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def sequence(name: str) -> list[str]:
    own = config(HERE / name / "molecule.yml").get("scenario", {})
    return list(own.get("test_sequence") or config(HERE / "config.yml")["scenario"]["test_sequence"])


@pytest.mark.parametrize("name", VIRTUAL)
def test_every_scenario_looks_acts_finds_nothing_more_to_do_and_verifies(name: str) -> None:
    steps = iter(sequence(name))
    for step in EVERY_SCENARIO:
        assert step in steps, f"{name}: no {step!r} where it should be"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([HARDWARE], "needs --inventory FILE"),
        (["single", "--inventory=inventory.example"], "and no other, needs --inventory"),
        ([HARDWARE, "--inventory=not/there.ini"], "there is no inventory not/there.ini"),
        (["single", "verify", "--keep"], "know the whole test only"),
        ([HARDWARE, "destroy", "--inventory=inventory.example"], "know the whole test only"),
        (["nonsense"], "invalid choice: 'nonsense'"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
