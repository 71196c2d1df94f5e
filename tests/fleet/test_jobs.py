# SPDX-License-Identifier: Apache-2.0
"""test.yml over scripted boards: a person's job on each, which fail, and what is left on this computer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.ansible_core import NEWEST, OLDEST, OWN
from tests.fleet.fleet import TIMEOUT_SECONDS
from tests.fleet.scripted import Fleet, fault, said
from tests.hostile.answers import IMAGES, Answer
from tests.hostile.site import Run
from tests.lab import archive
from tests.reports.schema import validate

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
LINES = (OLDEST, pytest.param(OWN, marks=pytest.mark.acceptance), NEWEST)
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  template:
    spec:
      containers:
        - {name: test, image: "app:1", command: [echo, "{{ 1 + 1 }}"]}
"""


class Lab(Fleet):
    """A server and two agents, and a person's job in the directory of the command."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1, 2)
        self.here = self.site.root / "site"
        (self.here / "job.yaml").write_text(JOB)

    def test(self, *arguments: str, faults: Any = (), line: str = OWN, **settings: Any) -> Run:
        given = {"gpu_verify_reports": "reports", "gpu_job_manifest": "job.yaml", "gpu_job_artifacts": "out"}
        extra = f"--extra-vars={json.dumps(given | settings)}"
        return self.play("test", extra, *arguments, faults=faults, line=line)

    def index(self) -> dict[str, str]:
        found = json.loads((self.here / "reports/index.json").read_text())
        return {one["name"]: one["status"] for one in found["boards"]}

    def report(self, board: str) -> Any:
        report = json.loads((self.here / f"reports/{board}.json").read_text())
        validate(report)
        return report


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "controller")


def steps(run: Run, node: str) -> list[str]:
    return [given["state"] for _, module, given in run.calls if module == "gpu_job" and given["node"] == node]


def observed(board: str, **seen: Any) -> Answer:
    return fault("jetson-1", "gpu_job", {"seen": seen}, state="observed", node=board)


def ended(code: int, **more: Any) -> Answer:
    state = {"name": "test", "state": "terminated", "exit_code": code, "reason": "", "message": ""}
    return {"pod": {"containers": [state | {"ran": True} | more]}}


@pytest.mark.parametrize("line", LINES)
def test_job_runs_on_every_board_with_its_output_and_its_files(lab: Lab, line: str) -> None:
    run = lab.test(line=line)
    assert run.code == 0, run.said
    assert lab.index() == dict.fromkeys(("jetson-1", "jetson-2", "jetson-3"), "passed")
    for board in lab.index():
        assert f"{board} | hello from {board}" in run.said
        assert (lab.here / f"reports/{board}.log").read_text() == f"hello from {board}\n"
        assert (lab.here / f"out/{board}/report.xml").read_text() == "<ok/>"
        assert lab.report(board)["job"]["exit_code"] == 0
        assert (steps(run, board)[0], steps(run, board)[-1]) == ("started", "absent")
    started = [given for _, module, given in run.calls if module == "gpu_job" and given["state"] == "started"]
    (container, _) = started[0]["objects"][-1]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["echo", "{{ 1 + 1 }}"], "the manifest is no template"
    locks = [(board, given["state"]) for board, module, given in run.calls if module == "run_lock"]
    assert sorted(locks) == sorted((board, what) for board in lab.index() for what in ("locked", "released"))
    suites = ElementTree.fromstring((lab.here / "reports/junit.xml").read_text())  # noqa: S314 - our own
    cases = {case.get("name", "").partition(":")[0] for case in suites.iter("testcase")}
    assert {"job", "job-artifacts", "device-query"} <= cases
    assert "45.5 °C" in (lab.here / "reports/index.html").read_text()


def test_boards_are_judged_each_by_its_own_job(lab: Lab) -> None:
    """One fails, one restarts in the middle and does not answer after that, one passes."""
    faults = [observed("jetson-2", **ended(3)), observed("jetson-3", node={"boot_id": "boot 2"})]
    faults.append(fault("jetson-3", "run_lock", {"unreachable": True}, state="released"))
    run = lab.test(faults=faults)
    assert run.code == 2, run.said
    assert lab.index() == {"jetson-1": "passed", "jetson-2": "failed", "jetson-3": "error"}
    assert json.loads((lab.here / "reports/index.json").read_text())["exit_code"] == 1
    assert lab.report("jetson-3")["failures"] == ["job: the board restarted while the job ran"]
    assert "job: The job does not succeed on the board" in run.said
    assert [steps(run, board)[-1] for board in lab.index()] == ["absent"] * 3


def test_hung_job_ends_at_its_limit(lab: Lab) -> None:
    running = {"containers": [{"name": "test", "state": "running", "exit_code": None, "ran": True}]}
    run = lab.test("--limit=jetson-2", faults=[observed("jetson-2", pod=running)], gpu_job_timeout=2)
    assert run.code == 2, run.said
    assert lab.report("jetson-2")["failures"] == ["job: the job did not end within 2 s"]
    assert steps(run, "jetson-2")[-1] == "absent"


def test_server_that_is_lost_leaves_a_report(lab: Lab) -> None:
    gone = fault("jetson-1", "gpu_job", {"unreachable": True}, state="started", node="jetson-2")
    run = lab.test("--limit=jetson-2", faults=[gone])
    assert run.code == 2, run.said
    assert lab.index() == {"jetson-2": "error"}
    assert "the server does not answer" in lab.report("jetson-2")["failures"][0]


def test_node_without_its_gpu_is_not_asked_to_run_the_job(lab: Lab) -> None:
    broken = fault(
        "jetson-1", "gpu_checks", {"part": {"checks": [
            {"id": name, "title": name, "status": status, "reason": "it is dead", "failure": "", "fix": "",
             "seconds": 1.0, "evidence": [], "events": [], "diagnosis": [], "url": ""}
            for name, status in (("default-runtime", "passed"), ("plugin-registered", "passed"),
                                 ("allocatable", "failed"))
        ]}}, stage="node",
    )  # fmt: skip
    run = lab.test("--limit=jetson-1", faults=[broken])
    assert run.code == 2, run.said
    assert steps(run, "jetson-1") == []
    (job,) = [one for one in lab.report("jetson-1")["checks"] if one["id"] == "job"]
    assert (job["status"], job["reason"]) == ("skipped", "needs allocatable, which failed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_job_manifest": ""}, "nothing to run: give a manifest (--job FILE), or an image (--image)"),
        ({"gpu_job_manifest": "missing.yaml"}, "No such file or directory"),
        ({"gpu_job_image": "missing.tar"}, "--image missing.tar: there is no such file"),
        ({"gpu_job_disk_limit": "lots"}, "'lots' is not a size"),
    ],
)
def test_bad_job_is_refused_before_a_board_is_reached(lab: Lab, settings: Answer, message: str) -> None:
    run = lab.test(**settings)
    assert (run.code, message in said(run), run.calls) == (2, True, []), run.said


def test_image_of_an_archive_is_put_on_the_boards_and_taken_away(lab: Lab) -> None:
    archive.write(lab.here / "app.tar", ["app:9"], "amd64", {}, {})
    new = fault("jetson-2", "command", {"rc": 1}, argv=["docker", "image", "inspect", "app:9"])
    run = lab.test("--limit=jetson-2", gpu_job_image="app.tar", faults=[new])
    assert run.code == 0, run.said
    commands = [
        given.get("argv") or [given["_raw_params"]] for _, module, given in run.calls if module == "command"
    ]
    docker = [words for words in commands if words[0] == "docker" and words[2] != "inspect"]
    assert docker[0] == ["docker", "load", "--input", "/var/lib/jetson-k3s/uploads/made/image.tar"]
    assert docker[-1] == ["docker", "image", "rm", "--force", "app:9"]
    (started,) = [given for _, _, given in run.calls if given.get("state") == "started"]
    container = started["objects"][-1]["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("app:9", "Never")
    assert IMAGES[0] not in commands[-1]


def test_image_for_another_architecture_fails_before_it_is_copied(lab: Lab) -> None:
    archive.write(lab.here / "app.tar", ["app:9"], "arm64", {}, {})
    run = lab.test("--limit=jetson-2", gpu_job_image="app.tar")
    assert run.code == 2, run.said
    assert lab.report("jetson-2")["failures"] == [
        "job: app.tar is an image for arm64, and jetson-2 is amd64",
    ]
    assert "docker buildx build --platform linux/amd64" in said(run)
    assert steps(run, "jetson-2") == []
    assert not any("load" in str(given) for _, module, given in run.calls if module == "command")


def test_image_that_cannot_be_loaded_is_a_result_of_its_own(lab: Lab) -> None:
    archive.write(lab.here / "app.tar", ["app:9"], "amd64", {}, {})
    full = fault("jetson-2", "upload_directory", {"failed": True, "msg": "No space left"}, state="verified")
    run = lab.test("--limit=jetson-2", gpu_job_image="app.tar", faults=[full])
    assert run.code == 2, run.said
    assert lab.report("jetson-2")["failures"] == ["job: the image is not on the board: No space left"]


def test_board_that_another_run_has_locked_is_named_and_the_others_go_on(lab: Lab) -> None:
    refused = {"failed": True, "msg": "jetson-2: locked by anna@ops1, who runs test.yml"}
    run = lab.test(faults=[fault("jetson-2", "run_lock", refused, state="locked")])
    assert run.code == 2, run.said
    assert lab.index() == {"jetson-1": "passed", "jetson-2": "error", "jetson-3": "passed"}
    assert lab.report("jetson-2")["failures"] == ["job: jetson-2: locked by anna@ops1, who runs test.yml"]
    assert steps(run, "jetson-2") == []


def test_what_an_interrupted_run_has_left_is_removed_without_a_new_report(lab: Lab) -> None:
    (lab.here / "reports").mkdir()
    run = lab.test("--tags=gpu_job", gpu_job_state="absent", gpu_job_manifest="")
    assert run.code == 0, run.said
    assert [steps(run, board) for board in ("jetson-1", "jetson-2", "jetson-3")] == [["absent"]] * 3
    assert list((lab.here / "reports").iterdir()) == []


def test_check_mode_runs_nothing(lab: Lab) -> None:
    run = lab.test("--check")
    assert run.code == 0, run.said
    assert not {module for _, module, _ in run.calls} & {"gpu_job", "gpu_checks"}
