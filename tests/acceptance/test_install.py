# SPDX-License-Identifier: Apache-2.0
"""install.sh: one command from a bare board to a pod that computes, and what it says to bad input."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.internet import internet
from tests.acceptance.playbook import run_in
from tests.lab import inventory, k3s, ssh
from tests.lab.board import Board
from tests.release.checkout import copy_files
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "install"
TYPES = ("orinnano-jp6", "agxorin-jp6")


@pytest.fixture(scope="module")
def checkout(boards: list[Board], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout without an inventory, and an `ssh` that knows the lab's boards as ~/.ssh would.

    .venv is the tests' own. K3s' release page and Docker Hub are on this machine.
    """
    for one in boards:  # as their owner may have it: the lab has no images of these
        one.exec("mkdir", "--parents", "/etc/rancher/k3s")
        settings = json.dumps(k3s.SERVER_SETTINGS) if one == boards[0] else "{}"
        one.exec("sh", "-c", f"echo {shlex.quote(settings)} > /etc/rancher/k3s/config.yaml")
    root = tmp_path_factory.mktemp("checkout")
    copy_files(root)
    (root / ".venv").symlink_to(CHECKOUT / ".venv")
    command = root / "bin/ssh"
    command.parent.mkdir()
    options = [f"-o {option!r}" for option in ssh.options(LAB)]
    words = ["exec", shutil.which("ssh") or "ssh", "-F none", *options, f"-i {ssh.key_path(LAB)}", '"$@"']
    command.write_text("#!/bin/sh\n" + " ".join(words) + "\n")
    command.chmod(0o755)
    with internet(LAB, boards[0], tmp_path_factory.mktemp("internet")) as (_, site):
        (root / "group_vars").mkdir()
        (root / "group_vars/k3s_cluster.yml").write_text(json.dumps(site))
        yield root


def install(checkout: Path, *arguments: str) -> tuple[int, str]:
    """Run it as somebody at a terminal without one; its status and what it says."""
    path = f"{checkout}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ran = run_in(checkout, {"PATH": path, "HOME": str(checkout)}, "./install.sh", *arguments)
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "usage: ./install.sh"),
        (("--ofline",), "--ofline is no option"),
        (("192.0.2.1",), "192.0.2.1 has no user: write USER@HOST"),
        (("nobody@BOARD",), "nobody@BOARD does not answer by SSH, or wants a password"),
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


def test_hostname_that_would_be_more_than_a_name_is_refused(boards: list[Board], checkout: Path) -> None:
    boards[0].exec(
        "sh",
        "-c",
        "printf '#!/bin/sh\\nprintf %%s \"a\\nb ansible_connection=local\"' > /usr/local/bin/hostname",
    )
    boards[0].exec("chmod", "755", "/usr/local/bin/hostname")
    try:
        status, said = install(checkout, f"jetson@{boards[0].address}")
    finally:
        boards[0].exec("rm", "/usr/local/bin/hostname")
    assert (status, "has no usable hostname" in said) == (1, True), said
    assert not (checkout / "inventory").exists()


def test_one_command_makes_a_node_and_another_one_its_agent(boards: list[Board], checkout: Path) -> None:
    server, agent = boards
    status, said = install(checkout, "--dry-run", f"jetson@{server.address}")
    assert (status, "would be built on this computer" in said) == (0, True), said
    status, said = install(checkout, f"jetson@{server.address}")
    assert (status, "is built on this computer" in said) == (0, True), said
    assert "jetson_k3s_bundle" not in (checkout / "inventory").read_text()
    assert [line.partition(":")[0] for line in said.splitlines()[-3:]] == ["Node", "Proof", "Next"]
    assert (checkout / f"reports/{server.name}.json").exists()
    again, said = install(checkout, f"jetson@{server.address}")
    assert (again, "changed=0" in said) == (0, True), said
    bundle = str(inventory.bundle_path(LAB))
    status, said = install(
        checkout, "--offline", bundle, "--agent-of", server.name, f"jetson@{agent.address}"
    )
    assert status == 0, said
    assert Cluster(boards).allocatable() == {server.name: 1, agent.name: 1}


def test_uninstall_takes_the_agent_out_again(boards: list[Board], checkout: Path) -> None:
    status, said = install(checkout, "--uninstall", f"jetson@{boards[1].address}")
    assert status == 0, said
    assert set(Cluster(boards).allocatable()) == {boards[0].name}
