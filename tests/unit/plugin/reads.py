# SPDX-License-Identifier: Apache-2.0
"""Watching which host files the plugin reads."""

import pytest
from tegra_device_plugin.system.hosttree import HostTree


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on every path that is read below any host root is appended to the list."""
    paths: list[str] = []
    read = HostTree.read

    def recording(self: HostTree, path: str) -> bytes:
        paths.append(path)
        return read(self, path)

    monkeypatch.setattr(HostTree, "read", recording)
    return paths
