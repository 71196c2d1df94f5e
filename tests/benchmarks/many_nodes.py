# SPDX-License-Identifier: Apache-2.0
"""What a large cluster costs the playbooks that look at all of it: `python -m tests.benchmarks.many_nodes`.

One virtual board is the server. The other nodes and their pods are objects in its K3s alone: no kubelet runs
them. For each number of nodes it prints the seconds of a playbook, and the most memory beyond what there was
before, on the server and on this computer. What doubles with the nodes grows as the fleet does.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import planted
from tests.acceptance.peak import watched
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import lab
from tests.lab.board import Board
from tests.lab.paths import lab_dir
from tools.engine import docker
from tools.process import say

LAB = "many-nodes"
PODS_PER_NODE = 4
GPU = {"nvidia.com/gpu": "4", "cpu": "8", "memory": "16Gi", "pods": "110"}
PLAYBOOKS = {
    "status.yml": (),
    "drift.yml": (),
    "verify.yml": ("--extra-vars=gpu_verify_mode=undisturbed",),
}


def node(number: int) -> dict[str, Any]:
    """A node as the roles leave it."""
    labels = {
        "kubernetes.io/hostname": f"node-{number}",
        "jetson-k3s.github.io/device-plugin": "true",
        "nvidia.com/gpu.product": "Orin",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"capacity": GPU, "allocatable": GPU},
    }


def pods(number: int) -> Iterator[dict[str, Any]]:
    """Pods of a node that ask for a GPU. They stay there although nobody runs them."""
    for index in range(PODS_PER_NODE):
        container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 1}}}
        spec = {
            "nodeName": f"node-{number}",
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"job-{number}-{index}"}, "spec": spec}


def create(server: Board, numbers: range) -> None:
    """Have the cluster know of nodes and their pods."""
    nodes = [node(number) for number in numbers]
    file = lab_dir(LAB) / "objects.json"

    def apply(objects: list[dict[str, Any]], *command: str) -> None:
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        docker("cp", file, f"{server.container}:/root/objects.json")
        # A controller that changes a node in that moment makes it a conflict.
        once = f"k3s kubectl {' '.join(command)} --filename=/root/objects.json"
        server.exec("sh", "-c", f"{once} || {once} || {once}", timeout=600)

    apply(nodes, "create")
    apply(nodes, "replace", "--subresource=status")
    apply([pod for number in numbers for pod in pods(number)], "create", "--validate=false")


def descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


def resident(pid: int) -> int:
    """What a process has for itself, in KiB (proc(5): RssAnon)."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("RssAnon:")[2].split()[0]) if "RssAnon:" in text else 0


def own_memory() -> str:
    """What this process' children have for themselves, all together, in MiB."""
    return str(sum(map(resident, descendants(os.getpid()))) // 1024)


def measured(server: Board, playbook: str) -> str:
    begin = time.monotonic()
    with watched(server) as peaks, planted.watched(own_memory) as here:
        run = run_playbook(LAB, playbook, *PLAYBOOKS[playbook])
    seconds = time.monotonic() - begin
    _check(run)
    return f"{playbook:<12} {seconds:>8.1f} {peaks[0].mebibytes:>14} {max(map(int, here)):>16}"


def _check(run: PlaybookRun) -> None:
    if run.returncode != 0:
        raise SystemExit(run.why)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.many_nodes", description=__doc__)
    parser.add_argument("--nodes", default="0,125,250,500", help="numbers, rising (default: %(default)s)")
    options = parser.parse_args()
    lines = ["nodes  playbook      seconds  MiB on server  MiB on this side"]
    with lab.fresh(LAB, (lab.DEFAULT_TYPE,)) as (server,):
        _check(run_playbook(LAB, "site.yml"))
        there = 0
        for count in map(int, options.nodes.split(",")):
            if count > there:
                create(server, range(there, count))
                there = count
            for playbook in PLAYBOOKS:
                say(f"benchmark: {count} nodes, {playbook}")
                lines.append(f"{count:>5}  {measured(server, playbook)}")
    text = "\n".join(lines)
    sys.stdout.write(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
