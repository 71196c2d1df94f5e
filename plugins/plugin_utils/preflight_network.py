# SPDX-License-Identifier: Apache-2.0
"""What a board's networks and firewalls would do to the cluster's.

Pure functions behind the preflight role. A finding has id, found, expected and fix. `fleet` is {inventory
name: facts}, `ranges` the comma-separated networks of pods and services, by K3s' names for them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# K3s' defaults (docs.k3s.io/cli/server).
DEFAULTS = {"cluster-cidr": "10.42.0.0/16", "service-cidr": "10.43.0.0/16"}
# Interfaces that a pod network makes itself.
POD_NETWORK = re.compile(r"(cni|flannel|kube-|cali|tunl|vxlan\.calico|cilium|lxc|veth)\S*")
# Interfaces whose network is none of the site: of containers, and of L4T's USB device mode.
INNER = re.compile(rf"{POD_NETWORK.pattern}|(docker|br-|l4tbr|usb|rndis|virbr|lo)\S*")
# https://docs.k3s.io/installation/requirements#networking; docs/changes.md names them, too.
KUBELET_PORT, API_PORT, ETCD_PORTS = "10250/tcp", "6443/tcp", "2379-2380/tcp"
BACKEND_PORTS = {"vxlan": ["8472/udp"], "wireguard-native": ["51820/udp"]}


def network_of(text: Any) -> Network | None:
    """The network of an address with its prefix, None for another text."""
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None


def overlap(one: Network, other: Network) -> bool:
    """Do the networks have addresses in common?"""
    return one.version == other.version and one.overlaps(other)


def within(one: Network, other: Network) -> bool:
    """Is the first network a part of the second one?"""
    return overlap(one, other) and one.prefixlen >= other.prefixlen


def networks(facts: Facts, k3s: bool) -> dict[Network, str]:
    """The networks in which the board is or to which it has a route, each with words for it.

    Those of the pod network are left out. With host-gw, flannel's routes to other boards' pods lead over
    their addresses, so on a board that has `k3s` routes with a gateway are left out, too.
    """
    found: dict[Network, str] = {}
    for entry in facts["network"]["addresses"]:
        network, device = network_of(entry["address"]), str(entry["device"])
        if network and not POD_NETWORK.fullmatch(device):
            found.setdefault(network, f"the address {entry['address']} on {device}")
    for route in facts["network"]["routes"]:
        network, device = network_of(route["to"]), str(route["device"])
        is_flannels = POD_NETWORK.fullmatch(device) or (k3s and route["gateway"])
        if network and network.prefixlen and not is_flannels:
            found.setdefault(network, f"the route to {network} on {device}")
    return found


def ranges_of(ranges: dict[str, str]) -> list[Network]:
    """Networks of pods and services."""
    said = [ranges.get(key) or default for key, default in DEFAULTS.items()]
    texts = ",".join(",".join(map(str, one)) if isinstance(one, list) else str(one) for one in said)
    return [network for network in map(network_of, texts.split(",")) if network]


def findings_of_ranges(host: str, fleet: dict[str, Facts], ranges: dict[str, str]) -> list[Finding]:
    """Is the board in a network of pods or services, or does it have a route to one?"""
    k3s = any(fleet[host]["k3s"][role]["installed"] for role in ("server", "agent"))
    met = [
        (network, words, own)
        for network, words in networks(fleet[host], k3s).items()
        for own in ranges_of(ranges)
        if overlap(network, own)
    ]
    if not met:
        return []
    # A wider route is of no matter to pods: their own routes are narrower.
    breaks = any(within(network, own) for network, _, own in met)
    other = (
        "give the board another network there (a shared connection of NetworkManager: sudo nmcli connection "
        "modify NAME ipv4.addresses 192.168.77.1/24 && sudo nmcli connection up NAME)"
    )
    return [
        {
            "id": "network-range" if breaks and not k3s else "network-range-shared",
            "found": "; ".join(f"{words} meets {own}" for _, words, own in met),
            "expected": "no network of the board in the ranges of pods and services: packets would go to the "
            "wrong one",
            "fix": f"The cluster runs, and its ranges stay: {other}."
            if k3s
            else "If there is no cluster yet, set for all servers ranges in which no board is, such as "
            "k3s_server_config: {cluster-cidr: 10.44.0.0/16, service-cidr: 10.45.0.0/16, cluster-dns: "
            f"10.45.0.10}}. If it runs, {other}.",
        }
    ]


def site_network(host: str, fleet: dict[str, Facts]) -> Network | None:
    """The network of the board in which another board is; without one, that of its default route."""
    own = {
        network_of(entry["address"]): str(entry["device"])
        for entry in fleet[host]["network"]["addresses"]
        if not INNER.fullmatch(str(entry["device"]))
    }
    others = [
        network_of(str(entry["address"]).partition("/")[0])
        for name, facts in fleet.items()
        if name != host
        for entry in facts["network"]["addresses"]
    ]
    ways = [route["device"] for route in fleet[host]["network"]["routes"] if route["to"] == "0.0.0.0/0"]
    shared = [network for network in own if any(network and one and within(one, network) for one in others)]
    return next(iter(shared + [network for network, device in own.items() if device in ways]), None)


def opened(port: str, rules: list[str], inner: list[str]) -> bool:
    """Is the port open by one of the rules? A rule for a network or an interface opens all ports to it."""
    number, _, protocol = port.partition("/")
    first, last = (int(part) for part in (number.split("-") * 2)[:2])
    for rule in rules:
        kind, _, name = rule.partition(" ")
        if rule == "everything" or (kind == "interface" and not INNER.fullmatch(name)):
            return True
        if kind != "interface" and network_of(rule) and rule not in inner:
            return True
        match = re.fullmatch(r"(\d+)(?:-(\d+))?/(\w+)", rule)
        if match and match[3] == protocol and int(match[1]) <= first and last <= int(match[2] or match[1]):
            return True
    return False


def ufw_commands(ports: list[str], sources: list[str], site: Network | None) -> list[str]:
    """What opens the ports to the site, and everything to the sources."""
    return [
        f"sudo ufw allow {port}"
        if site is None or port == API_PORT
        else f"sudo ufw allow from {site} to any port {port.partition('/')[0].replace('-', ':')} proto "
        f"{port.partition('/')[2]}"
        for port in ports
    ] + [f"sudo ufw allow from {source}" for source in sources]


def firewalld_commands(ports: list[str], sources: list[str], site: Network | None) -> list[str]:
    """The same for firewalld."""
    commands = [
        f"sudo firewall-cmd --permanent --add-port={port}"
        if site is None or port == API_PORT
        else "sudo firewall-cmd --permanent --add-rich-rule='rule family=ipv"
        f"{site.version} source address={site} port port={port.partition('/')[0]} "
        f"protocol={port.partition('/')[2]} accept'"
        for port in ports
    ]
    commands += [f"sudo firewall-cmd --permanent --zone=trusted --add-source={source}" for source in sources]
    return [*commands, "sudo firewall-cmd --reload"]


def findings_of_firewalls(
    host: str, fleet: dict[str, Facts], ranges: dict[str, Any], servers: int, backend: str | None
) -> list[Finding]:
    """Does a firewall of the board keep K3s' ports, pods or services out?

    `servers` is the number of servers, 0 for an agent; `backend` is flannel's, None where it is not known.
    """
    facts = fleet[host]
    ports = [KUBELET_PORT, *BACKEND_PORTS.get(backend or "vxlan", [])]
    if servers:
        ports += [API_PORT, *([ETCD_PORTS] if servers > 1 else [])]
    inner = [str(network) for network in ranges_of(ranges)]
    findings = []
    for name, finding_id, commands in (
        ("ufw", "firewall-ufw", ufw_commands),
        ("firewalld", "firewall-firewalld", firewalld_commands),
    ):
        rules = facts["firewalls"][name]
        if rules is None or "everything" in rules:
            continue
        rules = [str(rule) for rule in rules]
        closed = [port for port in ports if not opened(port, rules, inner)]
        sources = [source for source in inner if source not in rules]
        if closed or sources:
            findings.append(
                {
                    "id": finding_id,
                    "found": f"{name} is active and does not let in {', '.join(closed + sources)}",
                    "expected": "K3s' ports open to the other boards, and everything open to pods and "
                    "services",
                    "fix": "; ".join(commands(closed, sources, site_network(host, fleet))),
                }
            )
    return findings
