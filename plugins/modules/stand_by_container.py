#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keep one Docker container and its files as they are described, running now and after each start of Docker.

Runs on the board, therefore Python 3.6 compatible.
"""

import hashlib
import json
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.file_entries import (
    FILES,
    changed_entries,
    difference,
    put,
)

DOCUMENTATION = r"""
module: stand_by_container
short_description: A container that starts with Docker
description:
  - Creates and starts the container, with Docker's restart policy C(always).
  - A container of another description, of an image that was built again under the same name, or one that does
    not run, is replaced. The old one is removed only when the new one has been created.
  - Its files are written before it, and those that need it after it.
  - A container that ends within its first seconds is an error. It stays, so that its log can be read.
options:
  name: {required: true, description: Name of the container.}
  state: {default: present, choices: [present, absent], description: Whether the container is there.}
  image: {description: Name of its image.}
  options: {type: list, elements: str, description: Options of C(docker create).}
  arguments: {type: list, elements: str, description: 'Arguments of the image''s entrypoint.'}
  files: {type: list, elements: dict, default: [], description: 'What it needs, as in module C(file_set).'}
  users: {type: list, elements: dict, default: [], description: 'What needs it, as in module C(file_set).'}
"""

RETURN = r"""
reason: {type: str, description: 'Why the container was changed, empty otherwise.'}
"""

Data = Dict[str, Any]  # parsed JSON, or parameters

# Its value is the description's digest, by which a change is found.
LABEL = "io.github.jetson-k3s.stand-by"
# A plugin that cannot work ends by itself before that: it reads settings and board first.
SETTLE_SECONDS = "3"
STILL_RUNS = 124  # timeout(1): it had to end the wait
STOP_SECONDS = "10"  # as the pod's terminationGracePeriodSeconds


def description(image_id: Optional[str], options: List[str], arguments: List[str]) -> str:
    """A digest of all that a container is made of."""
    text = json.dumps([image_id, options, arguments])
    return hashlib.sha256(text.encode()).hexdigest()


def reason_to_replace(found: Optional[Data], wanted: str) -> str:
    """Why this container cannot stay; '' if it can. `found` is Docker's description of it, or None."""
    if found is None:
        return "there is none"
    if (found["Config"].get("Labels") or {}).get(LABEL) != wanted:
        return "its image or its settings have changed"
    if not found["State"]["Running"] or found["State"].get("Restarting"):
        return "it did not run"  # its files may be damaged
    return ""


class Engine:
    """The board's Docker."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def ask(self, *argv: str) -> Tuple[int, str]:
        """The exit status and the output of a command."""
        code, out, err = self.module.run_command(["docker", *argv])
        return code, out.strip() or err.strip()

    def run(self, *argv: str) -> str:
        """Output of a command that has to succeed."""
        code, said = self.ask(*argv)
        if code != 0:
            self.module.fail_json(msg="`docker {}`: {}".format(argv[0], said))
        return said

    def inspect(self, kind: str, name: str) -> Optional[Data]:
        """Docker's description of an object, None without one."""
        code, out, _ = self.module.run_command(["docker", kind, "inspect", name])
        return json.loads(out)[0] if code == 0 else None

    def remove(self, name: str) -> None:
        """Stop a container and remove it."""
        self.run("stop", "--time", STOP_SECONDS, name)
        self.run("rm", "--force", name)

    def start(self, name: str) -> None:
        """Start a container, and see that it goes on."""
        self.run("start", name)
        code, _, _ = self.module.run_command(["timeout", SETTLE_SECONDS, "docker", "wait", name])
        if code != STILL_RUNS:
            self.module.fail_json(
                msg="The container {} ended within seconds. Its last lines: {}".format(
                    name, self.ask("logs", "--tail=5", name)[1]
                )
            )


def write(files: List[Data], check: bool) -> List[Data]:
    """Write the files that differ; returns their diffs."""
    changes = changed_entries(files, {})
    diffs: List[Data] = [difference(entry) for entry in changes]
    for entry in [] if check else changes:
        put(entry)
    return diffs


def ensure(engine: Engine, params: Data, check: bool) -> str:
    """Make the container as described; why that was needed, '' if it was so."""
    name, new = params["name"], params["name"] + ".new"
    image = engine.inspect("image", params["image"])
    found = engine.inspect("container", name)
    wanted = description(image["Id"] if image else None, params["options"], params["arguments"])
    reason = reason_to_replace(found, wanted)
    if reason:
        if not check:
            if engine.inspect("container", new):  # a run was interrupted here
                engine.run("rm", "--force", new)
            settings = ["--name=" + new, "--restart=always", "--label={}={}".format(LABEL, wanted)]
            engine.run("create", *(settings + params["options"] + [params["image"]] + params["arguments"]))
            if found:
                engine.remove(name)
            engine.run("rename", new, name)
            engine.start(name)
    return reason


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "image": {"type": "str"},
            "options": {"type": "list", "elements": "str", "default": []},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "files": dict(FILES, default=[]),
            "users": dict(FILES, default=[]),
        },
        required_if=[("state", "present", ("image",))],
        supports_check_mode=True,
    )
    engine, check = Engine(module), module.check_mode
    diff = write(module.params["files"], check)
    if module.params["state"] == "present":
        reason = ensure(engine, module.params, check)
    else:
        found = engine.inspect("container", module.params["name"])
        reason = "it is not wanted" if found else ""
        if found and not check:
            engine.remove(module.params["name"])
    diff += write(module.params["users"], check)
    module.exit_json(changed=bool(reason or diff), reason=reason, diff=diff)


if __name__ == "__main__":
    main()
