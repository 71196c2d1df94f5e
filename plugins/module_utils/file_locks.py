# SPDX-License-Identifier: Apache-2.0
"""Locks of flock(2) with a timeout.

Each user who can open a file can lock it, even if the user may only read it. So lock a file or a directory
that no other user can open. Runs on the board, therefore Python 3.6 compatible.
"""

import fcntl
import os
import time

# Longer than any module of the roles needs a lock: the slowest removes uploads, which are gigabytes.
WAIT_SECONDS = 120
RETRY_SECONDS = 0.1


def holder(descriptor: int, locks: str = "/proc/locks") -> str:
    """The process that has locked an open file, for people. The kernel's list has it by the file's inode."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        with open(locks) as stream:
            for line in stream:
                # `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`; a process that waits has `->` in it.
                words = line.split()
                if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                    return "process {}".format(words[4])
    except OSError:
        pass
    return "another process"


def acquired(descriptor: int) -> bool:
    """Lock an open file or directory. False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, path: str) -> None:
    """Lock an open file or directory until it is closed. TimeoutError names `path` and the holder."""
    until = time.monotonic() + WAIT_SECONDS
    while not acquired(descriptor):
        if time.monotonic() >= until:
            raise TimeoutError(
                "{} has been locked by {} for {} s. See what the process does, end it if it hangs, and run "
                "the same command again".format(path, holder(descriptor), WAIT_SECONDS)
            )
        time.sleep(RETRY_SECONDS)
