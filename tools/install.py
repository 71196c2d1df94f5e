# SPDX-License-Identifier: Apache-2.0
"""Install or uninstall one board: what install.sh does after SSH reaches the board and .venv is made.

Says what will change, asks, writes the inventory, runs the playbooks, and leaves a kubeconfig. Runs in the
checkout, in .venv, with Python 3.10 and newer. Exit status: that of the playbook, or 1 with a message, or
130 after Ctrl-C, for which install.sh has the line.
"""

from __future__ import annotations

import argparse
import functools
import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import front_door
from tools.front_door import CHECKOUT, RefusedError
from tools.install_board import (
    INVENTORY,
    LOCAL,
    SSH_FAILED,
    SSH_LIMITS,
    Choice,
    Fleet,
    Place,
    check_server,
    checked_name,
    choose,
    consequences,
    draft,
    free_name,
    line_of,
    moved_board,
    read_fleet,
    rules,
    settings_of,
    ssh_route,
    with_address,
    with_board,
)
from tools.install_image import SETTING, Image, image_of, offer, ways

INSTALL, UNINSTALL = "install", "uninstall"
PLAYBOOKS = {INSTALL: "site", "check": "preflight", "dry-run": "site", UNINSTALL: "reset"}
KUBECONFIG = "jetson-k3s.kubeconfig"
EXAMPLE = "docs/examples/gpu-job.yaml"
CATALOGUE = CHECKOUT / "plugin/tegra_device_plugin/board/catalogue.json"
L4T = re.compile(r"# R(\d+)(?: .*?REVISION: (\d+)(?:\.(\d+))?)?")
MODEL_LENGTH = 60


@dataclass(frozen=True)
class Board:
    """The board as it answers, and where. `hostname`, `model`, `machine` (`uname -m`) are its own words."""

    place: Place
    hostname: str
    model: str
    machine: str
    jetpack: str


def remote(target: str, command: str) -> str:
    """The output of a command on the board; '' if it fails. Raises RefusedError if SSH does."""
    shell = ["sh", "-c", command] if target == LOCAL else ["ssh", *SSH_LIMITS, target, command]
    ran = subprocess.run(
        shell, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if target != LOCAL and ran.returncode == SSH_FAILED:
        raise RefusedError(f"SSH to {target} failed: run the same command again. Nothing was done")
    return ran.stdout.strip() if ran.returncode == 0 else ""


def l4t(release: str) -> tuple[str, ...]:
    """The version of L4T by /etc/nv_tegra_release, which install.sh has read. Its major version is there."""
    found = L4T.match(release)
    return tuple(part or "0" for part in found.groups()) if found else ("0",)


def jetpack(release: str) -> str:
    """JetPack and L4T, for people."""
    version = ".".join(l4t(release))
    known = json.loads(CATALOGUE.read_text())["jetpack"].get(version)
    return f"JetPack {known} (L4T {version})" if known else f"L4T {version}"


def board_of(options: argparse.Namespace) -> Board:
    """Ask the board for its name and model, and SSH for its route."""
    target = options.target
    address = target.partition("@")[2]
    place = Place("this computer") if target == LOCAL else Place(address, ssh_route(target))
    model = remote(target, "tr -d '\\000' < /proc/device-tree/model")
    shown = "".join(one for one in model if one.isascii() and one.isprintable())[:MODEL_LENGTH]
    hostname, machine = remote(target, "hostname"), remote(target, "uname -m")
    return Board(place, hostname, shown or "the board", machine, jetpack(options.release))


def resolver_of(target: str, server: str) -> dict[str, Any] | None:
    """How K3s on the board resolves the server's name, if that is one; None for an address."""
    from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (  # noqa: PLC0415 - found there
        jetson_resolver,
    )

    if not server or rules().address_of(server):
        return None
    hosts, configuration = (remote(target, f"cat {file}") for file in ("/etc/hosts", "/etc/resolv.conf"))
    return jetson_resolver.resolver_of(hosts, configuration, server)


def chosen(options: argparse.Namespace, board: Board, fleet: Fleet) -> Choice:
    """The board of the inventory, or a new one. Raises RefusedError."""
    if options.name:
        if options.action == UNINSTALL:
            raise RefusedError("--name is the name of a new board, so --uninstall does not need it")
        wanted = checked_name(options.name, f"--name {options.name}")
    else:
        wanted = checked_name(
            board.hostname,
            f"{options.target} has no usable hostname, {board.hostname!r}",
            f". Give it a name: add --name {free_name(fleet.names)}",
        )
    choice = choose(board.place, wanted, fleet, moved_board)
    if options.name and wanted != choice.name.lower():
        raise RefusedError(
            f"inventory has this board as {choice.name}. --name is for a new board. Nothing was done"
        )
    if options.agent_of:
        ask = functools.partial(resolver_of, options.target)
        check_server("" if choice.new else choice.name, options.agent_of, fleet, ask)
    if options.action == UNINSTALL and choice.new:
        raise RefusedError(
            f"./inventory has no board at {board.place.text}, so nothing is known to be removed from it"
        )
    return choice


def answer(question: str) -> str:
    """What a person types at this question; 'no' at the end of the input."""
    sys.stdout.flush()
    sys.stderr.write(question)
    sys.stderr.flush()
    return (sys.stdin.readline() or "no").strip()


def confirm(options: argparse.Namespace, question: str, default: bool = True) -> None:
    """Go on if the person agrees. Raises RefusedError."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError("There is no terminal to confirm it: add --yes. Nothing was done")
    typed = answer(f"{question} [{'Y/n' if default else 'y/N'}] ").lower()
    if typed not in (("", "y", "yes") if default else ("y", "yes")):
        raise RefusedError("Nothing was done")


def typed_path(options: argparse.Namespace, file: str) -> str:
    """A file of the checkout as a person types it."""
    return f"./{file}" if Path(options.typed_in) == CHECKOUT else shlex.quote(str(CHECKOUT / file))


def say(lines: Sequence[str]) -> None:
    """Lines for the person, before the next question or playbook."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def changes(
    options: argparse.Namespace, board: Board, choice: Choice, settings: Mapping[str, Any], image: Image
) -> list[str]:
    """What an installation changes, and how to undo it. `settings` are those of the board."""
    name, server = choice.name, options.agent_of
    bundle = settings.get("jetson_k3s_bundle")
    if not choice.new:
        node = f"{name} of the inventory. A setting that is right already stays as it is"
    else:
        node = f"{name}, an agent of {server}" if server else f"{name}, the server of a new cluster"
    said = [
        f"\n{board.model} at {board.place.text}, {board.jetpack}, becomes a node of K3s.",
        f"  Node:    {node}",
    ]
    if choice.new and name != board.hostname.lower():
        said.append(f"  Name:    the hostname becomes {name}")
    if settings.get("k3s_container_runtime") != "containerd":
        said += [
            "  Docker:  installed where it is missing. Its default runtime becomes nvidia.",
            "           Your containers keep running, unless a setting needs a restart of Docker",
        ]
    said.append(f"  Source:  {f'the bundle {bundle}' if bundle else 'the Internet'}")
    said += [f"  {'' if number else 'Image:':9}{line}" for number, line in enumerate(image.lines)]
    local = options.target == LOCAL
    undo = f"{'sudo ' if local else ''}{typed_path(options, 'install.sh')} --uninstall {options.target}"
    return [
        *said,
        f"  Here:    inventory, reports/{'' if local else f', {KUBECONFIG}'}",
        f"  Undo:    {undo}",
        "docs/changes.md has each change.",
    ]


def agree(options: argparse.Namespace, board: Board, choice: Choice, fleet: Fleet) -> None:
    """Have the person agree to another address of the board, or to its end. Raises RefusedError."""
    name = choice.name
    if choice.moved:
        before = fleet.boards[name].text
        say([f"\n{board.place.text} has the SSH host key of {name}, and {name} does not answer at {before}."])
        confirm(options, f"Write {board.place.text} as the address of {name} into inventory?")
    if options.action == UNINSTALL:
        say(["", *consequences(name, board.place, fleet)])
        if fleet.servers != {name}:
            confirm(options, f"Remove K3s from {name}?", default=False)
        elif not options.yes:
            if not sys.stdin.isatty():
                confirm(options, "")
            if answer(f"Type {name} to remove it: ") != name:
                raise RefusedError("that is not its name. Nothing was done")


@dataclass(frozen=True)
class Ansible:
    """How playbooks run: with the settings of the checkout, and with sudo's password if there is one."""

    env: Mapping[str, str]
    password: str = ""

    def run(self, *arguments: str, quiet: bool = False) -> tuple[int, str]:
        """The exit status of a playbook, and its output if it is not on the screen.

        At Ctrl-C Ansible ends first, and KeyboardInterrupt follows.
        """
        interrupted: list[object] = []
        before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
        try:
            ran = subprocess.run(
                [
                    str(front_door.TOOLS / "ansible-playbook"),
                    *(front_door.FROM_STDIN if self.password else []),
                    *arguments,
                ],
                # install.sh says what Ctrl-C means (plugins/callback/progress.py).
                env={**self.env, "JETSON_K3S_SAYS_INTERRUPTED": "1"},
                input=self.password or None,
                stdout=subprocess.PIPE if quiet else None,
                stderr=subprocess.STDOUT if quiet else None,
                text=True,
                check=False,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt
        return ran.returncode, ran.stdout or ""


def prepared(options: argparse.Namespace, choice: Choice, text: str | None) -> Ansible:
    """Write the inventory with this text, after sudo has let Ansible in. Raises RefusedError."""
    env = front_door.environment()
    with nullcontext(INVENTORY) if text is None else draft(text) as written:
        password = ""
        if not front_door.own_password(front_door.known_options(INSTALL).parse_args([]), env):
            command = front_door.COMMANDS[PLAYBOOKS[options.action]]
            password = front_door.ask_password(command, ["-i", str(written)], choice.name, env)
        if text is not None:
            written.replace(INVENTORY)
    return Ansible(env, password)


def inventory_with(options: argparse.Namespace, board: Board, choice: Choice) -> str | None:
    """The text of the inventory with this board; None if it stays as it is. Raises RefusedError."""
    if choice.moved:
        return with_address(INVENTORY.read_text(), choice.name, board.place.text)
    if not choice.new:
        return None
    line = line_of(options.target, choice.name, board.hostname.lower())
    return with_board(line, options.agent_of, int(l4t(options.release)[0]), options.bundle)


def account() -> str:
    """The account of the person, also without the variable USER."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # of a container
        return f"uid-{os.getuid()}"


def kubeconfig(ansible: Ansible, server: str, fleet: Fleet) -> bool:
    """Write a kubeconfig of the person, with which the printed commands work; whether it is there."""
    say([f"\n==> A kubeconfig for you: {KUBECONFIG}"])
    settings = {"kubeconfig_file": str(CHECKOUT / KUBECONFIG), "kubeconfig_role": "edit"}
    if "kubeconfig_role" in fleet.variables.get(server, {}):
        del settings["kubeconfig_role"]  # the choice of the person
    env = {"USER": account(), **ansible.env}
    status, said = Ansible(env, ansible.password).run(
        *("-i", str(INVENTORY), "--extra-vars", json.dumps(settings), "playbooks/kubeconfig.yml"), quiet=True
    )
    if status != 0:
        say([said.rstrip(), "There is no kubeconfig. The message above names the cause"])
    return status == 0


def on_server(place: Place, file: str) -> tuple[str, str]:
    """Commands that run kubectl on a server: the nodes, and a file that is applied."""
    if place.route is None:
        return "sudo k3s kubectl get nodes", f"sudo k3s kubectl apply --filename {file}"
    port = "" if place.route.port == "22" else f"-o Port={place.route.port} "
    login = f"{place.user}@{place.text}" if place.user else place.text
    kubectl = f"ssh -t {port}{login} sudo k3s kubectl"
    return (
        f"{kubectl} get nodes",
        f"scp {port}{file} {login}: && {kubectl} apply --filename {Path(EXAMPLE).name}",
    )


def last_words(options: argparse.Namespace, ansible: Ansible, name: str) -> list[str]:
    """The result, and the next commands. Each of them works as it is printed."""
    fleet = read_fleet()
    servers = [board for board in fleet.boards if board in fleet.servers]
    server = name if name in servers else options.agent_of or next(iter(servers), name)
    made = options.target != LOCAL and kubeconfig(ansible, server, fleet)

    path = functools.partial(typed_path, options)
    note = []
    if made and shutil.which("kubectl"):
        command = f"kubectl --kubeconfig {path(KUBECONFIG)}"
        nodes, job = f"{command} get nodes", f"{command} apply --filename {path(EXAMPLE)}"
    else:
        nodes, job = on_server(fleet.boards[server], path(EXAMPLE))
    if made and not shutil.which("kubectl"):
        note = [f"Note:  this computer has no kubectl. If you install it: --kubeconfig {path(KUBECONFIG)}"]
    return [
        "",
        f"Node:  {name} ({nodes})",
        f"Proof: {path(f'reports/{name}.json')} and {path('reports/index.html')}: each check of the GPU, "
        "with its evidence",
        f"Next:  {job}",
        f"Later: {path('jetson-k3s')} status, and {path('jetson-k3s')} --help",
        *note,
    ]


def image_for(options: argparse.Namespace, board: Board, settings: Mapping[str, Any]) -> Image | None:
    """Where the image comes from, None if nothing has it and nothing is installed. Raises RefusedError."""
    major, local = int(l4t(options.release)[0]), options.target == LOCAL
    image = image_of(settings, board.machine, major, local=local, chosen=options.build_on_board)
    if image is None and options.action == INSTALL:
        # The answer of --yes is to no question about the trust in a board.
        return offer(major, may_ask=sys.stdin.isatty() and not options.yes)
    if image is None:
        say([f"\n{ways(major)}."])
    return image


def install(options: argparse.Namespace) -> int:
    """Do what the options say; return the exit status. Raises RefusedError and KeyboardInterrupt."""
    if options.bundle:
        bundle = Path(options.bundle)  # absolute, by install.sh
        if not (bundle / "SHA256SUMS").exists():
            raise RefusedError(f"{bundle} is no bundle: it has no SHA256SUMS (docs/offline.md)")
        options.bundle = str(bundle.resolve())
    if options.become_password_file:
        file = Path(options.typed_in, options.become_password_file)
        if not file.exists():
            raise RefusedError(f"--become-password-file {options.become_password_file} does not exist")
        os.environ["ANSIBLE_BECOME_PASSWORD_FILE"] = str(file)
    fleet, board = read_fleet(), board_of(options)
    choice = chosen(options, board, fleet)
    text = inventory_with(options, board, choice)
    name = choice.name
    given: dict[str, Any] = {"jetson_k3s_bundle": options.bundle} if options.bundle else {}
    settings = {**settings_of(name, fleet, text), **given}
    image = None if options.action == UNINSTALL else image_for(options, board, settings)
    agree(options, board, choice, fleet)
    if image and options.action == INSTALL:
        say(changes(options, board, choice, settings, image))
        if sys.stdin.isatty():
            confirm(options, "Build the image on the board, and continue?" if image.offered else "Continue?")
    ansible = prepared(options, choice, text)
    arguments = ["-i", str(INVENTORY), "--limit", name]
    if image and image.on_board:
        given[SETTING] = True
    if given:
        arguments[2:2] = ["-e", json.dumps(given)]
    playbook = f"playbooks/{PLAYBOOKS[options.action]}.yml"
    if options.action == UNINSTALL:
        say([f"\n==> K3s leaves {name}"])
        ends = ["-e", f"k3s_reset_cluster={name}"] if fleet.servers == {name} else []  # confirmed above
        status = ansible.run(*arguments, playbook, *ends)[0]
        if status == 0:
            say([f"\nK3s is removed from {name}. Its line in inventory stays, for another installation"])
        return status
    if options.action != INSTALL:
        say([f"\n==> {name} is checked, and nothing on it is changed"])
        return ansible.run(
            *arguments, playbook, *(["--check", "--diff"] if options.action == "dry-run" else [])
        )[0]
    say([f"\n==> {name} becomes a node"])
    if ansible.run(*arguments, playbook)[0] != 0:
        raise RefusedError(
            f"{name} is not ready. Each message above names its fix; then run the same command again"
        )
    say(last_words(options, ansible, name))
    return 0


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="install.sh")
    parser.add_argument("--target", required=True, help="USER@HOST as it was typed, or local")
    parser.add_argument("--release", required=True, help="the board's /etc/nv_tegra_release")
    parser.add_argument("--typed-in", required=True, help="the directory of the person")
    parser.add_argument("--action", choices=PLAYBOOKS, default=INSTALL)
    parser.add_argument("--agent-of", metavar="SERVER")
    parser.add_argument("--bundle", metavar="DIR")
    parser.add_argument("--build-on-board", action="store_true")
    parser.add_argument("--name")
    parser.add_argument("--become-password-file", metavar="FILE")
    parser.add_argument("--yes", action="store_true")
    try:
        return install(parser.parse_args())
    except RefusedError as refused:
        sys.stdout.flush()
        sys.stderr.write(f"install.sh: {refused}\n")
        return 1
    except KeyboardInterrupt:
        return front_door.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
