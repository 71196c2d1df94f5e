# SPDX-License-Identifier: Apache-2.0
"""Findings of a board's networks and firewalls, and the address that its node gets."""

from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.preflight_facts import with_facts

module = load("preflight/filter_plugins/preflight_network.py")
address = load("k3s/filter_plugins/k3s.py")

AT_WORK = {"installed": True, "command": "k3s agent"}


def board(*addresses: str, routes: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """Facts of a board; an address is `eth0 10.0.0.1/24`, a route `10.0.0.0/8 eth0 10.0.0.254`."""
    told = [dict(zip(("device", "address"), one.split(), strict=True)) for one in addresses]
    ways = [dict(zip(("to", "device", "gateway"), [*one.split(), None], strict=False)) for one in routes]
    return with_facts(network__addresses=told, network__routes=ways, **changes)


@pytest.mark.parametrize(
    ("facts", "ranges", "ids"),
    [
        (board("eth0 192.168.1.11/24"), {}, []),
        (board("wlan0 10.42.0.1/24"), {}, ["network-range"]),
        (board("eth0 10.43.7.7/16"), {}, ["network-range"]),
        (board("eth0 10.0.0.7/8"), {}, ["network-range-shared"]),
        (board(routes=("10.0.0.0/8 tun0 10.8.0.1",)), {}, ["network-range-shared"]),
        (board(routes=("10.43.0.0/24 eth0 192.168.1.1",)), {}, ["network-range"]),
        (board(routes=("0.0.0.0/0 eth0 192.168.1.1",)), {}, []),
        (board("wlan0 10.42.0.1/24"), {"cluster-cidr": "10.52.0.0/16"}, []),
        (board("eth0 10.52.0.1/24"), {"cluster-cidr": "10.52.0.0/16,fd00:42::/56"}, ["network-range"]),
        (board("eth0 fd00:42::9/64"), {"cluster-cidr": ["10.52.0.0/16", "fd00:42::/56"]}, ["network-range"]),
        (board("cni0 10.42.0.1/24", "flannel.1 10.42.0.0/32", k3s__agent=AT_WORK), {}, []),
        (board(routes=("10.42.1.0/24 eth0 192.168.1.12",), k3s__agent=AT_WORK), {}, []),  # host-gw
        (board("wlan0 10.42.0.1/24", k3s__agent=AT_WORK), {}, ["network-range-shared"]),
    ],
)
def test_networks_of_the_board_in_those_of_pods_and_services(
    facts: dict[str, Any], ranges: dict[str, str], ids: list[str]
) -> None:
    found = module.findings_of_ranges("a", {"a": facts}, ranges)
    assert [entry["id"] for entry in found] == ids
    assert all("sudo nmcli connection up NAME" in entry["fix"] for entry in found)


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        (
            "192.168.1.12/24",
            "cluster-cidr: 10.44.0.0/16, service-cidr: 10.45.0.0/16, cluster-dns: 10.45.0.10",
        ),
        ("10.45.0.1/24", "cluster-cidr: 10.144.0.0/16, service-cidr: 10.145.0.0/16"),
        ("10.1.2.3/8", "cluster-cidr: 172.28.0.0/16, service-cidr: 172.29.0.0/16"),
    ],
)
def test_ranges_that_are_offered_are_free_on_all_boards(other: str, advice: str) -> None:
    fleet = {"a": board("wlan0 10.42.0.1/24"), "b": board(f"eth0 {other}")}
    (found,) = module.findings_of_ranges("a", fleet, {})
    assert advice in found["fix"]


PORTS = ["6443/tcp", "10250/tcp", "8472/udp"]
RANGES = ["10.42.0.0/16", "10.43.0.0/16"]


@pytest.mark.parametrize(
    ("rules", "server", "servers", "missing"),
    [
        (None, True, 1, ""),
        (["everything"], True, 1, ""),
        (PORTS + RANGES, True, 1, ""),
        (["1000-65535/tcp", "8472/udp", *RANGES], True, 3, ""),
        (["192.168.1.0/24", *RANGES], True, 3, ""),
        (["interface eth0", *RANGES], True, 1, ""),
        (["interface cni0", *RANGES], False, 1, "10250/tcp, 8472/udp"),
        (["22/tcp"], True, 3, "10250/tcp, 8472/udp, 6443/tcp, 2379-2380/tcp, 10.42.0.0/16, 10.43.0.0/16"),
        (["22/tcp"], False, 3, "10250/tcp, 8472/udp, 10.42.0.0/16, 10.43.0.0/16"),
        ([*PORTS, "10.42.0.0/16"], True, 1, "10.43.0.0/16"),
    ],
)
@pytest.mark.parametrize("name", ["ufw", "firewalld"])
def test_firewall_that_keeps_k3s_out(
    name: str, rules: list[str] | None, server: bool, servers: int, missing: str
) -> None:
    facts = board("eth0 192.168.1.11/24", "wwan0 10.64.0.2/30")
    facts["firewalls"][name] = rules
    fleet = {"a": facts, "b": board("eth0 192.168.1.12/24")}
    found = module.findings_of_firewalls("a", fleet, {}, servers if server else 0, "vxlan")
    assert [entry["id"] for entry in found] == [f"firewall-{name}"] * bool(missing)
    assert all(entry["found"].endswith(f"does not let in {missing}") for entry in found)


def test_commands_open_the_ports_to_the_site_alone() -> None:
    facts = board("eth0 192.168.1.11/24", "wwan0 10.64.0.2/30", firewalls__ufw=[], firewalls__firewalld=[])
    fleet = {"a": facts, "b": board("eth0 192.168.1.12/24")}
    ufw, firewalld = (found["fix"] for found in module.findings_of_firewalls("a", fleet, {}, 3, None))
    assert ufw.split("; ") == [
        "sudo ufw allow from 192.168.1.0/24 to any port 10250 proto tcp",
        "sudo ufw allow from 192.168.1.0/24 to any port 8472 proto udp",
        "sudo ufw allow 6443/tcp",
        "sudo ufw allow from 192.168.1.0/24 to any port 2379:2380 proto tcp",
        "sudo ufw allow from 10.42.0.0/16",
        "sudo ufw allow from 10.43.0.0/16",
    ]
    add, source = "sudo firewall-cmd --permanent", "rule family=ipv4 source address=192.168.1.0/24"
    assert firewalld.split("; ") == [
        f"{add} --add-rich-rule='{source} port port=10250 protocol=tcp accept'",
        f"{add} --add-rich-rule='{source} port port=8472 protocol=udp accept'",
        f"{add} --add-port=6443/tcp",
        f"{add} --add-rich-rule='{source} port port=2379-2380 protocol=tcp accept'",
        f"{add} --zone=trusted --add-source=10.42.0.0/16",
        f"{add} --zone=trusted --add-source=10.43.0.0/16",
        "sudo firewall-cmd --reload",
    ]


LAN, LTE = "192.168.1.12", "10.64.0.2"


@pytest.mark.parametrize(
    ("changes", "config", "role", "chosen"),
    [
        ({}, {}, "agent", None),
        ({"network__towards_server": LAN}, {}, "agent", LAN),
        ({"network__towards_server": LAN}, {}, "server", LAN),
        ({"network__towards_server": LAN}, {"node-ip": LTE}, "agent", None),
        ({"network__towards_server": LAN}, {"flannel-iface+": "wwan0"}, "agent", None),
        ({"network__towards_server": LAN, "k3s__node_ip__owner": ["node-ip"]}, {}, "agent", None),
        ({"network__towards_server": "fd00::12"}, {}, "agent", None),
        ({"network__towards_server": "192.168.1.99"}, {}, "agent", None),
        # Chosen before: it stays while the server is out of reach, and follows the route of an agent.
        ({"k3s__node_ip__role": LAN}, {}, "agent", LAN),
        ({"k3s__node_ip__role": "192.168.1.99"}, {}, "agent", None),
        ({"k3s__node_ip__role": LTE, "network__towards_server": LAN}, {}, "agent", LAN),
        # A server that runs keeps the address by which etcd knows it.
        ({"network__towards_server": LAN, "k3s__server": AT_WORK}, {}, "server", None),
        (
            {"k3s__node_ip__role": LTE, "network__towards_server": LAN, "k3s__server": AT_WORK},
            {},
            "server",
            LTE,
        ),
    ],
)
def test_node_gets_the_address_by_which_its_board_reaches_the_server(
    changes: dict[str, Any], config: dict[str, str], role: str, chosen: str | None
) -> None:
    facts = board(f"eth0 {LAN}/24", f"wwan0 {LTE}/30", "eth0 fd00::12/64", **changes)
    devices = {LAN: "eth0", LTE: "wwan0"}
    expected = {"node-ip": chosen, "flannel-iface": devices[chosen]} if chosen else {}
    assert address.node_address(facts, config, role) == expected
