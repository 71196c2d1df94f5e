# SPDX-License-Identifier: Apache-2.0
"""The boards of a cluster and their addresses: pure functions for role k3s."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from typing import Any


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def url_host(address: str) -> str:
    """A host name or an address as it stands in a URL: IPv6 in brackets (RFC 3986)."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def literal_addresses(texts: list[Any]) -> list[str]:
    """Those of the texts that are IP addresses, as Kubernetes writes them.

    Names are not resolved: by mDNS a board would answer for itself.
    """
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(str(ip_address(str(text).strip("[] "))))
    return found


def boards(names: list[str], variables: Any) -> dict[str, list[str]]:
    """The addresses that the inventory gives each of its boards. `variables` are Ansible's hostvars."""

    def said(name: str) -> list[Any]:
        given = variables[name]
        config = given.get("k3s_board_config") or {}
        own = [config.get(key) for key in ("node-ip", "node-external-ip")]
        listed = [part for value in own for one in _listed(value) for part in str(one).split(",")]
        return [given.get("ansible_host", name), given.get("jetson_k3s_address"), *listed]

    return {name: literal_addresses(said(name)) for name in names}


def servers(answers: list[dict[str, Any]], nodes: dict[str, str]) -> dict[str, str]:
    """The id of each server's boot by node, '' for a server that did not answer.

    `answers` are of run_lock with state read, `nodes` are the names of nodes by inventory name, where known.
    """
    return {nodes[one["item"]] or one["item"].lower(): one.get("boot_id", "") for one in answers}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {
            "k3s_boards": boards,
            "k3s_servers": servers,
            "k3s_url_host": url_host,
        }
