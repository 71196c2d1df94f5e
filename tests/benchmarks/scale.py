# SPDX-License-Identifier: Apache-2.0
"""Measure site.yml on a fleet of light boards: `python -m tests.benchmarks.scale --boards 10 50 100 500`.

A light board is answered for by Ansible's own process of a task, as a board that site.yml left. So the
controller alone is measured, without ssh. The run leaves out the verification, and must change nothing.
With --against, another revision's playbooks run in turns with these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_content

from tests.benchmarks.light import names
from tests.hostile.site import make_bundle
from tests.worktree import worktree
from tools.cache import CHECKOUT

HERE = Path(__file__).parent
INVENTORY = """\
[server]
{server}
[agent]
{agents}
[k3s_cluster:children]
server
agent
[all:vars]
ansible_connection=light
ansible_python_interpreter=/usr/bin/python3
jetson_k3s_bundle={bundle}
"""
COUNT = re.compile(r"(ok|changed|skipped|failed|unreachable|rescued|ignored)=(\d+)")
SAMPLE_SECONDS = 2.0


@dataclass(frozen=True)
class Took:
    """What one run took on the controller."""

    boards: int
    seconds: float
    processor_seconds: float
    largest_mib: float
    """The highest resident memory of a single process."""
    together_mib: float
    """The highest memory of all processes at one time, shared pages counted once (PSS)."""
    tasks: int
    """Tasks on a board that is no server, with those that are skipped."""


class Memory(threading.Thread):
    """Watches the memory of a process and of all that it has started."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.highest_kib, self.ended = pid, 0, threading.Event()

    def run(self) -> None:
        """Read it again and again."""
        while not self.ended.wait(SAMPLE_SECONDS):
            self.highest_kib = max(self.highest_kib, sum(map(proportional_kib, family(self.pid))))


def family(pid: int) -> Iterator[int]:
    """A process, and all that it has started and that has not ended (proc_tid_children(5))."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in path.read_text().split():
                yield from family(int(child))


def proportional_kib(pid: int) -> int:
    """A process' part of the memory, where others share pages with it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return 0


def counts(recap: str) -> dict[str, int]:
    """Ansible's counts in a line of its recap."""
    return {word: int(number) for word, number in COUNT.findall(recap)}


def run(checkout: Path, boards: int, log: Path | None = None) -> Took:
    """Run a checkout's site.yml once on such a fleet."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/tmp") as parent:
        root = Path(parent)
        (root / "uploads").mkdir()
        sums = make_bundle(root / "bundle")
        server, *agents = names(boards)
        text = INVENTORY.format(server=server, agents="\n".join(agents), bundle=root / "bundle")
        (root / "inventory").write_text(text)
        files = bundle_content.inspect(str(root / "bundle"))["files"]
        environment = {key: one for key, one in os.environ.items() if not key.startswith("ANSIBLE_")} | {
            "ANSIBLE_CONFIG": f"{checkout}/ansible.cfg",
            "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection_plugins"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_NOCOLOR": "1",
            "LIGHT_BOARDS": str(boards),
            "LIGHT_IMAGES": json.dumps({name: one["images"] for name, one in files.items() if one["images"]}),
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugin")]),
            "SCRIPTED_ATTACKS": "{}",
            "SCRIPTED_BOARDS": parent,
            "SCRIPTED_SERVERS": server,
            "SCRIPTED_SUMS": json.dumps(sums),
        }
        playbook = [str(checkout / "playbooks/site.yml"), "--skip-tags=gpu_verify"]
        command = [sys.executable, "-m", "ansible", "playbook", f"--inventory={root}/inventory", *playbook]
        began = time.monotonic()
        with (root / "output").open("w+") as output:
            started = subprocess.Popen(
                command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            memory = Memory(started.pid)
            memory.start()
            _, status, used = os.wait4(started.pid, 0)
            started.returncode = os.waitstatus_to_exitcode(status)
            memory.ended.set()
            output.seek(0)
            said = output.read()
        seconds = time.monotonic() - began
    recap = {line.split()[0]: counts(line) for line in said.splitlines() if " unreachable=" in line}
    recap.pop("localhost", None)
    if started.returncode or len(recap) != boards or any(one["changed"] for one in recap.values()):
        raise SystemExit(f"site.yml failed, or has changed something:\n{said}")
    if log:
        log.write_text(said)
    last = recap[names(boards)[-1]]
    return Took(
        boards=boards,
        seconds=seconds,
        processor_seconds=used.ru_utime + used.ru_stime,
        largest_mib=used.ru_maxrss / 1024,
        together_mib=memory.highest_kib / 1024,
        tasks=last["ok"] + last["skipped"],
    )


def table(results: Sequence[tuple[str, Took]]) -> str:
    """A line a run; a further board's processor time is the growth since the run before of that revision."""
    lines = [
        "| boards | revision | tasks on a board | seconds | processor seconds | of a further board "
        "| largest process, MiB | all processes, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    before: dict[str, Took] = {}
    for name, took in results:
        further = ""
        if name in before and took.boards > before[name].boards:
            more = took.processor_seconds - before[name].processor_seconds
            further = f"{more / (took.boards - before[name].boards):.2f}"
        before[name] = took
        lines.append(
            f"| {took.boards} | {name} | {took.tasks} | {took.seconds:.0f} | {took.processor_seconds:.1f} "
            f"| {further} | {took.largest_mib:.0f} | {took.together_mib:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument("--boards", type=int, nargs="+", default=[10, 50, 100, 500])
    parser.add_argument("--against", metavar="COMMIT", help="another revision with the same bundle and facts")
    options = parser.parse_args()
    with ExitStack() as stack:
        checkouts = {"this": CHECKOUT}
        if options.against:
            checkouts[options.against] = stack.enter_context(worktree(options.against))
        results = []
        for boards, name in itertools.product(sorted(options.boards), checkouts):
            results.append((name, run(checkouts[name], boards)))
            sys.stderr.write(f"{name}: {results[-1][1]}\n")
    sys.stdout.write(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{table(results)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
