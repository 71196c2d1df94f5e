# SPDX-License-Identifier: Apache-2.0
"""install.sh acts on the board at the address that was typed. Scripts replace SSH and ansible-playbook."""

import json
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_names

from tests.docs import CHECKOUT
from tests.unit.commands import programs_without, run, script
from tools import install_board
from tools.debian import ensure_packages
from tools.front_door import RefusedError
from tools.install_board import RESERVED, UNKNOWN, Choice, Fleet, Place, Route

# `fails` is what SSH says of a board, until `after` has happened: a key is copied, or its host key accepted.
SSH = f"""\
#!{sys.executable}
import json, pathlib, sys
root = pathlib.Path({{root!r}})
boards = json.loads((root / "boards.json").read_text())
if sys.argv[1] == "-G":
    user, _, host = sys.argv[-1].rpartition("@")
    print("hostname " + boards.get(host, {{{{}}}}).get("alias_of", host), "port 22", sep="\\n")
    print("userknownhostsfile", root / "known_hosts")
    sys.exit()
board = boards.get(sys.argv[-2].rpartition("@")[2], {{{{"fails": "ssh: connect: Connection timed out"}}}})
if "PreferredAuthentications=none" in sys.argv:
    (root / "accepted").touch()
    sys.exit(255)
if "fails" in board and not (root / board.get("after", "never")).exists():
    sys.exit(sys.stderr.write(board["fails"] + "\\n") and 255)
command = sys.argv[-1]
if command.startswith("cat"):
    print("# R" + board.get("l4t", "36") + " (release), REVISION: 4.3, GCID: 1")
elif command == "hostname":
    print(board["hostname"])
elif command.startswith("tr "):
    print("NVIDIA Jetson Orin\\33[31m Nano")
"""
# Records how it runs, and answers for sudo as a board that wants `password`, if there is such a file.
PLAYBOOK = f"""\
#!{sys.executable}
import json, os, pathlib, signal, sys
root = pathlib.Path({{root!r}})
arguments = sys.argv[1:]
given = ""
if arguments[:2] == ["--become-password-file", "-"]:
    given, arguments = sys.stdin.read(), ["(password)", *arguments[2:]]
wanted = (root / "password").read_text() if (root / "password").exists() else ""
if arguments[-1].endswith("try_sudo.yml"):
    board = arguments[arguments.index("--limit") + 1].partition(",")[0]
    failure = f"FAILED! => {{{{'Incorrect' if given else 'Missing'}}}} sudo password"
    print(f"fatal: [{{{{board}}}}]: {{{{failure}}}}" if wanted != given else f"ok: [{{{{board}}}}]")
    sys.exit()
(root / "become").write_text(os.environ.get("ANSIBLE_BECOME_PASSWORD_FILE", ""))
assert given == wanted
with (root / "played").open("a") as file:
    file.write(" ".join(arguments) + "\\n")
if (root / "interrupt").exists():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.killpg(0, signal.SIGINT)
    sys.exit(99)
fails = (root / "fails").read_text() if (root / "fails").exists() else "-"
sys.exit(fails in arguments[-1] and sys.stdout.write("why it fails\\n") and 2)
"""
FILES = (
    *(
        "install.sh",
        "ansible.cfg",
        "tools/bootstrap.sh",
        "tools/requirements/ansible-2.19.txt",
        "tools/try_sudo.yml",
    ),
    *("tools/__init__.py", "tools/front_door.py", "tools/install.py", "tools/install_board.py"),
    *("tools/install_image.py", "tools/cache.py", "tools/debian.py", "tools/engine.py", "tools/process.py"),
    *("images/arm64/builder.py", "images/arm64/base.py", "images/arm64/pack.py"),
    *(f"plugins/module_utils/{name}.py" for name in ("built_images", "jetson_board", "jetson_releases")),
    *("plugins/module_utils/jetson_resolver.py", "plugins/plugin_utils/host_names.py"),
    "plugin/tegra_device_plugin/board/catalogue.json",
)
# /bin/sh of Debian and Ubuntu, of macOS, of Alpine, and of macOS if its owner has chosen so.
POSSIBLE_SHELLS = ("dash", "bash --posix", "busybox sh", "zsh --emulate sh")
SHELLS = [shell.split() for shell in POSSIBLE_SHELLS if shutil.which(shell.split()[0])]
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
        """The playbooks that ran, without those of the kubeconfig."""
        return [line for line in self.runs if not line.endswith("playbooks/kubeconfig.yml")]

    @property
    def runs(self) -> list[str]:
        record = self.path / "played"
        return record.read_text().splitlines() if record.exists() else []

    def boards(self, boards: Mapping[str, Mapping[str, Any]]) -> None:
        (self.path / "boards.json").write_text(json.dumps(boards))

    def install(
        self,
        *arguments: str,
        typed: str | None = None,
        answers: Sequence[tuple[str, str]] = (),
        cwd: Path | None = None,
        shell: Sequence[str] = (),
        environment: Mapping[str, str] = {},
    ) -> tuple[int, str]:
        """Run it with a terminal on which this is typed, or without one; its status and output."""
        command: list[str | Path] = [*shell, self.path / "install.sh", *arguments]
        return run(command, cwd or self.path, self.environment | dict(environment), typed, answers)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.path}/bin:/usr/bin:/bin", "HOME": str(self.path)}

    def program(self, name: str, text: str = "#!/bin/sh\n") -> None:
        script(self.path / "bin" / name, text)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    root = tmp_path / "checkout"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, root / name)
    os.utime(root / "tools/requirements/ansible-2.19.txt", (0, 0))
    script(root / "bin/ssh", SSH.format(root=str(root)))
    for name in ("kubectl", "docker"):
        script(root / "bin" / name, "#!/bin/sh\n")
    collection = root / ".collections/ansible_collections/jetson_k3s/cluster"
    collection.parent.mkdir(parents=True)
    collection.symlink_to(root)
    tools = root / ".venv/bin"
    script(tools / "ansible-playbook", PLAYBOOK.format(root=str(root)))
    script(tools / "python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (root / ".venv/.ansible").touch()
    made = Checkout(root)
    made.boards(AS_FLASHED)
    yield made


# Options of POSIX in the scripts that begin before .venv is there, which macOS has, too.
POSIX = {
    "cat": "",
    "dirname": "",
    "find": "-H -name -newer",
    "grep": "-q",
    "head": "-n",
    "id": "-u",
    "readlink": "-f",  # not of POSIX, but of macOS since 12.3
    "sed": "-n",
    "tail": "-n",
    "tr": "-d",
}


@pytest.mark.parametrize("name", ["install.sh", "jetson-k3s", "tools/bootstrap.sh"])
def test_script_has_no_option_of_gnus_tools_alone(name: str) -> None:
    code = re.sub(r"<<'END'.*?^END$", "", (CHECKOUT / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    used = re.findall(rf"(?<![\w./-])({'|'.join(POSIX)}) ([^|;&()\n]*)", code)
    assert used
    for tool, arguments in used:
        options = re.findall(r"(?<!\S)-{1,2}[a-zA-Z][\w-]*", arguments)
        assert set(options) <= set(POSIX[tool].split()), f"{tool} {arguments}"


def test_other_tools_than_gnus_are_enough(checkout: Checkout, tmp_path: Path) -> None:
    ensure_packages("busybox")
    busybox = shutil.which("busybox")
    assert busybox is not None
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (*POSIX, "[", "sh"):
        (tools / name).symlink_to(busybox)
    shell, environment = [busybox, "sh"], {"PATH": f"{checkout.path}/bin:{tools}"}
    status, said = checkout.install("jetson@192.0.2.11", shell=shell, environment=environment)
    assert (status, len(checkout.played)) == (0, 1), said
    status, said = checkout.install("jetson@192.0.2.99", shell=shell, environment=environment)
    assert (status, "no answer in time." in said, "  ssh: connect: Connection" in said) == (1, True, True)
    checkout.boards({"192.0.2.11": {"hostname": "ubuntu", "fails": DENIED}})
    asked = [("and copy its public part to the board? [Y/n] ", "n")]
    status, said = checkout.install("jetson@192.0.2.11", answers=asked, shell=shell, environment=environment)
    assert (status, "Nothing was done" in said) == (1, True), said


def test_new_board_is_written_to_the_inventory(checkout: Checkout) -> None:
    status, said = checkout.install("jetson@192.0.2.11")
    assert status == 0, said
    assert checkout.inventory.read_text() == ONE
    assert checkout.played == ["-i inventory --limit ubuntu playbooks/site.yml"]
    again, said = checkout.install("jetson@192.0.2.11")
    assert (again, checkout.inventory.read_text()) == (0, ONE), said


def test_it_says_what_changes_and_asks_on_a_terminal(checkout: Checkout) -> None:
    for typed in ("n", "\x04"):
        status, said = checkout.install("jetson@192.0.2.11", answers=[("Continue? [Y/n] ", typed)])
        assert (status, checkout.played, checkout.inventory.exists()) == (1, [], False), said
        assert said.endswith("install.sh: Nothing was done\n")
    assert (
        "NVIDIA Jetson Orin[31m Nano at 192.0.2.11, JetPack 6.2 (L4T 36.4.3), becomes a node of K3s.\n"
        "  Node:    ubuntu, the server of a new cluster\n"
        "  Docker:  installed where it is missing. Its default runtime becomes nvidia.\n"
        "           Your containers keep running, unless a setting needs a restart of Docker\n"
        "  Source:  the Internet\n"
        "  Image:   built on this computer with Docker, the first time for some minutes\n"
        "  Here:    inventory, reports/, jetson-k3s.kubeconfig\n"
        "  Undo:    ./install.sh --uninstall jetson@192.0.2.11\n"
    ) in said
    assert checkout.install("jetson@192.0.2.11", answers=[("Continue? [Y/n] ", "")])[0] == 0
    for terminal in (None, ""):
        status, said = checkout.install("--yes", "jetson@192.0.2.11", typed=terminal)
        assert (status, "Undo:" in said, "Continue?" in said) == (0, True, False), said


ARCHIVE = "dist/tegra-device-plugin-arm64.tar.gz"
ENGINES = ("docker", "podman", "apt-get")  # with apt-get, root could install Docker
AGREE = "Build the image on the board, and continue? [Y/n] "
ON_BOARD = '-i inventory -e {"gpu_device_plugin_build_on_board": true} --limit ubuntu playbooks/site.yml'


@pytest.fixture
def without_engine(checkout: Checkout) -> Mapping[str, str]:
    """The environment on a computer without Docker and Podman, on which no package can be installed."""
    (checkout.path / "bin/docker").unlink()
    return {"PATH": f"{checkout.path}/bin:{programs_without(checkout.path.parent / 'programs', *ENGINES)}"}


@pytest.mark.parametrize("l4t", ["36", "35"])
def test_image_that_cannot_be_built_here_stops_before_anything(
    checkout: Checkout, without_engine: Mapping[str, str], l4t: str
) -> None:
    checkout.boards({"192.0.2.11": {"hostname": "ubuntu", "l4t": l4t}})
    for terminal in (None, ""):
        arguments = ("jetson@192.0.2.11", *([] if terminal is None else ["--yes"]))
        status, said = checkout.install(*arguments, typed=terminal, environment=without_engine)
        assert (status, checkout.runs, checkout.inventory.exists()) == (1, [], False), said
        assert (
            "install.sh: The plugin's image has to be built, and this computer has neither Docker nor Podman "
            "that answers. Do one of these: install Docker or Podman; let "
        ) in said
        assert ("add --build-on-board" in said) == (l4t == "36")
        assert ("build it, which this one cannot" in said) == (l4t == "35")
        assert "put the image of a release into dist/, or set gpu_device_plugin_image" in said
    status, said = checkout.install("--build-on-board", "jetson@192.0.2.11", environment=without_engine)
    if l4t == "35":
        assert (status, checkout.runs) == (1, []), said
        assert "the board has an older JetPack than 6, whose Python is too old" in said
    else:
        assert (status, checkout.played) == (0, [ON_BOARD]), said
        assert "  Image:   built on the board, for some minutes, and put into dist/ here.\n" in said
        assert "           That board then decides what runs on all boards that get this image\n" in said


def test_build_on_the_board_is_offered_on_a_terminal(
    checkout: Checkout, without_engine: Mapping[str, str]
) -> None:
    for typed, result in {"n": (1, []), "": (0, [ON_BOARD])}.items():
        status, said = checkout.install(
            "jetson@192.0.2.11", answers=[(AGREE, typed)], environment=without_engine
        )
        assert (status, checkout.played) == result, said
        assert "  Image:   has to be built, and this computer has neither Docker nor Podman" in said


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (ARCHIVE, "", ARCHIVE),
        ("bin/podman", "#!/bin/sh\n", "built on this computer with Podman"),
        (
            "group_vars/all.yml",
            "gpu_device_plugin_image: registry/a@sha256:b",
            "pulled by the board: registry/a@",
        ),
        ("group_vars/k3s_cluster.yml", "jetson_k3s_bundle: /srv/bundle", "that of the bundle"),
        ("group_vars/all.yml", "gpu_device_plugin_build_on_board: true", "built on the board"),
    ],
)
def test_source_of_the_image_is_said(
    checkout: Checkout, without_engine: Mapping[str, str], file: str, text: str, words: str
) -> None:
    """Also by the settings of an inventory that has the board only after the question."""
    script(checkout.path / file, text)
    status, said = checkout.install("jetson@192.0.2.11", environment=without_engine)
    assert (status, f"  Image:   {words}" in said) == (0, True), said


def test_image_that_is_older_than_its_sources_is_not_used(
    checkout: Checkout, without_engine: Mapping[str, str]
) -> None:
    script(checkout.path / ARCHIVE, "")
    os.utime(checkout.path / ARCHIVE, (0, 0))
    status, said = checkout.install("--check", "jetson@192.0.2.11", environment=without_engine)
    assert (status, checkout.played) == (0, ["-i inventory --limit ubuntu playbooks/preflight.yml"]), said
    assert "The plugin's image has to be built, and this computer has neither Docker nor Podman" in said


KUBECTL = "kubectl --kubeconfig ./jetson-k3s.kubeconfig"


def test_next_commands_are_those_of_a_person_with_a_kubeconfig(checkout: Checkout) -> None:
    status, said = checkout.install("jetson@192.0.2.11")
    assert status == 0, said
    settings = {"kubeconfig_file": f"{checkout.path}/jetson-k3s.kubeconfig", "kubeconfig_role": "edit"}
    made = f"-i inventory --extra-vars {json.dumps(settings)} playbooks/kubeconfig.yml"
    assert checkout.runs[1] == made
    assert said.splitlines()[-4:] == [
        f"Node:  ubuntu ({KUBECTL} get nodes)",
        "Proof: ./reports/ubuntu.json and ./reports/index.html: each check of the GPU, with its evidence",
        f"Next:  {KUBECTL} apply --filename ./docs/examples/gpu-job.yaml",
        "Later: ./jetson-k3s status, and ./jetson-k3s --help",
    ]
    said = checkout.install("jetson@192.0.2.11", cwd=checkout.path.parent)[1]
    assert f"Next:  kubectl --kubeconfig {checkout.path}/jetson-k3s.kubeconfig apply" in said
    assert f"Later: {checkout.path}/jetson-k3s status" in said
    (checkout.path / "group_vars").mkdir()
    (checkout.path / "group_vars/server.yml").write_text("kubeconfig_role: view\n")
    checkout.install("jetson@192.0.2.11")
    assert "kubeconfig_role" not in checkout.runs[-1]


@pytest.mark.parametrize("lacks", ["kubectl", "kubeconfig"])
def test_without_kubectl_or_kubeconfig_the_next_commands_are_the_servers(
    checkout: Checkout, lacks: str
) -> None:
    """Also those for an agent, which has no kubectl of its own."""
    checkout.boards(AS_FLASHED | {"192.0.2.12": {"hostname": "jetson-2"}})
    if lacks == "kubectl":
        (checkout.path / "bin/kubectl").unlink()
        environment = {
            "PATH": f"{checkout.path}/bin:{programs_without(checkout.path.parent / 'programs', 'kubectl')}"
        }
    else:
        (checkout.path / "fails").write_text("kubeconfig.yml")
        environment = {}
    checkout.inventory.write_text(ONE)
    agent = ("--agent-of", "ubuntu", "jetson@192.0.2.12")
    status, said = checkout.install(*agent, environment=environment)
    assert status == 0, said
    assert "Node:  jetson-2 (ssh -t jetson@192.0.2.11 sudo k3s kubectl get nodes)\n" in said
    assert (
        "Next:  scp ./docs/examples/gpu-job.yaml jetson@192.0.2.11: && ssh -t jetson@192.0.2.11 sudo k3s "
        "kubectl apply --filename gpu-job.yaml\n"
    ) in said
    assert ("this computer has no kubectl" in said) == (lacks == "kubectl")
    assert ("why it fails\nThere is no kubeconfig." in said) == (lacks == "kubeconfig")


def test_failed_playbook_is_no_success(checkout: Checkout) -> None:
    (checkout.path / "fails").write_text("site.yml")
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.runs[1:], "ubuntu is not ready" in said) == (1, [], True), said


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_interruption_is_one_line(checkout: Checkout, shell: list[str]) -> None:
    (checkout.path / "interrupt").touch()
    status, said = checkout.install("jetson@192.0.2.11", shell=shell)
    assert status == 130, said
    assert said.endswith("\ninstall.sh: interrupted; the same command goes on from here\n")
    assert "Traceback" not in said and "not ready" not in said


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
        "inventory has ubuntu at 192.0.2.11, and the board at 192.0.2.12 has the same name. If it is "
        "another board, give it a name of its own: add --name jetson-1. If it is ubuntu with a new address, "
        "correct the line of ubuntu in inventory: ansible_host=192.0.2.12. Nothing was done."
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


@pytest.mark.parametrize(
    "address", ["192.0.2.11 ansible_connection=local", "192.0.2.11\n[agent]", "$(id)", "a@192.0.2.11"]
)
def test_target_that_is_more_than_an_address_is_refused(checkout: Checkout, address: str) -> None:
    """It goes into the inventory."""
    status, said = checkout.install(f"jetson@{address}")
    assert (status, checkout.played) == (1, []), said
    assert "is no USER@HOST: letters, digits and . : - _ only" in said
    assert not checkout.inventory.exists()


def test_password_of_sudo_is_asked_for_once_and_is_for_each_playbook(checkout: Checkout) -> None:
    (checkout.path / "password").write_text("secret")
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.runs, checkout.inventory.exists()) == (1, [], False)
    assert "sudo asks for a password on ubuntu, and there is no terminal to type it." in said
    assert not [path for path in checkout.path.iterdir() if path.name.startswith("inventory")]
    asked = [("Password of sudo: ", word) for word in ("wrong", "secret")]
    status, said = checkout.install("--yes", "jetson@192.0.2.11", answers=asked)
    assert (status, said.count("sudo asks for a password on ubuntu. Type it here, once")) == (0, 1), said
    assert [line.split()[0] for line in checkout.runs] == ["(password)"] * 2
    assert "secret" not in said


def test_password_of_sudo_from_a_file(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.path / "password").touch()
    arguments = ("--become-password-file", "mine", "jetson@192.0.2.11")
    status, said = checkout.install(*arguments, cwd=tmp_path)
    assert (status, "mine does not exist" in said) == (1, True), said
    (tmp_path / "mine").touch()
    assert checkout.install(*arguments, cwd=tmp_path)[0] == 0
    assert (checkout.path / "become").read_text() == str(tmp_path / "mine")


def test_new_board_gets_the_name_that_is_given(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE)
    agent = ("--agent-of", "ubuntu", "--name")
    for name, words in {
        "ubuntu": "the board at 192.0.2.12 has the same name",
        "server": "the inventory cannot have a board with the name server",
        "a_b": "--name a_b: a hostname has up to 63 of a-z 0-9 . and -",
    }.items():
        status, said = checkout.install(*agent, name, "jetson@192.0.2.12")
        assert (status, words in said, checkout.played) == (1, True, []), said
    for _ in range(2):
        status, said = checkout.install(*agent, "jetson-2", "jetson@192.0.2.12")
        assert status == 0, said
    line = "jetson-2 ansible_host=192.0.2.12 ansible_user=jetson jetson_set_hostname=true"
    assert checkout.inventory.read_text() == ONE.replace("[agent]\n", f"[agent]\n{line}\n")
    status, said = checkout.install(*agent, "jetson-3", "jetson@192.0.2.12")
    assert (status, "inventory has this board as jetson-2" in said) == (1, True), said


MOVES = "Write 192.0.2.12 as the address of ubuntu into inventory? [Y/n] "


def test_board_with_a_new_address_is_known_by_its_host_key(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE)
    checkout.inventory.chmod(0o600)
    checkout.boards({"192.0.2.12": {"hostname": "renamed"}})
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJcRkLSVoJuEoGDwVVnFEkWdUGTXkYcPk3eBoYJcyMhX"
    (checkout.path / "known_hosts").write_text(f"192.0.2.11 {key}\n192.0.2.12 {key}\n")
    status, said = checkout.install("--uninstall", "jetson@192.0.2.12")
    assert (status, "There is no terminal to confirm it" in said, checkout.runs) == (1, True, []), said
    status, said = checkout.install("--check", "jetson@192.0.2.12", answers=[(MOVES, "n")])
    assert (status, checkout.inventory.read_text()) == (1, ONE), said
    assert "192.0.2.12 has the SSH host key of ubuntu, and ubuntu does not answer at 192.0.2.11." in said
    status, said = checkout.install("--check", "jetson@192.0.2.12", answers=[(MOVES, "")])
    assert (status, checkout.played) == (0, ["-i inventory --limit ubuntu playbooks/preflight.yml"]), said
    assert checkout.inventory.read_text() == ONE.replace("192.0.2.11", "192.0.2.12")
    assert checkout.inventory.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "old", [{"hostname": "ubuntu"}, {"fails": "me@192.0.2.11: Permission denied (publickey)."}]
)
def test_copy_of_a_board_that_still_answers_is_another_board(checkout: Checkout, old: dict[str, str]) -> None:
    """Boards with copies of one image have one host key."""
    checkout.inventory.write_text(ONE)
    checkout.boards(AS_FLASHED | {"192.0.2.11": old})
    (checkout.path / "known_hosts").write_text("192.0.2.11,192.0.2.12 ssh-ed25519 AAAAC3Nza\n")
    status, said = checkout.install("--check", "jetson@192.0.2.12")
    assert (status, checkout.runs) == (1, []), said
    assert "the board at 192.0.2.12 has the same name" in said


CHANGED = "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."
DENIED = "jetson@192.0.2.11: Permission denied (publickey,password)."
NO_KEY = "Host key verification failed."


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("ssh: Could not resolve hostname 192.0.2.11: Name or service not known", "no host has this name."),
        ("ssh: connect to host 192.0.2.11 port 22: Connection refused", "but no SSH server answers. On the"),
        ("ssh: connect to host 192.0.2.11 port 22: No route to host", "no answer in time. Check the address"),
        (
            CHANGED,
            "the host key has changed: another board has this address, or the board was flashed again.",
        ),
        (
            NO_KEY,
            "does not know the board's host key yet. Run once, on a terminal, and answer its question: ssh",
        ),
        (
            DENIED,
            "the board asks for a password, or has no account jetson. If the account is right, copy your",
        ),
        (
            DENIED.replace(",password", ""),
            "the board accepts none of your SSH keys for the account jetson, and",
        ),
        ("kex_exchange_identification: read: \33[31mreset by peer", "SSH fails. Try: ssh jetson@192.0.2.11"),
    ],
)
def test_reason_of_ssh_is_named(checkout: Checkout, shell: list[str], fails: str, words: str) -> None:
    checkout.boards({"192.0.2.11": {"fails": fails}})
    status, said = checkout.install("jetson@192.0.2.11", shell=shell)
    assert status == 1, said
    assert said.startswith("install.sh: jetson@192.0.2.11: ") and words in said
    assert said.endswith(f"  ssh: {fails.splitlines()[-1].removeprefix('ssh: ')}\n".replace("\33", ""))
    assert not (checkout.path / ".ssh").exists()


def test_host_that_stays_silent_is_given_up(checkout: Checkout) -> None:
    """With the real ssh, which waits for its version without end otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        checkout.program("ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F none -p {port} "$@"\n')
        status, said = checkout.install("jetson@127.0.0.1")
    assert (status, "no answer in time." in said) == (1, True), said
    assert "  ssh: Connection timed out during banner exchange\n" in said


COPY = '#!/bin/sh\necho "$(basename "$0") $*" >> "$HOME/ran"\n'


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_key_is_made_and_copied_only_after_a_question(checkout: Checkout, shell: list[str]) -> None:
    checkout.boards({"192.0.2.11": {"hostname": "ubuntu", "fails": DENIED, "after": "copied"}})
    checkout.program("ssh-keygen", COPY)
    checkout.program("ssh-copy-id", f"{COPY}exit 1\n")
    make = (
        "You have no SSH key. Make ~/.ssh/id_ed25519 without a passphrase, and copy its public part to the "
    )
    for answer, words in {
        "n": "Nothing was done",
        "y": "the board refuses the password, or has no account",
    }.items():
        asked = [(f"{make}board? [Y/n] ", answer)]
        status, said = checkout.install("jetson@192.0.2.11", answers=asked, shell=shell)
        assert (status, words in said) == (1, True), said
        assert (checkout.path / "ran").exists() == (answer == "y")
    made = (checkout.path / "ran").read_text().splitlines()
    assert [line.split()[0] for line in made] == ["ssh-keygen", "ssh-copy-id"]
    (checkout.path / ".ssh").mkdir()
    (checkout.path / ".ssh/id_rsa.pub").touch()
    checkout.program("ssh-copy-id", f"{COPY}touch {checkout.path}/copied\n")
    asked = [("Copy your public SSH key to the board? [Y/n] ", ""), ("Continue? [Y/n] ", "")]
    assert checkout.install("jetson@192.0.2.11", answers=asked, shell=shell)[0] == 0
    assert len((checkout.path / "ran").read_text().splitlines()) == 3


def test_question_of_ssh_for_the_host_key_is_possible_on_a_terminal(checkout: Checkout) -> None:
    board = {"hostname": "ubuntu", "fails": NO_KEY, "after": "accepted"}
    checkout.boards({"192.0.2.11": board})
    assert checkout.install("--yes", "jetson@192.0.2.11", typed="")[0] == 0
    (checkout.path / "accepted").unlink()
    checkout.boards({"192.0.2.11": board | {"after": "never"}})
    status, said = checkout.install("--yes", "jetson@192.0.2.11", typed="")
    assert (status, "does not know the board's host key yet" in said) == (1, True), said


def test_boards_that_have_exchanged_their_addresses_are_refused(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE.replace("[agent]\n", "[agent]\njetson-2 ansible_host=192.0.2.12\n"))
    checkout.boards({"192.0.2.11": {"hostname": "jetson-2"}})
    status, said = checkout.install("--uninstall", "--yes", "jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert (
        "inventory has ubuntu at 192.0.2.11, but the board there has the hostname jetson-2, and inventory "
        "has jetson-2 at 192.0.2.12. Check which board has which address"
    ) in said


@pytest.mark.parametrize(
    "name", [*(name for name in RESERVED if "_" not in name and name != "localhost"), "hostvars", "port"]
)
def test_reserved_hostname_is_refused(checkout: Checkout, name: str) -> None:
    checkout.boards({"192.0.2.11": {"hostname": name.upper()}})
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.played, checkout.inventory.exists()) == (1, [], False), said
    assert f"the inventory cannot have a board with the name {name}, which is that of the board" in said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("localhost", host_names.ITSELF),
        ("localhost.localdomain", host_names.ITSELF),
        ("127.0.0.1", "it is a number or an address, and programs would read it as an address"),
        ("123", "it is a number or an address, and programs would read it as an address"),
        ("cam_1", host_names.FORM),
    ],
)
def test_hostname_that_preflight_refuses_is_refused_with_the_same_words(
    checkout: Checkout, name: str, why: str
) -> None:
    assert host_names.name_problem(name) == why
    checkout.boards({"192.0.2.11": {"hostname": name}})
    status, said = checkout.install("jetson@192.0.2.11")
    assert (status, checkout.played, checkout.inventory.exists()) == (1, [], False), said
    assert f"has no usable hostname, {name!r}: {why}. Give it a name: add --name jetson-1" in said


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("ansible_host=ubuntu.local", host_names.MDNS),
        ("ansible_host=192.168.55.1", "each Jetson has it itself"),
        ("ansible_connection=local ansible_host=localhost", host_names.ITSELF),
        ("ansible_host=192.0.2.11 k3s_server_url=http://192.0.2.11:6443", "K3s joins by https:// only"),
        ("ansible_host=192.0.2.11 k3s_server_url=https://192.0.2.11", "it has no port"),
        ("ansible_host=fe80::1%eth0", "its zone is the name of an interface"),
        ("ansible_host=ubuntu.local k3s_server_url=https://192.0.2.11:6443", ""),
        ("ansible_host=fd00::11", ""),
    ],
)
def test_agent_joins_by_a_url_that_k3s_can_use(checkout: Checkout, changed: str, why: str) -> None:
    checkout.boards(AS_FLASHED | {"192.0.2.12": {"hostname": "jetson-2"}})
    inventory = ONE.replace("ansible_host=192.0.2.11", changed)
    checkout.inventory.write_text(inventory)
    status, said = checkout.install("--check", "--agent-of", "ubuntu", "jetson@192.0.2.12")
    if why:
        assert (status, checkout.played, checkout.inventory.read_text()) == (1, [], inventory), said
        assert "--agent-of ubuntu: the board cannot join by k3s_server_url" in said
        assert why in said
    else:
        assert status == 0, said


def test_uninstall_asks(checkout: Checkout) -> None:
    checkout.inventory.write_text(ONE.replace("[agent]\n", "[agent]\njetson-2 ansible_host=192.0.2.12\n"))
    checkout.boards(AS_FLASHED | {"192.0.2.12": {"hostname": "jetson-2"}})
    for address in ("192.0.2.11", "192.0.2.12"):
        status, said = checkout.install("--uninstall", f"jetson@{address}")
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
    for typed in ("\n", "n\n", "jetson-2\n", "\x04"):
        status, said = checkout.install("--uninstall", "jetson@192.0.2.12", typed=typed)
        assert (status, len(checkout.played)) == (1, 1), said
        assert "images stay.\nRemove K3s from jetson-2? [y/N] " in said
    assert checkout.install("--uninstall", "jetson@192.0.2.12", typed="y\n")[0] == 0
    assert checkout.played[1] == "-i inventory --limit jetson-2 playbooks/reset.yml"


def test_uninstall_of_an_unknown_board_is_refused(checkout: Checkout) -> None:
    status, said = checkout.install("--uninstall", "--yes", "jetson@192.0.2.11")
    assert (status, checkout.played) == (1, []), said
    assert "./inventory has no board at 192.0.2.11, so nothing is known to be removed from it" in said


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


def test_bundle_brings_ansible_to_this_computer(checkout: Checkout, tmp_path: Path) -> None:
    wheels = tmp_path / "the bundle/controller"
    wheels.mkdir(parents=True)
    (wheels.parent / "SHA256SUMS").touch()
    python = f'[ "$2" != pip ] || exec echo "pip $*"\nexec {shlex.quote(sys.executable)} "$@"\n'
    script(checkout.path / ".venv/bin/python", f"#!/bin/sh\n{python}")
    (checkout.path / ".venv/.ansible").unlink()
    status, said = checkout.install("--offline", "the bundle", "jetson@192.0.2.11", cwd=tmp_path)
    wanted = f"--requirement tools/requirements/ansible-2.19.txt --no-index --find-links {wheels}\n"
    assert (status, wanted in said) == (0, True), said


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
        ("jetson@192.0.2.11", "cameras", {}, "the inventory cannot have a board with the name cameras"),
    ],
)
def test_refused(target: str, hostname: str, boards: dict[str, Place], words: str) -> None:
    typed = Place("here") if target == "local" else Place("192.0.2.11", Route("192.0.2.11"))
    with pytest.raises(RefusedError) as refused:
        install_board.choose(typed, hostname, Fleet(boards, frozenset(["cameras", *boards])))
    assert words in str(refused.value)


def test_board_itself_is_found_by_its_connection() -> None:
    fleet = Fleet({"jetson-1": Place("here")})
    assert install_board.choose(Place("this computer"), "renamed", fleet) == Choice("jetson-1")


@pytest.mark.parametrize(
    ("name", "server", "words"),
    [
        ("", "jetson-9", "./inventory has no board jetson-9"),
        ("", "jetson-2", "--agent-of jetson-2: inventory has it as an agent"),
        ("jetson-1", "jetson-1", "inventory has jetson-1 in [server], so it cannot become an agent"),
    ],
)
def test_server_that_cannot_be_joined_is_refused(name: str, server: str, words: str) -> None:
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
