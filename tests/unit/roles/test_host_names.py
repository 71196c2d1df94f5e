# SPDX-License-Identifier: Apache-2.0
"""Names, addresses and URLs are judged as the programs on a board judge them."""

from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_resolver
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    host_names,
    k3s_registries,
    preflight_identity,
    preflight_server,
)

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import with_facts

NODE_NAMES: dict[str, str | None] = {
    **dict.fromkeys(("jetson-1", "Jetson-1", "jetson-1.site.example", "jetson-1.local", "1jetson", "a" * 63)),
    # Kubernetes has no reserved name of a node, and a domain of the cluster is none of the node's.
    **dict.fromkeys(("master", "kubernetes", "node.lan", "0xy", "jetson.1", "localhosts", "my-localhost")),
    **dict.fromkeys(("localhost", "LOCALHOST", "localhost.localdomain", "a.localhost"), host_names.ITSELF),
    **dict.fromkeys(("localhost6.localdomain6", "ip6-localhost", "ip6-loopback"), host_names.ITSELF),
    **dict.fromkeys(("127.0.0.1", "10.1", "123", "0x7f.1", "1.2.3.4.5"), "it is a number or an address"),
    **dict.fromkeys(
        ("jetson_1", "-x", "x-", "a..b", "a.", "", "(none)", "fd00::1", "a" * 64), host_names.FORM
    ),
}


@pytest.mark.parametrize(("name", "why"), NODE_NAMES.items())
def test_name_of_a_node(name: str, why: str | None) -> None:
    found = host_names.name_problem(name)
    assert found is None if why is None else found is not None and found.startswith(why)


DNS: Data = {"hosts": {}, "nameservers": ["192.168.1.1"], "search": []}
STUB: Data = {"hosts": {}, "nameservers": ["127.0.0.53"], "search": []}
HOSTS: Data = DNS | {"hosts": {"jetson-1.local": "10.0.0.1", "jetson-1": "127.0.1.1"}}
SITE: Data = STUB | {"search": ["site.example"]}
LOCAL: Data = STUB | {"search": ["local"]}

URLS: list[tuple[Any, Data | None, str | None, str]] = [
    ("https://10.0.0.1:6443", STUB, None, ""),
    ("https://10.0.0.1:6443/", STUB, None, ""),
    ("HTTPS://Server.Example:443", STUB, None, ""),
    ("https://[fd00::1]:6443", STUB, None, ""),
    ("https://my_board.site.example:6443", STUB, None, ""),  # Go's TLS takes an underscore
    ("https://jetson-1.localdomain:6443", STUB, None, ""),  # a usual domain of routers, in their DNS
    ("https://pi.corp.local:6443", DNS, None, ""),  # a domain of a site, in its DNS
    ("https://jetson-1.local:6443", None, None, ""),  # nothing is known of the board
    ("https://jetson-1.local:6443", HOSTS, None, ""),
    ("https://jetson-1.local:6443", LOCAL, None, ""),
    ("https://jetson-1:6443", SITE, None, ""),
    ("https://jetson-1:6443", DNS, None, ""),  # a router's DNS knows names without a domain
    ("https://169.253.0.1:6443", None, None, ""),
    ("", None, "form", "by https:// only"),
    (None, None, "form", "is no URL"),
    ("10.0.0.1", None, "form", "by https:// only"),
    ("10.0.0.1:6443", None, "form", "by https:// only"),
    ("http://10.0.0.1:6443", None, "form", "by https:// only"),
    ("https://10.0.0.1", None, "form", "has no port"),
    ("https://10.0.0.1:0", None, "form", "1 to 65535"),
    ("https://10.0.0.1:65536", None, "form", "is no URL"),
    ("https://10.0.0.1:port", None, "form", "is no URL"),
    ("https://:6443", None, "form", "has no host"),
    ("https://10.0.0.1:6443/k3s", None, "form", "more than"),
    ("https://10.0.0.1:6443?a=b", None, "form", "more than"),
    ("https://node:secret@10.0.0.1:6443", None, "form", "user or a password"),
    (" https://10.0.0.1:6443", None, "form", "blank"),
    ("https://[10.0.0.11:22]:6443", None, "form", "is no URL"),
    ("https://fd00::1:6443", None, "form", "is no URL"),
    ("https://10.1:6443", None, "form", "four decimal numbers"),
    ("https://010.0.0.1:6443", None, "form", "four decimal numbers"),
    ("https://0x7f000001:6443", None, "form", "four decimal numbers"),
    ("https://server.example.:6443", None, "form", "dot at its end"),
    ("https://sérver.example:6443", None, "form", "neither"),
    ("https://*.example:6443", None, "form", "neither"),
    (f"https://{'a' * 64}.example:6443", None, "form", "neither"),
    ("https://localhost:6443", None, "address", "each computer itself"),
    ("https://localhost.localdomain:6443", None, "address", "each computer itself"),
    ("https://ip6-localhost:6443", None, "address", "each computer itself"),
    ("https://127.0.1.1:6443", None, "address", "each computer itself"),
    ("https://[::1]:6443", None, "address", "each computer itself"),
    ("https://[::ffff:127.0.0.1]:6443", None, "address", "each computer itself"),
    ("https://0.0.0.0:6443", None, "address", "no computer"),
    ("https://[::]:6443", None, "address", "no computer"),
    ("https://169.254.3.4:6443", None, "address", "link-local"),
    ("https://[fe80::1]:6443", None, "address", "link-local"),
    ("https://[fe80::1%25eth0]:6443", None, "address", "zone"),
    ("https://224.0.0.251:6443", None, "address", "no single computer"),
    ("https://255.255.255.255:6443", None, "address", "no single computer"),
    ("https://192.168.55.1:6443", None, "address", "USB device mode"),
    ("https://jetson-1:6443", HOSTS, "address", "127.0.1.1"),
    ("https://jetson-1.local:6443", DNS, "name", "mDNS"),
    ("https://Jetson-1.Local:6443", STUB, "name", "mDNS"),
    ("https://k3s.kube-system.svc.cluster.local:6443", None, "name", "only pods"),
    ("https://server.invalid:6443", None, "name", "RFC 6761"),
    ("https://jetson-1:6443", STUB, "short", "without a domain"),
]


@pytest.mark.parametrize(("url", "resolver", "kind", "words"), URLS)
def test_url_of_the_server(url: Any, resolver: Data | None, kind: str | None, words: str) -> None:
    found = host_names.url_problem(url, resolver)
    assert (found.kind if found else None) == kind
    assert found is None or words in found.why
    assert found is None or "secret" not in found.why.replace("k3s_token is the secret", "")


def test_resolver_of_a_board() -> None:
    hosts = "127.0.0.1 localhost\n127.0.1.1\tjetson-2 # own\n\n10.0.0.1 Jetson-1.local jetson-1\n0.0.0.0 ad\n"
    found = jetson_resolver.resolver_of(
        hosts, "domain a\nsearch b c. .\nnameserver 10.0.0.2 # x\n", "jetson-1"
    )
    assert found == {
        "hosts": {"jetson-1.local": "10.0.0.1", "jetson-1": "10.0.0.1"},
        "nameservers": ["10.0.0.2"],
        "search": ["b", "c."],
    }


def server(url: str, **facts: Any) -> preflight_server.Server:
    default = "https://jetson-1.local:6443"
    return {"name": "jetson-1", "url": url or default, "default": default, "facts": with_facts(**facts)}


def addresses(*all_: str) -> Data:
    return {"addresses": [{"address": one, "device": "eth0"} for one in all_], "routes": []}


@pytest.mark.parametrize(
    ("url", "joins", "facts", "expected"),
    [
        ("https://10.0.0.1:6443", True, {}, []),
        ("", True, {}, ["server-name"]),
        ("", False, {}, []),  # the first server joins nobody
        ("http://10.0.0.1:6443", False, {}, ["server-url"]),  # it is in the certificate
        ("https://localhost:6443", False, {}, []),
        ("https://localhost:6443", True, {}, ["server-address"]),
        ("https://jetson-1:6443", True, {"resolver": STUB}, ["server-name-short"]),
        ("https://10.0.0.9:6443", True, {"role": "agent"}, ["server-address"]),
        ("https://10.0.0.9:6443", True, {}, []),  # an address that servers share moves among them
    ],
)
def test_board_joins_by_a_url_that_it_can_use(
    url: str, joins: bool, facts: Data, expected: list[str]
) -> None:
    mine = with_facts(network=addresses("10.0.0.9/24"), **facts)
    found = preflight_server.findings_of_server_url(mine, server(url), joins)
    assert [one["id"] for one in found] == expected


def test_fix_names_an_address_of_the_server() -> None:
    there = server("", network=addresses("169.254.1.1/16", "192.168.1.11/24"))
    (found,) = preflight_server.findings_of_server_url(with_facts(), there, True)
    assert found["found"].startswith("k3s_server_url is https://jetson-1.local:6443, by ansible_host or the")
    assert found["fix"] == (
        "Set k3s_server_url to https://192.168.1.11:6443 in the inventory. Or add jetson-1.local with its "
        "address to /etc/hosts of each board."
    )
    # The fix removes the finding.
    assert (
        preflight_server.findings_of_server_url(with_facts(), server("https://192.168.1.11:6443"), True) == []
    )


@pytest.mark.parametrize(("url", "count"), [("https://10.43.0.1:6443", 1), ("https://10.0.0.1:6443", 0)])
def test_server_has_no_address_of_a_service(url: str, count: int) -> None:
    assert len(preflight_server.findings_of_server_range(url, {})) == count


def test_names_of_mdns_are_found_in_other_settings() -> None:
    registries = {"mirrors": {"docker.io": {"endpoint": ["http://hub.local:5000"]}, "*": {}}, "configs": {}}
    assert k3s_registries.hosts(registries) == ["docker.io", "hub.local"]
    assert k3s_registries.hosts({"wrong": 1}) == k3s_registries.hosts(None) == []
    hosts = [("jetson_k3s_proxy", "127.0.0.1"), ("k3s_registries", "hub.local"), ("jetson_k3s_proxy", "")]
    (found,) = preflight_server.findings_of_hosts(with_facts(), hosts)
    assert (found["id"], found["found"].startswith("k3s_registries has hub.local: ")) == (
        "name-unresolved",
        True,
    )
    known = with_facts(resolver__hosts={"hub.local": "10.0.0.3"})
    assert preflight_server.findings_of_hosts(known, hosts) == []


@pytest.mark.parametrize(
    ("facts", "named", "words"),
    [
        ({"hostname": "localhost"}, False, "each computer itself"),
        ({"hostname": "localhost"}, True, ""),
        ({"hostname_file": "localhost\n"}, False, "the DHCP server chooses the hostname"),
        ({"hostname_file": "localhost\n"}, True, ""),
        ({"hostname_file": None}, False, ""),
    ],
)
def test_hostname_localhost_is_refused(facts: Data, named: bool, words: str) -> None:
    found = preflight_identity.findings_of_form("jetson-1", with_facts(**facts), named)
    assert [words in one["found"] for one in found] == [True] * bool(words)
    assert all(one["fix"] == "sudo hostnamectl set-hostname jetson-1" for one in found)
