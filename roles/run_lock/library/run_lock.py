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
module: run_lock
short_description: One run at a time changes a board
description:
  - The first run locks the board. Another run fails, with the owner of the lock and its start.
  - A lock ends when the run releases the board, when the board restarts, and when the lock expires. For runs
    on the same controller the lock also ends with the process of its run.
  - In check mode no board is locked and no run is refused.
  - A run that locks the board removes the uploads that interrupted runs have left.
options:
  path: {type: path, required: true, description: 'The file of the lock, in C(/run): a restart removes it.'}
  state: {choices: [locked, released], required: true, description: C(released) removes this run's lock only.}
  uploads: {type: path, description: 'With C(locked), where the role upload keeps the uploads.'}
  run: {type: dict, required: true, description: What the filter C(run_lock_run) says of this run.}
"""

RETURN = r""" # """

# Longer than a run needs from its first change to its end. A lock only expires if its run was killed on
# another computer.
LOCK_SECONDS = 3600


def is_own(lock, run):
    """Whether this run has the lock."""
    return all(lock[key] == run[key] for key in ("who", "controller", "process"))


def is_over(lock, run, now):
    """Whether the lock has expired or its run has ended. Only the computer of that run knows the latter."""
    if now >= lock["until"]:
        return True
    seen = lock["controller"] == run["controller"] and (lock["who"] == run["who"] or run["sees_all"])
    return seen and run["alive"] is not None and lock["process"] not in run["alive"]


def refusal(path, lock, now):
    """The message for a run that must not go on."""
    return (
        "{host}: locked by {who}, who runs {playbook} since {since}. Nothing was changed on this board. If "
        "that run goes on, run the same command again after its end. If it was interrupted, run the same "
        "command again on the computer where it ran, or wait: the lock expires in at most {minutes:.0f} "
        "minutes. If you are sure that the run has ended, type on the board: sudo rm {path}"
    ).format(host=socket.gethostname(), minutes=max(1, (lock["until"] - now) / 60), path=path, **lock)


def renewed(lock, run, now):
    """The lock of this run. If the run had the lock before, the time since when stays."""
    since = lock["since"] if lock and is_own(lock, run) else run["since"]
    kept = {key: run[key] for key in ("who", "playbook", "controller", "process")}
    return dict(kept, since=since, until=now + LOCK_SECONDS)


def read(path):
    """The lock; None without one."""
    try:
        with open(path) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def exclusive(path):
    """No other run reads or writes the lock meanwhile."""
    make_directory(path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def acquire(path, run, now, clean):
    """Lock the board or renew the lock; return "" or a refusal. A new lock is preceded by `clean`."""
    with exclusive(path):
        lock = read(path)
        if lock and not is_own(lock, run) and not is_over(lock, run, now):
            return refusal(path, lock, now)
        if not lock or not is_own(lock, run):
            clean()
        replace_file(path, json.dumps(renewed(lock, run, now)))
    return ""


def release(path, run):
    """Remove the lock if this run has it."""
    with exclusive(path):
        lock = read(path)
        if lock and is_own(lock, run):
            os.unlink(path)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["locked", "released"], "required": True},
            "uploads": {"type": "path"},
            "run": {"type": "dict", "required": True},
        },
        required_if=[("state", "locked", ("uploads",))],
        supports_check_mode=True,
    )
    path, run, refused = module.params["path"], module.params["run"], ""
    if not module.check_mode:
        if module.params["state"] == "locked":
            try:
                refused = acquire(path, run, time.monotonic(), lambda: remove_all(module.params["uploads"]))
            except UploadError as error:
                refused = str(error)
        else:
            release(path, run)
    if refused:
        module.fail_json(msg=refused)
    # A lock is part of the run, not of the board's configuration: it is no change.
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
