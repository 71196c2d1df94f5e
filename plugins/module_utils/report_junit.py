# SPDX-License-Identifier: Apache-2.0
"""A fleet's reports as JUnit XML, in the form that Jenkins' schema (xunit plugin, junit-10.xsd) allows.

GitLab shows a test case's class name as the suite, and a failure without its message: the text says all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_fleet import heading

if TYPE_CHECKING:
    from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_fleet import Board, Fleet, Report

# Many CI systems show the output of a test case, and not the properties of its suite.
SIMULATED = "SIMULATED: a virtual board, whose GPU is not real"
OUTCOME = {"failed": "failure", "error": "error", "skipped": "skipped"}


def lines(check: Report) -> Iterable[str]:
    """All that is known about a check that did not pass."""
    if check["status"] != "skipped":
        yield heading(check)
    yield check.get("reason", "")
    if check.get("fix"):
        yield f"fix: {check['fix']}"
    if check.get("url"):
        yield f"more: {check['url']}"
    for part in check.get("diagnosis", ()):
        yield ""
        yield f"{part['source']}:"
        yield from part["lines"]


def testcase(suite: Element, board: Board, check: Report) -> None:
    """Add a check to its board's suite."""
    case = SubElement(
        suite,
        "testcase",
        classname=board.name,
        name=f"{check['id']}: {check['title']}",
        time=f"{check['seconds']:.3f}",
    )
    if check["status"] in OUTCOME:
        parts = (
            [check.get("reason", "")] if check["status"] == "skipped" else [heading(check), check["reason"]]
        )
        outcome = SubElement(case, OUTCOME[check["status"]], type=check["id"], message=": ".join(parts))
        outcome.text = "\n".join(lines(check))
    record = [SIMULATED] if board.simulated else []
    record += check.get("evidence", ())
    record += [f"{event['at']}  {event['event']}" for event in check.get("events", ())]
    if record:
        SubElement(case, "system-out").text = "\n".join(record)


def testsuite(root: Element, board: Board) -> None:
    """Add a board; one that was not verified is an error, so that it cannot be overlooked."""
    report = board.report
    # What broke apart from the checks is a test case of its own.
    broken = board.loose_ends if report else [board.reason]
    suite = SubElement(
        root,
        "testsuite",
        name=board.name,
        hostname=board.name,
        tests=str(len(board.checks) + bool(broken)),
        failures=str(board.count("failed")),
        errors=str(board.count("error") + bool(broken)),
        skipped=str(board.count("skipped")),
        time=f"{report['seconds'] if report else 0:.3f}",
    )
    if report:
        suite.set("timestamp", report["started"])
        properties = SubElement(suite, "properties")
        known = {**report["board"], **report["software"]}
        known.update(mode=report["mode"], checked=board.checked, simulated=report["simulated"])
        for key, value in known.items():
            if value is not None:
                SubElement(properties, "property", name=key, value=str(value))
    for check in board.checks:
        testcase(suite, board, check)
    if broken:
        case = SubElement(suite, "testcase", classname=board.name, name="verification", time="0.000")
        SubElement(case, "error", type="not-verified", message=broken[0]).text = "\n".join(broken)


def junit(fleet: Fleet) -> str:
    """One test suite for each board, one test case for each check."""
    root = Element("testsuites", name="jetson-k3s")
    for board in fleet.boards:
        testsuite(root, board)
    for total in ("tests", "failures", "errors"):
        root.set(total, str(sum(int(suite.get(total, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"
