#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Let one run at a time change a board.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import json
import os
import socket
import time
from typing import Any, Callable, Dict, Iterator, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    make_directory,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.file_locks import lock as lock_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.uploads import UploadError, remove_all

DOCUMENTATION = r"""
module: run_lock
short_description: One run at a time changes a board
description:
  - The first run locks the board. Another run fails, with the owner of the lock and its start.
  - A lock ends when the run releases the board, when the board restarts, and when the lock expires. For runs
    on the same controller the lock also ends with the process of its run.
  - A run may release the board and lock it again. It fails if another run has locked the board in between.
  - A run renews its lock before a step that may take long, and after it. It fails if the lock had expired and
    another run has locked the board in between.
  - In check mode no board is locked and no run is refused.
  - A run that locks the board removes the uploads that interrupted runs have left.
options:
  path: {type: path, required: true, description: 'The file of the lock, in C(/run): a restart removes it.'}
  state:
    description:
      C(renewed) is for a run that has had the lock, and never shortens it. C(released) ends this run's lock
      only. C(read) names the other run that has the lock.
    choices: [locked, renewed, released, read]
    required: true
  again: {type: bool, default: false, description: 'With C(locked), this run has had the lock before.'}
  uploads: {type: path, description: 'With C(locked), where the role upload keeps the uploads.'}
  seconds: {type: int, default: 3600, description: 'After how long the lock expires, unless it is renewed.'}
  run: {type: dict, required: true, description: What the filter C(run_lock_run) says of this run.}
"""

RETURN = r"""
other: {type: str, returned: with state read, description: 'The other run that has the lock, or empty.'}
boot_id: {type: str, returned: with state read, description: The id of the board's boot.}
ansible_facts:
  description:
    C(run_lock_has), whether this run has the lock. With states C(locked) and C(renewed) also C(run_lock_had),
    that this run has had the lock, which is to be given as C(again) the next time. They also return
    C(run_lock_path), the O(path).
  type: dict
  returned: with states locked, renewed and released
"""

Data = Dict[str, Any]  # a lock, or a run

BOOT_ID = "/proc/sys/kernel/random/boot_id"

# A lock is renewed before a step that may take longer. So it only expires if its run was killed on another
# computer, or while its board waits for a slower one.
LOCK_SECONDS = 3600


def is_own(lock: Data, run: Data) -> bool:
    """Whether this run has the lock."""
    return all(lock[key] == run[key] for key in ("who", "controller", "process"))


def is_over(lock: Data, run: Data, now: float) -> bool:
    """Whether the lock has expired or its run has ended. Only the computer of that run knows the latter."""
    if now >= lock["until"]:
        return True
    seen = lock["controller"] == run["controller"] and (lock["who"] == run["who"] or run["sees_all"])
    return seen and run["alive"] is not None and lock["process"] not in run["alive"]


def is_of_other(lock: Data, run: Data, now: float) -> bool:
    """Whether another run has the lock and goes on."""
    return not is_own(lock, run) and not is_over(lock, run, now)


def described(lock: Data) -> str:
    """A lock for people."""
    return "{who}, who runs {playbook} since {since}".format(**lock)


def changed(last: Data) -> str:
    """The message for a run that would go on with what it knew before another run came."""
    return (
        "{host}: {who} has run {playbook} on this board since this run has checked it. This run changed "
        "nothing more on the board. Run the same command again"
    ).format(host=socket.gethostname(), **last)


def refusal(path: str, lock: Data, now: float) -> str:
    """The message for a run that must not go on."""
    return (
        "{host}: locked by {owner}. Nothing was changed on this board. If "
        "that run goes on, run the same command again after its end. If it was interrupted, run the same "
        "command again on the computer where it ran, or wait: the lock expires in at most {minutes:.0f} "
        "minutes. If you are sure that the run has ended, type on the board: sudo rm {path}"
    ).format(
        host=socket.gethostname(),
        owner=described(lock),
        minutes=max(1, (lock["until"] - now) / 60),
        path=path,
    )


def renewed(lock: Optional[Data], run: Data, now: float, seconds: float = LOCK_SECONDS) -> Data:
    """The lock of this run. If the run had the lock before, its start stays, and it never expires earlier."""
    own = lock if lock and is_own(lock, run) else {"since": run["since"], "until": now}
    kept = {key: run[key] for key in ("who", "playbook", "controller", "process")}
    return dict(kept, since=own["since"], until=max(own["until"], now + seconds))


def read(path: str) -> Optional[Data]:
    """The lock; None without one."""
    try:
        with open(path) as stream:
            lock: Data = json.load(stream)
    except FileNotFoundError:
        return None
    return lock


@contextlib.contextmanager
def exclusive(path: str) -> Iterator[None]:
    """No other run reads or writes the lock meanwhile. TimeoutError when another process does not release it.

    Every user of the board can open the directory, but only root this file.
    """
    make_directory(path)
    busy = os.path.join(os.path.dirname(path), "busy")
    with open(os.open(busy, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as stream:
        lock_file(stream.fileno(), busy)
        yield


def ended(path: str) -> str:
    """The file of the last lock that was released."""
    return os.path.join(os.path.dirname(path), "last.json")


def other(path: str, run: Data, now: float) -> str:
    """The other run that has the lock and goes on, '' without one."""
    lock = read(path)
    return described(lock) if lock and is_of_other(lock, run, now) else ""


def acquire(
    path: str,
    run: Data,
    now: float,
    clean: Callable[[], None],
    again: bool = False,
    *,
    seconds: float = LOCK_SECONDS,
) -> str:
    """Lock the board or renew the lock; return "" or a refusal. A new lock is preceded by `clean`.

    `again`: this run has released the board, and goes on if no other run has had the lock since. The lock
    expires after `seconds`.
    """
    with exclusive(path):
        lock = read(path)
        last = lock or read(ended(path))
        if again and last and not is_own(last, run):
            return changed(last)
        if lock and is_of_other(lock, run, now):
            return refusal(path, lock, now)
        if not lock or not is_own(lock, run):
            clean()
        replace_file(path, json.dumps(renewed(lock, run, now, seconds)))
    return ""


def release(path: str, run: Data) -> None:
    """End the lock if this run has it."""
    with exclusive(path):
        lock = read(path)
        if lock and is_own(lock, run):
            os.rename(path, ended(path))


def keep_uploads() -> None:
    """A run that renews its lock may have uploads of its own."""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["locked", "renewed", "released", "read"], "required": True},
            "again": {"type": "bool", "default": False},
            "uploads": {"type": "path"},
            "seconds": {"type": "int", "default": LOCK_SECONDS},
            "run": {"type": "dict", "required": True},
        },
        required_if=[("state", "locked", ("uploads",))],
        supports_check_mode=True,
    )
    path, run, seconds = (module.params[name] for name in ("path", "run", "seconds"))
    refused = ""
    if module.params["state"] == "read":
        with open(BOOT_ID) as stream:
            boot_id = stream.read().strip()
        module.exit_json(changed=False, other=other(path, run, time.monotonic()), boot_id=boot_id)
    try:
        if module.check_mode:
            pass
        elif module.params["state"] == "locked":
            refused = acquire(
                path,
                run,
                time.monotonic(),
                lambda: remove_all(module.params["uploads"]),
                module.params["again"],
                seconds=seconds,
            )
        elif module.params["state"] == "renewed":
            refused = acquire(path, run, time.monotonic(), keep_uploads, again=True, seconds=seconds)
        else:
            release(path, run)
    except (UploadError, TimeoutError) as error:
        refused = str(error)
    if refused:
        module.fail_json(msg=refused)
    locked = module.params["state"] != "released"
    had = {"run_lock_had": True, "run_lock_path": path} if locked else {}
    # A lock is part of the run, not of the board's configuration: it is no change.
    module.exit_json(changed=False, ansible_facts=dict(had, run_lock_has=locked))


if __name__ == "__main__":
    main()
