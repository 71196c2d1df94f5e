# SPDX-License-Identifier: Apache-2.0
"""Which boards of a run have failed, and why. Pure.

A board's progress has a `stage`: planned, started, done, failed, or skipped because another board failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var

Progress = Mapping[str, str]
# Tasks whose message explains itself.
EXPLAINS = ("ansible.builtin.fail", "ansible.builtin.assert")


def failed(progress: Mapping[str, Progress], batch: Iterable[str]) -> list[str]:
    """Boards whose step has failed, or has started and was not finished.

    `batch` names the boards that are still in the present batch: they are at work. A board outside of it does
    not answer any more.
    """
    present = set(batch)
    return [
        name
        for name, one in progress.items()
        if one["stage"] == "failed" or (one["stage"] == "started" and name not in present)
    ]


def reason(result: Mapping[str, Any], task: str, action: str) -> str:
    """Why a task has failed, in one text: of a loop, the message of the first item that failed."""
    items = result.get("results", ())
    broken = next((one for one in items if isinstance(one, Mapping) and one.get("failed")), result)
    text = str(broken.get("msg") or broken.get("stderr") or "no reason given").strip()
    return text if action in EXPLAINS else f"{task}: {text}"


# Boards' own words stay unsafe.
FILTERS = {"rollout_failed": failed, "rollout_reason": lambda *given: wrap_var(reason(*given))}
