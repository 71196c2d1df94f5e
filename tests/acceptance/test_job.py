# SPDX-License-Identifier: Apache-2.0
"""A person's job on three virtual boards, by hil.py: files, failures, and a board that is switched off.

Boards are switched off by killing their container. The job runs the plugin's image, which every board has.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from images.arm64 import build as plugin
from tests.acceptance.cluster import RESOURCE, Cluster, wait_until
from tests.acceptance.playbook import reports_dir, run_playbook
from tests.following import Process, follow
from tests.lab import archive, board, inventory, lab, lab_dir
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH
from tests.reports.schema import validate
from tools.cache import CHECKOUT
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "job"
TYPES = ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")
HIL = (sys.executable, CHECKOUT / "playbooks/hil.py")
EXAMPLE = "test-job"  # of docs/examples/
SECONDS = 1200
COMPUTES = """\
import os, pathlib, subprocess, sys
node = os.environ["NODE"]
print(f"hello from {node}", flush=True)
compute = [sys.executable, "-m", "tegra_device_plugin", "compute"]
done = subprocess.run(compute, capture_output=True, text=True)
print(done.stdout + done.stderr)
results = pathlib.Path("/results/deep")
results.mkdir()
(results / "report.txt").write_text(done.stdout)
(results / "latest").symlink_to("report.txt")
sys.exit(done.returncode)
"""
# The server's job fails, that of the first agent hangs, and the last agent is switched off.
DIFFERS = """\
import os, pathlib, sys, time
node = os.environ["NODE"]
print(f"{node} begins", flush=True)
pathlib.Path("/results/begun").write_text(node)
if node == "jetson-1":
    sys.exit("assert 1 == 2")
time.sleep(3600)
"""
FILLS = """\
import os, time
with open(os.path.join("{place}", "large"), "wb") as file:
    for _ in range(64):
        file.write(os.urandom(1 << 20))
        file.flush()
time.sleep(3600)
"""
ESCAPES = """\
import os
os.symlink("../../../etc/shadow", "/results/shadow")
open("/results/plain", "w").close()
"""


@dataclass(frozen=True)
class Tried:
    """A run of hil.py, and its reports."""

    code: int
    said: str
    reports: Path

    @property
    def statuses(self) -> dict[str, str]:
        index = json.loads((self.reports / "index.json").read_text())
        return {one["name"]: one["status"] for one in index["boards"]}

    def report(self, name: str) -> Any:
        report = json.loads((self.reports / f"{name}.json").read_text())
        validate(report)
        return report

    def check(self, name: str, check: str = "job") -> Any:
        return next(one for one in self.report(name)["checks"] if one["id"] == check)


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    with lab.fresh(LAB, TYPES) as up:
        for one in up:
            board.switch_on_after_reboot(one, always=True)
        run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", timeout_seconds=2 * SECONDS).checked()
        yield up


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    return Cluster(boards)


def manifest(directory: Path, program: str, **container: Any) -> Path:
    """A job that runs a program of Python with a GPU."""
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    main = {
        "name": "main",
        "image": plugin.reference(),
        "command": ["python3.11", "-c", program],
        "env": [node],
    }
    main |= {"resources": {"limits": {RESOURCE: 1}}} | container
    spec = {"template": {"spec": {"containers": [main], "restartPolicy": "Never"}}}
    path = directory / "job.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mine"}, "spec": spec})
    )
    return path


def tried(*arguments: str | Path, on_line: Callable[[str], object] = lambda _: None) -> Tried:
    """Run hil.py on the lab; `on_line` gets each line of its output when it is written."""
    command: list[str | Path] = [*HIL, f"--inventory={lab_dir(LAB) / 'inventory.ini'}"]
    ran = follow(
        [*command, f"--reports={reports_dir(LAB)}", *arguments, "--", "-e", "gpu_verify_mode=undisturbed"],
        Path.cwd(),
        os.environ | {"JETSON_K3S_LOG_DIRECTORY": str(lab_dir(LAB) / "logs"), "ANSIBLE_NOCOLOR": "1"},
        seconds=SECONDS,
        on_line=lambda line, _: on_line(line),
        late=Process.terminate,
    )
    return Tried(ran.returncode, ran.output, reports_dir(LAB))


def nothing_is_left(cluster: Cluster) -> bool:
    return "gpu-test" not in cluster.kubectl("get", "namespaces", "--output=name")


def test_job_computes_on_three_boards_and_its_files_come_back(cluster: Cluster, tmp_path: Path) -> None:
    job = manifest(tmp_path, COMPUTES)
    tested = tried("--job", job, "--artifacts", tmp_path / "out", "--timeout=5m")
    assert tested.code == 0, tested.said
    assert tested.statuses == dict.fromkeys(("jetson-1", "jetson-2", "jetson-3"), "passed")
    for name in tested.statuses:
        assert f"{name} | hello from {name}" in tested.said
        assert f"hello from {name}" in (tested.reports / f"{name}.log").read_text()
        assert "all are right" in (tmp_path / f"out/{name}/deep/report.txt").read_text()
        assert not (tmp_path / f"out/{name}/deep/latest").exists()
        found = tested.report(name)["job"]
        assert (found["exit_code"], found["artifacts"]["files"]) == (0, 1)
        figures = {(one["group"], one["unit"]) for one in found["figures"]}
        assert {("temperature", "°C"), ("clock", "MHz"), ("memory", "MiB")} <= figures
    suites = ElementTree.parse(tested.reports / "junit.xml")  # noqa: S314 - our own file
    cases = [case.get("name", "") for case in suites.iter("testcase")]
    assert sum(name.startswith("job: ") for name in cases) == 3
    assert nothing_is_left(cluster)


def test_boards_are_judged_each_by_its_own_job(boards: list[Board], cluster: Cluster, tmp_path: Path) -> None:
    """One fails, one hangs, and one is switched off in the middle."""
    *_, last = boards

    def switch_off(line: str) -> None:
        if f"{last.name} | {last.name} begins" in line:
            docker("kill", last.container)

    try:
        tested = tried(
            *("--job", manifest(tmp_path, DIFFERS), "--artifacts", tmp_path / "out", "--timeout=3m"),
            on_line=switch_off,
        )
    finally:
        board.start(last)
    assert tested.code == 1, tested.said
    assert tested.statuses == {"jetson-1": "failed", "jetson-2": "failed", "jetson-3": "error"}
    assert tested.check("jetson-1")["reason"] == "the job ended with exit status 1"
    assert "assert 1 == 2" in json.dumps(tested.check("jetson-1")["diagnosis"])
    assert tested.check("jetson-2")["reason"] == "the job did not end within 180 s"
    assert "the board does not answer any more" in tested.check("jetson-3")["reason"]
    assert (tmp_path / "out/jetson-2/begun").read_text() == "jetson-2", "a hung job's files are fetched"
    assert not (tmp_path / "out/jetson-3").exists()
    assert nothing_is_left(cluster)
    wait_until(lambda: cluster.allocatable()[last.name] == 1, "the board is back", 180)


@pytest.mark.parametrize(
    ("place", "options"), [("/results", ["--artifacts-limit=16Mi"]), ("/", ["--disk=16Mi"])]
)
def test_job_that_fills_the_disk_is_ended_and_named(
    cluster: Cluster, tmp_path: Path, place: str, options: list[str]
) -> None:
    job = manifest(tmp_path, FILLS.format(place=place), securityContext={"runAsUser": 0})
    tested = tried(
        "--job", job, "--boards=jetson-2", "--artifacts", tmp_path / "out", "--timeout=4m", *options
    )
    assert tested.code == 1, tested.said
    assert "the kubelet ended the job" in tested.check("jetson-2")["reason"]
    assert tested.check("jetson-2", "job-artifacts")["status"] == "skipped"
    assert nothing_is_left(cluster)


def test_files_with_a_link_that_leads_out_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    job = manifest(tmp_path, ESCAPES)
    tested = tried("--job", job, "--boards=jetson-2", "--artifacts", tmp_path / "out")
    assert tested.code == 1, tested.said
    refused = tested.check("jetson-2", "job-artifacts")
    assert "shadow is a link to ../../../etc/shadow, outside of the results" in refused["reason"]
    assert tested.check("jetson-2")["status"] == "passed"
    assert not (tmp_path / "out").exists()


def saved(directory: Path) -> Path:
    """The plugin's image as a person's own, with another name."""
    path = directory / "app.tar"
    given = inventory.bundle_path(LAB) / f"tegra-device-plugin-{DEFAULT_ARCH}.tar.gz"
    with tarfile.open(given) as source, tarfile.open(path, "w") as target:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if content is not None and member.name == "manifest.json":
                (entry,) = json.load(content)
                text = json.dumps([entry | {"RepoTags": ["my-program:1"]}]).encode()
                member.size, content = len(text), io.BytesIO(text)
            target.addfile(member, content)
    return path


def test_image_of_an_archive_is_run_and_taken_away(boards: list[Board], tmp_path: Path) -> None:
    image, job = saved(tmp_path), CHECKOUT / f"docs/examples/{EXAMPLE}.yaml"
    tested = tried("--job", job, "--image", image, "--boards=jetson-2")
    assert tested.code == 0, tested.said
    assert "jetson-2 | computed 65536 numbers" in tested.said
    command = "python3.11 -c 'import pathlib; pathlib.Path(\"/results/a\").touch()'"
    alone = ("--image", image, "--command", command, "--artifacts", tmp_path / "out")
    tested = tried(*alone, "--boards=jetson-2")
    assert tested.code == 0, tested.said
    assert (tmp_path / "out/jetson-2/a").exists()
    assert "my-program" not in boards[1].exec("docker", "image", "ls")


def test_image_for_another_architecture_is_refused(tmp_path: Path) -> None:
    other = {"amd64": "arm64", "arm64": "amd64"}[DEFAULT_ARCH]
    archive.write(tmp_path / "app.tar", ["my-program:1"], other, {}, {})
    tested = tried("--image", tmp_path / "app.tar", "--boards=jetson-2")
    assert tested.code == 1, tested.said
    assert f"app.tar is an image for {other}, and jetson-2 is {DEFAULT_ARCH}" in tested.said


def test_second_run_waits_for_the_board(cluster: Cluster, tmp_path: Path) -> None:
    """Two jobs of a CI system want one board."""
    slow = manifest(tmp_path, "import time; time.sleep(20)")
    options = ("--job", slow, "--boards=jetson-2", f"--reports={tmp_path / 'first'}")
    command: list[str | Path] = [*HIL, f"--inventory={lab_dir(LAB) / 'inventory.ini'}"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as first:
        wait_until(lambda: not nothing_is_left(cluster), "the first job runs", 300)
        refused = tried("--job", slow, "--boards=jetson-2")
        assert refused.code == 2, refused.said
        assert "locked by" in refused.said
        waited = tried("--job", slow, "--boards=jetson-2", "--wait=10m")
        assert waited.code == 0, waited.said
        assert first.wait(SECONDS) == 0
