# SPDX-License-Identifier: Apache-2.0
"""A fleet of scripted boards for the real playbooks: what they do to each board, and in which order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.ansible_core import OWN, Core, core
from tests.hostile.answers import Answer
from tests.hostile.site import Run, Site, make_site
from tests.terminal import Terminal

Call = tuple[str, str, Answer]
INVENTORY = """\
[server]
{servers}
[agent]
{agents}
[k3s_cluster:children]
server
agent
[all:vars]
ansible_connection=scripted
ansible_python_interpreter=/usr/bin/python3
jetson_k3s_bundle={{bundle}}
"""


def names(first: int, last: int) -> list[str]:
    return [f"jetson-{number}" for number in range(first, last + 1)]


def node(name: str, voter: bool | None = None, ready: bool = True) -> Answer:
    """A node as the module k3s_nodes returns it."""
    found = {"name": name, "board": name, "machine_id": f"id of {name}", "addresses": []}
    state = {"recorded": True, "cordoned": False, "labels": {}}
    return {**found, **state, "ready": ready, "voter": voter}


def fault(boards: str | Iterable[str], module: str, answer: Answer | None = None, **has: Any) -> Answer:
    """Another answer of boards to calls with these arguments, by default a failure."""
    named = [boards] if isinstance(boards, str) else list(boards)
    given = {"failed": True, "msg": f"injected into {module}"} if answer is None else answer
    return {"boards": named, "module": module, "has": has, "answer": given}


class Fleet:
    """Servers jetson-1 and so on, then agents, in one cluster."""

    def __init__(self, root: Path, servers: int = 3, agents: int = 2) -> None:
        self.servers, self.agents = names(1, servers), names(servers + 1, servers + agents)
        text = INVENTORY.format(servers="\n".join(self.servers), agents="\n".join(self.agents))
        self.site: Site = make_site(root, text)
        self.nodes = [node(name, voter=True if servers > 1 else None) for name in self.servers]
        self.nodes += [node(name) for name in self.agents]

    def settings(self, faults: Iterable[Answer] = ()) -> dict[str, str]:
        cluster = fault(self.servers, "k3s_nodes", {"nodes": self.nodes})
        answers = json.dumps([cluster, *faults])
        return {"SCRIPTED_SERVERS": ",".join(self.servers), "SCRIPTED_ANSWERS": answers}

    def play(self, playbook: str, *arguments: str, faults: Iterable[Answer] = (), line: str = OWN) -> Run:
        return self.site.play(core(line), playbook, {}, *arguments, **self.settings(faults))

    def on_terminal(self, playbook: str, *arguments: str) -> Terminal:
        environment = self.site.environment(Core(), self.site.root / "boards/terminal", {}, **self.settings())
        return Terminal(self.site.command(Core(), playbook, *arguments), environment | {"TERM": "xterm"})


def done(run: Run, *modules: str) -> list[tuple[str, ...]]:
    """The calls of these modules that change a board, each with what tells it from others."""
    telling: Mapping[str, tuple[str, ...]] = {
        "k3s_node_schedule": ("state", "name"),
        "systemd_service": ("state", "name"),
        "k3s_restore": ("state",),
    }
    return [
        (board, module, *(str(arguments[key]) for key in telling.get(module, ())))
        for board, module, arguments in run.calls
        if module in modules
    ]


def said(run: Run) -> str:
    return " ".join(run.said.split())
