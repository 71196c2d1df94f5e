# SPDX-License-Identifier: Apache-2.0
"""The configuration of K3s on each board: pure functions for role k3s."""

from __future__ import annotations

import re
from typing import Any

# K3s' short flags (pkg/cli/cmds).
SHORT = {
    "-c": "config", "-d": "data-dir", "-i": "node-ip", "-l": "log", "-o": "write-kubeconfig", "-s": "server",
    "-t": "token",
}  # fmt: skip
# What the role says itself, and tokens, which belong into their files.
NOT_MIGRATED = frozenset(
    {"docker", "node-name", "server", "token", "token-file", "agent-token", "agent-token-file", "pause-image"}
)

# With these the owner says the address: K3s takes that of flannel-iface, and a VPN gives its own.
OWNERS = frozenset({"node-ip", "flannel-iface", "vpn-auth", "vpn-auth-file"})
# Debian's address of the hostname (Debian reference 5.1.1): sudo and others resolve it.
OWN = re.compile(r"^127\.0\.1\.1\s.*$", re.MULTILINE)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def merged(inventory: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The settings of the inventory and of the role in one file; what is a list in both is added up."""
    both = dict(inventory)
    for key, value in ours.items():
        name = key.removesuffix("+")
        theirs = next((one for one in (name, f"{name}+") if one in inventory), None)
        if theirs and isinstance(value, list):
            both[theirs] = [*_listed(inventory[theirs]), *value]
        else:
            both[key] = value
    return both


def configuration(
    board: dict[str, Any],
    *,
    server_url: str,
    token_file: str | None = None,
    agent_token_file: str | None = None,
) -> dict[str, Any]:
    """What the role itself says in K3s' configuration of one board.

    `board`: `role` ('server' or 'agent'), `first` (does it start the cluster), `servers` (their number),
    `node` (its name), `address` (as in its TLS name), `container_runtime`, `pause_image` (None for K3s' own),
    `reserved_memory` (a quantity that pods do not get; empty: none).
    """
    config: dict[str, Any] = {"node-name": board["node"]}
    if board["container_runtime"] == "docker":
        config["docker"] = True
    if board["pause_image"]:
        # The one in the bundle's image archive, whichever K3s this is: offline there is no other.
        config["pause-image"] = board["pause_image"]
    if board["role"] == "server":
        config["tls-san"] = [board["address"]]
        if agent_token_file:
            config["agent-token-file"] = agent_token_file
        if board["first"] and board["servers"] > 1:
            config["cluster-init"] = True  # embedded etcd, which the other servers join
    if board["role"] == "agent" or not board["first"]:
        config["server"] = server_url
    if token_file:
        config["token-file"] = token_file
    if board["reserved_memory"]:
        # With the plus K3s adds it to the arguments in the owner's files, instead of replacing them.
        config["kubelet-arg+"] = [f"system-reserved=memory={board['reserved_memory']}"]
    return config


def unit_command(shown: str) -> str | None:
    """The command in `systemctl show --property=ExecStart`, None where the unit has none."""
    match = re.search(r"argv\[\]=(.*?) ;", shown)
    return match.group(1) if match else None


def url_host(address: str) -> str:
    """A host name or an address as it stands in a URL: IPv6 in brackets (RFC 3986)."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def flags(command: str | None) -> dict[str, Any]:
    """Flags of `k3s server ...` or `k3s agent ...` as keys of a configuration file.

    A flag that is followed by another one, or by nothing, is a switch; one that is given twice makes a list.
    """
    found: dict[str, Any] = {}
    words = (command or "").split()[2:]
    while words:
        word, equals, value = words.pop(0).partition("=")
        key = SHORT.get(word, word.lstrip("-"))
        text: Any = value
        if not equals:
            text = words.pop(0) if words and not words[0].startswith("-") else True
        if key in found:
            before = found[key] if isinstance(found[key], list) else [found[key]]
            text = [*before, text]
        found[key] = text
    return found


def migrated(command: str | None) -> dict[str, Any]:
    """The flags of an installation by the stock script that go on as configuration."""
    return {key: value for key, value in flags(command).items() if key not in NOT_MIGRATED}


def node_address(facts: dict[str, Any], config: dict[str, Any], role: str) -> dict[str, str]:
    """node-ip and flannel-iface by how the board reaches its server; {} where K3s chooses, or the owner has.

    K3s would take the first default route's address, and flannel that route's interface, even with node-ip
    (pkg/agent/flannel/flannel.go, LookupExtInterface). For the first server, the way to itself gives the
    address that agents join. An address that the role has chosen stays while one default route is away. A
    server that runs keeps its address: etcd knows its members by it. `config` is the inventory's.
    """
    said, network = facts["k3s"]["node_ip"], facts["network"]
    if said["owner"] or any(key.removesuffix("+") in OWNERS for key in config):
        return {}
    devices = {entry["address"].partition("/")[0]: entry["device"] for entry in network["addresses"]}
    present = said["role"]
    if role == "server" and facts["k3s"]["server"]["installed"] and (present is None or present in devices):
        address = present
    else:
        address = network["towards_server"] or present
    # Pods have IPv4 unless the owner says otherwise, and then the owner has to say node-ip, too.
    if address not in devices or ":" in address:
        return {}
    return {"node-ip": address, "flannel-iface": devices[address]}


def hosts(text: str, old: str, new: str) -> str:
    """The text of /etc/hosts with `new` instead of `old` at 127.0.1.1; other names and lines stay."""
    found = OWN.search(text)
    if found is None:
        lines = text.splitlines()
        after = max((place for place, line in enumerate(lines, 1) if line.startswith("127.")), default=0)
        return "\n".join([*lines[:after], f"127.0.1.1\t{new}", *lines[after:]]) + "\n"
    names, hash_, comment = found[0].partition("#")
    others = [name for name in names.split()[1:] if name not in (old, new)]
    line = "\t".join(["127.0.1.1", " ".join([new, *others])]) + (f" {hash_}{comment}" if hash_ else "")
    return text[: found.start()] + line + text[found.end() :]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {
            "k3s_configuration": configuration,
            "k3s_hosts": hosts,
            "k3s_merged": merged,
            "k3s_migrated": migrated,
            "k3s_node_address": node_address,
            "k3s_unit_command": unit_command,
            "k3s_url_host": url_host,
        }
