# SPDX-License-Identifier: Apache-2.0
"""The command `throttle-taint` as a process: its taint, its pages, its end."""

import shlex
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.boards import sensors as simulated
from tests.conformance.fake_api import NODE, FakeApi
from tests.conformance.plugin import Plugin, free_address, page, running

TAINT = {"key": "jetson-k3s.github.io/throttled", "effect": "PreferNoSchedule"}


def start(api: FakeApi, place: Path, *more: str) -> AbstractAsyncContextManager[Plugin]:
    (place / "kubeconfig").write_text(api.kubeconfig(place / "token"))
    simulated.add(place / "host")
    command = (
        f"env KUBECONFIG={place / 'kubeconfig'} {shlex.quote(sys.executable)} "
        f"-m tegra_device_plugin throttle-taint --host-root={{root}} --node-name={NODE}"
    )
    return running(command, place / "host", place / "plugins", *more)


async def test_taint_is_set_shown_and_removed_at_the_end(api: FakeApi, tmp_path: Path) -> None:
    address = free_address()
    async with start(api, tmp_path, f"--metrics-address={address}") as process:
        await api.until(lambda: api.taints == [TAINT], "taint")
        await process.until_logged("taint jetson-k3s.github.io/throttled set")
        shown = page(address).splitlines()
        assert {"tegra_throttle_taint_throttled 1", 'tegra_throttle_taint_writes_total{result="set"} 1'} <= {
            *shown
        }
        assert page(address, "/healthz") == "ok\n"
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
    assert api.taints == []


async def test_a_killed_process_leaves_the_taint_to_the_next_one(api: FakeApi, tmp_path: Path) -> None:
    async with start(api, tmp_path) as process:
        await api.until(lambda: api.taints == [TAINT], "taint")
        process.signal(signal.SIGKILL)
        await process.process.wait()
    assert api.taints == [TAINT]
    async with start(api, tmp_path) as process:
        await process.until_logged("watching 3 cooling devices and 2 over-current alarms")
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
    assert api.taints == []
