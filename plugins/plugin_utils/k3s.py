# SPDX-License-Identifier: Apache-2.0
"""The boards of a cluster and their addresses: pure functions for role k3s."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.unsafe_proxy import wrap_var


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


def servers(locks: dict[str, Any], variables: Any, quorum: Any) -> dict[str, str]:
    """The id of each other server's boot by node, '' for a server that did not answer.

    `locks` are of run_lock with state read, `variables` Ansible's hostvars. Without `quorum` nobody has to
    know: the locks may be of an earlier step.
    """
    answers = locks.get("results", []) if boolean(quorum) else []
    nodes = {one["item"]: variables[one["item"]].get("preflight_node") for one in answers}
    return {nodes[one["item"]] or one["item"].lower(): one.get("boot_id", "") for one in answers}


def asked_url(asked: str, first: str, server_url: str, variables: Any) -> str:
    """The address of the server for kubectl. `server_url` leads to the first one of the inventory."""
    if asked == first:
        return server_url
    return f"https://{url_host(variables[asked].get('ansible_host') or asked)}:6443"


def nodes_by_name(answers: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """{name: the node as each server has it}, by the results of module k3s_nodes.

    Ansible takes long to read a list, and each board of a fleet looks for its own node.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for answer in answers:
        for node in answer.get("nodes", []):
            found.setdefault(node["name"], []).append(node)
    return found


FILTERS = {
    "k3s_asked_url": asked_url,
    "k3s_boards": boards,
    # What nodes say is no template. Of Ansible's own containers there is no copy but by JSON.
    "k3s_nodes_by_name": lambda answers: wrap_var(json.loads(json.dumps(nodes_by_name(answers)))),
    "k3s_servers": servers,
    "k3s_url_host": url_host,
}
