#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Run a command in a container that is removed afterwards, also by a name that no other run has.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import signal
import sys
from types import FrameType
from typing import List, Optional

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: container_command
short_description: Run a command in a container that is removed afterwards
description:
  - Docker names the container and removes it. containerd's C(ctr run) needs a name, and leaves the container
    if it is killed. So each run has a name of its own, and removes what killed runs have left.
  - It changes nothing, so it also runs in check mode.
options:
  argv: {type: list, elements: str, required: true, description: The command that makes the container.}
  name:
    description: >-
      With containerd, an argument in O(argv). It is replaced by the container's name, which begins with it.
  stdin: {description: Text for the command.}
"""

RETURN = r"""
rc: {type: int, description: Exit status of the command.}
stdout: {type: str, description: Its output.}
stderr: {type: str, description: What it has complained about.}
"""

CTR = ("k3s", "ctr", "--namespace=k8s.io")
PROC = "/proc"


def process(pid: str) -> str:
    """A process by its number and its start (proc(5), stat); '' if it has ended."""
    try:
        with open(os.path.join(PROC, pid, "stat")) as stat:
            return "{}-{}".format(pid, stat.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return ""


def leftovers(name: str, listed: List[str]) -> List[str]:
    """Those of the listed containers whose run has ended. Their names end with its process."""
    found = []
    for container in listed:
        begin, _, mark = container.partition(name + "-")
        if begin == "" and mark and process(mark.partition("-")[0]) != mark:
            found.append(container)
    return found


def remove(module: AnsibleModule, container: str) -> None:
    """Remove a container and what runs in it. None may be there."""
    module.run_command([*CTR, "tasks", "delete", "--force", container])
    module.run_command([*CTR, "containers", "delete", container])


def end(number: int, _frame: Optional[FrameType]) -> None:
    """A signal, such as that of a lost connection, ends the module as an error does."""
    sys.exit("ended by signal {}".format(number))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "argv": {"type": "list", "elements": "str", "required": True},
            "name": {"type": "str"},
            "stdin": {"type": "str"},
        },
        supports_check_mode=True,
    )
    argv, name, stdin = (module.params[key] for key in ("argv", "name", "stdin"))
    container = "{}-{}".format(name, process(str(os.getpid())))
    if name is not None:
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, end)
        for left in leftovers(name, module.run_command([*CTR, "containers", "ls", "--quiet"])[1].split()):
            remove(module, left)
        argv = [container if word == name else word for word in argv]
    try:
        code, out, err = module.run_command(argv, data=stdin, expand_user_and_vars=False)
    except BaseException:
        if name is not None:
            remove(module, container)
        raise
    module.exit_json(changed=False, rc=code, stdout=out, stderr=err)


if __name__ == "__main__":
    main()
