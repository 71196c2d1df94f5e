# SPDX-License-Identifier: Apache-2.0
"""How a board is connected, and what its firewalls let in."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import load

network = load("jetson_facts/module_utils/jetson_network.py")
services = load("jetson_facts/module_utils/jetson_services.py")


def put(root: Path, files: dict[str, str]) -> str:
    """Put files below root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def test_addresses_that_others_can_use_are_told_with_their_interface() -> None:
    text = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        "4: eth0    inet 192.168.1.11/24 brd 192.168.1.255 scope global eth0\\       valid_lft forever\n"
        "4: eth0    inet6 fd00::2/64 scope global nodad \\       valid_lft forever\n"
        "4: eth0    inet6 fe80::1/64 scope link \\       valid_lft forever\n"
        "9: wwan0    inet 10.64.3.7/30 scope global noprefixroute wwan0\\       valid_lft forever\n"
    )
    assert [tuple(one.values()) for one in network.addresses(text)] == [
        ("eth0", "192.168.1.11/24"),
        ("eth0", "fd00::2/64"),
        ("wwan0", "10.64.3.7/30"),
    ]


ROUTE = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
DEFAULT = "eth0 00000000 0105A8C0 0003 0 0 100 00000000 0 0 0\n"
LTE = "wwan0 00000000 00000000 0001 0 0 700 00000000 0 0 0\n"
LAN = "eth0 0005A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n"
BLACKHOLE = "* 00002A0A 00000000 0200 0 0 0 0000FFFF 0 0 0\n"
ZERO, ONE = "0" * 32, "fe80" + "0" * 27 + "1"
IPV6 = (
    f"{ZERO} 00 {ZERO} 00 {ONE} 00000400 00000001 00000000 00000003 wlan0\n"
    f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200 lo\n"
    f"fe80{'0' * 28} 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001 eth0\n"
)


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "devices", "networks"),
    [
        (DEFAULT + LAN, "", ["eth0"], ["0.0.0.0/0", "192.168.5.0/24"]),
        (LAN + LTE + DEFAULT, "", ["wwan0", "eth0"], ["192.168.5.0/24", "0.0.0.0/0", "0.0.0.0/0"]),
        (LAN + BLACKHOLE, "", [], ["192.168.5.0/24"]),
        ("", IPV6, ["wlan0"], ["::/0"]),
        ("", "", [], []),
    ],
    ids=["one", "two", "none", "IPv6", "no network"],
)
def test_routes_and_the_interfaces_of_default_ones(
    tmp_path: Path, ipv4: str, ipv6: str, devices: list[str], networks: list[str]
) -> None:
    root = put(tmp_path, {"proc/net/route": ROUTE + ipv4, "proc/net/ipv6_route": ipv6})
    routes = network.routes(root)
    assert network.default_devices(routes) == devices
    assert [route["to"] for route in routes] == networks
    assert {"192.168.5.1", "fe80::1", None} >= {route["gateway"] for route in routes}


def test_address_towards_a_server_is_none_of_the_board_alone() -> None:
    assert network.source_address("127.0.0.1") is None
    assert network.source_address("a" * 64) is None


OURS = "config.yaml.d/50-jetson-k3s.yaml"


@pytest.mark.parametrize(
    ("files", "command", "owner", "role"),
    [
        ({}, None, [], None),
        ({"config.yaml": "node-ip: 10.0.0.1\n"}, None, ["node-ip"], None),
        (
            {"config.yaml.d/9.yaml": "flannel-iface: eth1\n# node-ip: x\n"},
            None,
            ["flannel-iface"],
            None,
        ),
        (
            {"config.yaml": "node-ip:\n  - 10.0.0.1\n"},
            "k3s agent --vpn-auth=x",
            ["node-ip", "vpn-auth"],
            None,
        ),
        *((({}, f"k3s agent --docker {flag}", ["node-ip"], None)) for flag in ("-i 10.0.0.1", "-i=10.0.0.1")),
        ({}, "k3s agent -flannel-iface eth1", ["flannel-iface"], None),
        ({"config.yaml": "i: 10.0.0.1\n"}, None, ["node-ip"], None),
        ({"config.yaml": '{"docker": true, "node-ip": ["10.0.0.1"]}\n'}, None, ["node-ip"], None),
        ({"config.yaml.d/9.YML": "node-ip+: 10.0.0.1\n"}, None, ["node-ip"], None),
        ({"../../default/k3s-agent": "K3S_VPN_AUTH=name=x\n"}, None, ["vpn-auth"], None),
        ({"config.yaml": "tls-san: [node-ip, i]\n"}, "k3s server --tls-san node-ip", [], None),
        (
            {OURS: f"{network.CHOSEN}\nnode-ip: 10.0.0.1\n"},
            None,
            [],
            "10.0.0.1",
        ),
        ({OURS: "node-ip: 10.0.0.1\n"}, None, [], None),
    ],
)
def test_who_says_the_address_of_the_node(
    tmp_path: Path, files: dict[str, str], command: str | None, owner: list[str], role: str | None
) -> None:
    root = put(tmp_path, {f"etc/rancher/k3s/{name}": text for name, text in files.items()})
    given = services.k3s_files(root), services.k3s_environment(root, {})
    assert network.node_ip(root, *given, command) == {"owner": owner, "role": role}


ON = {"etc/ufw/ufw.conf": "ENABLED=yes\n", "etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"\n'}
UFW_RULES = """\
### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### allow tcp 6443,10250 0.0.0.0/0 any 192.168.1.0/24 in
### tuple ### allow any 8472 0.0.0.0/0 any 0.0.0.0/0 in comment=ab
### tuple ### allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### allow any any 0.0.0.0/0 any 0.0.0.0/0 in_eth1
### tuple ### deny tcp 2379:2380 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### route:allow any any 0.0.0.0/0 any 10.9.0.0/16 in
"""


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        ({}, None),
        ({"etc/ufw/ufw.conf": "ENABLED=no\n"}, None),
        (ON, []),
        (ON | {"etc/default/ufw": "DEFAULT_INPUT_POLICY=ACCEPT\n"}, ["everything"]),
        (
            ON | {"etc/ufw/user.rules": UFW_RULES},
            ["10.42.0.0/16", "10250/tcp", "22/tcp", "6443/tcp", "8472/tcp", "8472/udp", "interface eth1"],
        ),
    ],
)
def test_what_ufw_lets_in(tmp_path: Path, files: dict[str, str], opened: list[str] | None) -> None:
    assert network.ufw(put(tmp_path, files)) == opened


ZONES = """\
public (active)
  target: default
  interfaces: eth0
  sources:
  services: ssh
  ports: 6443/tcp 2379-2380/tcp
  forward-ports:
  rich rules:
\trule family="ipv4" source address="192.168.1.0/24" port port="8472" protocol="udp" accept

trusted
  target: ACCEPT
  interfaces:
  sources: 10.42.0.0/16 10.43.0.0/16
  ports:
"""


def test_what_firewalld_lets_in() -> None:
    said = {("firewall-cmd", "--list-all-zones"): ZONES}
    found: dict[str, Any] = network.firewalls("/nonexistent", True, lambda *argv: said[argv])
    opened = ["10.42.0.0/16", "10.43.0.0/16", "2379-2380/tcp", "6443/tcp", "8472/udp"]
    assert found == {"ufw": None, "firewalld": opened}
    assert network.firewalls("/nonexistent", False, None)["firewalld"] is None
