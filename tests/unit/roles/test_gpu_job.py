# SPDX-License-Identifier: Apache-2.0
"""A person's job on a board, from its start to the report: what is judged, kept, fetched and removed."""

from __future__ import annotations

import base64
import copy
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_job_pods, report_fleet
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_junit import junit
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_page import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_job_outcome,
    gpu_job_plan,
    gpu_job_report,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_job_run import (
    SILENT_SECONDS,
    Request,
    Runner,
    ServerGoneError,
    StepError,
)

from tests.reports import samples
from tests.reports.schema import validate
from tests.unit.roles.places import ROLES

Data = dict[str, Any]
NODE = {"known": True, "ready": True, "boot_id": "boot 1", "reason": ""}
NAMES = ["main"]


def container(name: str = "main", state: str = "running", code: int | None = None, **more: str) -> Data:
    found = {"name": name, "state": state, "reason": "", "message": "", "exit_code": code, "ran": True}
    return found | more


def pod(*containers: Data, phase: str = "Running", **more: Any) -> Data:
    found = {"name": "mine-x", "phase": phase, "reason": "", "message": "", "scheduled": True}
    return found | {"unscheduled": "", "containers": list(containers)} | more


def seen(state: Data | None = None, *, node: Mapping[str, Any] = NODE, **more: Any) -> Data:
    found: Data = {"pod": state, "job_failed": "", "node": dict(node), "output": {}, "cursors": {}}
    return found | {"gpu_memory": {}, "warnings": []} | more


GONE = NODE | {"ready": False, "reason": "Kubelet stopped posting node status."}
ENDED = container(state="terminated", code=0)
KILLED = container(state="terminated", code=137, reason="OOMKilled")
CANNOT = container(state="terminated", code=128, reason="ContainerCannotRun", message="exec format error")
MISSING = container(state="terminated", code=127, reason="StartError", message="no such file: pytest")
PULL = container(state="waiting", reason="ImagePullBackOff", message="no matching manifest for linux/arm64")
BACK_OFF = container(state="waiting", reason="ImagePullBackOff", message="connection refused")
EVICTED = pod(phase="Failed", reason="Evicted", message="Container main exceeded its limit 2Gi")
REFUSED = pod(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices present")
PENDING = pod(phase="Pending", scheduled=False, unscheduled="Insufficient nvidia.com/gpu")
LATE = {"elapsed": 600.0}


@pytest.mark.parametrize(
    ("state", "more", "status", "reason"),
    [
        (seen(pod(ENDED)), {}, "passed", ""),
        (seen(pod(container(state="terminated", code=3))), {}, "failed", "the job ended with exit status 3"),
        (seen(pod(KILLED)), {}, "failed", "the job used more memory than it may have"),
        (seen(pod(CANNOT)), {}, "failed", "the job cannot run here: exec format error"),
        (
            seen(pod(container(state="terminated", code=1))),
            {"output": "exec /app: exec format error"},
            "failed",
            "the job cannot run here: exec /app: exec format error",
        ),
        (seen(pod(MISSING)), {}, "failed", "the job did not start: no such file: pytest"),
        (seen(pod(PULL)), {}, "failed", "no matching manifest for linux/arm64"),
        (seen(pod(BACK_OFF)), {}, "failed", "container main does not start: ImagePullBackOff: connection"),
        (seen(EVICTED), {}, "failed", "the kubelet ended the job: Container main exceeded its limit 2Gi"),
        (seen(REFUSED), {}, "error", "did not admit the job: UnexpectedAdmissionError: no healthy devices"),
        (seen(pod(container())), LATE, "failed", "the job did not end within 600 s"),
        (seen(pod(container()), job_failed="DeadlineExceeded"), {}, "failed", "did not end within 600 s"),
        (seen(PENDING), LATE, "error", "got no place on the node within 600 s: Insufficient nvidia.com/gpu"),
        (seen(), LATE, "error", "the job did not start within 600 s: no reason given"),
        (
            seen(pod(container(state="waiting", reason="ContainerCreating"), phase="Pending")),
            LATE,
            "error",
            "the job did not start within 600 s: main: ContainerCreating",
        ),
        (seen(pod(ENDED), node=NODE | {"boot_id": "boot 2"}), {}, "error", "the board restarted while"),
        (
            seen(pod(container()), node=GONE),
            {"unready_seconds": 31.0},
            "error",
            "the board does not answer any more: Kubelet stopped posting node status.",
        ),
        (seen(node=NODE | {"known": False, "reason": "no node"}), {}, "error", "no node"),
    ],
)
def test_outcome_of_a_job(state: Data, more: Data, status: str, reason: str) -> None:
    found = judged(state, **more)
    assert found is not None
    assert found.status == status
    assert reason in found.reason
    assert (found.fix != "") == (status != "passed")


def judged(state: Data, **more: Any) -> gpu_job_outcome.Outcome | None:
    given: Data = {"names": NAMES, "boot_id": "boot 1", "architecture": "arm64", "output": ""}
    return gpu_job_outcome.judge(
        state, **(given | {"elapsed": 10.0, "unready_seconds": 0.0, "limit": 600} | more)
    )


@pytest.mark.parametrize(
    "state",
    [
        seen(),
        seen(PENDING),
        seen(pod(container())),
        seen(pod(container(state="waiting", reason="ErrImagePull"))),
        seen(pod(container()), node=GONE),  # a moment without the network
        seen(pod(ENDED, container("second")), names=["main", "second"]),
    ],
)
def test_job_goes_on(state: Data) -> None:
    assert judged(state, names=state.pop("names", NAMES)) is None


def test_image_for_another_processor_is_to_be_built_for_the_board() -> None:
    for state in (CANNOT, PULL):
        found = judged(seen(pod(state)))
        assert found is not None and "--platform linux/arm64" in found.fix


def stamped(*lines: tuple[str, str]) -> str:
    return "".join(f"2026-01-02T03:04:{second}Z {text}\n" for second, text in lines)


def test_output_is_read_once_also_within_one_second() -> None:
    first = stamped(("05.1", "a"), ("05.2", "b"))
    text, cursor = gpu_job_pods.next_lines(first, {})
    assert text == "a\nb\n"
    assert gpu_job_pods.next_lines(first, cursor) == ("", cursor)
    more = first + stamped(("05.2", "b"), ("06.0", "c")) + "2026-01-02T03:04:07Z unfinished"
    text, cursor = gpu_job_pods.next_lines(more, cursor)
    assert text == "b\nc\n"
    text, _ = gpu_job_pods.next_lines(stamped(("06.0", "c"), ("07", "unfinished line")), cursor)
    assert text == "unfinished line\n"
    assert gpu_job_pods.next_lines("2026-01-02T03:04:07Z no newline", {})[0] == ""
    assert gpu_job_pods.next_lines(stamped(("08", "10 %\r20 %\x0c")), {})[0] == "10 %\r20 %\x0c\n"
    assert gpu_job_pods.next_lines("2026-01-02T03:04:07Z no newline", {}, ended=True)[0] == "no newline\n"


def test_output_that_is_too_fast_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = stamped(*[("05", "x" * 20)] * 10)
    monkeypatch.setattr(gpu_job_pods, "ROUND_BYTES", len(flood))
    _, cursor = gpu_job_pods.next_lines(flood, {})
    text, cursor = gpu_job_pods.next_lines(flood, cursor)
    assert "lines are missing here" in text
    assert cursor == {"since": "2026-01-02T03:04:06Z", "read": 0}


def test_gpu_memory_is_that_of_the_tests_own_pods() -> None:
    text = """\
# TYPE tegra_gpu_agent_container_memory_used_bytes gauge
tegra_gpu_agent_container_memory_used_bytes{namespace="gpu-test-a",pod="mine",container="main"} 1.5e+08
tegra_gpu_agent_container_memory_used_bytes{namespace="gpu-test-a",pod="mine",container=""} 7
tegra_gpu_agent_container_memory_used_bytes{namespace="default",pod="other",container="main"} 9
"""
    assert gpu_job_pods.gpu_memory(text, "gpu-test-a") == {"mine": 150000007}


def results(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
    return made.getvalue()


@dataclass
class Server:
    """SIMULATED steps of the module on a server. Each observation is one of the list, the last one stays."""

    observations: list[Any]
    archive: bytes = results("report.xml")
    listing: Data = field(default_factory=lambda: {"files": 1, "bytes": 4})
    failing: dict[str, Exception] = field(default_factory=dict)
    steps: list[tuple[str, Data]] = field(default_factory=list)
    seconds: float = 0.0

    def __call__(self, state: str, **arguments: Any) -> Data:
        self.steps.append((state, arguments))
        self.seconds += 5
        if state in self.failing:
            raise self.failing[state]
        found: Callable[..., Data] = getattr(self, state)
        return found(**arguments)

    def started(self, **_: Any) -> Data:
        return {"started": "now", "node": NODE}

    def observed(self, **_: Any) -> Data:
        found = self.observations[0] if len(self.observations) == 1 else self.observations.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"seen": copy.deepcopy(found)}

    def packed(self, **_: Any) -> Data:
        said = {"path": "/var/lib/x/results.tar", "size": len(self.archive), "listing": self.listing}
        return said | {"too_large": self.listing["files"] > 1}

    def read(self, offset: int, **_: Any) -> Data:
        return {"content": base64.b64encode(self.archive[offset : offset + 6000]).decode()}

    def absent(self, **_: Any) -> Data:
        return {}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.steps if name != "observed"]


@dataclass
class Bench:
    """Runs a job of a directory on a server."""

    root: Path
    said: list[str] = field(default_factory=list)

    def run(self, server: Server, artifacts: bool = True) -> Data:
        given: Any = {
            "image": "app:1", "loaded": False, "command": [], "resource": "nvidia.com/gpu", "timeout": 60,
            "results_limit": "1Mi", "disk_limit": "1Gi", "artifacts": artifacts,
        }  # fmt: skip
        plan = gpu_job_plan.plan("", "", given, node="jetson-1", runtime_class="", script="pass")
        request = Request(
            board="jetson-1",
            node="jetson-1",
            server="jetson-0",
            architecture="arm64",
            plan=plan,
            script="pass",
            output=self.root / "jetson-1.log",
            artifacts=self.root / "files/jetson-1" if artifacts else None,
            uploads="/var/lib",
            timeout=5,
        )
        runner = Runner(request, server, self.said.append, lambda: server.seconds, lambda _: None)
        return runner.run()


COMPANION = container("jetson-k3s-companion")
RUNS = pod(container("test"), COMPANION)
PASSES = pod(container("test", state="terminated", code=0), COMPANION)
FAILS = pod(container("test", state="terminated", code=3), COMPANION)
SAMPLE = '{"temperature": {"gpu": 45.5}}\n'


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_job_that_passes_has_its_output_live_and_kept_its_files_and_the_boards_figures(bench: Bench) -> None:
    server = Server(
        [
            seen(
                RUNS, output={"test": "one\ntwo\n", "jetson-k3s-companion": SAMPLE}, gpu_memory={"p": 1 << 20}
            ),
            seen(PASSES, output={"test": "three\n"}),
            seen(PASSES, output={"test": "last\n"}),
            seen(PASSES),
        ]
    )
    job = bench.run(server)
    assert (job["status"], job["exit_code"]) == ("passed", 0)
    assert bench.said[0] == "jetson-1 | one\njetson-1 | two"
    assert (bench.root / "jetson-1.log").read_text() == "one\ntwo\nthree\nlast\n"
    assert (bench.root / "files/jetson-1/report.xml").read_text() == "text"
    assert (job["artifacts"]["status"], job["artifacts"]["count"]) == ("passed", 1)
    assert [(one["group"], one["max"]) for one in job["figures"]] == [
        ("temperature", 45.5),
        ("gpu memory", 1.0),
    ]
    assert server.names[0] == "started" and server.names[-1] == "absent"
    assert server.steps[-1][1]["path"] == "/var/lib/x/results.tar"
    assert server.steps[-1][1]["force"] is False


def test_files_of_a_job_that_fails_are_fetched_as_well(bench: Bench) -> None:
    job = bench.run(Server([seen(FAILS, output={"test": "why\n"}), seen(FAILS)]))
    assert (job["status"], job["exit_code"], job["tail"]) == ("failed", 3, ["why"])
    assert job["artifacts"]["status"] == "passed"


def test_hung_job_ends_at_its_limit_and_its_files_are_fetched(bench: Bench) -> None:
    server = Server([seen(RUNS)])
    job = bench.run(server)
    assert (job["status"], job["reason"]) == ("failed", "the job did not end within 60 s")
    assert job["artifacts"]["status"] == "passed"
    assert server.names[-1] == "absent"


def test_board_that_dies_is_not_verified_and_its_pod_is_not_waited_for(bench: Bench) -> None:
    server = Server([seen(RUNS), seen(RUNS, node=GONE)])
    job = bench.run(server)
    assert job["status"] == "error"
    assert "the board does not answer any more" in job["reason"]
    assert server.steps[-1] == (
        "absent",
        {"node": "jetson-1", "timeout": 5, "path": "", "uploads": "/var/lib", "force": True},
    )


def test_short_silence_of_the_server_is_survived(bench: Bench) -> None:
    silent = [ServerGoneError("no route"), StepError("kubectl: refused")]
    assert bench.run(Server([seen(RUNS), *silent, seen(PASSES)]))["status"] == "passed"


def test_server_that_is_gone_is_named(bench: Bench) -> None:
    server = Server([seen(RUNS), ServerGoneError("no route")])
    job = bench.run(server, artifacts=False)
    assert job["status"] == "error"
    assert "the server jetson-0 does not answer any more: no route" in job["reason"]
    assert server.seconds > SILENT_SECONDS


def test_job_is_removed_when_the_disk_of_this_computer_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server([seen(RUNS, output={"test": "x\n"})])

    opened = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **others: Any) -> Any:
        if mode == "a":
            raise OSError("No space left on device")
        return opened(path, mode, *more, **others)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        bench.run(server)
    assert server.names[-1] == "absent"


@pytest.mark.parametrize(
    ("server", "status", "reason"),
    [
        (Server([seen(PASSES)], archive=results("../escape")), "failed", r"no file was taken: ../escape is"),
        (
            Server([seen(PASSES)], listing={"files": 9, "bytes": 1}),
            "failed",
            "has written 9 files with 1 byte",
        ),
        (Server([seen(PASSES)], archive=results()), "error", "0 of 1 files have arrived"),
        (Server([seen(PASSES)], failing={"packed": StepError("no tar")}), "error", "no tar"),
        (Server([seen(PASSES)], failing={"read": ServerGoneError("gone")}), "error", "gone"),
    ],
)
def test_files_that_cannot_be_taken_are_a_result_of_their_own(
    bench: Bench, server: Server, status: str, reason: str
) -> None:
    job = bench.run(server)
    assert (job["status"], job["artifacts"]["status"]) == ("passed", status)
    assert reason in job["artifacts"]["reason"]
    assert not (bench.root / "escape").exists()


def test_evicted_job_has_no_files(bench: Bench) -> None:
    job = bench.run(Server([seen(EVICTED)]))
    assert (job["status"], job["artifacts"]["status"]) == ("failed", "skipped")
    assert job["artifacts"]["reason"] == "the job's volume went with its pod"


def reported(job: Data | None, **result: Any) -> Data:
    report = samples.passed("jetson-1")
    given = {"job": job} if job else result
    made = gpu_job_report.with_job(report, given)
    validate(made)
    return made


def test_job_is_in_the_report_in_junit_and_on_the_page(bench: Bench) -> None:
    job = bench.run(Server([seen(FAILS, output={"test": "assert 1 == 2\n", "jetson-k3s-companion": SAMPLE})]))
    report = reported(job)
    assert (report["exit_code"], report["ok"]) == (1, False)
    assert report["failures"] == ["job: the job ended with exit status 3"]
    assert report["job"]["figures"][0]["unit"] == "°C"
    view = report_fleet.fleet(report["started"], [report_fleet.board("jetson-1", report, None)])
    for text in (junit(view), page(view, ROLES / "gpu_report/templates")):
        assert "assert 1 == 2" in text
        assert "45.5 °C" in text
        assert "the job ended with exit status 3" in text


def test_job_that_passes_leaves_the_verdict_to_the_boards_own_checks(bench: Bench) -> None:
    job = bench.run(Server([seen(PASSES)]))
    assert reported(job)["exit_code"] == 0
    failed = gpu_job_report.with_job(samples.failed("jetson-1"), {"job": job})
    assert failed["exit_code"] == 1
    assert [one["status"] for one in failed["checks"][-2:]] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("result", "status", "exit_code", "reason"),
    [
        (
            {"skipped_because": "needs allocatable, which failed"},
            "skipped",
            0,
            "needs allocatable, which failed",
        ),
        (
            {"failed": True, "msg": "the device plugin does not run"},
            "error",
            2,
            "the device plugin does not run",
        ),
        ({"unreachable": True, "msg": "no route to host"}, "error", 2, "no route to host"),
        ({}, "error", 2, "no answer"),
    ],
)
def test_job_without_a_result_is_not_passed(result: Data, status: str, exit_code: int, reason: str) -> None:
    report = reported(None, **result)
    assert report["exit_code"] == exit_code
    assert (report["checks"][-1]["status"], report["checks"][-1]["reason"]) == (status, reason)
    assert "job" not in report


def test_job_that_could_not_be_removed_is_no_success(bench: Bench) -> None:
    job = bench.run(Server([seen(PASSES)], failing={"absent": StepError("namespace stays")}))
    report = reported(job)
    assert (report["exit_code"], report["failures"]) == (2, ["cleaning up: namespace stays"])


def test_job_waits_for_no_gpu_on_a_node_without_one() -> None:
    checks = [{"id": "plugin-registered", "status": "passed"}, {"id": "allocatable", "status": "failed"}]
    assert gpu_job_report.obstacle(checks) == "needs allocatable, which failed"
    assert gpu_job_report.obstacle(checks[:1]) == ""


def test_secrets_in_the_output_are_not_in_the_report(bench: Bench) -> None:
    said = "Authorization: Bearer abcdefghijklmnop.qrstuvwxyz0123\n"
    report = reported(bench.run(Server([seen(FAILS, output={"test": said})])))
    assert "qrstuvwxyz0123" not in json.dumps(report)
