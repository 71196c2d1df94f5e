# SPDX-License-Identifier: Apache-2.0
"""install.sh: one command from a bare board to a pod that computes, and what it says to bad input.

The board downloads K3s. At the end it pulls the plugin's image by its digest from a registry.
"""

import json
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import archived_images

from images.arm64 import build as plugin
from tests.acceptance import person
from tests.acceptance.cluster import Cluster
from tests.acceptance.person import Person
from tests.acceptance.playbook import TIMEOUT_SECONDS, PlaybookRun, run_in, run_playbook
from tests.acceptance.site import Registry, gateway, internet, later_bundle
from tests.lab import inventory, k3s, lab_dir
from tests.lab.board import Board, as_flashed
from tests.lab.bundle import sha256, write_release
from tests.lab.images import SUDO_PASSWORD, SUDO_RULE
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.terminal import Terminal
from tests.unit.commands import programs_without
from tools.cache import CHECKOUT
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "install"
TYPES = ("orinnano-jp6", "agxorin-jp6")
LATER = k3s.named_version("2")
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"


@pytest.fixture(scope="module")
def site(
    boards: list[Board], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Registry, dict[str, Any]]]:
    """K3s' release page and Docker Hub, on this machine, and the variables with which boards find them."""
    directory = tmp_path_factory.mktemp("internet")
    with internet(LAB, boards[0], directory) as found:
        assert write_release(later_bundle(LAB), directory / "releases") == LATER
        yield found


@pytest.fixture(scope="module")
def checkout(
    boards: list[Board], site: tuple[Registry, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkout without an inventory, and an `ssh` that knows the lab's boards as ~/.ssh would.

    .venv is the tests' own.
    """
    own_settings(boards[0], k3s.SERVER_SETTINGS)
    return prepared(person.of_lab(tmp_path_factory.mktemp("person"), LAB), site[1]).checkout


def prepared(one: Person, settings: dict[str, Any]) -> Person:
    """Give a person an environment for Ansible, and settings for the group."""
    (one.checkout / ".venv").symlink_to(CHECKOUT / ".venv")
    (one.checkout / "group_vars").mkdir()
    (one.checkout / "group_vars/k3s_cluster.yml").write_text(json.dumps(settings))
    return one


def own_settings(board: Board, settings: object) -> None:
    """As the owner may have them: the lab has no images of K3s' packaged components."""
    board.exec("mkdir", "--parents", "/etc/rancher/k3s")
    board.exec("sh", "-c", f"echo {shlex.quote(json.dumps(settings))} > /etc/rancher/k3s/config.yaml")


def environment(checkout: Path) -> dict[str, str]:
    # Ansible's own screen, whose tasks and recaps the tests read.
    return Person(checkout.parent).environment | {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}


def install(checkout: Path, *arguments: str, **others: str) -> tuple[int, str]:
    """Run it without a terminal, and with other variables of the environment; its status and output."""
    ran = run_in(checkout, environment(checkout) | others, "./install.sh", *arguments)
    return ran.returncode, ran.stdout


def install_at_terminal(checkout: Path, *arguments: str, answer: str = "y") -> tuple[int, str]:
    """Run it at a terminal, where somebody types sudo's password, and an answer to the question before.

    Return its status and output.
    """
    terminal = Terminal(["./install.sh", *arguments], environment(checkout), checkout)
    terminal.answer(person.answers("", agrees=answer))
    return terminal.process.returncode, terminal.written.replace("\r", "")


def printed(checkout: Path, said: str, word: str) -> str:
    """The output of a command that install.sh prints, as a person types it: kubectl with the kubeconfig."""
    command = next(line for line in said.splitlines() if line.startswith(f"{word}: "))
    command = command[command.index("kubectl --kubeconfig ") :].rstrip(")")
    ran = run_in(checkout, environment(checkout), *shlex.split(command))
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "usage: ./install.sh"),
        (("--ofline",), "--ofline is no option"),
        (("192.0.2.1",), "192.0.2.1 has no user: write USER@HOST"),
        (("nobody@BOARD",), "nobody@BOARD: the board accepts none of your SSH keys for the account nobody"),
        (("--offline", "docs", "jetson@BOARD"), "docs is no bundle: it has no SHA256SUMS"),
        (("--agent-of", "jetson-9", "jetson@BOARD"), "./inventory has no board jetson-9"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    boards: list[Board], checkout: Path, arguments: tuple[str, ...], words: str
) -> None:
    address = boards[0].address
    status, said = install(checkout, *(one.replace("BOARD", address) for one in arguments))
    assert status != 0
    assert words.replace("BOARD", address) in said
    assert not (checkout / "inventory").exists()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "printf '#!/bin/sh\nprintf %%s \"a\nb ansible_connection=local\"' > /usr/local/bin/hostname; "
            "chmod 755 /usr/local/bin/hostname",
            "rm /usr/local/bin/hostname",
            ". Give it a name: add --name jetson-1",
        ),
        (
            "mv /etc/nv_tegra_release /etc/kept",
            "mv /etc/kept /etc/nv_tegra_release",
            "is no Jetson with NVIDIA's L4T",
        ),
        (
            "cp -p /etc/nv_tegra_release /etc/kept; echo '# R28 (release)' > /etc/nv_tegra_release",
            "mv /etc/kept /etc/nv_tegra_release",
            "has L4T R28. JetPack 4.4 (R32.4) and newer can be used: flash the board",
        ),
        (
            "mv /etc/sudoers.d/jetson /etc/kept",
            "mv /etc/kept /etc/sudoers.d/jetson",
            "and there is no terminal to type it",
        ),
    ],
    ids=["hostname of several lines", "no Jetson", "JetPack 3", "no sudo"],
)
def test_board_that_cannot_be_used_is_refused(
    boards: list[Board], checkout: Path, before: str, after: str, words: str
) -> None:
    boards[0].exec("sh", "-ec", before)
    try:
        status, said = install(checkout, f"jetson@{boards[0].address}")
    finally:
        boards[0].exec("sh", "-ec", after)
    assert (status, words in said) == (1, True), said
    assert not (checkout / "inventory").exists()


def test_password_that_ssh_refuses_is_named(
    boards: list[Board], site: tuple[Registry, dict[str, Any]], tmp_path: Path
) -> None:
    """A person with no SSH key, who does not know the board, as on the first day."""
    newcomer = prepared(person.new(tmp_path), site[1])
    with as_flashed(boards[1]):
        terminal = newcomer.at_terminal(("./install.sh", f"jetson@{boards[1].address}"))
        asked = terminal.answer(person.answers(boards[1].address, ssh_password="wrong"))
    password = f"jetson@{boards[1].address}'s password: "
    assert asked == [person.HOST_KEY, person.YES, password, password, password], terminal.written
    assert terminal.process.returncode == 1
    assert "the board refuses the password, or has no account jetson. Try: ssh jetson@" in terminal.written
    assert not (newcomer.checkout / "inventory").exists()


def test_address_at_which_no_board_is_is_named(boards: list[Board], checkout: Path) -> None:
    status, said = install(checkout, f"jetson@{boards[0].address.rpartition('.')[0]}.250")
    assert (status, "no answer in time. Check the address, that the board is on" in said) == (1, True), said


def test_host_that_accepts_and_stays_silent_is_given_up(boards: list[Board], checkout: Path) -> None:
    with socket.create_server((gateway(boards[0]), 22)):
        status, said = install(checkout, f"jetson@{gateway(boards[0])}")
    assert (status, "no answer in time" in said) == (1, True), said


def test_host_key_that_has_changed_is_named(
    boards: list[Board], site: tuple[Registry, dict[str, Any]], tmp_path: Path
) -> None:
    """As after the board was flashed again: the address has the host key of the other board."""
    newcomer, address = prepared(person.new(tmp_path), site[1]), boards[0].address
    other = boards[1].exec("cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    (tmp_path / ".ssh/known_hosts").write_text(f"{address} {other}")
    status, said = install(newcomer.checkout, f"jetson@{address}")
    assert (status, f"remove the old key: ssh-keygen -R {address}" in said) == (1, True), said


def test_password_that_sudo_refuses_is_named(boards: list[Board], checkout: Path) -> None:
    command = ("./install.sh", "--yes", f"jetson@{boards[1].address}")
    terminal = Terminal([*command], environment(checkout), checkout)
    asked = terminal.answer({person.SUDO: "wrong"})
    assert (terminal.process.returncode, asked) == (1, [person.SUDO] * 3), terminal.written
    assert f"sudo refuses it on {boards[1].name}" in terminal.written
    assert not (checkout / "inventory").exists()


def test_bundle_that_is_not_complete_is_named(boards: list[Board], checkout: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(inventory.bundle_path(LAB), bundle)
    offline = ("--offline", str(bundle), f"jetson@{boards[0].address}")
    with (bundle / f"k3s-{ARCH}").open("r+b") as file:
        file.truncate(1_000_000)
    status, said = install(checkout, *offline)
    assert (status, f"k3s-{ARCH}" in said, "SHA-256" in said or "sha256" in said) == (1, True, True), said
    (bundle / f"k3s-{ARCH}").unlink()
    status, said = install(checkout, *offline)
    assert (status, f"k3s-{ARCH}" in said) == (1, True), said
    assert boards[0].exec("sh", "-c", "command -v k3s || echo none") == "none"
    (checkout / "inventory").unlink(missing_ok=True)


def test_dry_run_builds_no_image(boards: list[Board], checkout: Path) -> None:
    status, said = install(checkout, "--dry-run", f"jetson@{boards[0].address}")
    assert (status, "would be built on this computer" in said) == (0, True), said


def test_release_page_that_does_not_answer_is_named(boards: list[Board], checkout: Path) -> None:
    settings = checkout / "group_vars/k3s_cluster.yml"
    kept = settings.read_text()
    nowhere = "http://127.0.0.1:1"
    settings.write_text(json.dumps(json.loads(kept) | {"k3s_release_url": nowhere}))
    status, said = install(checkout, f"jetson@{boards[0].address}")
    settings.write_text(kept)
    assert status == 1
    message = " ".join(said.split())
    assert "is built on this computer" in message
    assert f"{boards[0].name}: {nowhere}/" in message
    assert "could not be downloaded: " in message
    assert boards[0].exec("sh", "-c", "command -v k3s || echo none") == "none"


PROGRAMS = "/usr/local/bin"


@contextmanager
def disk_of_programs(board: Board, size: str) -> Iterator[None]:
    """A file system of its own where K3s is installed, of this size."""
    board.exec("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", PROGRAMS)
    try:
        yield
    finally:
        board.exec("umount", PROGRAMS)


def test_disk_that_is_too_small_is_named_before_anything_is_written(
    boards: list[Board], checkout: Path
) -> None:
    with disk_of_programs(boards[0], "10m"):
        status, said = install(checkout, f"jetson@{boards[0].address}")
        left = boards[0].exec("ls", "-A", PROGRAMS)
    message = " ".join(said.split())
    assert (status, "place-full" in message) == (1, True), said
    assert f"{PROGRAMS} on {PROGRAMS} (tmpfs) has 10 MB" in message
    assert left == ""


def test_disk_that_fills_up_meanwhile_is_named_and_nothing_half_written_stays(
    boards: list[Board], checkout: Path
) -> None:
    command = ("./install.sh", "--yes", f"jetson@{boards[0].address}")
    terminal = Person(checkout.parent).at_terminal(command, columns=200)
    # Preflight refuses programs in memory, so the small disk comes behind it.
    terminal.until("Prepare the boards")
    with disk_of_programs(boards[0], "10m"):
        terminal.until("")
        left = boards[0].exec("ls", "-A", PROGRAMS)
    refused = "No space left on device" in terminal.written
    assert (terminal.process.returncode, refused) == (1, True), terminal.written
    assert left == ""


# What the screen says at a moment.
MOMENTS = {
    "the question": person.YES,
    "the checks": "Check the boards",
    "K3s": "Install the K3s servers",
    "the proof": "Verify the boards",
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_interrupted_command_says_so_in_one_line(boards: list[Board], checkout: Path, moment: str) -> None:
    command = ("./install.sh", f"jetson@{boards[0].address}")
    terminal = Person(checkout.parent).at_terminal(command, columns=60)
    if moment != person.YES:
        terminal.until(person.YES)
        terminal.type("y\n")
    terminal.until(moment)
    terminal.type("\x03")
    terminal.until("")
    assert terminal.process.returncode == 130, terminal.written
    said = [line for line in terminal.screen if line.strip("^C")]
    assert said[-1] == "install.sh: interrupted; the same command goes on from here", said
    assert not any("ERROR" in line or "Traceback" in line for line in said), said
    written = terminal.written.replace("^C", "").split("\r\x1b[K")
    live = [line for line in written if "\n" not in line]
    assert max(map(len, live), default=0) < 60, live


def test_one_command_makes_a_node_and_another_one_its_agent(boards: list[Board], checkout: Path) -> None:
    server, agent = boards
    status, said = install(checkout, f"jetson@{server.address}")
    assert status == 0, said
    assert "jetson_k3s_bundle" not in (checkout / "inventory").read_text()
    assert [line.partition(":")[0] for line in said.splitlines()[-4:]] == ["Node", "Proof", "Next", "Later"]
    assert (checkout / f"reports/{server.name}.json").exists()
    assert server.name in printed(checkout, said, "Node")
    again, said = install(checkout, f"jetson@{server.address}")
    assert (again, "changed=0" in said) == (0, True), said
    written = (checkout / "inventory").read_text()
    agent.exec("hostname", server.name)
    for arguments in (("--agent-of", server.name), ("--uninstall", "--yes")):
        status, said = install_at_terminal(checkout, *arguments, f"jetson@{agent.address}")
        assert status == 1, said
        assert f"and the board at {agent.address} has the same name" in said
    agent.exec("hostname", agent.name)
    assert (checkout / "inventory").read_text() == written
    assert Cluster(boards).allocatable() == {server.name: 1}
    bundle = str(inventory.bundle_path(LAB))
    offline = ("--offline", bundle, "--agent-of", server.name, f"jetson@{agent.address}")
    status, said = install(checkout, *offline)
    assert (status, "and there is no terminal to type it" in said) == (1, True), said
    server.exec("mv", SUDO_RULE, "/etc/kept")  # the same password on both
    status, said = install_at_terminal(checkout, *offline)
    server.exec("mv", "/etc/kept", SUDO_RULE)
    assert status == 0, said
    assert SUDO_PASSWORD not in said
    assert said.count("Password of sudo: ") == 1
    assert {server.name, agent.name} <= set(printed(checkout, said, "Node").split())
    assert "gpu-example created" in printed(checkout, said, "Next")
    assert Cluster(boards).allocatable() == {server.name: 1, agent.name: 1}


def test_uninstall_takes_the_agent_out_again(boards: list[Board], checkout: Path) -> None:
    server, agent = boards
    status, said = install(checkout, "--uninstall", f"jetson@{server.address}")
    assert (status, "There is no terminal to confirm it: add --yes" in said) == (1, True), said
    uninstall = ("--uninstall", f"jetson@{agent.address}")
    status, said = install_at_terminal(checkout, *uninstall, answer="n")
    assert (status, "Nothing was done" in said) == (1, True), said
    assert set(Cluster(boards).allocatable()) == {board.name for board in boards}
    status, said = install_at_terminal(checkout, *uninstall)
    assert status == 0, said
    assert set(Cluster(boards).allocatable()) == {server.name}


def test_plugins_image_is_pulled_by_its_digest(
    boards: list[Board], site: tuple[Registry, dict[str, Any]]
) -> None:
    registry, found = site
    archive = inventory.bundle_path(LAB) / f"tegra-device-plugin-{ARCH}.tar.gz"
    digest = registry.push(archive, plugin.reference(), "tegra-device-plugin:1")
    (place,) = found["nvidia_docker_daemon_config"]["insecure-registries"]
    image = f"{place}/tegra-device-plugin:1@{digest}"
    lines = (lab_dir(LAB) / "inventory.ini").read_text().splitlines(keepends=True)
    without_bundle = lab_dir(LAB) / "no-bundle.ini"
    without_bundle.write_text("".join(line for line in lines if not line.startswith("jetson_k3s_bundle")))

    def run(image: str, *arguments: str) -> PlaybookRun:
        settings = {**found, "gpu_device_plugin_image": image}
        given = (f"--limit={boards[0].name}", f"--extra-vars={json.dumps(settings)}")
        return run_playbook(LAB, "site.yml", *given, *arguments, inventory=without_bundle)

    run(image).checked()
    assert Cluster(boards).plugin_image() == image
    run(image).unchanged()
    lacking = f"{image.partition('@')[0]}@sha256:{'0' * 64}"
    refused = run(lacking, "--tags=gpu_device_plugin")
    assert refused.returncode != 0
    assert f"could not pull {lacking} (gpu_device_plugin_image): " in " ".join(refused.output.split())
    assert Cluster(boards).allocatable() == {boards[0].name: 1}


def test_upgrade_without_a_bundle_downloads_the_version(boards: list[Board], checkout: Path) -> None:
    board, settings = boards[0], checkout / "group_vars/k3s_cluster.yml"
    pinned = json.loads(settings.read_text())
    # The agent of the tests before is uninstalled.
    lines = (checkout / "inventory").read_text().splitlines(keepends=True)
    (checkout / "inventory").write_text("".join(one for one in lines if not one.startswith(boards[1].name)))

    def front_door(*arguments: str) -> tuple[int, str]:
        ran = run_in(checkout, environment(checkout), "./jetson-k3s", *arguments)
        return ran.returncode, " ".join(ran.stdout.split())

    upgrade = ("upgrade", "-e", f"k3s_version={LATER}")
    status, said = front_door(*upgrade)
    assert (status, "expected by k3s_sha256, which may be of another version" in said) == (2, True), said
    assert Cluster([board]).kubelets() == {board.name: pinned["k3s_version"]}
    digest = sha256(later_bundle(LAB) / f"k3s-{ARCH}")
    settings.write_text(json.dumps(pinned | {"k3s_sha256": {ARCH: digest}}))
    status, said = front_door(*upgrade)
    assert (status, f"upgraded: {board.name}" in said) == (0, True), said
    assert Cluster([board]).kubelets() == {board.name: LATER}
    assert Cluster([board]).allocatable() == {board.name: 1}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"k3s_version": LATER}))
    status, said = front_door("preflight")
    assert status == 0, said


def test_board_installs_itself(boards: list[Board], checkout: Path) -> None:
    board = boards[1]
    for place in ("inventory", ".venv", "dist", "reports"):  # of the other computer
        subprocess.run(["rm", "-rf", checkout / place], check=True)
    docker("cp", f"{checkout}", f"{board.container}:/home/jetson/jetson-k3s")
    board.exec("chown", "--recursive", "jetson:", "/home/jetson/jetson-k3s")
    # The board trusts the package index that this machine trusts.
    docker("cp", "--follow-link", TRUSTED, f"{board.container}:{TRUSTED}")
    board.exec("sh", "-c", f"printf '[global]\ncert = {TRUSTED}\n' > /etc/pip.conf")
    own_settings(board, k3s.SERVER_SETTINGS)
    command = "/home/jetson/jetson-k3s/install.sh"
    refused = board.exec("sh", "-c", f"runuser --user=jetson -- {command} local 2>&1 || :")
    assert "on the board itself it has to be root: sudo ./install.sh local" in refused
    with_password = f"echo {SUDO_PASSWORD} | runuser --user=jetson -- sudo --stdin {command} local"
    said = board.exec("sh", "-c", with_password, timeout=TIMEOUT_SECONDS)
    assert [line.partition(":")[0] for line in said.splitlines()[-4:]] == ["Node", "Proof", "Next", "Later"]
    assert "(sudo k3s kubectl get nodes)" in said
    assert Cluster([board]).allocatable() == {board.name: 1}


def test_board_builds_the_image_for_a_computer_without_docker(
    boards: list[Board], checkout: Path, tmp_path: Path
) -> None:
    """On the board of the test before: it is prepared, and its Docker has the base image."""
    board, archive = boards[1], checkout / f"dist/tegra-device-plugin-{ARCH}.tar.gz"
    (checkout / ".venv").symlink_to(CHECKOUT / ".venv")
    # With apt-get, root could install Docker.
    programs = programs_without(tmp_path / "programs", "docker", "podman", "apt-get")
    path = f"{checkout.parent}/bin:{programs}"
    status, said = install(checkout, f"jetson@{board.address}", PATH=path)
    assert (status, "let the board build it (add --build-on-board)" in said) == (1, True), said
    assert not (checkout / "inventory").exists()
    password = tmp_path / "password"
    password.write_text(f"{SUDO_PASSWORD}\n")
    with_password = ("--become-password-file", str(password), f"jetson@{board.address}")
    status, said = install(checkout, "--build-on-board", *with_password, PATH=path)
    assert status == 0, said
    assert "  Image:   built on the board" in said
    assert f"The plugin's image for {ARCH} is built on {board.name}" in " ".join(said.split())
    assert [*archived_images(str(archive))] == [plugin.reference()]
    assert board.exec("sh", "-c", "ls -A /var/lib/jetson-k3s/uploads 2>/dev/null || :") == ""
    assert Cluster([board]).allocatable() == {board.name: 1}
    again, said = install(checkout, *with_password, PATH=path)
    assert (again, "changed=0" in said, f"  Image:   dist/{archive.name}" in said) == (0, True, True), said
