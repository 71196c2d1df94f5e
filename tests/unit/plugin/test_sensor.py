# SPDX-License-Identifier: Apache-2.0
"""Blocking reads: their answers, their errors, and those that never end."""

import subprocess
import sys
import threading

import pytest
from tegra_device_plugin.system.hosttree import is_own_shortage
from tegra_device_plugin.system.waiting import Sensor


async def test_a_process_out_of_threads_is_told_apart_from_a_read_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sensor = Sensor(deadline=5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread") as failed:
                await sensor.read(lambda: 42)
            assert is_own_shortage(failed.value)
    assert await sensor.read(lambda: 42) == 42


def test_a_process_can_end_while_a_read_hangs() -> None:
    program = """
import asyncio, contextlib, threading
from tegra_device_plugin.system.waiting import Sensor
with contextlib.suppress(TimeoutError):
    asyncio.run(Sensor(deadline=0.05).read(threading.Event().wait))
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=True)
    assert ended.stdout == b"ended\n"
