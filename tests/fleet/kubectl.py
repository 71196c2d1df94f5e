# SPDX-License-Identifier: Apache-2.0
"""A kubectl on the controller, for a cluster whose nodes are Ready and offer a GPU.

It notes each command, and answers by FAKE_KUBECTL: the file of its notes, the names of nodes, the id of their
boot, the rights that are denied, the version and the CA.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Data = dict[str, Any]


def node(name: str, boot_id: str) -> Data:
    status = {
        "nodeInfo": {"bootID": boot_id},
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [],
        "allocatable": {"nvidia.com/gpu": "1"},
        "capacity": {"nvidia.com/gpu": "1"},
    }
    return {"kind": "Node", "metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


def answer(argv: list[str], settings: Data, given: str) -> str:
    """The output of a command, which gets `given`."""
    verb, *words = [word for word in argv if not word.startswith("-")]
    nodes = [node(name, settings["boot_id"]) for name in settings["nodes"]]
    if verb == "create" and "SelfSubjectAccessReview" in given:
        rights = [one["spec"]["resourceAttributes"] for one in json.loads(given)["items"]]
        return "".join(f"{str(right not in settings['denied']).lower()}\n" for right in rights)
    if verb == "version":
        return json.dumps({"serverVersion": {"gitVersion": settings["version"]}})
    if verb != "get" or "--output=name" in argv:
        return ""
    if words[0] == "configmap":
        return json.dumps({"data": {"ca.crt": settings["ca"]}})
    name = next((word.partition("=")[2] for word in argv if "metadata.name=" in word), "").rpartition("=")[2]
    named = [one for one in nodes if one["metadata"]["name"] in (name, *words[1:])]
    if name or words[1:]:
        return json.dumps(named[0]) if named else ""
    return json.dumps({"kind": "List", "items": nodes if "node" in words[0] else []})


def main() -> None:
    """Answer one command."""
    settings: Data = json.loads(os.environ["FAKE_KUBECTL"])
    with Path(settings["notes"]).open("a") as notes:
        notes.write(json.dumps(sys.argv[1:]) + "\n")
    reads = any("filename=-" in word for word in sys.argv)
    sys.stdout.write(answer(sys.argv[1:], settings, sys.stdin.read() if reads else ""))


if __name__ == "__main__":
    main()
