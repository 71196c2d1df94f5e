# SPDX-License-Identifier: Apache-2.0
"""install.sh acts on the board at the address that was typed. Scripts replace SSH and ansible-playbook."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs import CHECKOUT
from tests.unit.commands import run, script
from tools import install_board
from tools.install_board import RESERVED, UNKNOWN, Fleet, Place, RefusedError, Route

SSH = f"""\
#!{sys.executable}
import json, sys
boards = json.load(open({{boards!r}}))
if sys.argv[1] == "-G":
    user, _, host = sys.argv[-1].rpartition("@")
    print("hostname " + boards.get(host, {{{{}}}}).get("alias_of", host), "port 22", sep="\\n")
    sys.exit()
board = boards.get(sys.argv[-2].partition("@")[2])
if board is None:
    sys.exit(255)
command = sys.argv[-1]
if command.startswith("cat"):
    print("# R" + board.get("l4t", "36") + " (release), REVISION: 4.3")
elif command == "hostname":
    print(board["hostname"])
"""
FILES = ("install.sh", "ansible.cfg", "tools/bootstrap.sh", "tools/requirements/ansible.txt")
AS_FLASHED = {"192.0.2.11": {"hostname": "ubuntu"}, "192.0.2.12": {"hostname": "ubuntu"}}
ONE = """\
# Written by install.sh. inventory.example shows more.
[server]
ubuntu ansible_host=192.0.2.11 ansible_user=jetson

[agent]

[k3s_cluster:children]
server
agent

[k3s_cluster:vars]
"""


@dataclass(frozen=True)
class Checkout:
    """A checkout with an Ansible that only records what it would run."""

    path: Path

    @property
    def inventory(self) -> Path:
        return self.path / "inventory"

    @property
    def played(self) -> list[str]:
        record = self.path / "played"
        return record.read_text().splitlines() if record.exists() else []

    def boards(self, boards: Mapping[str, Mapping[str, Any]]) -> None:
        (self.path / "boards.json").write_text(json.dumps(boards))

    def install(self, *arguments: str, typed: str | None = None, cwd: Path | None = None) -> tuple[int, str]:
        """Run it with a terminal on which this is typed, or without one; its status and output."""
        environment = {"PATH": f"{self.path}/bin:{os.environ['PATH']}", "HOME": str(self.path)}
        return run([self.path / "install.sh", *arguments], cwd or self.path, environment, typed)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    root = tmp_path / "checkout"
    (root / "tools/requirements").mkdir(parents=True)
    for name in (*FILES, "tools/__init__.py", "tools/install_board.py"):
        shutil.copy(CHECKOUT / name, root / name)
    os.utime(root / "tools/requirements/ansible.txt", (0, 0))
    script(root / "bin/ssh", SSH.format(boards=str(root / "boards.json")))
    tools = root / ".venv/bin"
    script(tools / "ansible-playbook", f'#!/bin/sh\necho "$*" >> {shlex.quote(str(root))}/played\n')
    script(tools / "ansible", f"#!/bin/sh\ncat {shlex.quote(str(root))}/servers-say 2>/dev/null\n")
    listing = Path(sys.executable).with_name("ansible-inventory")
    script(tools / "ansible-inventory", f'#!/bin/sh\nexec {shlex.quote(str(listing))} "$@"\n')
    (tools / "python").symlink_to(sys.executable)
    (root / ".venv/.ansible").touch()
    made = Checkout(root)
    made.boards(AS_FLASHED)
    yield made


def test_new_board_is_written_to_the_inventory(checkout: Checkout) -> None:
    status, said = checkout.install("jetson@192.0.2.11")
    assert status == 0, said
    assert checkout.inventory.read_text() == ONE
    assert checkout.played == ["-i inventory --limit ubuntu playbooks/site.yml"]
    again, said = checkout.install("jetson@192.0.2.11")
    assert (again, checkout.inventory.read_text()) == (0, ONE), said


def test_old_jetpack_gets_a_k3s_for_its_cgroups(checkout: Checkout) -> None:
    checkout.boards({"192.0.2.11": {"hostname": "jetson-1", "l4t": "35"}})
    assert checkout.install("jetson@192.0.2.11")[0] == 0
    assert checkout.inventory.read_text().splitlines()[-1] == "k3s_version=v1.34.12+k3s1"


@pytest.mark.parametrize("arguments", [("--agent-of", "ubuntu"), ("--uninstall", "--yes"), ("--check",), ()])
def test_board_with_the_hostname_of_another_one_is_refused(
    checkout: Checkout, arguments: tuple[str, ...]
) -> None:
    checkout.inventory.write_text(ONE)
    status, said = checkout.install(*arguments, "jetson@192.0.2.12")
    assert (status, checkout.played, checkout.inventory.read_text()) == (1, [], ONE), said
    assert (
        "inventory has ubuntu at 192.0.2.11, and the board at 192.0.2.12 has the same hostname. If it is "
        "another board, give it a hostname of its own: ssh -t jetson@192.0.2.12 sudo hostnamectl "
        "set-hostname jetson-1. If it is ubuntu with a new address, correct the line of ubuntu in inventory: "
        "ansible_host=192.0.2.12. Nothing was done."
    ) in said


def test_board_with_a_hostname_of_its_own_becomes_an_agent(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE)
    checkout.boards(AS_FLASHED | {"192.0.2.12": {"hostname": "jetson-1"}})
    status, said = checkout.install("--agent-of", "ubuntu", "jetson@192.0.2.12")
    assert status == 0, said
    line = "jetson-1 ansible_host=192.0.2.12 ansible_user=jetson"
    assert checkout.inventory.read_text() == ONE.replace("[agent]\n", f"[agent]\n{line}\n")
    assert checkout.played == ["-i inventory --limit jetson-1 playbooks/site.yml"]


@pytest.mark.parametrize(
    ("arguments", "playbook"),
    [((), "site.yml"), (("--uninstall", "--yes"), "reset.yml -e k3s_reset_cluster=ubuntu")],
)
def test_known_board_is_found_by_its_address(
    checkout: Checkout, arguments: tuple[str, ...], playbook: str
) -> None:
    checkout.inventory.write_text(ONE)
    checkout.boards(
        {"192.0.2.11": {"hostname": "renamed"}, "board.example": {"alias_of": "192.0.2.11", "hostname": "r"}}
    )
    for target in ("jetson@192.0.2.11", "jetson@board.example"):
        status, said = checkout.install(*arguments, target)
        assert status == 0, said
    assert checkout.inventory.read_text() == ONE
    assert [line.rpartition("playbooks/")[::2] for line in checkout.played] == [
        ("-i inventory --limit ubuntu ", playbook)
    ] * 2


def test_password_of_the_servers_sudo_is_asked_for(checkout: Checkout) -> None:
    checkout.boards({**AS_FLASHED, "192.0.2.12": {"hostname": "jetson-2"}})
    assert checkout.install("jetson@192.0.2.11")[0] == 0
    (checkout.path / "servers-say").write_text("Task failed: Missing sudo password\n")
    agent = ("--agent-of", "ubuntu", "jetson@192.0.2.12")
    status, said = checkout.install(*agent)
    assert status == 1
    assert "sudo on a server of jetson-2's cluster asks for a password, and there is no terminal" in said
    assert checkout.install(*agent, typed="")[0] == 0
    assert ["--ask-become-pass" in played for played in checkout.played] == [False, True]


def test_boards_that_have_exchanged_their_addresses_are_refused(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE.replace("[agent]\n", "[agent]\njetson-2 ansible_host=192.0.2.12\n"))
    checkout.boards({"192.0.2.11": {"hostname": "jetson-2"}})
    status, said = checkout.install("--uninstall", "--yes", "jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert (
        "inventory has ubuntu at 192.0.2.11, but the board there has the hostname jetson-2, and inventory "
        "has jetson-2 at 192.0.2.12. Check which board has which address"
    ) in said


@pytest.mark.parametrize("name", [name for name in RESERVED if "_" not in name])
def test_reserved_hostname_is_refused(checkout: Checkout, name: str) -> None:
    checkout.boards({"192.0.2.11": {"hostname": name.upper()}})
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.played, checkout.inventory.exists()) == (1, [], False), said
    assert f"has the hostname {name}, which the inventory cannot have as a board. Give it" in said


def test_uninstall_asks(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE.replace("[agent]\n", "[agent]\njetson-2 ansible_host=192.0.2.12\n"))
    status, said = checkout.install("--uninstall", "jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert "There is no terminal to confirm it: add --yes. Nothing was done" in said
    for typed in ("\n", "y\n", "jetson-2\n", "\x04"):
        status, said = checkout.install("--uninstall", "jetson@192.0.2.11", typed=typed)
        assert (status, checkout.played) == (1, []), said
        assert "that is not its name. Nothing was done" in said
    status, said = checkout.install("--uninstall", "jetson@192.0.2.11", typed="ubuntu\n")
    assert (status, len(checkout.played)) == (0, 1), said
    assert (
        "This removes K3s from ubuntu (192.0.2.11): pods, volumes with all their data, and settings.\n"
        "Your other containers, Docker and its images stay.\n"
        "ubuntu is the only server: the cluster ends with it, with all its data.\n"
        "These boards of the inventory are then without a server: jetson-2.\n"
        "Type ubuntu to remove it: "
    ) in said


def test_uninstall_of_an_unknown_board_is_refused(checkout: Checkout) -> None:
    status, said = checkout.install("--uninstall", "--yes", "jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert "./inventory has no board at 192.0.2.11, so nothing is known to be removed from it" in said


def test_yes_is_for_uninstall_alone(checkout: Checkout) -> None:
    assert "--yes belongs to --uninstall" in checkout.install("--yes", "jetson@192.0.2.11")[1]


def test_inventory_of_a_person_is_read_and_not_written(checkout: Checkout) -> None:
    text = "k3s_cluster:\n  children:\n    server: {hosts: {orin: }}\n    agent: {hosts: {nano: }}\n"
    (checkout.path / "host_vars").mkdir()
    (checkout.path / "host_vars/orin.yml").write_text("ansible_host: 192.0.2.11\n")
    checkout.inventory.write_text(text)
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.played) == (0, ["-i inventory --limit orin playbooks/site.yml"]), said
    status, said = checkout.install("--agent-of", "orin", "jetson@192.0.2.12")
    assert (status, checkout.inventory.read_text()) == (1, text)
    assert "./inventory is yours. Add the board there" in said


def test_inventory_that_cannot_be_read_is_named(checkout: Checkout) -> None:
    checkout.inventory.write_text("[server\n")
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert "./inventory cannot be read: " in said


def test_bundle_is_relative_to_the_directory_of_the_person(checkout: Checkout, tmp_path: Path) -> None:
    bundle = tmp_path / "the bundle"
    bundle.mkdir()
    status, said = checkout.install("--offline", "the bundle", "jetson@192.0.2.11", cwd=tmp_path)
    assert (status, "the bundle is no bundle: it has no SHA256SUMS" in said) == (1, True)
    (bundle / "SHA256SUMS").touch()
    status, said = checkout.install("--offline", "the bundle", "jetson@192.0.2.11", cwd=tmp_path)
    assert status == 0, said
    assert f'-e {{"jetson_k3s_bundle": "{bundle}"}}' in checkout.played[-1]
    assert checkout.inventory.read_text().splitlines()[-1] == f"jetson_k3s_bundle={bundle}"


NAMES = {"board.example": {"192.0.2.11", "2001:db8::11"}, "other.example": {"192.0.2.12"}}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Route("192.0.2.11"), Route("192.0.2.11"), True),
        (Route("192.0.2.11"), Route("192.0.2.12"), False),
        (Route("board.example"), Route("192.0.2.11"), True),
        (Route("Board.Example"), Route("board.example"), True),
        (Route("other.example"), Route("192.0.2.11"), False),
        (Route("gone.example"), Route("also-gone.example"), False),
        (Route("192.0.2.11", "2201"), Route("192.0.2.11", "2202"), False),
        (Route("192.0.2.11", "22", "site-a"), Route("192.0.2.11", "22", "site-b"), False),
        (None, None, True),
        (None, Route("192.0.2.11"), False),
    ],
)
def test_same_board(one: Route | None, other: Route | None, alike: bool) -> None:
    def resolve(host: str) -> set[str]:
        return NAMES.get(host, install_board.addresses(host) if host[0].isdigit() else set())

    assert install_board.same(Place("a", one), Place("b", other), resolve) is alike


@pytest.mark.parametrize(
    ("target", "hostname", "boards", "words"),
    [
        ("local", "a", {"a": Place("192.0.2.11", Route("192.0.2.11"))}, "ansible_connection=local."),
        ("local", "jetson-1", {"a": Place("here"), "b": Place("here")}, "inventory has a and b at"),
        ("jetson@192.0.2.11", "jetson-9", {"a": UNKNOWN}, "ansible_host of a in inventory is a template"),
        ("jetson@192.0.2.11", "a", {"a": UNKNOWN}, "inventory has a at an address that is a template"),
        ("jetson@192.0.2.11", "cameras", {}, "which the inventory cannot have as a board"),
    ],
)
def test_refused(target: str, hostname: str, boards: dict[str, Place], words: str) -> None:
    typed = Place("here") if target == "local" else Place("192.0.2.11", Route("192.0.2.11"))
    with pytest.raises(RefusedError) as refused:
        install_board.choose(target, typed, hostname, Fleet(boards, frozenset(["cameras", *boards])))
    assert words in str(refused.value)


def test_board_itself_is_found_by_its_connection() -> None:
    fleet = Fleet({"jetson-1": Place("here")})
    assert install_board.choose("local", Place("this computer"), "renamed", fleet) == "jetson-1"


@pytest.mark.parametrize(
    ("name", "server", "words"),
    [
        (None, "jetson-9", "./inventory has no board jetson-9"),
        (None, "jetson-2", "--agent-of jetson-2: inventory has it as an agent"),
        ("jetson-1", "jetson-1", "inventory has jetson-1 in [server], so it cannot become an agent"),
    ],
)
def test_server_that_cannot_be_joined_is_refused(name: str | None, server: str, words: str) -> None:
    boards = {"jetson-1": Place("a"), "jetson-2": Place("b")}
    with pytest.raises(RefusedError) as refused:
        install_board.check_server(name, server, Fleet(boards, servers=frozenset(["jetson-1"])))
    assert words in str(refused.value)


def test_fleet_is_read_with_ports_and_groups() -> None:
    listed = {
        "_meta": {
            "hostvars": {
                "jetson-1": {"ansible_host": "192.0.2.11", "ansible_port": 2201},
                "jetson-3": {"ansible_host": "{{ prefix }}.13"},
                "monitor": {"ansible_host": "192.0.2.11"},
            }
        },
        "all": {"children": ["ungrouped", "k3s_cluster", "monitoring"]},
        "k3s_cluster": {"children": ["server", "agent"]},
        "server": {"hosts": ["jetson-1"]},
        "agent": {"hosts": ["jetson-2", "jetson-3"]},
        "monitoring": {"hosts": ["monitor"]},
    }
    fleet = install_board.fleet_of(listed, lambda address, port=None: Route(address, port or "22"))
    assert fleet.boards == {
        "jetson-1": Place("192.0.2.11", Route("192.0.2.11", "2201")),
        "jetson-2": Place("jetson-2", Route("jetson-2")),
        "jetson-3": UNKNOWN,
    }
    assert fleet.servers == {"jetson-1"}
    assert {"monitor", "monitoring", "jetson-3"} <= fleet.names
