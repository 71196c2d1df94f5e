#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Let one run at a time change a board.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import fcntl
import json
import os
import socket
import time

from ansible.module_utils.atomic_files import make_directory, replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.uploads import UploadError, remove_all

DOCUMENTATION = r"""
module: board_lease
short_description: One run at a time changes a board
description:
  - The first run to come holds the board. Another one fails, and is told who holds it and since when.
  - A board is free when it is given back, when it was started again, and when the lease has expired. For
    runs on the same controller it is also free when the run that held it has ended.
  - Nothing is held in check mode, and nobody is refused.
  - A run that takes the lease removes the uploads that interrupted runs have left.
author: The jetson-k3s authors
options:
  path:
    description: The lease, in C(/run), because nobody holds a board that was started again.
    type: path
    required: true
  state:
    description: C(free) gives back what this run holds, and leaves alone what others do.
    type: str
    choices: [held, free]
    required: true
  uploads:
    description: With C(held), the directory in which the role upload keeps the uploads.
    type: path
  run:
    description: Who runs what, from the filter C(board_lease_run).
    type: dict
    required: true
attributes:
  check_mode:
    support: full
"""

RETURN = r""" # """

# As long as a run may need from its first change to its last word. It is waited for only when a run was
# killed on another computer.
LEASE_SECONDS = 3600


def is_own(lease, run):
    """Does this run hold it?"""
    return all(lease[key] == run[key] for key in ("who", "controller", "process"))


def is_over(lease, run, now):
    """Is its time over, or has the run ended that took it? Only that run's own computer knows the latter."""
    if now >= lease["until"]:
        return True
    seen = lease["controller"] == run["controller"] and (lease["who"] == run["who"] or run["sees_all"])
    return seen and run["alive"] is not None and lease["process"] not in run["alive"]


def refusal(path, lease, now):
    """Why another run must not go on, for people."""
    return (
        "{host}: held by {who}, who runs {playbook} since {since}. Nothing was changed on this board. If "
        "that run goes on, run the same command again after its end. If it was interrupted, run the same "
        "command again on the computer where it ran, or wait: the board is free in at most {minutes:.0f} "
        "minutes. If you are sure that it has ended, type on the board: sudo rm {path}"
    ).format(host=socket.gethostname(), minutes=max(1, (lease["until"] - now) / 60), path=path, **lease)


def taken(lease, run, now):
    """The lease as this run has it; who has it already keeps the time since when."""
    since = lease["since"] if lease and is_own(lease, run) else run["since"]
    kept = {key: run[key] for key in ("who", "playbook", "controller", "process")}
    return dict(kept, since=since, until=now + LEASE_SECONDS)


def read(path):
    """The lease, None without one."""
    try:
        with open(path) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def alone(path):
    """No other run looks at the lease meanwhile."""
    make_directory(path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def hold(path, run, now, clean):
    """Take or renew the lease; why not, '' when this run has it. A run that takes it begins with `clean`."""
    with alone(path):
        lease = read(path)
        if lease and not is_own(lease, run) and not is_over(lease, run, now):
            return refusal(path, lease, now)
        if not lease or not is_own(lease, run):
            clean()
        replace_file(path, json.dumps(taken(lease, run, now)))
    return ""


def give_back(path, run):
    """End the lease if this run has it."""
    with alone(path):
        lease = read(path)
        if lease and is_own(lease, run):
            os.unlink(path)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["held", "free"], "required": True},
            "uploads": {"type": "path"},
            "run": {"type": "dict", "required": True},
        },
        required_if=[("state", "held", ("uploads",))],
        supports_check_mode=True,
    )
    path, run, refused = module.params["path"], module.params["run"], ""
    if not module.check_mode:
        if module.params["state"] == "held":
            try:
                refused = hold(path, run, time.monotonic(), lambda: remove_all(module.params["uploads"]))
            except UploadError as error:
                refused = str(error)
        else:
            give_back(path, run)
    if refused:
        module.fail_json(msg=refused)
    # A lease is no state of the board that anybody asked for.
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
