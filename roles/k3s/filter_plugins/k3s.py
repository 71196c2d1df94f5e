# SPDX-License-Identifier: Apache-2.0
"""What K3s is told on each board: pure functions behind the k3s role."""

from __future__ import annotations

import difflib
import re
from typing import Any

# K3s' short flags (pkg/cli/cmds).
SHORT = {"-t": "token", "-s": "server", "-d": "data-dir", "-c": "config"}
# What the role says itself, and tokens, which belong into their files.
NOT_MIGRATED = frozenset(
    {"docker", "node-name", "server", "token", "token-file", "agent-token", "agent-token-file", "pause-image"}
)
# What the inventory says in another way than by K3s' own key, and how.
ELSEWHERE = {
    "agent-token": "k3s_agent_token says it",
    "agent-token-file": "k3s_agent_token says it",
    "cluster-init": "the number of boards in the group server says it",
    "cluster-reset": "it is no setting, but a command for one start",
    "cluster-reset-restore-path": "it is no setting, but a command for one start",
    "config": "K3s reads /etc/rancher/k3s/config.yaml",
    "data-dir": "the roles look for K3s' files in /var/lib/rancher/k3s; mount another disk there",
    "docker": "k3s_container_runtime says it",
    "node-label": "K3s sets it only once, when a node registers; k3s_node_labels keeps labels",
    "node-name": "it is the board's host name",
    "node-taint": "K3s sets it only once, when a node registers; k3s_node_taints keeps taints",
    "pause-image": "it comes with the bundle",
    "private-registry": "k3s_registries says it, or your own /etc/rancher/k3s/registries.yaml",
    "server": "k3s_server_url says it",
    "token": "k3s_token says it",
    "token-file": "k3s_token says it",
}
# Keys of K3s whose value is a secret, not the path of one: those of role redact, which boards have.
SECRETS = frozenset(
    {
        "agent-token",
        "cluster-secret",
        "datastore-endpoint",
        "etcd-s3-access-key",
        "etcd-s3-secret-key",
        "etcd-s3-session-token",
        "token",
        "vpn-auth",
    }
)
# A line of `k3s server --help`: names, then what a value is called if there is one, then two spaces or more.
OPTION = re.compile(
    r"^ +--(?P<name>[a-z0-9-]+)(?P<value> \S+)?(?:, -\S+(?: \S+)?)*(?: \[.*?\])?(?:  |$)", re.MULTILINE
)


def problems(config: dict[str, Any], shown: str, role: str) -> list[str]:
    """What is wrong with the settings that an inventory has for K3s, a sentence each.

    `shown` is the output of `k3s <role> --help`, which knows what this version takes.
    """
    takes = {match["name"]: match["value"] is not None for match in OPTION.finditer(shown)}
    found = []
    for given, value in config.items():
        key = given.removesuffix("+")
        if key in ELSEWHERE:
            found.append(f"{given}: {ELSEWHERE[key]}")
        elif key not in takes:
            close = difflib.get_close_matches(key, takes, n=1)
            instead = f"; is {close[0]} meant?" if close else ""
            found.append(f"{given}: this K3s has no such option of `k3s {role}`{instead}")
        elif key != given and key in config:
            found.append(f"{given}: {key} is there as well; give one of the two")
        elif not all(isinstance(one, str | int | float) for one in _listed(value)):
            but = "" if key in SECRETS else f", not {value!r}"
            found.append(f"{given}: text, a number, true, false or a list of them is needed{but}")
        elif takes[key] and isinstance(value, bool):
            found.append(f"{given}: a value is needed, not {str(value).lower()}")
        elif not takes[key] and not isinstance(value, bool):
            found.append(f"{given}: true or false is needed, not {value!r}")
    return found


def has_secrets(config: dict[str, Any]) -> bool:
    """Does one of the settings have a secret?"""
    return any(key.removesuffix("+") in SECRETS for key in config)


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


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {
            "k3s_configuration": configuration,
            "k3s_flags": flags,
            "k3s_has_secrets": has_secrets,
            "k3s_merged": merged,
            "k3s_migrated": migrated,
            "k3s_problems": problems,
            "k3s_unit_command": unit_command,
            "k3s_url_host": url_host,
        }
