# SPDX-License-Identifier: Apache-2.0
"""Can K3s and Docker on a board use the names and addresses that the inventory gives them?

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    host_names,
    k3s,
    preflight_identity,
    preflight_network,
)

Finding = dict[str, str]
Facts = dict[str, Any]

SETTING = "k3s_server_url"
FINDINGS = {
    "form": {"id": "server-url"},
    "address": {"id": "server-address"},
    "name": {"id": "server-name"},
    "short": {"id": "server-name-short"},
}
EXPECTED = "https://HOST:PORT of the server, with a host that K3s on each board resolves and reaches"


class Server(TypedDict):
    """The server that boards join."""

    name: str
    url: str
    default: str
    """The URL without k3s_server_url."""
    facts: Facts | None


def default_url(server: str, variables: Mapping[str, Any]) -> str:
    """k3s_server_url without the setting, as role k3s has it."""
    return k3s.asked_url(server, "", "", {server: variables})


def source_of(server: Server) -> str:
    """The setting that gives the URL, with its value; a value with a secret is left out."""
    url = server["url"]
    if url == server["default"]:
        return f"{SETTING} is {url}, by ansible_host or the inventory's name of {server['name']}"
    return SETTING if "@" in url else f"{SETTING} is {url}"


def server_addresses(facts: Facts | None) -> list[str]:
    """Addresses by which other boards may reach a server, those that no board shares."""
    own = preflight_identity.own_addresses(facts) if facts else set()
    return sorted(one for one in own if host_names.address_problem(one) is None)


def findings_of_server_url(facts: Facts, server: Server, joins: bool) -> list[Finding]:
    """Can the board join by the server's URL? `joins` is false for the first server, which joins nobody.

    The URL of the first server is in its certificate, so its form is judged there, too.
    """
    url, name = server["url"], server["name"]
    problem = host_names.url_problem(url, facts["resolver"] if joins else None)
    host = host_names.host_of(url)
    if problem is None and joins and facts["role"] == "agent" and host in own_addresses(facts):
        problem = host_names.Problem("address", "the board has this address itself")
    if problem is None or not (joins or problem.kind == "form"):
        return []
    addresses = server_addresses(server["facts"])
    better = k3s.url_host(addresses[0]) if addresses else "ADDRESS"
    more = "" if addresses else f", with an address of {name} that each board reaches"
    hosts = f" Or add {host} with its address to /etc/hosts of each board."
    return [
        FINDINGS[problem.kind]
        | {
            "found": f"{source_of(server)}: {problem.why}",
            "expected": EXPECTED,
            "fix": f"Set {SETTING} to https://{better}:6443 in the inventory{more}."
            + (hosts if problem.kind in ("name", "short") else ""),
        }
    ]


def own_addresses(facts: Facts) -> set[str]:
    """All addresses of a board, also those that other boards have, too."""
    return {str(entry["address"]).partition("/")[0] for entry in facts["network"]["addresses"]}


def findings_of_server_range(url: str, ranges: Facts) -> list[Finding]:
    """Is the server's address one of a pod or a service?"""
    range_ = host_names.inside(host_names.host_of(url), preflight_network.ranges_of(ranges))
    if not range_:
        return []
    return [
        {
            "id": "server-address",
            "found": f"{SETTING} leads to {host_names.host_of(url)}, an address of pods or services "
            f"({range_})",
            "expected": EXPECTED,
            "fix": f"Set {SETTING} to an address of the board itself. If the address is right, and there is "
            "no cluster yet, set other networks: cluster-cidr, service-cidr and cluster-dns in "
            "k3s_server_config.",
        }
    ]


def findings_of_hosts(facts: Facts, hosts: Iterable[tuple[str, str]]) -> list[Finding]:
    """Names that Docker or K3s on this board will not resolve, of `hosts`: (setting, host)."""
    found: dict[str, tuple[str, str]] = {}
    for setting, host in hosts:
        problem = host_names.host_problem(host, facts["resolver"]) if host else None
        if problem and problem.kind == "name":
            found.setdefault(host, (setting, problem.why))
    return [
        {
            "id": "name-unresolved",
            "found": "; ".join(f"{setting} has {host}: {why}" for host, (setting, why) in found.items()),
            "expected": "hosts that K3s and Docker on the board resolve",
            "fix": f"Write IP addresses or names of DNS instead, or add {', '.join(found)} to /etc/hosts of "
            "each board.",
        }
    ] * bool(found)
