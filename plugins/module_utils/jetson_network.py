# SPDX-License-Identifier: Apache-2.0
"""A board's network: addresses, routes, the source address towards its server, and firewalls.

Runs on the board, therefore Python 3.6 compatible.
"""

import ipaddress
import re
import socket
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import read
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_services import k3s_given

# A line of `ip -oneline address show`. Ubuntu 18.04's iproute2 (4.15) prints no routes as JSON yet.
ADDRESS = re.compile(r"^\d+: ([^\s@]+)\S*\s+inet6? (\S+) .*\bscope global\b", re.MULTILINE)
REJECTED = 0x200  # RTF_REJECT: unreachable, blackhole and prohibited routes
# Role k3s' own file among those of K3s, and the line above an address that the role chose.
DIRECTORY, ROLE_CONFIG = "etc/rancher/k3s/", "config.yaml.d/50-jetson-k3s.yaml"
CHOSEN = "# Chosen by Ansible: node-ip"
# Settings by which the owner sets the node's address (K3s' pkg/cli/agent and pkg/agent/config), and the
# variables of these settings in the environment of K3s' units.
ADDRESS_SETTINGS = ("node-ip", "flannel-iface", "vpn-auth", "vpn-auth-file")
VARIABLES = {"K3S_VPN_AUTH": "vpn-auth", "K3S_VPN_AUTH_FILE": "vpn-auth-file"}
# IPv6 has routes for its own protocols on each interface. They lead to no network.
UNROUTED = [ipaddress.ip_network("fe80::/10"), ipaddress.ip_network("ff00::/8")]

# Firewalls.
EVERYTHING = "everything"
ANY = ("any", "0.0.0.0/0", "::/0")
# A rule in a file of ufw (its backend_iptables.py): action, protocol, port, to, port, from, direction.
UFW_RULE = re.compile(
    r"^### tuple ### (?:allow|limit)\S* (\S+) (\S+) \S+ \S+ (\S+) (?:\S+ \S+ )?in(_\S+)?", re.MULTILINE
)
UFW_ACCEPTS = re.compile(r'^DEFAULT_INPUT_POLICY="?ACCEPT', re.MULTILINE)
SETTING = re.compile(r"^ +([\w-]+): *(.*)$", re.MULTILINE)
RICH_PORT = re.compile(r'\bport port="(\S+)" protocol="(\w+)" accept')


Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Route(NamedTuple):
    """A route of the kernel's; the gateway is 0 where there is none."""

    to: Network
    device: str
    gateway: Address


def addresses(text: str) -> List[Dict[str, str]]:
    """The addresses in the output of `ip -oneline address show` that other computers can use."""
    return [{"device": device, "address": address} for device, address in ADDRESS.findall(text)]


def _ipv4(word: str) -> ipaddress.IPv4Address:
    """An address of /proc/net/route, which has the bytes in the order of the processor."""
    return ipaddress.IPv4Address(struct.pack("=I", int(word, 16)))


def routes(root: str) -> List[Dict[str, Any]]:
    """The routes of the main table, each with `to` (a network), `device` and `gateway` (None: none)."""
    found: List[Route] = []
    for row in (line.split() for line in (read(root, "proc/net/route") or "").splitlines()[1:]):
        to, gateway, flags, mask = row[1], _ipv4(row[2]), int(row[3], 16), _ipv4(row[7])
        if not flags & REJECTED:
            found.append(Route(ipaddress.ip_network("{}/{}".format(_ipv4(to), mask)), row[0], gateway))
    for row in (line.split() for line in (read(root, "proc/net/ipv6_route") or "").splitlines()):
        network = ipaddress.ip_network((int(row[0], 16).to_bytes(16, "big"), int(row[1], 16)))
        # The local table is there as well, on the loopback interface.
        if not (
            int(row[8], 16) & REJECTED
            or row[9] == "lo"
            or any(network.network_address in one for one in UNROUTED)
        ):
            found.append(Route(network, row[9], ipaddress.IPv6Address(bytes.fromhex(row[4]))))
    return [
        {
            "to": str(route.to),
            "device": route.device,
            "gateway": str(route.gateway) if int(route.gateway) else None,
        }
        for route in found
    ]


def default_devices(known: Sequence[Dict[str, Any]]) -> List[str]:
    """The interfaces of default routes, in their order; `known` is what routes() returns."""
    devices = [route["device"] for route in known if route["to"] in ("0.0.0.0/0", "::/0")]
    return sorted(set(devices), key=devices.index)


def source_address(host: str) -> Optional[str]:
    """The source address of packets to a host. None if it is unknown, or if the host is this board.

    The kernel looks up the route when a datagram socket is connected; no packet is sent.
    """
    try:
        found = socket.getaddrinfo(host, 6443, type=socket.SOCK_DGRAM)
        family, kind, _, _, where = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    except (OSError, UnicodeError):
        return None
    return None if own.is_loopback or own.is_link_local else str(own)


def node_ip(
    root: str, files: Dict[str, str], environment: Dict[str, Dict[str, str]], command: Optional[str]
) -> Dict[str, Any]:
    """The source of the node's address: settings of its `owner`, or the address that the `role` chose.

    `files` and `environment` are K3s' own, from jetson_services.
    """
    owners = {name: text for name, text in files.items() if name != ROLE_CONFIG}
    given = [name for name, _ in k3s_given(owners, command) if name in ADDRESS_SETTINGS]
    given += [VARIABLES[name] for unit in environment.values() for name in unit if name in VARIABLES]
    chosen = read(root, DIRECTORY + ROLE_CONFIG) or ""
    found = re.search(r"^node-ip: *(\S+)", chosen, re.MULTILINE) if CHOSEN in chosen else None
    return {"owner": sorted(set(given)), "role": found.group(1) if found else None}


def _normal(ports: str, protocols: Sequence[str]) -> List[str]:
    """Each port or range with each protocol: `2379-2380/tcp`."""
    return [
        "{}/{}".format(port.replace(":", "-"), protocol)
        for port in ports.split(",")
        for protocol in protocols
    ]


def ufw(root: str) -> Optional[List[str]]:
    """Ports such as 6443/tcp and networks that ufw allows. None if ufw is off."""
    if not re.search(r"^ENABLED=yes", read(root, "etc/ufw/ufw.conf") or "", re.MULTILINE):
        return None
    if UFW_ACCEPTS.search(read(root, "etc/default/ufw") or ""):
        return [EVERYTHING]
    rules = "\n".join(read(root, path) or "" for path in ("etc/ufw/user.rules", "etc/ufw/user6.rules"))
    opened = []
    for protocol, ports, source, device in UFW_RULE.findall(rules):
        if ports not in ANY:
            opened += _normal(ports, ("tcp", "udp") if protocol == "any" else (protocol,))
        elif source not in ANY:
            opened.append(source)
        elif protocol == "any":
            opened.append(EVERYTHING if not device else "interface " + device[1:])
    return sorted(set(opened))


def firewalld(text: str) -> List[str]:
    """The same of all zones, as `firewall-cmd --list-all-zones` prints them; unused zones open no ports."""
    opened = []
    for zone in text.split("\n\n"):
        values = {key: value.split() for key, value in SETTING.findall(zone)}
        if values.get("target") == ["ACCEPT"]:
            opened += values.get("sources", [])
            opened += ["interface " + name for name in values.get("interfaces", [])]
        opened += values.get("ports", [])
        opened += ["{}/{}".format(*port) for port in RICH_PORT.findall(zone)]
    return sorted(set(opened))


def firewalls(root: str, firewalld_runs: bool, output: Callable[..., str]) -> Dict[str, Optional[List[str]]]:
    """The ports and networks that each firewall allows, None if it does not run; `output` runs a command."""
    return {
        "ufw": ufw(root),
        "firewalld": firewalld(output("firewall-cmd", "--list-all-zones")) if firewalld_runs else None,
    }
