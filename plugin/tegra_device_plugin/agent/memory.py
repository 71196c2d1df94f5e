# SPDX-License-Identifier: Apache-2.0
"""GPU memory by process, from whoever knows it on this board."""

from __future__ import annotations

from pathlib import Path

from tegra_device_plugin.agent import nvmap, nvml
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.system.hosttree import HostTree

_NVML_DRIVER = "nvidia"  # Thor's; every other Jetson has nvgpu, whose memory nvmap hands out


class UnknownUseError(OSError):
    """Nobody on this board tells how much memory each process holds; the text says why."""


class MemoryUse:
    """Asks nvmap, or NVML on a Thor."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._host = HostTree(root)
        self._driver: str | None = None
        self._nvml: nvml.Nvml | None = None

    def held(self) -> dict[int, int]:
        """Bytes by host pid. Raises UnknownUseError."""
        self._driver = self._driver or detect(self._root).gpu.driver
        if self._driver is None:
            raise UnknownUseError("no Tegra GPU here (see `tegra-device-plugin detect`)")
        return self._by_nvml() if self._driver == _NVML_DRIVER else self._by_nvmap()

    def _by_nvmap(self) -> dict[int, int]:
        try:
            text = self._host.read(nvmap.CLIENTS, nvmap.MOST_BYTES)
        except OSError as error:
            raise UnknownUseError(
                f"cannot read {nvmap.CLIENTS}: {error.strerror}: debugfs must be mounted, and seen from here"
            ) from error
        return nvmap.parse(text.decode("latin-1"))

    def _by_nvml(self) -> dict[int, int]:
        try:
            if self._nvml is None:
                on_host = (f"{str(self._root).rstrip('/')}{path}" for path in nvml.HOST_LIBRARIES)
                self._nvml = nvml.Nvml((nvml.SONAME, *on_host))
            return self._nvml.held()
        except nvml.NvmlError as error:
            raise UnknownUseError(f"on this board only NVML knows who holds GPU memory: {error}") from error
