# SPDX-License-Identifier: Apache-2.0
"""Runs checks one after the other and writes down each: status, seconds, evidence, diagnosis.

A check is a function of one Record. It returns when it has passed, raises CheckFailed when the answer is no,
and Skipped when it does not apply; anything else that it raises says that the verification itself broke.
Runs on the board, therefore Python 3.6 compatible.
"""

import time
from typing import Callable, Dict, List, Optional, Sequence

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import Data
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import now
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page

GUIDE = "docs/troubleshooting.md"
PASSED, FAILED, SKIPPED, ERROR = "passed", "failed", "skipped", "error"
WORDS = {FAILED: "failed", SKIPPED: "was skipped", ERROR: "could not be checked"}
MEND = "The reason names the error: correct it and run playbooks/verify.yml again."


class CheckFailed(Exception):  # noqa: N818 - a result of the check, not an error
    """The check failed; the text is the reason, in one line. `fix` is better than that of the catalogue."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class Skipped(Exception):  # noqa: N818 - as above
    """The check does not apply; the text is the reason, in one line."""


class Record:
    """Evidence, events and result of one check; `entry` is its part of the report."""

    def __init__(self, check: Data, entry: Optional[Data] = None) -> None:
        self.check = check
        self.entry = entry or {
            "id": check["id"],
            "title": check["title"],
            "failure": "",
            "status": ERROR,
            "seconds": 0.0,
            "evidence": [],
            "events": [],
            "reason": "",
            "diagnosis": [],
            "fix": "",
            "url": page("{}#{}".format(GUIDE, check["id"])),
        }

    def prove(self, text: str) -> None:
        """Add evidence."""
        self.entry["evidence"].append(text)

    def note(self, text: str) -> None:
        """Add an event with the present time."""
        self.entry["events"].append({"at": now(), "event": text})

    def end(self, status: str, reason: str = "", fix: str = "") -> None:
        """Set the status, and of a check that did not pass what failed and the fix."""
        self.entry.update(status=status, reason=reason)
        self.entry["failure"] = self.check["failure"] if status == FAILED else ""
        self.entry["fix"] = {FAILED: fix or self.check["fix"], ERROR: MEND}.get(status, "")


CheckFunction = Callable[[Record], None]


def unmet_need(check: Data, statuses: Dict[str, str]) -> Optional[str]:
    """Why a check is skipped, by the statuses ({id: status}) of the checks that it needs, or None."""
    for name in check.get("needs", []):
        status = statuses.get(name)
        if status in WORDS:
            return "needs {}, which {}".format(name, WORDS[status])
    return None


def run_check(
    record: Record,
    function: CheckFunction,
    diagnose: Callable[[], List[Data]],
    obstacle: Optional[str] = None,
) -> Data:
    """Run one check, or skip it with the obstacle as the reason; return the report's entry.

    `diagnose` gives the `diagnosis` of a check that did not pass.
    """
    if obstacle:
        record.end(SKIPPED, obstacle)
        return record.entry
    begin = time.monotonic()
    try:
        function(record)
        record.end(PASSED)
    except Skipped as skipped:
        record.end(SKIPPED, str(skipped))
    except CheckFailed as failed:
        record.end(FAILED, str(failed), failed.fix)
    except Exception as error:  # any error: the board gets its report
        record.end(ERROR, "{}: {}".format(type(error).__name__, error))
    if record.entry["status"] in (FAILED, ERROR):
        record.entry["diagnosis"] = diagnose()
    record.entry["seconds"] = round(record.entry["seconds"] + time.monotonic() - begin, 3)
    return record.entry


def run_checks(
    checks: Sequence[Data],
    functions: Dict[str, CheckFunction],
    statuses: Dict[str, str],
    diagnose: Callable[[], List[Data]],
    obstacle: Optional[str] = None,
) -> List[Data]:
    """Run checks in order; `functions` and `statuses` (of earlier checks, {id: status}) are by id."""
    known = dict(statuses)
    entries = []
    for check in checks:
        entry = run_check(
            Record(check), functions[check["id"]], diagnose, obstacle or unmet_need(check, known)
        )
        known[entry["id"]] = entry["status"]
        entries.append(entry)
    return entries
