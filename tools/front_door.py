# SPDX-License-Identifier: Apache-2.0
"""Run a playbook of this checkout: what ./jetson-k3s does, except for `install`.

Finds the inventory, and asks for sudo's password if a board needs one. All other options are those of
ansible-playbook, which replaces this process, so the exit status is its own. `check-manifest` is a command of
the device plugin's program, which replaces this process in the same way. Status 2 with a message if it was
not started. Needs Python 3.10 or newer, and no package.
"""

from __future__ import annotations

import argparse
import difflib
import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

CHECKOUT = Path(__file__).resolve().parents[1]
TOOLS = CHECKOUT / ".venv/bin"
REFUSED, INTERRUPTED = 2, 130
MOST_NAMES = 5
"""Boards that a message names; more are a number."""
FROM_STDIN = ["--become-password-file", "-"]
ATTEMPTS = 3
"""As many passwords as sudo itself asks for."""
UNABLE = (
    r"(?:(?:Missing|Incorrect) \w+ password|sudo: a password is required|Sorry, try again"
    r"|is not in the sudoers file|may not run sudo|is not allowed to (?:run|execute))"
)
"""Of a board where an account has no password or right for sudo: what Ansible and sudo say."""


class RefusedError(Exception):
    """The playbook is not started; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Command:
    """A playbook. `boards` is the pattern of the hosts on which it uses sudo."""

    summary: str
    boards: str = "k3s_cluster"


INSTALL = "install"
SNAPSHOT, PREFLIGHT, TEST, CHECK_IMAGE = "snapshot", "preflight", "test", "check-image"
CHECK_MANIFEST = "check-manifest"
COMPLETION = "completion"
SHELLS = ("bash", "zsh")
COMMANDS = {
    "status": Command("Show the GPUs, the pods that use them, and when certificates expire"),
    "verify": Command("Verify that pods on each board get the GPU"),
    TEST: Command("Run your own job on each board, and report it with our checks"),
    "drift": Command("Show how the boards differ from the inventory"),
    "site": Command("Bring all boards to the state of the inventory"),
    "preflight": Command("Check each board, and change nothing"),
    SNAPSHOT: Command("Write what a board is into one archive, without secrets: snapshot BOARD"),
    CHECK_IMAGE: Command("Compare an image with each board, before it is sent: check-image IMAGE [BOARD]"),
    "upgrade": Command("Upgrade K3s, node by node"),
    "backup": Command("Back up the control plane to this computer, encrypted", "server"),
    "restore": Command("Restore the cluster from a backup"),
    "kubeconfig": Command("Write a kubeconfig on this computer", "server"),
    "reboot": Command("Reboot the boards in batches"),
    "reset": Command("Remove K3s from boards"),
    "forget": Command("Delete the nodes of boards that are gone"),
    "os-update": Command("Update the packages of the operating system"),
    "power-mode": Command("Set the power mode of the boards"),
    "monitoring": Command("Write targets, alerts and dashboard for Prometheus and Grafana", "monitoring"),
    "jtop": Command("Install the jtop service on the boards"),
    "rotate-token": Command("Replace the server token"),
    "rotate-ca": Command("Replace the CAs of the cluster"),
    "bundle": Command(
        "Make the offline bundle on this computer", "{{ bundle_debs_from | default('') or '!all' }}"
    ),
}
OTHERS = {
    INSTALL: "Make one board a node, and prove its GPU (install.sh)",
    CHECK_MANIFEST: "Say which lines of another system's manifest run here: check-manifest FILE",
    COMPLETION: f"Print the completion of commands and boards for a shell: {' or '.join(SHELLS)}",
}
# Needs no board, so it needs no inventory either.
WITHOUT_INVENTORY = "bundle"

OPTIONS = """\
options:
  -i, --inventory FILE          without it: ./inventory, else that of the checkout
  -l, --limit BOARDS            only these boards or groups, such as jetson-2,jetson-3
  -e, --extra-vars NAME=VALUE   a setting for this run; -e @FILE reads settings from a file
  -C, --check                   change nothing, and show what would be changed
  -D, --diff                    show the differences of files
  -v, --verbose                 Ansible's own output on the screen; -vvv shows more
  --become-password-file FILE   sudo's password, for runs without a terminal

.venv/bin/ansible-playbook --help has all options.
"""


OF_SNAPSHOT = CHECKOUT / "playbooks/archived/preflight.yml"


HIL = CHECKOUT / "playbooks/hil.py"
TEST_OPTIONS = """\
options:
  --job FILE               a manifest with one Job of Kubernetes
  --image IMAGE            its image: a name, or an archive of `docker save`
  --command TEXT           of an image without a manifest
  --artifacts DIR          fetch the files that the job writes to /results
  --boards PATTERN         only these boards or groups
  --timeout TIME           of the job, such as 90s or 2h
  --wait TIME              for boards that another run has locked
  --provision, --reset     run site.yml before, take K3s off the boards afterwards
  -i, --inventory FILE     without it: ./inventory, else that of the checkout
  -- OPTION...             options of ansible-playbook, such as --become-password-file FILE

.venv/bin/python playbooks/hil.py --help has all options.
"""
CHECK_MANIFEST_OPTIONS = """\
options:
  --config FILE     the configuration of the boards; without it, the names choose a preset
  --host-root DIR   percentages of --config are of the memory of this board
  --rewrite         print the manifest with the lines that run here

FILE is -: the manifest comes from standard input. docs/other-systems.md explains the verdicts.
"""
OWN_OPTIONS = {PREFLIGHT: ["--from"], CHECK_IMAGE: ["--boards"]}


def playbook(name: str) -> Path:
    """The playbook of a command."""
    return CHECKOUT / "playbooks" / f"{name.replace('-', '_')}.yml"


def usage() -> str:
    """The list of the commands."""
    entries = {INSTALL: OTHERS[INSTALL], **{name: one.summary for name, one in COMMANDS.items()}}
    width = max(map(len, entries))
    lines = [f"  {name:{width}}  {text}" for name, text in (entries | OTHERS).items()]
    head = ["usage: ./jetson-k3s COMMAND [OPTION...]", "", "commands:"]
    return "\n".join([*head, *lines, "", "./jetson-k3s COMMAND --help describes a command.", ""])


def description(text: str, name: str) -> str:
    """The comment at the top of a playbook, with the commands as they are typed here."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("#"))
    end = next(number for number, line in enumerate(lines) if number > start and not line.startswith("#"))
    comment = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[start:end])
    return re.sub(
        rf"ansible-playbook (-i inventory )?\S+/{playbook(name).name}", f"./jetson-k3s {name}", comment
    )


def known_options(name: str) -> argparse.ArgumentParser:
    """The options of ansible-playbook that matter here."""
    parser = argparse.ArgumentParser(prog=f"jetson-k3s {name}", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-i", "--inventory", "--inventory-file", action="append", default=[])
    parser.add_argument("-l", "--limit")
    parser.add_argument("-v", "--verbose", action="count")
    own = ("-b", "--become", "-K", "--ask-become-pass", "-k", "--ask-pass")
    parser.add_argument(
        *own, "-J", "--ask-vault-password", "--ask-vault-pass", dest="own", action="store_true"
    )
    parser.add_argument("--become-password-file", "--become-pass-file", dest="own")
    parser.add_argument("--vault-id", action="append", default=[])
    return parser


def inventory(name: str, given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The option that names the inventory, if the person has not given one. Raises RefusedError."""
    if given or "ANSIBLE_INVENTORY" in environment:
        return []
    own = CHECKOUT / "inventory"
    for found in (Path("inventory"), own):
        if found.exists():
            return ["-i", str(found)]
    if name == WITHOUT_INVENTORY:
        return ["-i", "localhost,"]
    raise RefusedError(
        f"there is no inventory: neither ./inventory nor {own}. For one board, ./jetson-k3s {INSTALL} "
        "USER@HOST writes it. For several boards: cp inventory.example inventory, and put your boards there "
        "(docs/fleet.md). -i FILE names another place. Nothing was done."
    )


def with_servers(limit: str) -> str:
    """A limit that has the servers, too: tasks for a board are delegated to them."""
    parts = re.split(r"[,:](?![^\[]*\])", limit)
    return f"{limit},server" if any(not part.strip().startswith(("!", "&")) for part in parts) else limit


def without_password(output: str) -> list[str]:
    """The boards where sudo needs a password that Ansible lacks, in the output of tools/try_sudo.yml."""
    results = re.split(r"^(?=\w+: \[)", output, flags=re.MULTILINE)
    failures = (re.match(rf"fatal: \[([^\]]+)\].*{UNABLE}", one, re.DOTALL) for one in results)
    return [failure[1] for failure in failures if failure]


def names(boards: Sequence[str]) -> str:
    """Some names, and the number of the others."""
    more = len(boards) - MOST_NAMES
    return ", ".join(boards[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def own_password(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether the person has chosen how to become root, or Ansible asks for another password first."""
    asks = any(one.endswith("@prompt") for one in options.vault_id)
    set_up = ("ANSIBLE_BECOME_PASSWORD_FILE", "ANSIBLE_BECOME_ASK_PASS")
    return bool(options.own) or asks or any(one in environment for one in set_up)


def try_sudo(
    command: Command, arguments: Sequence[str], limit: str | None, env: Mapping[str, str], password: str = ""
) -> list[str]:
    """The boards where sudo needs another password. Raises RefusedError if the inventory cannot be read.

    A board that does not answer is not among them: the playbook says why it does not.
    """
    ran = subprocess.run(
        [
            str(TOOLS / "ansible-playbook"),
            *(FROM_STDIN if password else []),
            *arguments,
            *(["--limit", with_servers(limit)] if limit else []),
            "--extra-vars",
            json.dumps({"try_sudo_boards": command.boards}),
            str(CHECKOUT / "tools/try_sudo.yml"),
        ],
        env={
            **{name: value for name, value in env.items() if name != "ANSIBLE_FORCE_COLOR"},
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            # The playbook tries longer.
            "ANSIBLE_SSH_RETRIES": "0",
            "ANSIBLE_TIMEOUT": "5",
            "ANSIBLE_TASK_TIMEOUT": "20",
        },
        input=password,
        capture_output=True,
        text=True,
        check=False,
    )
    if "parse inventory source" in ran.stderr:
        sys.stderr.write(ran.stderr)
        raise RefusedError(
            "the inventory cannot be read, or does not exist. inventory.example shows its form. Settings in "
            "YAML go into group_vars/k3s_cluster.yml beside it. Nothing was done."
        )
    return without_password(ran.stdout)


def ask_password(
    command: Command, arguments: Sequence[str], limit: str | None, env: Mapping[str, str]
) -> str:
    """The password of sudo on the boards of a run; '' if none needs one.

    It is tried before the run. Raises RefusedError without a terminal, or if sudo refuses it.
    """
    boards = try_sudo(command, arguments, limit, env)
    if not boards:
        return ""
    if not sys.stdin.isatty():
        raise RefusedError(
            f"sudo asks for a password on {names(boards)}, and there is no terminal to type it. "
            "Write it into a file that only you can read, and add --become-password-file FILE. "
            "Nothing was done."
        )
    sys.stderr.write(f"sudo asks for a password on {names(boards)}. Type it here, once for all boards.\n")
    sys.stderr.flush()
    for _ in range(ATTEMPTS):
        try:
            password = getpass.getpass("Password of sudo: ")
        except EOFError:
            sys.stderr.write("\n")
            raise RefusedError("no password was typed. Nothing was done.") from None
        boards = try_sudo(command, arguments, limit, env, password) if password else boards
        if password and not boards:
            return password
        sys.stderr.write(f"sudo refuses it on {names(boards)}.\n")
        sys.stderr.flush()
    raise RefusedError(
        f"sudo refuses the account or its password on {names(boards)}. Check that the account may use sudo "
        "there. If a board has a password of its own, set ansible_become_password in its host_vars, "
        "encrypted with ansible-vault. Nothing was done."
    )


def give_on_stdin(password: str) -> None:
    """Make the password the standard input of this process: it is in no file and no list of processes."""
    reads, writes = os.pipe()
    os.write(writes, password.encode())
    os.close(writes)
    os.dup2(reads, sys.stdin.fileno())
    os.close(reads)


def environment() -> dict[str, str]:
    """The environment of Ansible. Settings of the person stay."""
    defaults = {
        "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
    }
    return defaults | os.environ


def limited(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command whose first one may be a board."""
    board = bool(arguments) and not arguments[0].startswith("-")
    return ["--limit", arguments[0], *arguments[1:]] if board else list(arguments)


def checked_image(arguments: Sequence[str]) -> list[str]:
    """The arguments of `check-image`, which begin with an image. Raises RefusedError without one."""
    if "-h" in arguments or "--help" in arguments:
        return list(arguments)
    if not arguments or arguments[0].startswith("-"):
        raise RefusedError(
            f"name the image first: {CHECK_IMAGE} app.tar.gz, or {CHECK_IMAGE} registry.example.com/app:1.0. "
            "Nothing was done."
        )
    others = ["--limit" if one == "--boards" else one for one in limited(arguments[1:])]
    others = [re.sub("^--boards=", "--limit=", one) for one in others]
    return ["--extra-vars", json.dumps({"user_images_check": arguments[0]}), *others]


def from_snapshot(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The archive of `preflight --from`, '' without one, and the other arguments."""
    parser = argparse.ArgumentParser(prog=f"jetson-k3s {PREFLIGHT}", add_help=False, allow_abbrev=False)
    parser.add_argument("--from", dest="archive", metavar="ARCHIVE", default="")
    options, others = parser.parse_known_args(arguments)
    return options.archive, others


def check_snapshot(archive: str, arguments: Sequence[str]) -> NoReturn:
    """Become ansible-playbook, which checks the board of a snapshot. Raises RefusedError."""
    path = Path(archive).absolute()
    if not path.is_file():
        raise RefusedError(f"there is no file {path}. --from takes an archive of ./jetson-k3s {SNAPSHOT}.")
    given = json.dumps({"snapshot_file": str(path)})
    command = ["ansible-playbook", "--inventory", "localhost,", "--extra-vars", given, *arguments]
    sys.stdout.flush()
    os.execve(TOOLS / "ansible-playbook", [*command, str(OF_SNAPSHOT)], environment())  # noqa: S606 - no shell


def run(name: str, arguments: Sequence[str]) -> NoReturn:
    """Become ansible-playbook. Raises RefusedError."""
    if name == SNAPSHOT:
        arguments = limited(arguments)
    elif name == CHECK_IMAGE:
        arguments = checked_image(arguments)
    options, _ = known_options(name).parse_known_args(arguments)
    if options.help:
        sys.stdout.write(f"usage: ./jetson-k3s {name} [OPTION...]\n\n{COMMANDS[name].summary}.\n\n")
        text = description(playbook(name).read_text(), name)
        sys.stdout.write(f"{text}\n\n{TEST_OPTIONS if name == TEST else OPTIONS}")
        sys.exit()
    archive, others = from_snapshot(arguments) if name == PREFLIGHT else ("", [])
    if archive:
        check_snapshot(archive, others)
    env = environment()
    if name == TEST:
        test(arguments, env)
    arguments = [*inventory(name, options.inventory, env), *arguments]
    if not own_password(options, env):
        password = ask_password(COMMANDS[name], arguments, options.limit, env)
        if password:
            give_on_stdin(password)
            arguments = [*FROM_STDIN, *arguments]
    arguments = [*arguments, str(playbook(name))]
    sys.stdout.flush()
    os.execve(TOOLS / "ansible-playbook", ["ansible-playbook", *arguments], env)  # noqa: S606 - no shell


def test(arguments: Sequence[str], env: dict[str, str]) -> NoReturn:
    """Become hil.py, which runs the playbooks of a test. Raises RefusedError."""
    parser = known_options(TEST)
    parser.add_argument("--boards", dest="limit")
    # Those for ansible-playbook come behind `--`.
    options, _ = parser.parse_known_args([one for one in arguments if one != "--"])
    found = inventory(TEST, options.inventory, env)
    if not options.inventory and not found:
        found = ["-i", env["ANSIBLE_INVENTORY"]]
    password = ""
    if not own_password(options, env):
        place = found or [part for one in options.inventory for part in ("-i", one)]
        password = ask_password(COMMANDS[TEST], place, options.limit, env)
    if password:
        if {"--provision", "--reset"} & {*arguments}:
            raise RefusedError(
                "sudo asks for a password, and --provision and --reset run several playbooks: write it into "
                "a file that only you can read, and add -- --become-password-file FILE. Nothing was done."
            )
        give_on_stdin(password)
        arguments = [*arguments, *([] if "--" in arguments else ["--"]), *FROM_STDIN]
    command = [sys.executable, str(HIL), *found, *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, env | {"JETSON_K3S_COMMAND": "jetson-k3s test"})  # noqa: S606 - no shell


def check_manifest(arguments: Sequence[str]) -> NoReturn:
    """Become the device plugin's program, which needs no package that Ansible lacks."""
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(
            f"usage: ./jetson-k3s {CHECK_MANIFEST} FILE [OPTION...]\n\n{OTHERS[CHECK_MANIFEST]}.\n\n"
        )
        sys.stdout.write(CHECK_MANIFEST_OPTIONS)
        sys.exit()
    command = [sys.executable, "-m", "tegra_device_plugin", CHECK_MANIFEST, *arguments]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "plugin")}
    sys.stdout.flush()
    os.execve(sys.executable, command, env)  # noqa: S606 - no shell


def listed(words: Sequence[str]) -> list[str]:
    """The boards and groups of the inventory of this command line; [] if there is none."""
    options, _ = known_options("").parse_known_args(words)
    try:
        place = inventory("", options.inventory, os.environ)
        given = [part for one in options.inventory for part in ("-i", one)]
        command = [str(TOOLS / "ansible-inventory"), *place, *given, "--list"]
        env = {"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), **os.environ}
        ran = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
    except (RefusedError, OSError, subprocess.CalledProcessError):
        return []
    groups = {group: entry for group, entry in json.loads(ran.stdout).items() if group != "_meta"}
    return sorted({*groups, *(host for entry in groups.values() for host in entry.get("hosts", []))})


def candidates(words: Sequence[str], boards: Callable[[Sequence[str]], Iterable[str]]) -> list[str]:
    """The completions of the last argument; [] for names of files."""
    *before, last = words
    before = [one for one in before if one != "="]  # bash splits --limit=BOARD
    last = last.removeprefix("=")
    found: Iterable[str] = ()
    if not before:
        found = (INSTALL, *COMMANDS, CHECK_MANIFEST, COMPLETION, "--help")
    elif before == [COMPLETION]:
        found = SHELLS
    elif before[0] in COMMANDS and before[-1] in ("-l", "--limit", "--boards"):
        found = boards(before[:-1])
    elif before[0] in (*COMMANDS, CHECK_MANIFEST) and last.startswith("-"):
        text = {TEST: TEST_OPTIONS, CHECK_MANIFEST: CHECK_MANIFEST_OPTIONS}.get(before[0], OPTIONS)
        found = re.findall(r"--[a-z-]+(?=[ ,])", text.partition("\n\n")[0])
        found += OWN_OPTIONS.get(before[0], ())
    elif before == [SNAPSHOT] or before[:-1] == [CHECK_IMAGE]:
        found = boards(before)
    return [one for one in found if one.startswith(last)]


def completion(shell: str) -> str:
    """The script of a shell. It calls this program for each completion."""
    program = shlex.quote(str(CHECKOUT / "jetson-k3s"))
    if shell == "bash":
        return f"""\
_jetson_k3s() {{
    local IFS=$'\\n'
    COMPREPLY=($({program} {COMPLETION} words "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2> /dev/null))
}}
complete -o default -F _jetson_k3s jetson-k3s
"""
    return f"""\
#compdef jetson-k3s
_jetson_k3s() {{
    local -a found
    found=(${{(f)"$({program} {COMPLETION} words "${{(@)words[2,CURRENT]}}" 2> /dev/null)"}})
    if (( $#found )); then compadd -a found; else _files; fi
}}
compdef _jetson_k3s jetson-k3s
"""


def complete(arguments: Sequence[str]) -> str:
    """The answer to `completion`. Raises RefusedError."""
    if arguments[:1] == ["words"] and len(arguments) > 1:
        return "".join(f"{one}\n" for one in candidates(arguments[1:], listed))
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise RefusedError(f"name a shell: {' or '.join(f'{COMPLETION} {shell}' for shell in SHELLS)}")
    return completion(arguments[0])


def unknown(name: str) -> str:
    """The message about a command that there is not."""
    near = difflib.get_close_matches(name.replace("_", "-"), [*COMMANDS, *OTHERS])
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"there is no command {name}. {hint}./jetson-k3s --help has all commands."


def main(argv: Sequence[str]) -> int:
    """Do what the arguments say; return the exit status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of --help | head
    name, arguments = (argv[0], argv[1:]) if argv else ("", ())
    try:
        if name in ("-h", "--help"):
            sys.stdout.write(usage())
        elif not name:
            sys.stderr.write(usage())
            return REFUSED
        elif name == COMPLETION:
            sys.stdout.write(complete(list(arguments)))
        elif name == CHECK_MANIFEST:
            check_manifest(arguments)
        elif name in COMMANDS:
            run(name, arguments)
        else:
            sys.stderr.write(f"jetson-k3s: {unknown(name)}\n")
            return REFUSED
    except RefusedError as refused:
        sys.stderr.write(f"jetson-k3s: {refused}\n")
        return REFUSED
    except KeyboardInterrupt:
        sys.stderr.write("\njetson-k3s: interrupted; nothing was done\n")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
