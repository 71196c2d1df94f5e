# SPDX-License-Identifier: Apache-2.0
"""End a process of one pod, and never another: a pid can be used again at any moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tegra_device_plugin.agent.cgroups import has_host_pids
from tegra_device_plugin.system.hosttree import HostTree


class CannotEndError(OSError):
    """Processes of pods cannot be ended here."""


def check_possible(host: HostTree) -> None:
    """Raise CannotEndError without the host's process ids or pidfd_open (Linux 5.3; JetPack 4 has 4.9)."""
    if not has_host_pids(host):
        raise CannotEndError("--mode evict needs the host's process ids: set hostPID in the agent's pod")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise CannotEndError(
            "--mode evict needs pidfd_open, which came with Linux 5.3 and which seccomp can forbid; "
            f"this kernel is {os.uname().release} ({error.strerror}). Use --mode report"
        ) from error


def end(pid: int, is_its: Callable[[int], bool]) -> bool:
    """Kill process `pid` if `is_its` says that it is the offender's; give whether it was killed.

    The pidfd is opened before the check. So the signal reaches the process that was checked, or none: a
    process that has ended meanwhile cannot be mixed up with a new one of the same number.
    Raises OSError if it may not be killed.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_its(pid):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True
