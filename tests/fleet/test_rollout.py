# SPDX-License-Identifier: Apache-2.0
"""The result of a run, and the reasons of failures."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import rollout as filters

from tests.docs import CHECKOUT


def plugin() -> ModuleType:
    path = Path(CHECKOUT / "plugins/callback/rollout.py")
    spec = importlib.util.spec_from_file_location("callback_rollout", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLANNED = {"stage": "planned"}
STARTED = {"stage": "started"}
DONE = {"stage": "done", "word": "upgraded"}
SKIPPED = {"stage": "skipped", "word": "not touched"}
FAILED = {"stage": "failed", "reason": "j2: no disk\nis left"}


@pytest.mark.parametrize(
    ("batch", "failed"), [(["j2", "j3"], ["j4"]), (["j2"], ["j3", "j4"]), ([], ["j3", "j4"])]
)
def test_started_board_has_failed_if_its_batch_goes_on_without_it(
    batch: list[str], failed: list[str]
) -> None:
    progress = {"j1": DONE, "j3": STARTED, "j4": FAILED, "j5": PLANNED, "j6": SKIPPED}
    assert filters.failed(progress, batch) == failed


@pytest.mark.parametrize(
    ("result", "action", "reason"),
    [
        ({"msg": " no disk "}, "stat", "Read it: no disk"),
        ({"msg": "explained"}, "ansible.builtin.fail", "explained"),
        ({"stderr": "no such file"}, "command", "Read it: no such file"),
        ({}, "command", "Read it: no reason given"),
        (
            {"msg": "items", "results": ["?", {"msg": "a"}, {"msg": "b", "failed": True}]},
            "stat",
            "Read it: b",
        ),
    ],
)
def test_reason_is_the_message_of_the_task_or_item_that_failed(
    result: dict[str, object], action: str, reason: str
) -> None:
    assert filters.reason(result, "Read it", action) == reason


def test_result_names_done_failed_and_untouched_boards_and_how_to_go_on() -> None:
    progress = {"j10": PLANNED, "j1": DONE, "j2": FAILED, "j3": STARTED, "j4": SKIPPED, "j5": STARTED}
    assert plugin().report(progress, {"j3": "Start K3s"}, {"j3", "j9"}, limit=True).splitlines() == [
        "upgraded: j1",
        "not touched: j4, j10",
        "failed: j2: no disk",
        "  is left",
        "failed: j3: does not answer any more (Start K3s)",
        "failed: j5: interrupted",
        "Cordoned until a run has finished with them: j3.",
        "Repair the cause, then run the same command with --limit j2,j3,j4,j5,j10. It goes on from here.",
    ]


def test_playbook_that_refuses_a_limit_is_to_be_run_again() -> None:
    said = plugin().report({"j2": FAILED}, {}, set(), limit=False)
    assert said.endswith("\nRepair the cause, then run the same command again. It goes on from here.")


@pytest.mark.parametrize(
    ("progress", "lost", "result"),
    [
        ({"j1": DONE, "j2": DONE | {"word": "unchanged"}}, {}, "upgraded: j1\nunchanged: j2"),
        # Its step prepared something for the boards that follow.
        ({"j1": DONE, "j2": PLANNED}, {}, "upgraded: j1"),
        ({"j1": PLANNED, "j2": PLANNED}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_run_without_a_failure_names_what_is_done(
    progress: dict[str, dict[str, str]], lost: dict[str, str], result: str
) -> None:
    assert plugin().report(progress, lost, set(), limit=True) == result


def test_board_that_was_lost_before_its_batch_has_failed() -> None:
    said = plugin().report({"j1": DONE, "j2": PLANNED}, {"j2": "Gather"}, set(), limit=True)
    assert "failed: j2: does not answer any more (Gather)\n" in said
    assert "--limit j2." in said
