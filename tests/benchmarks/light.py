# SPDX-License-Identifier: Apache-2.0
"""Answers of light boards, on which site.yml finds nothing to change. SIMULATED: there is no board."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from tests.hostile import answers
from tests.hostile.answers import NEW, Answer

LABELS = {"nvidia.com/gpu.count": "1", "jetson-k3s.github.io/soc": "tegra234"}
# As role nvidia_docker writes it.
DAEMON_JSON: Answer = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}},
}
TOKEN = f"K10{'c' * 64}::server:a-long-join-password"


def names(boards: int) -> list[str]:
    """The boards of the fleet; the first one is the server."""
    return [f"jetson-{number}" for number in range(1, boards + 1)]


@functools.cache
def images() -> dict[str, dict[str, str]]:
    """The images of each archive of the bundle, with their ids."""
    found: dict[str, dict[str, str]] = json.loads(os.environ["LIGHT_IMAGES"])
    return found


def facts(board: str, asked: float) -> Answer:
    """The facts of a board as site.yml left it."""
    found = answers.facts(board, asked)
    found["k3s"] |= {"version": NEW, "binary": {"path": f"/usr/local/bin/k3s-{NEW}", "sha256": ""}}
    found["k3s"]["binary"]["sha256"] = json.loads(os.environ["SCRIPTED_SUMS"])["k3s-amd64"]
    loaded = {name: identity for of in images().values() for name, identity in of.items()}
    kept = {archive: list(of.values()) for archive, of in images().items()}
    found["docker"] |= {"default_runtime": "nvidia", "images": loaded, "kept": kept}
    found["docker"]["daemon_json"] |= {"config": DAEMON_JSON}
    found["reboot"] = {"required": False, "packages": [], "kernel": None}
    return found


def node(board: str) -> Answer:
    """A node as module k3s_nodes returns it."""
    found = {"name": board, "board": board, "machine_id": f"id of {board}", "addresses": []}
    return {**found, "ready": True, "voter": None, "recorded": True, "cordoned": False, "labels": LABELS}


def nodes(_board: str, _arguments: Answer) -> Answer:
    """The cluster with all boards."""
    found = [node(one) for one in names(int(os.environ["LIGHT_BOARDS"]))]
    settings: Answer = {"settings": {}, "ranges": {}, "daemonsets": ["tegra-device-plugin"]}
    return {"installed": True, "version": NEW, **settings, "nodes": found}


ANSWERS: Any = answers.HONEST | {
    "jetson_facts": lambda board, given: {
        "ansible_facts": {"jetson": facts(board, float(given["controller_clock"]))}
    },
    "k3s_nodes": nodes,
    "file_set": {"postponed": False, "paths": [], "restart_due": False},
    "file_texts": {"texts": {"ca": "-----BEGIN CERTIFICATE-----\n", "token": TOKEN}, "unread": {}},
    "run_lock": lambda _board, given: {"ansible_facts": {"run_lock_has": given["state"] == "locked"}},
}


def answer(board: str, module: str, arguments: Answer) -> Answer:
    """Answer a module."""
    made = ANSWERS.get(module, {})
    return {"changed": False, **(made(board, arguments) if callable(made) else made)}
