# SPDX-License-Identifier: Apache-2.0
"""The HTTP proxy of the inventory: what is wrong with it, hosts without it, and its forms. Pure functions.

`given` is always the variable jetson_k3s_proxy. Its URLs may have a password, so no message has them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HTTP, HTTPS, NO_PROXY = "http_proxy", "https_proxy", "no_proxy"
KEYS = (HTTP, HTTPS, NO_PROXY)
# Characters of a URL (RFC 3986) that neither systemd nor apt reads in its own way.
URL = re.compile(r"https?://[A-Za-z0-9._~%!&()*+,;=:@\[\]-]+/?")
# A host, a domain with or without a dot in front, with or without a port.
DOMAIN = re.compile(r"[.]?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?([.][A-Za-z0-9_-]+)*[.]?(:[0-9]{1,5})?")
# The board itself, which no proxy can reach.
LOCAL = ("localhost", "127.0.0.0/8", "::1")
# K3s' defaults (docs.k3s.io/cli/server).
RANGES = {"cluster-cidr": "10.42.0.0/16", "service-cidr": "10.43.0.0/16"}
CLUSTER_DOMAIN = "cluster.local"
# Settings of K3s with addresses of the board.
ADDRESSES = ("node-ip", "node-external-ip", "advertise-address")


def listed(value: Any) -> list[str]:
    """The entries of no_proxy, which is a list, or a text as in a variable of the environment."""
    entries = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(entry).strip() for entry in entries if str(entry).strip()]


def address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in a text, None for another text."""
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        return None


def network(text: Any) -> Network | None:
    """The network in a text, None for another text. An address is a network of its own."""
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None


def urls(given: Any) -> dict[str, str]:
    """The URL of the proxy for each scheme, '' for none. https_proxy is http_proxy unless it is given."""
    if not isinstance(given, dict):
        return {HTTP: "", HTTPS: ""}
    http = given.get(HTTP) or ""
    https = given[HTTPS] if given.get(HTTPS) is not None else http
    return {name: url if isinstance(url, str) else "" for name, url in ((HTTP, http), (HTTPS, https))}


def is_given(given: Any) -> bool:
    """Does the inventory name a proxy?"""
    return any(urls(given).values())


def has_password(given: Any) -> bool:
    """Does a URL have a user or a password?"""
    return any("@" in url for url in urls(given).values())


def problems(given: Any) -> Iterator[str]:
    """What is wrong with the variable, each in a sentence without a URL."""
    if given in (None, {}):
        return
    if not isinstance(given, dict):
        yield "jetson_k3s_proxy: a mapping is needed"
        return
    for key in given:
        if key not in KEYS:
            yield f"jetson_k3s_proxy: there is no {key}, but {', '.join(KEYS)}"
    for name in (HTTP, HTTPS):
        if given.get(name) not in (None, "") and not is_url(given[name]):
            yield f"{name}: http://HOST:PORT is needed, and %xx for special characters of a password"
    if not is_given(given):
        yield "jetson_k3s_proxy: neither http_proxy nor https_proxy is there"
    if given.get(NO_PROXY) is not None and not isinstance(given[NO_PROXY], str | list):
        yield f"{NO_PROXY}: a list of hosts, domains and networks is needed"
    for number, entry in enumerate(listed(given.get(NO_PROXY)), 1):
        shown = f"number {number}" if "@" in entry else entry
        if entry == "*":
            yield f"{NO_PROXY}: * leaves no host to the proxy"
        elif not DOMAIN.fullmatch(entry.removeprefix("*")) and network(entry.strip("[]")) is None:
            yield f"{NO_PROXY}: {shown} is no host, no .domain and no network such as 192.168.1.0/24"


def is_url(text: Any) -> bool:
    """Is it the address of a proxy, which has no path?"""
    try:
        url = urlsplit(text) if isinstance(text, str) and URL.fullmatch(text) else urlsplit("")
        return bool(url.hostname) and url.port != 0 and url.netloc.count("@") <= 1
    except ValueError:  # of a port or an IPv6 address
        return False


def ranges(settings: Any) -> list[Network]:
    """Networks of pods and services; `settings` are those of the server's K3s."""
    said = settings if isinstance(settings, dict) else {}
    texts = [said.get(key) or default for key, default in RANGES.items()]
    parts = [part for one in texts for part in (one if isinstance(one, list) else str(one).split(","))]
    return [found for found in map(network, parts) if found]


def inside(given: Any, settings: Any) -> list[str]:
    """Proxies whose address is one of a pod or a service: no packet would reach them."""
    hosts = {urlsplit(url).hostname or "" for url in urls(given).values() if is_url(url)}
    return [
        f"{host} is in {one}"
        for host in sorted(hosts)
        for one in ranges(settings)
        if (found := address(host)) and found in one
    ]


def own_networks(facts: dict[str, Any], wanted: Iterable[Any]) -> list[Network]:
    """The network of the node's address. A board reaches every host there without a router.

    `facts` are the board's `network`, `wanted` addresses of the node by the inventory and K3s' settings. If
    the board has none of them, it is the network of the first default route.
    """
    by_device = [(str(one["device"]), str(one["address"])) for one in facts["addresses"]]
    of_node = {str(found) for text in wanted for found in map(address, str(text or "").split(",")) if found}
    found = [network(text) for _, text in by_device if text.partition("/")[0] in of_node]
    if not found:
        ways = [str(route["device"]) for route in facts["routes"] if route["to"] in ("0.0.0.0/0", "::/0")]
        found = [network(text) for device, text in by_device if device in ways[:1]]
    return [one for one in found if one and one.num_addresses > 1]


def peers(boards: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names and addresses under which boards are reached, by their variables alone."""
    found: list[Any] = []
    for board in boards:
        found += [board.get("ansible_host") or board.get("inventory_hostname")]
        found += [board.get("jetson_k3s_address")]
        config = board.get("k3s_board_config")
        settings = config if isinstance(config, dict) else {}
        for value in map(settings.get, ADDRESSES):
            found += value if isinstance(value, list) else str(value or "").split(",")
    return [str(one).strip() for one in found if one and str(one).strip()]


def no_proxy(given: Any, settings: Any, near: Iterable[Any], others: Iterable[str]) -> list[str]:
    """All hosts to which no proxy leads; [] without a proxy.

    `settings` are those of the server's K3s, `near` networks of the board, `others` hosts of the cluster.
    Those that a network covers are left out, so that a new board in this network changes no other board.
    """
    if not is_given(given):
        return []
    said = settings if isinstance(settings, dict) else {}
    domain = str(said.get("cluster-domain") or CLUSTER_DOMAIN)
    own = [entry.removeprefix("*") for entry in listed(given.get(NO_PROXY))]
    found = [*LOCAL, ".svc", f".{domain if DOMAIN.fullmatch(domain) else CLUSTER_DOMAIN}"]
    found += map(str, [*ranges(settings), *near])
    found += own
    covered = [one for one in map(network, found) if one and one.num_addresses > 1]
    found += sorted(
        host
        for host in set(others)
        if (DOMAIN.fullmatch(host) or address(host))
        and not any(one in wide for one in [address(host)] if one for wide in covered)
    )
    return list(dict.fromkeys(found))


def environment(given: Any, without: list[str], header: str = "") -> str:
    """An environment file of systemd, '' without a proxy. `without` is from no_proxy().

    It begins with `header`, a comment. The names in capitals are those that Go prefers. An empty one is an
    owner's no more.
    """
    if not is_given(given):
        return ""
    found = urls(given)
    return f"{header}HTTP_PROXY={found[HTTP]}\nHTTPS_PROXY={found[HTTPS]}\nNO_PROXY={','.join(without)}\n"


def variables(given: Any, without: list[str] | None = None, url: str = "") -> dict[str, str]:
    """Variables for a program that downloads, {} without a proxy. If none leads to `url`, none is used.

    Without `without` they have the inventory's no_proxy, for a board of which nothing else is known.
    """
    if not is_given(given):
        return {}
    hosts = without or no_proxy(given, {}, (), ())
    if url and is_without(urlsplit(url).hostname or "", hosts):
        return {HTTP: "", HTTPS: "", NO_PROXY: "*"}
    return urls(given) | {NO_PROXY: ",".join(hosts)}


def is_without(host: str, without: list[str]) -> bool:
    """Does no proxy lead to the host? Python's own modules know no networks."""
    own = address(host)
    if own:
        return any(one is not None and own in one for one in map(network, without))
    names = [entry.rpartition(":")[0] or entry for entry in without if network(entry) is None]
    return any(f".{host}".endswith("." + name.strip(".")) for name in names)


def apt(given: Any) -> str:
    """A configuration file of apt, '' without a proxy. What the board's own files say goes before it."""
    found = {"http": urls(given)[HTTP], "https": urls(given)[HTTPS]}
    return "".join(f'Acquire::{name}::Proxy "{url}";\n' for name, url in found.items() if url)


def apt_environment(given: Any, config: str) -> dict[str, str]:
    """Variables for apt, {} without a proxy. `config` is the path of the file with the text of apt()."""
    return {NO_PROXY: variables(given)[NO_PROXY], "APT_CONFIG": config} if is_given(given) else {}


FILTERS = {
    "proxy_apt": apt,
    "proxy_apt_environment": apt_environment,
    "proxy_environment": environment,
    "proxy_inside": inside,
    "proxy_is_given": is_given,
    # Up to ansible-core 2.18 a value that is no text, number, list or mapping becomes a text.
    "proxy_networks": lambda *given: [*map(str, own_networks(*given))],
    "proxy_no_proxy": no_proxy,
    "proxy_peers": peers,
    "proxy_problems": lambda given: [*problems(given)],
    "proxy_variables": variables,
}
