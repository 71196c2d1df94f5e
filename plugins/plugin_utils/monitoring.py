# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is to scrape, from the inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean

# Job and port, as in plugin/deploy.
PLUGIN, AGENT = ("tegra-device-plugin", 9400), ("tegra-gpu-agent", 9401)
DRIVER = ("tegra-dra-driver", 9400)
TAINT = ("tegra-throttle-taint", 9402)


class Names(TypedDict):
    """Names of the settings that say where a board is reached, and what serves metrics there.

    The role gives them, because `tools.docs.settings` finds what a role reads in its YAML.
    """

    address: str
    api: str
    agent: str
    throttle_taint: str


def targets(boards: Iterable[Mapping[str, Any]], names: Names) -> list[dict[str, Any]]:
    """Of each board, by its variables, what serves metrics, in Prometheus' format for files of targets.

    The labels are those that alerts and dashboard go by. A job of its own name takes precedence over that of
    the scrape job which reads the file. A node has its board's name in small letters.
    """
    return [
        {
            "targets": [f"{_address(board, names)}:{port}"],
            "labels": {"job": job, "node": node, "instance": node},
        }
        for board in boards
        for node in [str(board["inventory_hostname"]).lower()]
        for job, port in _served(board, names)
    ]


def _served(board: Mapping[str, Any], names: Names) -> Iterator[tuple[str, int]]:
    yield DRIVER if board.get(names["api"]) == "dra" else PLUGIN
    if boolean((board.get(names["agent"]) or {}).get("enabled", False)):
        yield AGENT
    if boolean((board.get(names["throttle_taint"]) or {}).get("enabled", False)):
        yield TAINT


def _address(board: Mapping[str, Any], names: Names) -> str:
    """Where the board is reached; an address of IPv6 in brackets."""
    found = board.get(names["address"]) or board.get("ansible_host") or board["inventory_hostname"]
    return f"[{found}]" if ":" in str(found) else str(found)


FILTERS = {"monitoring_targets": targets}
