# SPDX-License-Identifier: Apache-2.0
"""A GPU is offered by the device plugin or by the DRA driver: a board with both would give it out twice."""

from __future__ import annotations

from pathlib import Path

from tegra_device_plugin.config.dra import DRIVER
from tegra_device_plugin.kubelet import sockets

_WAY_OUT = (
    "Both would give the same GPU out. Choose one for this board (gpu_device_plugin_api, or the node's "
    "labels jetson-k3s.github.io/dra and jetson-k3s.github.io/device-plugin)"
)


class BothApisError(OSError):
    """The other one serves this board."""


def dra_directory(kubelet: Path) -> Path:
    """Where the DRA driver has its socket and its checkpoint."""
    return kubelet / "plugins" / DRIVER


def dra_socket(kubelet: Path) -> Path:
    """Where the DRA driver serves the kubelet."""
    return dra_directory(kubelet) / "dra.sock"


def refuse_beside_dra(device_plugins: Path) -> None:
    """Raise BothApisError if the DRA driver serves the kubelet of this directory of device plugins."""
    path = dra_socket(device_plugins.parent)
    if sockets.accepts(path):
        raise BothApisError(f"the DRA driver serves this board, at {path}. {_WAY_OUT}")


def refuse_beside_device_plugin(kubelet: Path) -> None:
    """Raise BothApisError if a device plugin of this project serves the kubelet of this directory."""
    directory = kubelet / "device-plugins"
    for name in sorted(sockets.rivals(directory)):
        raise BothApisError(f"the device plugin serves this board, at {directory / name}. {_WAY_OUT}")
