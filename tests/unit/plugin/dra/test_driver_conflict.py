# SPDX-License-Identifier: Apache-2.0
"""The device plugin and the DRA driver never serve one board together."""

import tempfile
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet import driver_conflict
from tegra_device_plugin.kubelet.driver_conflict import BothApisError, GpuLock

from tests.conformance.fake_kubelet import refusing_socket


def test_a_socket_without_a_listener_is_no_conflict() -> None:
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:
        plugins, driver = Path(directory, "device-plugins"), driver_conflict.dra_socket(Path(directory))
        for socket in (plugins / "tegra-gpu-0123-0.sock", driver):
            socket.parent.mkdir(parents=True)
            refusing_socket(socket).close()
        driver_conflict.refuse_beside_device_plugin(plugins)
        driver_conflict.refuse_beside_dra(plugins)


def test_a_directory_that_is_made_again_is_locked_again(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    plugin, driver = GpuLock(for_dra=False), GpuLock(for_dra=True)
    plugin.acquire(directory)  # not there yet, so no device plugin can serve
    for _ in range(2):
        directory.mkdir()
        plugin.acquire(directory)
        with pytest.raises(BothApisError):
            driver.acquire(directory)
        directory.rmdir()


def test_device_plugins_share_the_lock_and_a_refusal_keeps_no_descriptor(tmp_path: Path) -> None:
    old, new, driver = (GpuLock(for_dra=for_dra) for for_dra in (False, False, True))
    old.acquire(tmp_path)
    new.acquire(tmp_path)
    old.release()
    with pytest.raises(BothApisError, match=f"the device plugin serves this board, at {tmp_path}"):
        driver.acquire(tmp_path)
    new.release()
    driver.acquire(tmp_path)
    driver.acquire(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BothApisError, match=f"the DRA driver serves this board, at {tmp_path}"):
        new.acquire(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
