# SPDX-License-Identifier: Apache-2.0
"""Reports of a verification: verdict, exit code, differences, problems; as JUnit XML and as text, too."""

import copy
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_fleet as fleets
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_junit as junit
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_report
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_report import (
    details,
    failures,
    summary,
)

from tests.reports import samples
from tests.reports.samples import fleet
from tests.reports.schema import validate


def changes(before: Any, after: Any) -> list[tuple[str, str]]:
    """Kind and text of the differences between two reports of one board."""
    return [(change.kind, change.text) for change in fleet(a=(after, before)).changes()]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.update(schema_version=2),
        lambda report: report.update(exit_code=1),
        lambda report: report["checks"][0].update(status="well"),
        lambda report: report["checks"][0].update(status="failed", reason=""),
        lambda report: report.pop("board"),
        lambda report: report.update(started="yesterday"),
    ],
)
def test_the_published_schema_refuses_a_report_with_a_mistake(spoil: Any) -> None:
    for make in (samples.passed, samples.failed, samples.error, samples.hostile):
        validate(make("a"))
    report = samples.passed("a")
    spoil(report)
    with pytest.raises(AssertionError):
        validate(report)


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ({"a": samples.passed("a"), "b": samples.passed("b")}, 0),
        ({"a": samples.passed("a"), "b": None}, 2),
        ({"a": samples.passed("a"), "b": samples.error("b")}, 2),
        ({"a": samples.passed("a"), "b": None, "c": samples.failed("c")}, 1),
        ({"a": {"schema": "something else"}}, 2),
        ({"a": samples.passed("a") | {"schema_version": 2}}, 2),
        ({}, 2),
    ],
)
def test_the_fleets_exit_code(reports: Any, code: int) -> None:
    view = fleet(**reports)
    assert view.exit_code == code
    assert fleets.index(view)["exit_code"] == code
    assert fleets.index(view)["ok"] is (code == 0)


def test_no_board_is_left_out_and_those_in_trouble_come_first() -> None:
    view = fleet(
        **{"jetson-10": samples.passed("jetson-10"), "jetson-2": samples.passed("jetson-2")},
        gone=None,
        broken=samples.failed("broken"),
    )
    assert [(board.name, board.status) for board in view.boards] == [
        ("broken", "failed"),
        ("gone", "unverified"),
        ("jetson-2", "passed"),
        ("jetson-10", "passed"),
    ]


def test_unreadable_report_has_a_reason() -> None:
    board = fleets.board("a", None, None, "its report a.json cannot be read: Expecting value")
    assert (board.status, board.reason) == ("unverified", "its report a.json cannot be read: Expecting value")
    assert "schema version 7" in fleets.board("a", samples.passed("a") | {"schema_version": 7}, None).reason


def test_problem_of_many_boards_is_listed_once() -> None:
    names = [f"jetson-{number}" for number in range(1, 41)]
    reports = {name: samples.failed(name) for name in names}
    for name, report in reports.items():
        samples.check(report, "device-query")["reason"] = f"not on {name}"
    others = {f"other-{number}": samples.error(f"other-{number}") for number in range(41)}
    view = fleet(**reports, **others)
    assert [(problem.check["id"], len(problem.boards)) for problem in view.problems()] == [
        ("device-query", 40),
        ("plugin-registered", 41),
    ]


def test_new_failures_and_mended_ones_are_differences() -> None:
    good, bad = samples.passed("a"), samples.failed("a")
    assert changes(good, bad) == [
        ("broken", "device-query: passed → failed"),
        ("other", "non-root, concurrency, unified-memory: passed → skipped"),
    ]
    assert changes(bad, good)[0] == ("fixed", "device-query: failed → passed")
    assert changes(good, None) == [("broken", "passed → not verified")]
    assert changes(good, good) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2.0, 4.5, [("slower", "device-query: 2.0 s → 4.5 s")]),
        (9.0, 3.0, [("faster", "device-query: 9.0 s → 3.0 s")]),
        (2.0, 4.0, []),  # twice, not more
        (0.1, 0.9, []),  # nine times, but what is a second
    ],
)
def test_only_a_doubled_time_is_a_difference(
    before: float, after: float, expected: list[tuple[str, str]]
) -> None:
    report = samples.passed("a")
    slow, fast = (samples.slower(report, "device-query", seconds) for seconds in (before, after))
    assert changes(slow, fast) == expected


def test_new_version_of_all_boards_is_one_difference() -> None:
    before, after = samples.passed("a"), samples.passed("a")
    after["software"]["k3s"] = "v1.34.1+k3s1"
    view = fleet(a=(after, before), b=(copy.deepcopy(after), before))
    (change,) = view.changes()
    assert (change.kind, change.text) == ("other", "K3s: v1.33.5+k3s1 → v1.34.1+k3s1")
    assert list(change.boards) == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "<0.1 s"),
        (0.06, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.6, "1 min 40 s"),
        (3600, "60 min 00 s"),
    ],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    assert fleets.seconds(value) == text


# JUnit XML


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


@pytest.fixture
def mixed() -> Any:
    return fleet(
        good=samples.passed("good"),
        bad=samples.failed("bad"),
        broken=samples.error("broken"),
        nasty=samples.hostile("nasty"),
        gone=None,
    )


def test_junit_has_the_counts_of_the_reports(mixed: Any) -> None:
    root = parsed(junit.junit(mixed))
    counted = {
        suite.get("name"): tuple(
            int(suite.get(key, -1)) for key in ("tests", "failures", "errors", "skipped")
        )
        for suite in root
    }
    assert counted == {
        "good": (9, 0, 0, 1),
        "bad": (9, 1, 0, 4),
        "nasty": (9, 1, 0, 4),
        "broken": (9, 0, 1, 7),
        "gone": (1, 0, 1, 0),
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("37", "2", "2")
    for suite in root:
        for key, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert len(suite.findall(f"testcase/{element}")) == int(suite.get(key, -1))


def test_junit_failure_is_complete_in_its_text(mixed: Any) -> None:
    root = parsed(junit.junit(mixed))
    case = next(
        case
        for case in root.iter("testcase")
        if case.get("classname") == "bad" and len(case.findall("failure"))
    )
    text = case.findtext("failure") or ""
    assert text.startswith("A pod does not run deviceQuery\n")
    assert "SIMULATED" in (case.findtext("system-out") or "")
    for part in (
        "unsupported device id",
        "fix: Let the container toolkit",
        "troubleshooting.md#device-query",
    ):
        assert part in text
    # GitLab tells tests apart by class name and name.
    keys = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(keys) == len(set(keys))


def test_junit_reports_an_error_outside_the_checks() -> None:
    report = samples.passed("a")
    report.update(ok=False, exit_code=2, failures=["cleaning up: kubectl: connection refused"])
    validate(report)
    view = fleet(a=report)
    assert "connection refused" in junit.junit(view)
    assert list(view.unverified()) == ["cleaning up: kubectl: connection refused"]


def test_hostile_text_is_valid_xml(mixed: Any) -> None:
    text = junit.junit(mixed)
    text.encode()  # no lone surrogate is left
    assert "&lt;script&gt;" in text
    assert not {"\x00", "\x08", "\x1b", "\ufffe", "\uffff"} & set(text)


# What the schema of Jenkins' xUnit plugin (junit-10.xsd) says of the parts that we write: of each element the
# attributes that are required, those that are allowed besides, and the elements inside.
JENKINS: dict[str, tuple[str, str, str]] = {
    "testsuites": ("", "name time tests failures errors", "testsuite"),
    "testsuite": (
        "name tests failures errors",
        "skipped time timestamp hostname",
        "properties testcase system-out",
    ),
    "properties": ("", "", "property"),
    "property": ("name value", "", ""),
    "testcase": ("name", "classname time", "skipped error failure system-out system-err"),
    **dict.fromkeys(("skipped", "error", "failure"), ("", "type message", "")),
    **dict.fromkeys(("system-out", "system-err"), ("", "", "")),
}


def test_junit_fits_the_schema_of_jenkins(mixed: Any) -> None:
    for view in (mixed, fleet()):
        for element in parsed(junit.junit(view)).iter():
            required, allowed, inside = (set(words.split()) for words in JENKINS[element.tag])
            assert required <= set(element.keys()) <= required | allowed, element.tag
            assert {child.tag for child in element} <= inside
            assert re.fullmatch(r"[0-9]+(\.[0-9]*)?", element.get("time", "0"))


# the module


def test_module_keeps_previous_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_text(json.dumps(samples.passed(name)))
    gpu_report.begin(tmp_path, ["a", "b"])
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["c.json"]
    assert sorted(path.name for path in (tmp_path / "previous").iterdir()) == ["a.json", "b.json"]
    assert [gpu_report.read_board(tmp_path, name).status for name in ("a", "c")] == ["unverified", "passed"]
    (tmp_path / "a.json").write_text("{")
    assert "cannot be read" in gpu_report.read_board(tmp_path, "a").reason
    # A second run that comes to no report at all leaves the last one that is known.
    (tmp_path / "a.json").unlink()
    gpu_report.begin(tmp_path, ["a"])
    previous = gpu_report.read_board(tmp_path, "a").previous
    assert previous is not None
    assert previous["board"]["name"] == "a"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (samples.passed("a"), "a: PASSED, 8 of 9 checked, SIMULATED board"),
        (samples.passed("a") | {"simulated": False}, "a: PASSED, 8 of 9 checked"),
        (samples.failed("a"), "a: FAILED, 5 of 9 checked, SIMULATED board"),
        (samples.error("a"), "a: NOT VERIFIED, 1 of 9 checked, SIMULATED board"),
        (
            samples.in_use("a"),
            "a: PASSED, 3 of 9 checked, SIMULATED board\n"
            "  no pod tried the GPU: the GPU is in use by default/train",
        ),
    ],
)
def test_summary_says_how_much_was_checked(report: Any, text: str) -> None:
    validate(report)
    assert summary(report) == text


def test_details_have_the_scene_and_what_was_skipped() -> None:
    text = details(samples.passed("a"))
    assert text.startswith("a (SIMULATED board), Jetson AGX Orin")
    assert "Result = PASS" in text
    assert "Insufficient nvidia.com/gpu" in text
    assert "skipped kubelet-restart: only in mode full" in text
    without_k3s = samples.error("a")
    without_k3s["software"]["k3s"] = None
    assert "K3s not known, allocatable" in details(without_k3s)


def test_failures_name_what_failed_with_its_reason_and_fix() -> None:
    broken = samples.error("a")
    broken["failures"].append("cleaning up: no answer")
    assert failures(samples.failed("a"), "reports/a.json").splitlines() == [
        "a: verification failed",
        "  device-query: A pod does not run deviceQuery",
        f"    the pod was not created: {samples.REFUSED}",
        '    fix: Let the container toolkit run in csv mode: mode = "csv" in '
        "/etc/nvidia-container-runtime/config.toml, then run the playbook again.",
        "    url: docs/troubleshooting.md#device-query",
        "The complete report is reports/a.json.",
    ]
    text = failures(broken, "reports/a.json")
    assert "plugin-registered: Could not be checked: Title of plugin-registered\n" in text
    assert "\n  cleaning up: no answer\n" in text


def test_line_of_the_fleet_names_virtual_boards() -> None:
    real = samples.passed("b") | {"simulated": False}
    assert fleets.line(fleet(a=samples.passed("a"), b=real)).endswith("boards have passed; SIMULATED: a")
    assert fleets.line(fleet(a=samples.passed("a"), b=samples.passed("b"))).endswith("; SIMULATED: all")
    assert "SIMULATED" not in fleets.line(fleet(b=real))
    index = fleets.index(fleet(a=samples.passed("a"), b=real))
    assert (index["simulated"], [board["simulated"] for board in index["boards"]]) == (True, [True, False])
