# SPDX-License-Identifier: Apache-2.0
"""The cause of a failure by a time limit, with each release's message. On boards: tests/hostile."""

import runpy
from typing import Any

import pytest

from tests.docs import CHECKOUT

explanation = runpy.run_path(str(CHECKOUT / "plugins/callback/time_limit.py"))["explanation"]
LATE = {"msg": "Task failed: Timed out after 300 second(s)."}
LATE_BEFORE = {
    "msg": "The command action failed to execute in the expected time frame (300) and was terminated"
}


@pytest.mark.parametrize("late", [LATE, LATE_BEFORE])
@pytest.mark.parametrize(
    ("delegate_to", "begins"),
    [
        (None, "jetson-2 took the connection and did not finish the task within 300 s. "),
        ("jetson-1", "jetson-1 took the connection and did not finish the task within 300 s. "),
        ("{{ item }}", "The board took the connection and did not finish the task within 300 s. "),
        ("localhost", "This computer did not finish the task within 300 s. "),
    ],
)
def test_task_past_its_limit_is_explained_alone_and_in_a_loop(
    late: dict[str, str], delegate_to: str | None, begins: str
) -> None:
    said = explanation("jetson-2", delegate_to, late)
    assert said.startswith(begins)
    loop = {"msg": "One or more items failed", "results": ["?", {"msg": ""}, late]}
    assert explanation("jetson-2", delegate_to, loop) == said


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"msg": "Timed out waiting for last boot time check (timeout=600)"},
        {"msg": ["Timed out"]},
        {"msg": "no disk", "results": 10**400},
    ],
)
def test_other_failures_have_no_such_cause(result: dict[str, Any]) -> None:
    assert explanation("jetson-2", None, result) == ""
