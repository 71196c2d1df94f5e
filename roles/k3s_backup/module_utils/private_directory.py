# SPDX-License-Identifier: Apache-2.0
"""A directory for secrets that is removed when its process ends, even if the process is killed.

Runs on the board: Python 3.6 compatible.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time

# A program of the process that was killed may still write below the directory while it is removed.
TRIES, PAUSE_SECONDS = 50, 0.1


@contextlib.contextmanager
def private_directory(parent, prefix):
    """A new directory of this user's alone, which is gone after the block. OSError.

    A second process waits for the end of this one, and removes the directory if this one was killed. After a
    power cut the directory is still there: see remove_leftovers.
    """
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    guard, alive = _start_guard(path)
    try:
        yield path
    finally:
        _remove(path)
        os.close(alive)
        os.waitpid(guard, 0)


def remove_leftovers(parent, prefix):
    """Remove the directories that a power cut has left."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(parent):
            if name.startswith(prefix):
                shutil.rmtree(os.path.join(parent, name))


def _start_guard(path):
    """The process that removes the directory, and the descriptor whose end it waits for."""
    ended, alive = os.pipe()  # not inherited by programs
    guard = os.fork()
    if guard == 0:
        try:
            _guard(path, ended, alive)
        finally:
            os._exit(0)
    os.close(ended)
    return guard, alive


def _guard(path, ended, alive):
    os.setsid()  # signals to the group of the process are not for this one
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.close(alive)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # Ansible reads to the end of the module's output
        os.dup2(null, descriptor)
    os.read(ended, 1)
    _remove(path)


def _remove(path):
    for _ in range(TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(PAUSE_SECONDS)
    shutil.rmtree(path)  # says why not
