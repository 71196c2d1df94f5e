# SPDX-License-Identifier: Apache-2.0
"""Metrics of this process, with the names that Prometheus' client libraries give them."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tegra_device_plugin.telemetry.exposition import Metric, counters, gauge

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_START_TIME = 19  # in /proc/PID/stat, after the program's name (proc_pid_stat(5), field 22)


def process_metrics() -> Iterator[Metric]:
    """Give the metrics of this process; those that cannot be read are left out."""
    yield counters("process_cpu_seconds_total", (({}, time.process_time()),))
    with suppress(OSError):
        virtual, resident = (_PROC / "self/statm").read_text().split()[:2]
        yield gauge("process_virtual_memory_bytes", int(virtual) * _PAGE_BYTES)
        yield gauge("process_resident_memory_bytes", int(resident) * _PAGE_BYTES)
    with suppress(OSError):
        yield gauge("process_start_time_seconds", _start_time())
    with suppress(OSError):
        yield gauge("process_open_fds", sum(1 for _ in (_PROC / "self/fd").iterdir()))
    with suppress(OSError):
        yield gauge("process_max_fds", _max_descriptors())


def _start_time() -> float:
    """Give the Unix time of the start. The boot's is read each time: a board's clock may be set after it."""
    ticks = (_PROC / "self/stat").read_text().rpartition(")")[2].split()[_START_TIME]
    booted = (_PROC / "stat").read_text().partition("\nbtime ")[2].split()[0]
    return int(booted) + int(ticks) / _TICKS_PER_SECOND


def _max_descriptors() -> int | None:
    limits = (_PROC / "self/limits").read_text()
    soft = limits.partition("\nMax open files")[2].split()[0]
    return None if soft == "unlimited" else int(soft)
