# SPDX-License-Identifier: Apache-2.0
"""Room for the inotify instances of all boards, which count as those of one user: root of this machine."""

from pathlib import Path

from tools.process import say

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
INSTANCES = 1024
"""A server of K3s has some 25, an agent 15. The kernel's own 128 are enough for six boards; where they are
used up, a unit of systemd's fails while a board boots."""


def ensure_room() -> None:
    """Raise the machine's limit, until it boots again; without the right to, say what is missing."""
    if int(LIMIT.read_text()) >= INSTANCES:
        return
    try:
        LIMIT.write_text(f"{INSTANCES}\n")
        say(f"raised {LIMIT} to {INSTANCES}")
    except OSError as error:
        say(
            f"{LIMIT} is {LIMIT.read_text().strip()} and cannot be raised here ({error.strerror}). That is "
            f"enough for about five boards; more need: sudo sysctl fs.inotify.max_user_instances={INSTANCES}"
        )
