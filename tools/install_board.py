# SPDX-License-Identifier: Apache-2.0
"""Find the board of `inventory` that install.sh acts on, by its address. Its hostname alone decides nothing.

Prints the board's name in the inventory, after it has written a new board there. With --uninstall it asks
first. Runs in .venv, with Python 3.10 and newer. Exit status 1 with a message if the board is refused.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INVENTORY = Path("inventory")
MARKER = "# Written by install.sh."
# Names that Ansible or the playbooks use for something else, whether the inventory has them or not.
RESERVED = ("agent", "all", "k3s_cluster", "localhost", "monitoring", "server", "ungrouped")
LOCAL = "local"
# The kubelet of K3s 1.35 and newer refuses cgroup v1, which L4T has before R36.
CGROUP_V2_L4T = 36
K3S_FOR_CGROUP_V1 = "v1.34.12+k3s1"
ACCOUNT = re.compile(r"[\w.-]+@[\w.:%-]+", re.ASCII)


class RefusedError(Exception):
    """The board is not touched; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Route:
    """How SSH reaches a board, as `ssh -G` says. `via` is its proxy or jump host."""

    host: str
    port: str = "22"
    via: str = ""


@dataclass(frozen=True)
class Place:
    """Where a board is: `route` is None for this computer. `text` is for people."""

    text: str
    route: Route | None = None


# Of a board whose address is a template.
UNKNOWN = Place("an address that is a template")


@dataclass(frozen=True)
class Fleet:
    """The inventory: `boards` are those of k3s_cluster; `names` has all names of hosts and groups."""

    boards: Mapping[str, Place]
    names: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()


Resolve = Callable[[str], set[str]]


def addresses(host: str) -> set[str]:
    """The IP addresses of a name, or the address itself in one form."""
    try:
        return {str(ipaddress.ip_address(host.partition("%")[0]))}
    except ValueError:
        pass
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def same(one: Place, other: Place, resolve: Resolve = addresses) -> bool:
    """Is it one board? Two names of one address are one, two ports or jump hosts of it are two."""
    if UNKNOWN in (one, other):
        return False
    if one.route is None or other.route is None:
        return one.route is other.route
    if (one.route.port, one.route.via) != (other.route.port, other.route.via):
        return False
    here, there = one.route.host.lower(), other.route.host.lower()
    return here == there or not resolve(here).isdisjoint(resolve(there))


def free_name(names: Iterable[str]) -> str:
    """The first of jetson-1, jetson-2, ... that is not taken."""
    taken = {name.lower() for name in names}
    offered = (f"jetson-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in offered if name not in taken)


def set_hostname(target: str, name: str) -> str:
    """The command for another hostname."""
    command = f"sudo hostnamectl set-hostname {name}"
    return command if target == LOCAL else f"ssh -t {target} {command}"


def choose(
    target: str, typed: Place, hostname: str, fleet: Fleet, resolve: Resolve = addresses
) -> str | None:
    """The name in the inventory of the board at this place; None for a new one, whose name is its hostname.

    Raises RefusedError if the place and the hostname lead to different boards.
    """
    found = [name for name, place in fleet.boards.items() if same(typed, place, resolve)]
    if len(found) > 1:
        raise RefusedError(
            f"inventory has {' and '.join(found)} at {typed.text}. Correct ansible_host of these boards."
        )
    called = {name.lower(): name for name in fleet.boards}.get(hostname)
    other = "" if called is None else fleet.boards[called].text
    again = "Nothing was done. Then run the same command again."
    if found and called not in (None, *found):
        raise RefusedError(
            f"inventory has {found[0]} at {typed.text}, but the board there has the hostname {hostname}, "
            f"and inventory has {called} at {other}. Check which board has which address, and correct "
            f"ansible_host of both in inventory. {again}"
        )
    if found:
        return found[0]
    if called is not None:
        address = "ansible_connection=local" if typed.route is None else f"ansible_host={typed.text}"
        raise RefusedError(
            f"inventory has {called} at {other}, and the board at {typed.text} has the same hostname. If it "
            "is another board, give it a hostname of its own: "
            f"{set_hostname(target, free_name(fleet.names))}. "
            f"If it is {called} with a new address, correct the line of {called} in inventory: {address}. "
            f"{again}"
        )
    if hostname in RESERVED or hostname in {name.lower() for name in fleet.names}:
        raise RefusedError(
            f"the board at {typed.text} has the hostname {hostname}, which the inventory cannot have as a "
            f"board. Give it another one: {set_hostname(target, free_name(fleet.names))}. {again}"
        )
    templates = [name for name, place in fleet.boards.items() if place == UNKNOWN]
    if templates:
        raise RefusedError(
            f"ansible_host of {', '.join(templates)} in inventory is a template, so it cannot be compared "
            f"with {typed.text}. Run .venv/bin/ansible-playbook -i inventory playbooks/site.yml --limit NAME."
        )
    return None


def check_server(name: str | None, server: str, fleet: Fleet) -> None:
    """Can the board `name`, None for a new one, be an agent of this server?"""
    if server not in fleet.boards:
        raise RefusedError(f"./inventory has no board {server}")
    if server not in fleet.servers:
        raise RefusedError(f"--agent-of {server}: inventory has it as an agent. Name a board of [server]")
    if name in fleet.servers:
        raise RefusedError(
            f"inventory has {name} in [server], so it cannot become an agent of {server}. Remove K3s from it "
            "first (--uninstall), and its line from inventory."
        )


def line_of(target: str, name: str) -> str:
    """The line of a new board in the inventory."""
    if target == LOCAL:
        return f"{name} ansible_connection=local"
    user, _, address = target.partition("@")
    return f"{name} ansible_host={address} ansible_user={user}"


def first_inventory(line: str, l4t: int, bundle: str | None) -> str:
    """The inventory of a cluster that begins with this board."""
    setting = f"jetson_k3s_bundle={bundle}" if bundle else None
    if not bundle and l4t < CGROUP_V2_L4T:
        setting = f"k3s_version={K3S_FOR_CGROUP_V1}"
    head = [f"{MARKER} inventory.example shows more.", "[server]", line, "", "[agent]", ""]
    cluster = ["[k3s_cluster:children]", "server", "agent", "", "[k3s_cluster:vars]"]
    return "\n".join([*head, *cluster, *([setting] if setting else []), ""])


def with_agent(inventory: str, line: str) -> str:
    """The inventory with one more agent."""
    lines = inventory.splitlines()
    if "[agent]" not in lines:
        raise RefusedError("./inventory has no line [agent]: add it, then run the same command again")
    place = lines.index("[agent]") + 1
    return "\n".join([*lines[:place], line, *lines[place:], ""])


def consequences(name: str, place: Place, fleet: Fleet) -> list[str]:
    """The lines that say what --uninstall removes."""
    said = [
        f"This removes K3s from {name} ({place.text}): pods, volumes with all their data, and settings.",
        "Your other containers, Docker and its images stay.",
    ]
    if fleet.servers == {name}:
        others = [other for other in fleet.boards if other != name]
        said.append(f"{name} is the only server: the cluster ends with it, with all its data.")
        if others:
            said.append(f"These boards of the inventory are then without a server: {', '.join(others)}.")
    return said


def ssh_route(address: str, port: str | None = None) -> Route:
    """How SSH reaches this address, after the person's ~/.ssh/config."""
    command = ["ssh", "-G", *(["-p", port] if port else []), address]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)
    via = said.get("proxyjump") or said.get("proxycommand", "")
    return Route(said.get("hostname", address), said.get("port", port or "22"), "" if via == "none" else via)


def place_of(name: str, variables: Mapping[str, Any], route: Callable[..., Route]) -> Place:
    """Where a board of the inventory is."""
    if variables.get("ansible_connection") == "local":
        return Place("this computer (ansible_connection=local)")
    address = str(variables.get("ansible_host", variables.get("ansible_ssh_host", name)))
    port = variables.get("ansible_port", variables.get("ansible_ssh_port"))
    if "{{" in address or "{{" in str(port):
        return UNKNOWN
    return Place(address, route(address, None if port is None else str(port)))


def members(groups: Mapping[str, Any], group: str) -> list[str]:
    """The hosts of a group and of the groups below it."""
    entry = groups.get(group, {})
    below = [host for child in entry.get("children", []) for host in members(groups, child)]
    return [*entry.get("hosts", []), *below]


def fleet_of(listed: Mapping[str, Any], route: Callable[..., Route] = ssh_route) -> Fleet:
    """The fleet in the answer of `ansible-inventory --list`."""
    groups = {name: entry for name, entry in listed.items() if name != "_meta"}
    variables = listed.get("_meta", {}).get("hostvars", {})
    boards = members(groups, "k3s_cluster" if "k3s_cluster" in groups else "all")
    return Fleet(
        boards={name: place_of(name, variables.get(name, {}), route) for name in dict.fromkeys(boards)},
        names=frozenset([*groups, *members(groups, "all")]),
        servers=frozenset(members(groups, "server")),
    )


def read_fleet() -> Fleet:
    """The fleet of ./inventory, without any board if there is no such file."""
    if not INVENTORY.exists():
        return Fleet({})
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(INVENTORY), "--list"]
    environment = os.environ | {"ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    ran = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise RefusedError(f"./inventory cannot be read: {ran.stderr.strip()}")
    return fleet_of(json.loads(ran.stdout))


def add(options: argparse.Namespace, fleet: Fleet) -> None:
    """Write the new board to ./inventory."""
    line = line_of(options.target, options.hostname)
    if not INVENTORY.exists():
        text = first_inventory(line, options.l4t, options.bundle)
    elif INVENTORY.is_dir() or not INVENTORY.read_text().startswith(MARKER):
        raise RefusedError(
            "./inventory is yours. Add the board there, and run .venv/bin/ansible-playbook -i inventory "
            "playbooks/site.yml"
        )
    elif not options.agent_of:
        raise RefusedError(
            "./inventory has a cluster already: --agent-of SERVER, or another checkout for another cluster"
        )
    else:
        text = with_agent(INVENTORY.read_text(), line)
    written = INVENTORY.with_name("inventory.new")
    written.write_text(text)
    written.replace(INVENTORY)


def ask(name: str, said: list[str]) -> None:
    """Say what goes, and have the person type the board's name."""
    if not sys.stdin.isatty():
        said = [*said, "There is no terminal to confirm it: add --yes. Nothing was done"]
        raise RefusedError("\n".join(said))
    sys.stderr.write("\n".join([*said, f"Type {name} to remove it: "]))
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise RefusedError("that is not its name. Nothing was done")


def decide(options: argparse.Namespace, fleet: Fleet) -> str:
    """The board's name, after the inventory has it and the person has confirmed."""
    if options.target != LOCAL and not ACCOUNT.fullmatch(options.target):
        raise RefusedError(f"{options.target} is no USER@HOST: letters, digits and . : - _ only")
    address = options.target.partition("@")[2]
    typed = Place("this computer") if options.target == LOCAL else Place(address, ssh_route(options.target))
    name = choose(options.target, typed, options.hostname, fleet)
    if options.agent_of:
        check_server(name, options.agent_of, fleet)
    if options.uninstall:
        if name is None:
            raise RefusedError(
                f"./inventory has no board at {typed.text}, so nothing is known to be removed from it"
            )
        said = consequences(name, typed, fleet)
        if not options.yes:
            ask(name, said)
    elif name is None:
        add(options, fleet)
    return name or str(options.hostname)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the board's name; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="USER@HOST as it was typed, or local")
    parser.add_argument("--hostname", required=True, help="as the board says")
    parser.add_argument("--l4t", type=int, required=True, help="major version of L4T")
    parser.add_argument("--agent-of", metavar="SERVER")
    parser.add_argument("--bundle", metavar="DIR")
    parser.add_argument("--uninstall", action="store_true")
    parser.add_argument("--yes", action="store_true")
    options = parser.parse_args(argv)
    try:
        sys.stdout.write(f"{decide(options, read_fleet())}\n")
    except RefusedError as refused:
        sys.stderr.write(f"install.sh: {refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
