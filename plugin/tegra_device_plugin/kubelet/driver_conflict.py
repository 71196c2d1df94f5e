# SPDX-License-Identifier: Apache-2.0
"""Keeps the device plugin and the DRA driver from allocating the same GPU."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tegra_device_plugin.kubelet import sockets
from tegra_device_plugin.system.kubernetes import DRIVER

_REMEDY = (
    "Both would allocate the same GPU. Choose one for this board (gpu_device_plugin_api, or the node's "
    "labels jetson-k3s.github.io/dra and jetson-k3s.github.io/device-plugin)"
)


class BothApisError(OSError):
    """The other driver serves this board."""


def dra_directory(kubelet: Path) -> Path:
    """Give the directory of the DRA driver's socket and checkpoint."""
    return kubelet / "plugins" / DRIVER


def dra_socket(kubelet: Path) -> Path:
    return dra_directory(kubelet) / "dra.sock"


def refuse_beside_dra(device_plugins: Path) -> None:
    """Raise BothApisError if the DRA driver serves the kubelet of this directory of device plugins."""
    path = dra_socket(device_plugins.parent)
    if sockets.accepts(path):
        raise _conflict("the DRA driver", path)


def refuse_beside_device_plugin(device_plugins: Path) -> None:
    """Raise BothApisError if a device plugin of this project serves in this directory of device plugins."""
    for name in sorted(sockets.serving(device_plugins)):
        raise _conflict("the device plugin", device_plugins / name)


class GpuLock:
    """The right to advertise the board's GPU. Once acquired, it lasts until the process ends.

    It is a lock of flock(2) on the kubelet's directory of device plugins: both pods mount that directory, a
    read-only mount is enough, and the kernel releases the lock of a process that is killed. Device plugins
    share the lock, because a rolling update may start the new pod before it ends the old one.

    The sockets are checked as well, for a GPU that appears while both run (the driver serves from its start,
    the device plugin only with a GPU), and for another process of a version without lock.
    """

    def __init__(self, *, for_dra: bool) -> None:
        self._for_dra = for_dra
        self._directory: int | None = None

    def acquire(self, device_plugins: Path) -> None:
        """Acquire the lock, if not done. Raises BothApisError while the other has the GPU, OSError."""
        if self._is_acquired(device_plugins):
            return
        (refuse_beside_device_plugin if self._for_dra else refuse_beside_dra)(device_plugins)
        with suppress(FileNotFoundError):  # then no device plugin can serve, and the sockets are enough
            directory = os.open(device_plugins, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(directory, (fcntl.LOCK_EX if self._for_dra else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(directory)
                other = "the device plugin" if self._for_dra else "the DRA driver"
                raise _conflict(other, device_plugins) from None
            except BaseException:
                os.close(directory)
                raise
            self.release()
            self._directory = directory

    def conflict(self, device_plugins: Path) -> str | None:
        """Acquire the lock, if not done. Gives the reason while the other API has the GPU. Raises OSError."""
        try:
            self.acquire(device_plugins)
        except BothApisError as error:
            return str(error)
        return None

    def release(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def _is_acquired(self, device_plugins: Path) -> bool:
        """True if the lock is on the present directory: a kubelet may make its directory again."""
        if self._directory is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._directory), device_plugins.stat())
        except OSError:
            return False


def _conflict(other: str, place: Path) -> BothApisError:
    return BothApisError(f"{other} serves this board, at {place}. {_REMEDY}")
