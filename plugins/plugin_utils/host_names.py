# SPDX-License-Identifier: Apache-2.0
"""Names, addresses and URLs, judged by the programs on a board that use them.

Preflight and install.sh call the same functions: `name_problem` for the name of a node, and `url_problem` for
the URL of the server. K3s resolves names with Go's own resolver, which reads /etc/hosts and asks the name
servers of /etc/resolv.conf. Neither mDNS nor other parts of nsswitch.conf answer (Go, src/net/conf.go, and
the tag `netgo` of K3s' builds). Runs with Python 3.10 and newer, without Ansible.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Problem(NamedTuple):
    """`kind` is the part that is wrong: 'form', 'address', 'name' or 'short'. `why` is a sentence's end."""

    kind: str
    why: str


FORM = "a hostname has up to 63 of a-z 0-9 . and -"
# The form of a Kubernetes node name (RFC 1123 subdomain, K3s lower-cases it first). It is also the value of a
# label, which has at most 63 characters.
NODE_NAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
# The C library reads a text of up to four such parts as an IPv4 address (inet_aton): 10.1, 0x7f.1, 123.
NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\Z", re.IGNORECASE)
# A name that Go's resolver takes (src/net/dnsclient.go, isDomainName), without the dot at the end.
HOST = re.compile(r"(?=.{1,253}\Z)(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")
LABEL = 63

ITSELF = "it stands for each computer itself"
# Names of /etc/hosts on Debian, Ubuntu, Red Hat and macOS. is_itself() has those with a domain.
LOOPBACK_NAMES = frozenset(
    {
        "broadcasthost",
        "ip6-allhosts",
        "ip6-allnodes",
        "ip6-allrouters",
        "ip6-localhost",
        "ip6-localnet",
        "ip6-loopback",
        "ip6-mcastprefix",
        "localdomain",
        "localhost",
        "localhost4",
        "localhost6",
    }
)
# No DNS server of a site answers for these.
NOWHERE = {
    "cluster.local": "only pods resolve names of the cluster",
    "invalid": "no name below .invalid exists (RFC 6761)",
    "onion": "only Tor resolves names below .onion (RFC 7686)",
}
MDNS = (
    "K3s on the board does not ask mDNS, which resolves NAME.local for Ansible (Go's resolver reads "
    "/etc/hosts, then asks DNS)"
)
SHORT = (
    "K3s on the board finds a name without a domain only in its /etc/hosts, or in DNS with a `search` domain "
    "of /etc/resolv.conf, and the board has neither"
)
# systemd-resolved's own server, which sends names without a dot to no DNS server.
STUB = "127.0.0.53"
# The board's end of the USB cable (nv-l4t-usb-device-mode-config.sh).
USB = "192.168.55.1"


def is_itself(name: str) -> bool:
    """Is it a name of the loopback interface?"""
    labels = name.split(".")
    return (
        name in LOOPBACK_NAMES
        or labels[-1] == "localhost"
        or re.match(r"localhost[46]?\Z", labels[0]) is not None
    )


def name_problem(name: object) -> str | None:
    """Why a node cannot have this hostname, None if it can. K3s makes it lower-case."""
    lower = name.lower() if isinstance(name, str) else ""
    if is_itself(lower):
        return ITSELF
    if not NODE_NAME.match(lower):
        return FORM
    if NUMERIC.match(lower):
        return "it is a number or an address, and programs would read it as an address"
    return None


def address_of(text: str) -> Address | None:
    """The IP address in a text as Go parses it, None for another text."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found


def address_problem(text: str) -> str | None:
    """Why no other board can use this IP address; None for a good one."""
    found = address_of(text)
    if found is None:
        return None
    reasons = (
        ("%" in text, "its zone is the name of an interface, which only one computer has"),
        (str(found) == USB, "each Jetson has it itself (USB device mode of L4T)"),
        (found.is_unspecified, "it is the address of no computer"),
        (found.is_loopback, ITSELF),
        (found.is_link_local, "a link-local address is valid on one link only, and changes"),
        (found.is_multicast or found.is_reserved, "it is the address of no single computer"),
    )
    return next((why for applies, why in reasons if applies), None)


def form_of_host(host: str) -> str | None:
    """Why a text is no host for K3s, None if it is one."""
    if NUMERIC.match(host):
        return "Go reads no address in this form: write four decimal numbers without zeros in front"
    if host.endswith("."):
        return "no certificate has a name with a dot at its end"
    if not HOST.match(host) or any(len(label) > LABEL for label in host.split(".")):
        return "it is neither an IP address nor a name of DNS (letters, digits, - . and _)"
    return None


def host_problem(host: str, resolver: Mapping[str, Any] | None = None) -> Problem | None:
    """Why K3s on a board cannot reach a host by this name or address, None if it can.

    `resolver` is the fact of the board, None if nothing is known of it. Then only names that no board
    resolves are problems.
    """
    lower = host.lower()
    if address_of(host) is not None or is_itself(lower.rstrip(".")):
        why = address_problem(host) if address_of(host) is not None else ITSELF
        return Problem("address", why) if why else None
    form = form_of_host(lower)
    if form:
        return Problem("form", form)
    nowhere = next((why for end, why in NOWHERE.items() if f".{lower}".endswith(f".{end}")), None)
    if nowhere:
        return Problem("name", nowhere)
    return None if resolver is None else unresolved(lower, resolver)


def unresolved(name: str, resolver: Mapping[str, Any]) -> Problem | None:
    """Why K3s on this board does not resolve a name, None if it does or may."""
    there = resolver["hosts"].get(name)
    if there is not None:
        why = address_problem(there)
        return Problem("address", f"/etc/hosts of the board has {there} for it: {why}") if why else None
    search = [one.strip(".").lower() for one in resolver["search"]]
    labels = name.split(".")
    # mDNS has names of two labels. A longer one is of a domain of the site.
    if labels[-1] == "local" and len(labels) == 2 and "local" not in search:  # noqa: PLR2004 - NAME.local
        return Problem("name", MDNS)
    if len(labels) == 1 and not search and set(resolver["nameservers"]) <= {STUB}:
        return Problem("short", SHORT)
    return None


def split(url: object) -> SplitResult | None:
    """The parts of a URL, None if it has no form that can be split."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None:
            parts.port  # noqa: B018 - raises ValueError
            if "[" in parts.netloc:
                ipaddress.IPv6Address(parts.netloc.rpartition("@")[2].partition("]")[0].lstrip("["))
    except ValueError:
        return None
    return parts


def host_of(url: object) -> str:
    """The host of a URL, '' without one."""
    parts = split(url)
    return (parts.hostname or "") if parts else ""


def form_of_url(url: str, parts: SplitResult) -> str | None:
    """Why a text is no URL of a server, None if it is one. A reason never has the URL itself."""
    port = parts.port
    secret = parts.username is not None or parts.password is not None
    reasons = (
        (re.search(r"[\s\x00-\x1f\x7f]", url), "it has a blank or a control character"),
        (parts.scheme.lower() != "https", "K3s joins by https:// only"),
        (secret, "it has a user or a password, which K3s does not send: k3s_token is the secret"),
        (
            parts.path not in ("", "/") or parts.query or parts.fragment,
            "it has more than https://HOST:PORT: K3s connects to the host and the port only",
        ),
        (not parts.hostname, "it has no host"),
        (port is None, "it has no port: K3s would connect to 443, and a server listens on 6443"),
        (port == 0, "its port is none of 1 to 65535"),
    )
    return next((why for applies, why in reasons if applies), None)


def url_problem(url: object, resolver: Mapping[str, Any] | None = None) -> Problem | None:
    """Why K3s cannot join by this URL of the server, None if it can. A reason never has the URL itself."""
    parts = split(url)
    if parts is None or not isinstance(url, str):
        return Problem("form", "it is no URL: write https://HOST:PORT, with an IPv6 address in brackets")
    form = form_of_url(url, parts)
    return Problem("form", form) if form else host_problem(parts.hostname or "", resolver)


def inside(host: str, networks: Iterable[Any]) -> str:
    """The first network that has this address, '' for none or for a name."""
    found = address_of(host)
    return next((str(one) for one in networks if found is not None and found in one), "")


FILTERS = {"url_host": host_of}
