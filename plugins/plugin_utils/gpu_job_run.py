# SPDX-License-Identifier: Apache-2.0
"""Run a person's job on one board to its end: follow its output, fetch its files, remove it.

All that it does to the cluster goes through `call`, which runs the module gpu_job on a server.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import now
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_figures, gpu_job_results
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_job_outcome import (
    ERROR,
    PASSED,
    Outcome,
    judge,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_job_plan import COMPANION, Plan

Data = dict[str, Any]
Call = Callable[..., Data]
ROUND_SECONDS = 5
# A shared connection may break, and a server's K3s may restart.
SILENT_SECONDS = 90
RETRY_SECONDS = 3
PART_BYTES = 4 << 20
OUTPUT_BYTES = 64 << 20
TAIL_LINES = 50
SAMPLES_BYTES = 16 << 20
COMPANION_SECONDS = 60
TRUNCATED = "[jetson-k3s: the job wrote more than 64 MiB; the rest is not kept]\n"


class StepError(Exception):
    """A step on the server failed; `fix` says what to do, '' if unknown."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix


class ServerGoneError(Exception):
    """The server does not answer."""


class Request(NamedTuple):
    """One board's part of the test."""

    board: str
    node: str
    server: str
    architecture: str
    plan: Plan
    script: str
    output: Path
    """File for the job's output."""
    artifacts: Path | None
    """Directory for the job's files, None if they are not wanted."""
    uploads: str
    timeout: int


@dataclass
class Output:
    """What the job writes: into a file while it runs, and on the screen."""

    path: Path
    board: str
    several: bool
    say: Callable[[str], None]
    size: int = 0
    tail: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Make the file, empty. OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def add(self, container: str, text: str) -> None:
        """Write new lines. OSError."""
        if not text:
            return
        prefix = f"{container}: " if self.several else ""
        lines = [f"{prefix}{one}" for one in text.removesuffix("\n").split("\n")]
        self.tail = [*self.tail, *lines][-TAIL_LINES:]
        self.say("\n".join(f"{self.board} | {one}" for one in lines))
        if self.size >= OUTPUT_BYTES:
            return
        written = "".join(f"{one}\n" for one in lines)
        self.size += len(written)
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(written if self.size < OUTPUT_BYTES else TRUNCATED)


@dataclass
class Runner:
    """One board's job."""

    request: Request
    call: Call
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    events: list[Data] = field(default_factory=list)
    samples_text: str = ""
    gpu_samples: list[Data] = field(default_factory=list)
    seen: Data = field(default_factory=dict)
    cursors: Data = field(default_factory=dict)
    phase: str = ""

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append({"at": now(), "event": text})

    def step(self, state: str, **arguments: Any) -> Data:
        """A step on the server. StepError, ServerGoneError."""
        request = self.request
        return self.call(state, node=request.node, timeout=request.timeout, **arguments)

    def observe(self, output: Output, seconds: int) -> None:
        """One round. StepError, ServerGoneError, OSError."""
        plan = self.request.plan
        self.seen = self.step(
            "observed",
            job=plan["job"],
            containers=[*plan["containers"], COMPANION],
            cursors=self.cursors,
            seconds=seconds,
        )["seen"]
        self.cursors = self.seen["cursors"]
        for name, text in self.seen["output"].items():
            if name == COMPANION:
                self.samples_text = (self.samples_text + text)[-SAMPLES_BYTES:]
            else:
                output.add(name, text)
        used = sum(self.seen["gpu_memory"].values())
        if self.seen["gpu_memory"]:
            self.gpu_samples.append({"gpu memory": {"of the job's pod": used}})
        phase = (self.seen["pod"] or {}).get("phase", "")
        if phase and phase != self.phase:
            self.note(f"pod {phase}")
            self.phase = phase

    def follow(self, output: Output, boot_id: str, began: float) -> Outcome:
        """Observe the job until its outcome is known. OSError."""
        answered = ready = self.clock()
        plan = self.request.plan
        while True:
            try:
                self.observe(output, ROUND_SECONDS)
            except (ServerGoneError, StepError) as error:
                if self.clock() - answered > SILENT_SECONDS:
                    return Outcome(
                        ERROR,
                        f"the server {self.request.server} does not answer any more: {error}",
                        "Check the server. The next test on this board removes what is left of the job.",
                    )
                self.sleep(RETRY_SECONDS)
                continue
            answered = self.clock()
            if self.seen["node"]["ready"]:
                ready = answered
            found = judge(
                self.seen,
                names=plan["containers"],
                boot_id=boot_id,
                architecture=self.request.architecture,
                output="\n".join(output.tail[-3:]),
                elapsed=answered - began,
                unready_seconds=answered - ready,
                limit=plan["limit"],
            )
            if found:
                return found

    def drain(self, output: Output) -> None:
        """Read what the job has written last, and wait for the container that packs its files."""
        deadline = self.clock() + COMPANION_SECONDS
        with contextlib.suppress(ServerGoneError, StepError):
            while True:
                self.observe(output, 1)
                states = {one["name"]: one["state"] for one in (self.seen["pod"] or {}).get("containers", ())}
                waits = self.request.artifacts is not None and states.get(COMPANION) == "waiting"
                if (not waits and not any(self.seen["output"].values())) or self.clock() > deadline:
                    return

    def fetch(self, outcome: Outcome) -> Data:
        """Take the job's files. Its result has status, reason and fix, as a check has."""
        request, plan = self.request, self.request.plan
        directory = request.artifacts
        assert directory is not None  # noqa: S101 - the caller asks
        none: Data = {"count": 0, "bytes": 0, "left_out": [], "directory": str(directory), "fix": ""}
        states = {one["name"]: one["state"] for one in (self.seen.get("pod") or {}).get("containers", ())}
        if outcome.status == ERROR:
            return none | {"status": "skipped", "reason": "the job was not followed to its end"}
        if states.get(COMPANION) != "running":
            return none | {"status": "skipped", "reason": "the job's volume went with its pod"}
        packed: Data = {}
        try:
            packed = self.step(
                "packed",
                pod=self.seen["pod"]["name"],
                companion=COMPANION,
                script=request.script,
                bytes=plan["results_bytes"],
                uploads=request.uploads,
            )
            if packed["too_large"]:
                said = packed["listing"]
                raise gpu_job_results.ResultsError(  # noqa: TRY301 - as what unpack says
                    f"the job has written {said['files']} files with {said['bytes']} bytes"
                )
            with tempfile.TemporaryDirectory() as place:
                archive = Path(place, "results.tar")
                self.download(packed, archive)
                unpacked = gpu_job_results.unpack(archive, directory, plan["results_bytes"])
        except gpu_job_results.ResultsError as error:
            fix = "Let the job write plain names below /results, and at most --artifacts-limit bytes."
            return none | {"status": "failed", "reason": f"no file was taken: {error}", "fix": fix}
        except (StepError, ServerGoneError, OSError, ValueError) as error:
            return none | {"status": "error", "reason": str(error), "fix": "Run the same command again."}
        finally:
            self.archive = str(packed.get("path", ""))
        count, expected = len(unpacked.files), packed["listing"]["files"]
        found = none | {"count": count, "bytes": unpacked.bytes, "left_out": unpacked.left_out}
        if count != expected:
            return found | {"status": "error", "reason": f"{count} of {expected} files have arrived"}
        self.note(f"{count} files fetched")
        return found | {"status": "passed", "reason": ""}

    archive: str = ""

    def download(self, packed: Mapping[str, Any], path: Path) -> None:
        """Fetch the archive in parts. StepError, ServerGoneError, OSError."""
        size = int(packed["size"])
        with path.open("wb") as file:
            while file.tell() < size:
                part = self.step("read", path=packed["path"], offset=file.tell(), bytes=PART_BYTES)
                content = base64.b64decode(part["content"])
                if not content:
                    raise StepError("the archive of the files ends too early")
                file.write(content)

    def remove(self, outcome: Outcome) -> str:
        """Remove the job; return why that failed, '' if it did not."""
        gone = outcome.status == ERROR
        try:
            self.step("absent", path=self.archive, uploads=self.request.uploads, force=gone)
        except (StepError, ServerGoneError) as error:
            return str(error)
        return ""

    def run(self) -> Data:
        """Run the job; return what the report has of it. StepError, ServerGoneError, OSError."""
        request, plan = self.request, self.request.plan
        output = Output(request.output, request.board, len(plan["containers"]) > 1, self.say)
        output.begin()
        outcome = Outcome(ERROR, "the run was interrupted", "Run the same command again.")
        artifacts = None
        try:
            begun = self.step("started", objects=plan["objects"], companion=COMPANION)
            began = self.clock()
            self.note("job created")
            outcome = self.follow(output, begun["node"]["boot_id"], began)
            seconds = round(self.clock() - began, 3)
            self.note(f"job {outcome.status}" + (f": {outcome.reason}" if outcome.reason else ""))
            if outcome.status != ERROR:
                self.drain(output)
            if request.artifacts is not None:
                artifacts = self.fetch(outcome)
        finally:
            problem = self.remove(outcome)
        samples = gpu_job_figures.parse(self.samples_text)
        return {
            "name": plan["job"],
            "images": plan["images"],
            "gpu": plan["gpu"],
            "status": outcome.status,
            "reason": outcome.reason,
            "fix": outcome.fix,
            "exit_code": outcome.exit_code,
            "seconds": seconds,
            "limit": plan["limit"],
            "output": str(request.output),
            "tail": [] if outcome.status == PASSED else output.tail,
            "warnings": list(self.seen.get("warnings", ())),
            "events": self.events,
            "artifacts": artifacts,
            "samples": len(samples),
            "figures": gpu_job_figures.figures([*samples, *self.gpu_samples]),
            "throttled": gpu_job_figures.throttled(samples),
            "cleanup": problem,
        }
