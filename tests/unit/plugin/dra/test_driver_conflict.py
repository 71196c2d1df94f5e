# SPDX-License-Identifier: Apache-2.0
"""The device plugin and the DRA driver never serve one board together."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet import driver_conflict
from tegra_device_plugin.kubelet.driver_conflict import BothApisError, GpuLock


@pytest.fixture
def kubelet() -> Iterator[Path]:
    """A kubelet's directory with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:
        path = Path(directory)
        (path / "device-plugins").mkdir()
        driver_conflict.dra_directory(path).mkdir(parents=True)
        yield path


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets that are closed at the end."""
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def bind(path: Path, made: list[socket.socket], *, serves: bool) -> None:
    """Put a socket there."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(str(path))
    if serves:
        one.listen()
    made.append(one)


@pytest.mark.parametrize("serves", [True, False])
def test_only_one_that_serves_is_in_the_way(
    kubelet: Path, sockets: list[socket.socket], serves: bool
) -> None:
    plugin = kubelet / "device-plugins/tegra-gpu-0123-0.sock"
    bind(plugin, sockets, serves=serves)
    bind(kubelet / "device-plugins/kubelet.sock", sockets, serves=True)
    bind(driver_conflict.dra_socket(kubelet), sockets, serves=serves)
    if not serves:
        driver_conflict.refuse_beside_device_plugin(kubelet / "device-plugins")
        driver_conflict.refuse_beside_dra(kubelet / "device-plugins")
        return
    with pytest.raises(BothApisError, match=rf"the device plugin serves this board, at {plugin}.*Choose one"):
        driver_conflict.refuse_beside_device_plugin(kubelet / "device-plugins")
    with pytest.raises(BothApisError, match=r"the DRA driver serves this board, at .*dra.sock.*Choose one"):
        driver_conflict.refuse_beside_dra(kubelet / "device-plugins")


def test_a_pod_that_does_not_see_the_other_s_directory_starts(tmp_path: Path) -> None:
    driver_conflict.refuse_beside_device_plugin(tmp_path / "device-plugins")
    driver_conflict.refuse_beside_dra(tmp_path / "device-plugins")


def test_the_gpu_lock_is_shared_by_device_plugins_and_the_driver_s_alone(tmp_path: Path) -> None:
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
