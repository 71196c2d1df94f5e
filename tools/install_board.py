# SPDX-License-Identifier: Apache-2.0
"""Find the board of `inventory` that install.sh acts on: by its address, or by its SSH host key at a new one.

Its hostname alone decides nothing. Runs in .venv, with Python 3.10 and newer.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.front_door import CHECKOUT, RefusedError

INVENTORY = Path("inventory")
COLLECTIONS = CHECKOUT / ".collections"
MARKER = "# Written by install.sh."
# Groups of the playbooks and of Ansible, whether the inventory has them or not.
RESERVED = ("agent", "all", "k3s_cluster", "localhost", "monitoring", "server", "ungrouped")
LOCAL = "local"
# As in install.sh: a computer that accepts a connection and stays silent ends after these seconds, too.
SSH_LIMITS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
SSH_FAILED = 255
# The kubelet of K3s 1.35 and newer refuses cgroup v1, which L4T has before R36.
CGROUP_V2_L4T = 36
K3S_FOR_CGROUP_V1 = "v1.34.12+k3s1"


@dataclass(frozen=True)
class Route:
    """How SSH reaches a board, as `ssh -G` says. `via` is its proxy or jump host."""

    host: str
    port: str = "22"
    via: str = ""


@dataclass(frozen=True)
class Place:
    """Where a board is: `route` is None for this computer. `text` is for people, and `user` the account."""

    text: str
    route: Route | None = None
    user: str = field(default="", compare=False)


# Of a board whose address is a template.
UNKNOWN = Place("an address that is a template")


@dataclass(frozen=True)
class Fleet:
    """The inventory: `boards` are those of k3s_cluster; `names` has all names of hosts and groups."""

    boards: Mapping[str, Place]
    names: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A board by its name in the inventory, which has not got it yet, or has it with an old address."""

    name: str
    new: bool = False
    moved: bool = False


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


def reserved(name: str, fleet: Fleet) -> bool:
    """Whether a board cannot have this name: it is a group, or has a meaning for Ansible."""
    from ansible import constants  # noqa: PLC0415 - it takes half a second
    from ansible.vars.reserved import get_reserved_names  # noqa: PLC0415

    of_ansible = {*get_reserved_names(), *constants.INTERNAL_STATIC_VARS, *constants.LOCALHOST}
    return name in {*RESERVED, *of_ansible, *(one.lower() for one in fleet.names)}


def rules() -> Any:
    """The rules for names that preflight has, too (plugins/plugin_utils/host_names.py)."""
    if str(COLLECTIONS) not in sys.path:
        sys.path.append(str(COLLECTIONS))
    from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (  # noqa: PLC0415 - found there
        host_names,
    )

    return host_names


def checked_name(name: str, subject: str, advice: str = "") -> str:
    """A name in lower case, if a board can have it. Raises RefusedError with the reason otherwise."""
    why = rules().name_problem(name)
    if why:
        raise RefusedError(f"{subject}: {why}{advice}")
    return name.lower()


def choose(
    typed: Place,
    hostname: str,
    fleet: Fleet,
    moved: Callable[[Place, Fleet], str | None] = lambda *_: None,
    resolve: Resolve = addresses,
) -> Choice:
    """The board at this place. The name of a new one is `hostname`: its own, or that of --name.

    Raises RefusedError if the place and the name lead to different boards.
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
        return Choice(found[0])
    by_key = moved(typed, fleet)
    if by_key is not None:
        return Choice(by_key, moved=True)
    free = free_name(fleet.names)
    if called is not None:
        address = "ansible_connection=local" if typed.route is None else f"ansible_host={typed.text}"
        raise RefusedError(
            f"inventory has {called} at {other}, and the board at {typed.text} has the same name. If it "
            f"is another board, give it a name of its own: add --name {free}. "
            f"If it is {called} with a new address, correct the line of {called} in inventory: {address}. "
            f"{again}"
        )
    if reserved(hostname, fleet):
        raise RefusedError(
            f"the inventory cannot have a board with the name {hostname}, which is that of the board at "
            f"{typed.text}. Give it another one: add --name {free}. {again}"
        )
    templates = [name for name, place in fleet.boards.items() if place == UNKNOWN]
    if templates:
        raise RefusedError(
            f"ansible_host of {', '.join(templates)} in inventory is a template, so it cannot be compared "
            f"with {typed.text}. Run ./jetson-k3s site --limit NAME."
        )
    return Choice(hostname, new=True)


def server_url(server: str, fleet: Fleet) -> str:
    """The URL by which agents join this server: k3s_server_url, else its default in role k3s."""
    said = fleet.variables.get(server, {})
    address = str(said.get("ansible_host") or said.get("ansible_ssh_host") or server)
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return str(said.get("k3s_server_url") or f"https://{host}:6443")


def check_server(
    name: str, server: str, fleet: Fleet, resolver: Callable[[str], Mapping[str, Any] | None] = lambda _: None
) -> None:
    """Can this board be an agent of this server? `resolver` has how the board resolves the server's name."""
    if server not in fleet.boards:
        raise RefusedError(f"./inventory has no board {server}")
    if server not in fleet.servers:
        raise RefusedError(f"--agent-of {server}: inventory has it as an agent. Name a board of [server]")
    if name in fleet.servers:
        raise RefusedError(
            f"inventory has {name} in [server], so it cannot become an agent of {server}. Remove K3s from it "
            "first (--uninstall), and its line from inventory."
        )
    url = server_url(server, fleet)
    if "{{" in url:
        return
    known = rules()
    problem = known.url_problem(url) or known.url_problem(url, resolver(known.host_of(url)))
    if problem and problem.kind != "short":
        shown = "" if "@" in url else f", {url}"
        raise RefusedError(
            f"--agent-of {server}: the board cannot join by k3s_server_url{shown}: {problem.why}. Set "
            "k3s_server_url in inventory, below [k3s_cluster:vars], to https://ADDRESS:6443 with an address "
            f"of {server} that each board reaches. Nothing was done"
        )


def line_of(target: str, name: str, hostname: str) -> str:
    """The line of a new board in the inventory. site.yml gives it this name if its hostname is another."""
    rename = "" if name == hostname else " jetson_set_hostname=true"
    if target == LOCAL:
        return f"{name} ansible_connection=local{rename}"
    user, _, address = target.partition("@")
    return f"{name} ansible_host={address} ansible_user={user}{rename}"


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


def with_address(inventory: str, name: str, address: str) -> str:
    """The inventory with another address of a board."""
    line = re.compile(rf"^({re.escape(name)}\s(?:.*\s)?ansible_host=)\S+", re.MULTILINE)
    if not inventory.startswith(MARKER) or len(line.findall(inventory)) != 1:
        raise RefusedError(f"./inventory is yours. Write ansible_host of {name} there: {address}")
    return line.sub(lambda match: match[1] + address, inventory)


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


def ssh_settings(address: str, port: str | None = None) -> dict[str, str]:
    """How SSH reaches this address, after the person's ~/.ssh/config."""
    command = ["ssh", "-G", *(["-p", port] if port else []), address]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)


def ssh_route(address: str, port: str | None = None) -> Route:
    """The route that SSH takes to this address."""
    said = ssh_settings(address, port)
    via = said.get("proxyjump") or said.get("proxycommand", "")
    return Route(said.get("hostname", address), said.get("port", port or "22"), "" if via == "none" else via)


def host_keys(place: Place) -> set[str]:
    """The host keys that the files known_hosts have for a board."""
    if place.route is None:
        return set()
    said = ssh_settings(place.text, place.route.port)
    host = said.get("hostkeyalias") or place.route.host
    name = host if place.route.port == "22" else f"[{host}]:{place.route.port}"
    files = f"{said.get('userknownhostsfile', '')} {said.get('globalknownhostsfile', '')}".split()
    lines: list[str] = []
    for file in files:
        command = ["ssh-keygen", "-F", name, "-f", str(Path(file).expanduser())]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        # Not the keys of CAs (@cert-authority), which are those of many hosts.
        lines += [line for line in ran.stdout.splitlines() if line and line[0] not in "#@"]
    return {" ".join(line.split()[1:3]) for line in lines}


def answers(place: Place) -> bool:
    """Whether the board is at its address: SSH accepts its host key there, if not this account."""
    port = ["-p", place.route.port] if place.route else []
    command = ["ssh", *SSH_LIMITS, "-o", "StrictHostKeyChecking=yes", *port, place.text, "true"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return ran.returncode != SSH_FAILED or "Permission denied" in ran.stderr


def moved_board(typed: Place, fleet: Fleet) -> str | None:
    """The board of the inventory that is at this place now, by its SSH host key; None if there is none.

    Boards that are copies of one image have one key: a board that answers at its own address has not moved.
    """
    here = host_keys(typed) if fleet.boards else set()
    found = [name for name, place in fleet.boards.items() if not here.isdisjoint(host_keys(place))]
    return found[0] if len(found) == 1 and not answers(fleet.boards[found[0]]) else None


def place_of(name: str, variables: Mapping[str, Any], route: Callable[..., Route]) -> Place:
    """Where a board of the inventory is."""
    if variables.get("ansible_connection") == "local":
        return Place("this computer (ansible_connection=local)")
    address = str(variables.get("ansible_host", variables.get("ansible_ssh_host", name)))
    port = variables.get("ansible_port", variables.get("ansible_ssh_port"))
    if "{{" in address or "{{" in str(port):
        return UNKNOWN
    user = str(variables.get("ansible_user", ""))
    return Place(address, route(address, None if port is None else str(port)), "" if "{" in user else user)


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
        variables=variables,
    )


def listed(inventory: Path) -> dict[str, Any]:
    """The answer of `ansible-inventory --list`. Raises RefusedError."""
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(inventory), "--list"]
    environment = os.environ | {"ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    ran = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise RefusedError(f"./inventory cannot be read: {ran.stderr.strip()}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def read_fleet() -> Fleet:
    """The fleet of ./inventory, without any board if there is no such file."""
    return fleet_of(listed(INVENTORY)) if INVENTORY.exists() else Fleet({})


@contextmanager
def draft(text: str) -> Iterator[Path]:
    """A file beside the inventory with this text, which goes again unless it is renamed."""
    written = INVENTORY.with_name("inventory.new")
    try:
        written.touch(mode=0o600 if INVENTORY.exists() else 0o666)
        if INVENTORY.exists():
            written.chmod(INVENTORY.stat().st_mode & 0o777)
        written.write_text(text)
        yield written
    finally:
        written.unlink(missing_ok=True)


def settings_of(name: str, fleet: Fleet, text: str | None) -> Mapping[str, Any]:
    """The variables of a board, with group_vars, also if only a new inventory, with this text, has it."""
    if name in fleet.boards or text is None:
        return fleet.variables.get(name, {})
    with draft(text) as written:
        hostvars: dict[str, dict[str, Any]] = listed(written)["_meta"]["hostvars"]
    return hostvars.get(name, {})


def with_board(line: str, server: str | None, l4t: int, bundle: str | None) -> str:
    """The inventory with a new board. Raises RefusedError if it cannot be written."""
    if not INVENTORY.exists():
        return first_inventory(line, l4t, bundle)
    if INVENTORY.is_dir() or not INVENTORY.read_text().startswith(MARKER):
        raise RefusedError("./inventory is yours. Add the board there, and run ./jetson-k3s site")
    if not server:
        raise RefusedError(
            "./inventory has a cluster already: --agent-of SERVER, or another checkout for another cluster"
        )
    return with_agent(INVENTORY.read_text(), line)
