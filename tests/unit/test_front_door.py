# SPDX-License-Identifier: Apache-2.0
"""jetson-k3s runs playbooks from any directory. In most tests a script replaces ansible-playbook."""

import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.ansible_core import CORES, core
from tests.docs import CHECKOUT
from tests.unit.commands import run, script
from tools import front_door

FILES = (
    *("jetson-k3s", "install.sh", "ansible.cfg", "inventory.example", "playbooks/hil.py"),
    *(
        "tools/front_door.py",
        "tools/try_sudo.yml",
        "tools/bootstrap.sh",
        "tools/requirements/ansible-2.19.txt",
    ),
    *(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("playbooks/*.yml")),
)
# Records its arguments, and answers for sudo as the file `sudo` says.
ANSIBLE_PLAYBOOK = f"""\
#!{sys.executable}
import json, os, pathlib, sys
root = pathlib.Path({{root!r}})
arguments = sys.argv[1:]
tries = arguments[-1].endswith("try_sudo.yml")
names = ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED")
run = {{{{"arguments": arguments, "cwd": os.getcwd(), **{{{{name: os.environ[name] for name in names}}}}}}}}
run["password"] = sys.stdin.read() if "--become-password-file -" in " ".join(arguments) else ""
with (root / ("tried" if tries else "played")).open("a") as file:
    file.write(json.dumps(run) + "\\n")
if not tries:
    sys.exit(int((root / "status").read_text()))
right = run["password"] == {{password!r}}
print("ok: [jetson-1]" if right else (root / "sudo").read_text())
"""
SECRET = "correct horse"
PASSWORD = """
TASK [Try sudo] ****
[ERROR]: Task failed: Missing sudo password
fatal: [jetson-1]: FAILED! => {"changed": false, "msg": "Task failed: Missing sudo password"}
ok: [jetson-2]
fatal: [jetson-3]: UNREACHABLE! => {"changed": false, "msg": "Connection refused", "unreachable": true}
"""
BOARDS = "[server]\njetson-1\n[agent]\njetson-2\n[k3s_cluster:children]\nserver\nagent\n"


@dataclass(frozen=True)
class Checkout:
    """A checkout, and a directory elsewhere in which somebody types."""

    path: Path
    elsewhere: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    @property
    def program(self) -> str:
        return str(self.path / "jetson-k3s")

    def runs(self, name: str) -> list[dict[str, Any]]:
        record = self.path / name
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    @property
    def played(self) -> list[list[str]]:
        """The arguments of each playbook that ran, without the checkout's directory."""
        return [[one.replace(f"{self.path}/", "") for one in run["arguments"]] for run in self.runs("played")]

    def typed(
        self, *arguments: str, program: str = "", cwd: Path | None = None, terminal: bool = False
    ) -> tuple[int, str]:
        """Run it with a terminal or without one; its status and output."""
        command = [program or self.program, *arguments]
        return run(command, cwd or self.path, self.environment, "" if terminal else None)

    def answered(self, *arguments: str, passwords: Sequence[str]) -> tuple[int, str]:
        """Run it with a terminal, and type a password at each question for one."""
        answers = [("Password of sudo: ", password) for password in passwords]
        return run([self.program, *arguments], self.path, self.environment, answers=answers)

    def real(self, name: str, line: str = "2.19") -> None:
        """Put a real program of Ansible into .venv."""
        release = core(line)
        path = f"export PYTHONPATH={shlex.quote(release.pythonpath())}\n"
        command = f'{path}exec {shlex.join(release.program(name))} "$@"\n'
        script(self.path / f".venv/bin/ansible-{name}", f"#!/bin/sh\n{command}")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "the checkout"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, root / name)
    os.utime(root / "tools/requirements/ansible-2.19.txt", (0, 0))
    script(root / ".venv/bin/ansible-playbook", ANSIBLE_PLAYBOOK.format(root=str(root), password=SECRET))
    (root / ".venv/bin/python").symlink_to(sys.executable)
    (root / ".venv/.ansible").write_text("ansible-2.19\n")
    (root / "inventory").write_text(BOARDS)
    (root / "sudo").write_text("ok: [jetson-1]\n")
    (root / "status").write_text("0")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    return Checkout(root, elsewhere)


def test_each_playbook_has_a_command_and_each_command_a_playbook() -> None:
    paths = {front_door.playbook(name) for name in front_door.COMMANDS}
    assert paths == set(CHECKOUT.glob("playbooks/*.yml"))


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
def test_options_reach_ansible_playbook_unchanged(checkout: Checkout, shell: str) -> None:
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"this machine has no {words[0]}")
    options = ("--limit", "jetson-2", "-e", '{"a": "b c"}', "--check", "-vv", "--tags=x", "")
    status, said = checkout.typed(*words[1:], checkout.program, "os-update", *options, program=words[0])
    assert (status, said) == (0, "")
    assert checkout.played == [["-i", "inventory", *options, "playbooks/os_update.yml"]]


@pytest.mark.parametrize("status", [0, 1, 2, 4, 99])
def test_exit_status_is_that_of_the_playbook(checkout: Checkout, status: int) -> None:
    (checkout.path / "status").write_text(str(status))
    assert checkout.typed("drift")[0] == status


def test_from_elsewhere_through_a_link(checkout: Checkout) -> None:
    """What a person types stays relative to his directory, the settings are those of the checkout."""
    link = checkout.elsewhere / "bin/jk"
    link.parent.mkdir()
    link.symlink_to("../link")
    (checkout.elsewhere / "link").symlink_to(checkout.program)
    words = ("site", "-e", "@settings.yml")
    assert checkout.typed(*words, program="bin/jk", cwd=checkout.elsewhere)[0] == 0
    (checkout.elsewhere / "inventory").write_text(BOARDS)
    assert checkout.typed(*words, program="bin/jk", cwd=checkout.elsewhere)[0] == 0
    assert checkout.typed(*words, "-i", "mine", program="bin/jk", cwd=checkout.elsewhere)[0] == 0
    given = ["-e", "@settings.yml"]
    assert [run["arguments"] for run in checkout.runs("played")] == [
        ["-i", f"{checkout.path}/inventory", *given, f"{checkout.path}/playbooks/site.yml"],
        ["-i", "inventory", *given, f"{checkout.path}/playbooks/site.yml"],
        [*given, "-i", "mine", f"{checkout.path}/playbooks/site.yml"],
    ]
    assert {run["cwd"] for run in checkout.runs("played")} == {str(checkout.elsewhere)}
    assert {run["ANSIBLE_CONFIG"] for run in checkout.runs("played")} == {f"{checkout.path}/ansible.cfg"}


def test_settings_and_log_of_the_real_ansible_are_in_the_checkout(checkout: Checkout) -> None:
    checkout.real("playbook")
    (checkout.path / ".collections").symlink_to(CHECKOUT / ".collections")
    (checkout.path / "playbooks/status.yml").write_text("- {hosts: localhost, gather_facts: false}\n")
    status, said = checkout.typed("status", "-b", cwd=checkout.elsewhere)
    assert (status, f"Ansible's own output is in {checkout.path}/logs/status-" in said) == (0, True), said
    assert list(checkout.elsewhere.iterdir()) == []


def test_inventory_and_settings_of_the_environment_stay(checkout: Checkout) -> None:
    checkout.environment.update(ANSIBLE_INVENTORY="mine", ANSIBLE_CONFIG="/mine.cfg")
    assert checkout.typed("status")[0] == 0
    assert checkout.played == [["playbooks/status.yml"]]
    assert checkout.runs("played")[0]["ANSIBLE_CONFIG"] == "/mine.cfg"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("jetson-1",), ["--limit", "jetson-1"]),
        (("jetson-1", "-e", "a=b"), ["--limit", "jetson-1", "-e", "a=b"]),
        (("-e", "a=b"), ["-e", "a=b"]),
        ((), []),
    ],
)
def test_snapshot_takes_the_name_of_a_board(
    checkout: Checkout, words: tuple[str, ...], expected: list[str]
) -> None:
    assert checkout.typed("snapshot", *words)[0] == 0
    assert checkout.played == [["-i", "inventory", *expected, "playbooks/snapshot.yml"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("app.tar.gz",), []),
        (("app.tar.gz", "jetson-1"), ["--limit", "jetson-1"]),
        (("app.tar.gz", "--boards", "agent", "-v"), ["--limit", "agent", "-v"]),
        (("app.tar.gz", "--boards=agent"), ["--limit=agent"]),
    ],
)
def test_check_image_takes_an_image_and_boards(
    checkout: Checkout, words: tuple[str, ...], expected: list[str]
) -> None:
    assert checkout.typed("check-image", *words)[0] == 0
    image = ["--extra-vars", json.dumps({"user_images_check": "app.tar.gz"})]
    assert checkout.played == [["-i", "inventory", *image, *expected, "playbooks/check_image.yml"]]
    status, said = checkout.typed("check-image", "--boards", "agent")
    assert (status, "name the image first" in said) == (2, True)


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers:
  - name: app
    resources:
      limits:
        metax-tech.com/sgpu: 1
        metax-tech.com/vmemory: MEMORY
"""


def test_check_manifest_needs_no_inventory_and_has_the_exit_status_of_the_plugin(checkout: Checkout) -> None:
    (checkout.path / "inventory").unlink()
    (checkout.path / "plugin").symlink_to(CHECKOUT / "plugin")
    here = checkout.elsewhere
    (here / "config.yaml").write_text("version: v1\nsharing: {units: {preset: metax, memoryTotal: 8192Mi}}\n")
    words = ("check-manifest", "pod.yaml", "--config", "config.yaml")
    (here / "pod.yaml").write_text(POD.replace("MEMORY", "2048Mi"))
    status, said = checkout.typed(*words, cwd=here)
    assert status == 1, said
    assert "pod.yaml:10: " in said and "  write: metax-tech.com/vmemory: 2\n" in said
    status, rewritten = checkout.typed(*words, "--rewrite", cwd=here)
    assert (status, rewritten) == (0, POD.replace("MEMORY", "2"))
    (here / "pod.yaml").write_text(rewritten)
    assert checkout.typed(*words, cwd=here)[0] == 0
    assert checkout.typed("check-manifest", cwd=here)[0] == 2
    status, said = checkout.typed("check-manifest", "--help", cwd=here)
    assert status == 0 and said.startswith("usage: ./jetson-k3s check-manifest FILE") and "--rewrite" in said
    assert checkout.played == []


@pytest.mark.parametrize("form", [["--from", "a b.tar.gz"], ["--from=a b.tar.gz"]])
def test_preflight_of_a_snapshot_needs_no_inventory_and_no_sudo(checkout: Checkout, form: list[str]) -> None:
    (checkout.path / "inventory").unlink()
    archive = checkout.elsewhere / "a b.tar.gz"
    status, said = checkout.typed("preflight", *form, cwd=checkout.elsewhere)
    assert (status, checkout.played) == (2, [])
    assert f"there is no file {archive}" in said
    archive.touch()
    assert checkout.typed("preflight", *form, "-v", cwd=checkout.elsewhere)[0] == 0
    (played,) = checkout.played
    assert json.loads(played.pop(3)) == {"snapshot_file": str(archive)}
    assert played == ["--inventory", "localhost,", "--extra-vars", "-v", "playbooks/archived/preflight.yml"]
    assert checkout.runs("tried") == []


def test_missing_inventory_is_named_with_the_remedy(checkout: Checkout) -> None:
    (checkout.path / "inventory").unlink()
    status, said = checkout.typed("status", cwd=checkout.elsewhere)
    assert (status, checkout.played) == (2, [])
    assert f"neither ./inventory nor {checkout.path}/inventory. For one board, ./jetson-k3s install" in said
    assert "cp inventory.example inventory" in said and "Nothing was done." in said
    assert checkout.typed("bundle")[0] == 0  # needs no board
    assert checkout.played == [["-i", "localhost,", "playbooks/bundle.yml"]]


@pytest.mark.parametrize("line", CORES)
@pytest.mark.parametrize("options", [(), ("-K",)], ids=["sudo is tried", "sudo is not tried"])
def test_inventory_that_cannot_be_read_stops(checkout: Checkout, line: str, options: tuple[str, ...]) -> None:
    """With the real ansible-playbook, which by default goes on without any board and ends with 0."""
    checkout.real("playbook", line)
    (checkout.path / "inventory").write_text(f"jetson_set_hostname: true\n{BOARDS}")
    (checkout.path / "playbooks/status.yml").write_text("- {hosts: all, gather_facts: false}\n")
    status, said = checkout.typed("status", *options)
    assert status not in (0, 130), said
    assert f"Completely failed to parse inventory source {checkout.path}/inventory" in said.replace("\n", " ")
    assert ("the inventory cannot be read, or does not exist" in said) is not bool(options)


def test_password_is_asked_for_where_sudo_needs_one(checkout: Checkout) -> None:
    assert checkout.typed("reboot", terminal=True) == (0, "")
    (checkout.path / "sudo").write_text(PASSWORD)
    status, said = checkout.answered("reboot", "--limit", "agent", passwords=[SECRET])
    words = "sudo asks for a password on jetson-1. Type it here, once for all boards.\nPassword of sudo: "
    assert (status, said.strip()) == (0, words.strip())
    option = ["--become-password-file", "-", "-i", "inventory", "--limit", "agent", "playbooks/reboot.yml"]
    assert checkout.played == [["-i", "inventory", "playbooks/reboot.yml"], option]
    assert [run["password"] for run in checkout.runs("played")] == ["", SECRET]
    # The playbook's tasks for an agent are delegated to a server.
    tried = checkout.runs("tried")[1]["arguments"]
    assert tried[:6] == ["-i", "inventory", "--limit", "agent", "--limit", "agent,server"]
    assert json.loads(tried[7]) == {"try_sudo_boards": "k3s_cluster"}


def test_wrong_password_is_asked_for_again(checkout: Checkout) -> None:
    (checkout.path / "sudo").write_text(PASSWORD)
    status, said = checkout.answered("reboot", passwords=["wrong", SECRET])
    assert (status, said.count("sudo refuses it on jetson-1.\n"), len(checkout.played)) == (0, 1, 1), said
    status, said = checkout.answered("reboot", passwords=["wrong", "", "wrong"])
    assert (status, len(checkout.played)) == (2, 1)
    assert "sudo refuses the account or its password on jetson-1." in said and "Nothing was done." in said


def test_password_without_a_terminal_is_an_error_that_names_the_option(checkout: Checkout) -> None:
    (checkout.path / "sudo").write_text(PASSWORD)
    status, said = checkout.typed("drift")
    assert (status, checkout.played) == (2, [])
    assert "sudo asks for a password on jetson-1, and there is no terminal to type it." in said
    assert "add --become-password-file FILE. Nothing was done." in said


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (("-K",), {}),
        (("-vK",), {}),
        (("--become-password-file", "file"), {}),
        (("--become-pass-file=file",), {}),
        (("-b",), {}),
        (("--ask-pass",), {}),
        (("--vault-id", "site@prompt"), {}),
        ((), {"ANSIBLE_BECOME_PASSWORD_FILE": "file"}),
    ],
)
def test_choice_of_a_person_is_left_alone(
    checkout: Checkout, options: tuple[str, ...], more: Mapping[str, str]
) -> None:
    (checkout.path / "sudo").write_text(PASSWORD)
    checkout.environment.update(more)
    assert checkout.typed("drift", *options, terminal=True) == (0, "")
    assert checkout.runs("tried") == []
    assert checkout.played == [["-i", "inventory", *options, "playbooks/drift.yml"]]


ASKS = f"""\
#!/bin/sh
while [ "$1" != /bin/sh ]; do
    case $1 in -n) echo 'sudo: a password is required' >&2; exit 1 ;; -p) prompt=$2; shift ;; esac
    shift
done
printf %s "$prompt" >&2
read -r typed
[ "$typed" = {shlex.quote(SECRET)} ] || {{ echo 'Sorry, try again.' >&2; exit 1; }}
exec "$@"
"""
PASS = """\
#!/bin/sh
while [ "$1" != -c ]; do shift; done
exec /bin/sh "$@"
"""


@pytest.mark.parametrize("line", CORES)
def test_sudo_is_tried_on_the_boards_of_the_run(checkout: Checkout, line: str) -> None:
    """With the real ansible-playbook, and a sudo that wants a password on some boards."""
    checkout.real("playbook", line)
    checkout.environment["ANSIBLE_STDOUT_CALLBACK"] = "default"  # the copy has no collection
    script(checkout.elsewhere / "sudo", ASKS)
    script(checkout.elsewhere / "pass", PASS)
    sudo = f"ansible_become_exe={checkout.elsewhere}/sudo"
    (checkout.path / "inventory").write_text(
        f"[server]\na\n[agent]\nb {sudo}\nc {sudo} ansible_become_password={SECRET!r}\n"
        f"d ansible_host=127.0.0.1 ansible_port=1 ansible_connection=ssh\n[monitoring]\nm {sudo}\n"
        "[k3s_cluster:children]\nserver\nagent\n[all:vars]\nansible_connection=local\n"
        f"ansible_become_user=nobody\nansible_become_exe={checkout.elsewhere}/pass\n"
    )
    for playbook in checkout.path.glob("playbooks/*.yml"):
        playbook.write_text("- {hosts: localhost, gather_facts: false}\n")
    for option, boards in {"all": "b", "b": "b", "!b": "", "server": "", "c": "", "d": ""}.items():
        status, said = checkout.typed("site", "--limit", option, "-vv", "--check", "--tags=k3s")
        assert (f"sudo asks for a password on {boards}, and there" in said) == bool(boards), (option, said)
        assert (status == 2) == bool(boards), (option, said)
    assert "sudo asks for a password on m, and" in checkout.typed("monitoring")[1]
    assert "sudo asks" not in checkout.typed("bundle")[1]
    assert "sudo asks for a password on b, and" in checkout.typed("bundle", "-e", "bundle_debs_from=b")[1]


@pytest.mark.parametrize("line", CORES)
def test_password_reaches_the_sudo_of_a_board(checkout: Checkout, line: str) -> None:
    """With the real ansible-playbook, and a sudo that wants a password."""
    checkout.real("playbook", line)
    checkout.environment["ANSIBLE_STDOUT_CALLBACK"] = "default"
    script(checkout.elsewhere / "sudo", ASKS)
    (checkout.path / "inventory").write_text(
        "[k3s_cluster]\na ansible_connection=local ansible_become_user=nobody "
        f"ansible_become_exe={checkout.elsewhere}/sudo\n"
    )
    (checkout.path / "playbooks/drift.yml").write_text(
        "- {hosts: a, become: true, gather_facts: false, tasks: [{ansible.builtin.raw: echo computed}]}\n"
    )
    status, said = checkout.answered("drift", "-vv", passwords=["wrong", SECRET])
    assert (status, "sudo refuses it on a.\n" in said, "computed" in said) == (0, True, True), said
    assert SECRET not in said


def test_interruption_is_one_line(checkout: Checkout) -> None:
    waits = checkout.path / "waits"
    script(checkout.path / ".venv/bin/ansible-playbook", f"#!/bin/sh\ntouch '{waits}'\nsleep 60\n")
    with subprocess.Popen(
        [checkout.program, "status"],
        cwd=checkout.path,
        env=checkout.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        while not waits.exists() and running.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                running.wait(0.05)
        os.killpg(running.pid, signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "\njetson-k3s: interrupted; nothing was done\n")


def test_test_runs_the_persons_job_from_elsewhere(checkout: Checkout) -> None:
    (checkout.elsewhere / "job.yaml").write_text("kind: Job")
    options = ("--job", "job.yaml", "--boards", "jetson-2", "--artifacts", "out", "--reports", "r")
    status, said = checkout.typed("test", *options, cwd=checkout.elsewhere)
    assert status == 2 and "exit status 2: not every board could be verified" in said, "no report was written"
    (arguments,) = (run["arguments"] for run in checkout.runs("played"))
    assert arguments[-1] == "--limit=jetson-2"
    assert f"--inventory={checkout.path}/inventory" in arguments
    settings = json.loads(arguments[1].partition("=")[2])
    assert settings["gpu_job_manifest"] == f"{checkout.elsewhere}/job.yaml"
    assert settings["gpu_job_artifacts"] == f"{checkout.elsewhere}/out"


def test_test_gives_sudos_password_to_its_one_playbook(checkout: Checkout) -> None:
    (checkout.path / "sudo").write_text(PASSWORD)
    status, said = checkout.answered("test", "--image", "app:1", passwords=[SECRET])
    assert status == 2, said
    assert [run["password"] for run in checkout.runs("played")] == [SECRET]
    assert SECRET not in said.replace("Password of sudo: ", "")
    status, said = checkout.answered("test", "--image", "app:1", "--provision", passwords=[SECRET])
    assert status == 2 and "-- --become-password-file FILE. Nothing was done." in said


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)])
def test_help_lists_every_command_without_ansible(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    shutil.rmtree(checkout.path / ".venv")
    status, said = checkout.typed(*arguments)
    assert status == 0
    listed = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert listed == ["install", *front_door.COMMANDS, "check-manifest", "completion"]
    assert checkout.typed() == (2, said)
    assert not (checkout.path / ".venv").exists()


@pytest.mark.parametrize("name", front_door.COMMANDS)
def test_help_of_a_command_is_the_comment_of_its_playbook(checkout: Checkout, name: str) -> None:
    status, said = checkout.typed(name, "--limit", "x", "--help")
    assert (status, checkout.played, checkout.runs("tried")) == (0, [], [])
    comment = front_door.playbook(name).read_text().splitlines()[1].removeprefix("# ")
    assert f"usage: ./jetson-k3s {name} [OPTION...]\n" in said
    assert f"\n{comment.partition('  ansible-playbook')[0]}" in said
    assert "ansible-playbook -i" not in said and "--become-password-file FILE" in said
    assert max(map(len, said.splitlines())) <= 120


def test_install_is_install_sh(checkout: Checkout) -> None:
    status, said = checkout.typed("install", "--help", cwd=checkout.elsewhere)
    assert (status, said.startswith("usage: ./install.sh [OPTION...] USER@HOST")) == (0, True)
    assert "192.0.2.1 has no user: write USER@HOST" in checkout.typed("install", "192.0.2.1")[1]


@pytest.mark.parametrize(
    ("typed", "near"), [("statsu", "status"), ("os_update", "os-update"), ("site.yml", "site")]
)
def test_unknown_command_suggests_a_near_one(checkout: Checkout, typed: str, near: str) -> None:
    status, said = checkout.typed(typed)
    assert (status, checkout.played) == (2, [])
    assert f"there is no command {typed}. Did you mean {near}" in said


def test_venv_that_is_missing_or_older_than_its_list_is_made(checkout: Checkout) -> None:
    """By the same script as for install.sh. It installs the Ansible that is there already."""
    venv, lists = checkout.path / ".venv", checkout.path / "tools/requirements"
    script(
        venv / "bin/python", f'#!/bin/sh\n[ "$2" != pip ] || exec echo "pip $*"\nexec {sys.executable} "$@"\n'
    )
    for there in ("2.19", "2.16"):
        wanted = f"ansible-{there}.txt"
        shutil.copy(CHECKOUT / "tools/requirements" / wanted, lists)
        (venv / ".ansible").write_text(f"ansible-{there}\n")
        os.utime(venv / ".ansible", (0, 0))
        status, said = checkout.typed("status")
        installed = f"--require-hashes --requirement tools/requirements/{wanted}\n"
        assert (status, installed in said) == (0, True), said
        assert checkout.typed("status") == (0, "")
    assert len(checkout.played) == 4


@pytest.fixture
def shell(checkout: Checkout) -> Iterator["Shell"]:
    checkout.real("inventory")
    running = Shell(checkout)
    yield running
    running.end()


class Shell:
    """A bash at a terminal, with the completion of jetson-k3s."""

    def __init__(self, checkout: Checkout) -> None:
        self._reads, writes = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=checkout.path,
            env=checkout.environment | {"TERM": "dumb", "PS1": "> ", "HOME": str(checkout.path)},
            stdin=writes,
            stdout=writes,
            stderr=writes,
            start_new_session=True,
        )
        os.close(writes)
        self.until("> ")
        self.type("source <(./jetson-k3s completion bash); PATH=$PWD:$PATH\n")
        self.until("> ")

    def until(self, text: str) -> str:
        said = ""
        while text not in said:
            assert select.select([self._reads], [], [], 60)[0], said
            said += os.read(self._reads, 4096).decode()
        return said

    def type(self, text: str) -> None:
        os.write(self._reads, text.encode())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._reads)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("./jetson-k3s pow", "./jetson-k3s power-mode "),
        ("jetson-k3s inst", "jetson-k3s install "),
        ("jetson-k3s status --lim", "jetson-k3s status --limit "),
        ("jetson-k3s status --limit ag", "jetson-k3s status --limit agent "),
        ("jetson-k3s status --limit=ag", "jetson-k3s status --limit=agent "),
        ("jetson-k3s verify -i other/inventory -l n", "jetson-k3s verify -i other/inventory -l nano "),
        ("jetson-k3s status -i oth", "jetson-k3s status -i other/"),
        ("jetson-k3s test --job job.yaml --boa", "jetson-k3s test --job job.yaml --boards "),
        ("jetson-k3s test --boards ag", "jetson-k3s test --boards agent "),
        ("jetson-k3s test --prov", "jetson-k3s test --provision "),
        ("jetson-k3s check-image app.tar --boards=ag", "jetson-k3s check-image app.tar --boards=agent "),
        ("jetson-k3s check-image app.tar ag", "jetson-k3s check-image app.tar agent "),
        ("jetson-k3s check-m", "jetson-k3s check-manifest "),
        ("jetson-k3s check-manifest oth", "jetson-k3s check-manifest other/"),
        ("jetson-k3s check-manifest pod.yaml --rew", "jetson-k3s check-manifest pod.yaml --rewrite "),
        ("jetson-k3s completion z", "jetson-k3s completion zsh "),
    ],
)
def test_bash_completes_commands_and_boards(
    checkout: Checkout, shell: Shell, typed: str, completed: str
) -> None:
    (checkout.path / "other").mkdir()
    (checkout.path / "other/inventory").write_text("[server]\nnano\n")
    shell.type(f"{typed}\t")
    shell.until(completed)
