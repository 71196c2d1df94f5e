# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is to scrape, from the inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# Job and port, as in plugin/deploy.
PLUGIN, AGENT = ("tegra-device-plugin", 9400), ("tegra-gpu-agent", 9401)
DRIVER = ("tegra-dra-driver", 9400)


def targets(boards: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each board, by its variables, what serves metrics, in Prometheus' format for files of targets.

    The labels are those that alerts and dashboard go by. A job of its own name takes precedence over that of
    the scrape job which reads the file. A node has its board's name in small letters.
    """
    return [
        {
            "targets": [f"{_address(board)}:{port}"],
            "labels": {"job": job, "node": node, "instance": node},
        }
        for board in boards
        for node in [str(board["inventory_hostname"]).lower()]
        for job, port in _served(board)
    ]


def _served(board: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    yield DRIVER if board.get("gpu_device_plugin_api") == "dra" else PLUGIN
    if boolean((board.get("gpu_device_plugin_agent") or {}).get("enabled", False)):
        yield AGENT


def _address(board: Mapping[str, Any]) -> str:
    """Where the board is reached; an address of IPv6 in brackets."""
    found = board.get("jetson_k3s_address") or board.get("ansible_host") or board["inventory_hostname"]
    return f"[{found}]" if ":" in str(found) else str(found)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"monitoring_targets": targets}
