# SPDX-License-Identifier: Apache-2.0
"""Replace what identifies a board, its network and its owner, in texts and data of a snapshot.

Secrets are hidden first, by `redact`. Then each name, serial number and MAC address gets a placeholder, which
is the same everywhere in a snapshot. IP addresses are replaced by others so that two addresses of one network
stay in one network: preflight compares networks. The replacement depends on a key that no snapshot has.

Runs on the board, therefore Python 3.6 compatible. The device plugin has this file, too, by a link.
"""

import collections
import hashlib
import ipaddress
import os
import re
from typing import Any, Dict, Iterable, List, Match, Optional, Set, Tuple, Union

from .redact import HIDDEN, redact, redact_data

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

# Names of nobody: of software, of a flashed board, of parts of a cluster.
COMMON = frozenset(
    """
    agent board containerd default docker false gpu host jetson k3s k3s-agent localhost master memory node
    none null nvidia orin root server tegra tegra-ubuntu true ubuntu worker xavier
    """.split()
)
SHORTEST_NAME = 3
LEAST_COLONS = 2  # of an IPv6 address
# Domains of software that boards download, and of the cluster itself: they say nothing about the owner.
PUBLIC_DOMAINS = """
    cluster.local debian.org docker.com docker.io ghcr.io github.com github.io githubusercontent.com
    k3s.io k8s.io kubernetes.io launchpad.net localhost nvcr.io nvidia.com quay.io rancher.io svc ubuntu.com
""".split()
# These networks are in every cluster or have a meaning of their own: all of their addresses stay.
KEPT = """
    0.0.0.0/8 10.42.0.0/16 10.43.0.0/16 127.0.0.0/8 169.254.0.0/16 172.17.0.0/16 224.0.0.0/3
    ::/64 ff00::/8
""".split()
# An address of one of these networks stays in it, and an address of another never gets into it.
KINDS = "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 fc00::/7 fe80::/10".split()

PLACEHOLDER = re.compile(r"(?:email|host|serial|user|uuid)-[0-9a-f]{6}\Z")
MAC_PLACEHOLDER = "020000"
MAC = re.compile(r"(?<![0-9A-Za-z:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Za-z:-])")
MAC_IN_NAME = re.compile(
    r"(?<![0-9A-Za-z])(?P<start>enx|wlx|wwx|br-mac-)(?P<mac>[0-9a-f]{12})(?![0-9A-Za-z])"
)
IPV4 = re.compile(r"(?<![\w.~+-])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\w+~-]|\.\d)")
IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:][0-9A-Fa-f:.]{1,44}(?:/\d{1,3})?(?![\w:])")
SERIAL = re.compile(
    r"""(?P<name>\b(?:\w+[._-])?(?:serial(?:[ _-]?(?:no|number|num))?|ecid|chip[_-]uid)["']?\s*[:=]\s*["']?)
        (?P<value>[0-9A-Za-z][\w-]{5,})""",
    re.IGNORECASE | re.VERBOSE,
)
UUID = re.compile(r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z][\w-]*(?:\.[\w-]+)+")
URL_HOST = re.compile(r"(?P<start>://(?:[^\s/@\"']*@)?)(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*)")
HOME = re.compile(r"(?P<start>/home/)(?P<name>[A-Za-z0-9_][\w.-]*)")


class Redaction:
    """Placeholders of one snapshot. `names` are those of boards and servers that the caller knows.

    With one key, every value has the same placeholder on the board and on the controller.
    """

    def __init__(
        self, names: Iterable[str] = (), serials: Iterable[str] = (), key: Optional[bytes] = None
    ) -> None:
        self._key = os.urandom(16) if key is None else key
        self._seen: Set[Tuple[str, str]] = set()
        self._addresses: Dict[str, str] = {}
        self._kept: List[Network] = [ipaddress.ip_network(one) for one in KEPT]
        self._fixed = {
            4: _paths(one for one in KEPT + KINDS if ":" not in one),
            6: _paths(one for one in KEPT + KINDS if ":" in one),
        }
        self._words: Dict[str, str] = {}
        for serial in sorted(set(serials)):
            if len(serial) > SHORTEST_NAME:
                self._words[serial] = self._placeholder("serial", serial)
        for name in sorted(set(names)):
            for word in (name, name.partition(".")[0]):
                if is_name(word):
                    self._words.setdefault(word, self._placeholder("host", name))
        self._compile()

    def _compile(self) -> None:
        words = sorted(self._words, key=len, reverse=True)
        parts = [_whole(word) for word in words]
        self._known = re.compile("|".join(parts), re.I) if parts else None
        self._lower = {word.lower(): placeholder for word, placeholder in self._words.items()}

    @property
    def counts(self) -> Dict[str, int]:
        """How many different names, serial numbers and addresses have a placeholder."""
        found = dict(collections.Counter(kind for kind, _ in self._seen))
        found["ip"] = sum(1 for before, after in self._addresses.items() if before != after)
        return {kind: number for kind, number in sorted(found.items()) if number}

    def text(self, text: str) -> str:
        """The text without secrets and identities."""
        return self._identities(redact(text))

    def data(self, value: Any) -> Any:
        """Parsed JSON without secrets and identities, also in keys."""
        return self._data(redact_data(value))

    def bytes_of_file(self, content: bytes) -> bytes:
        """A file of the kernel, which may be binary: serial numbers that are known, and nothing else."""
        for word, placeholder in self._words.items():
            if placeholder.startswith("serial-"):
                content = content.replace(word.encode("utf-8", "surrogateescape"), placeholder.encode())
        return content

    def _data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._identities(value)
        if isinstance(value, dict):
            return {
                self._identities(key) if isinstance(key, str) else key: self._data(one)
                for key, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._data(one) for one in value]
        return value

    def _identities(self, text: str) -> str:
        text = EMAIL.sub(lambda found: self._placeholder("email", found.group()), text)
        text = URL_HOST.sub(self._host, text)
        if self._known is not None:
            text = self._known.sub(lambda found: self._lower[found.group().lower()], text)
        text = SERIAL.sub(
            lambda found: found.group("name") + self._placeholder("serial", found.group("value")), text
        )
        text = HOME.sub(
            lambda found: found.group("start") + self._placeholder("user", found.group("name")), text
        )
        text = UUID.sub(lambda found: self._placeholder("uuid", found.group().lower()), text)
        text = MAC.sub(lambda found: self._mac(found.group()), text)
        text = MAC_IN_NAME.sub(
            lambda found: found.group("start") + self._mac(found.group("mac")).replace(":", ""), text
        )
        text = IPV4.sub(self._ip, text)
        return IPV6.sub(self._ip_with_colons, text)

    def _placeholder(self, kind: str, value: str) -> str:
        """`host-1f3a9c`, the same for each mention of a value. A placeholder is its own."""
        if PLACEHOLDER.match(value) or value.startswith(HIDDEN):
            return value
        self._seen.add((kind, value))
        return "{}-{}".format(kind, self._digest(kind, value).hex())

    def _digest(self, kind: str, value: str, size: int = 3) -> bytes:
        text = "{}:{}".format(kind, value).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, key=self._key, digest_size=size).digest()

    def _host(self, found: Match[str]) -> str:
        host = found.group("host")
        known = self._lower.get(host.lower())
        public = any(host == one or host.endswith("." + one) for one in PUBLIC_DOMAINS)
        # What has digits and dots alone is an address.
        if known is None and (public or host.lower() in COMMON or not host.strip("0123456789.")):
            return found.group()
        return found.group("start") + (known or self._placeholder("host", host.lower()))

    def _mac(self, text: str) -> str:
        plain = re.sub("[:-]", "", text).lower()
        if plain in ("0" * 12, "f" * 12) or plain.startswith(MAC_PLACEHOLDER):
            return text
        self._seen.add(("mac", plain))
        changed = MAC_PLACEHOLDER + self._digest("mac", plain).hex()
        return ":".join(changed[place : place + 2] for place in range(0, 12, 2))

    def _ip(self, found: Match[str]) -> str:
        text = found.group()
        if text not in self._addresses:
            self._addresses[text] = self._other_ip(text)
        return self._addresses[text]

    def _ip_with_colons(self, found: Match[str]) -> str:
        """An IPv6 address, and no version, time or port."""
        return self._ip(found) if found.group().count(":") >= LEAST_COLONS else found.group()

    def _other_ip(self, text: str) -> str:
        plain, slash, length = text.partition("/")
        dots = plain[len(plain.rstrip(".")) :]  # of a sentence
        plain = plain.rstrip(".")
        try:
            address: Address = ipaddress.ip_address(plain)
            size = int(length) if length else address.max_prefixlen
            if size > address.max_prefixlen:
                return text
        except ValueError:
            return text
        if any(address in network for network in self._kept if network.version == address.version):
            return text
        bits = "{:0{}b}".format(int(address), address.max_prefixlen)
        is_network = size < address.max_prefixlen and "1" not in bits[size:]
        changed = self._bits(bits, size if is_network else address.max_prefixlen, address.version)
        other = type(address)(int(changed, 2))
        return str(other) + dots + slash + length

    def _bits(self, bits: str, length: int, version: int) -> str:
        """Replace the first bits of an address. Those before a bit decide whether it changes."""
        fixed = self._fixed[version]
        changed = []
        for place in range(length):
            before = bits[:place]
            flips = before not in fixed and self._flips(version, before)
            changed.append("10"[int(bits[place])] if flips else bits[place])
        return "".join(changed) + bits[length:]

    def _flips(self, version: int, before: str) -> bool:
        return bool(self._digest("ip{}".format(version), before, 1)[0] & 1)


def _whole(word: str) -> str:
    """A pattern for a name where it is no part of another word.

    One with a digit or a hyphen is found in names that software makes of it, such as `jetson-2-5d1f`.
    """
    edge = "[A-Za-z0-9]" if re.search("[0-9-]", word) else "[A-Za-z0-9_-]"
    return "(?<!{0}){1}(?!{0})".format(edge, re.escape(word))


def is_name(word: str) -> bool:
    """Can this name identify a board or a person? Not an address, and not a name that many have."""
    if len(word) < SHORTEST_NAME or word.lower() in COMMON or PLACEHOLDER.match(word):
        return False
    return re.search("[A-Za-z]", word) is not None and ":" not in word


def _paths(networks: Iterable[str]) -> "frozenset[str]":
    """The beginnings of the networks' addresses, as bits: there no bit changes, so the networks stay."""
    found: Set[str] = set()
    for one in networks:
        network = ipaddress.ip_network(one)
        bits = "{:0{}b}".format(int(network.network_address), network.max_prefixlen)
        found.update(bits[:place] for place in range(network.prefixlen))
    return frozenset(found)
