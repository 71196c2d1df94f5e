# SPDX-License-Identifier: Apache-2.0
"""Boards reboot in turn, their pods move, and a board that does not come back stops the run.

The tests are one story, in the order of the file, on a server and two agents. A reboot of a virtual board
ends its container, and Docker starts the container again: SIMULATED power. The archive is a directory.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import RESOURCE, Cluster
from tests.acceptance.playbook import PlaybookRun, cluster_status, run_playbook
from tests.acceptance.site import build_deb
from tests.lab import board, lab
from tests.lab.board import Board
from tools.engine import docker
from tools.process import run as run_command

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "reboot"
TYPES = ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")
QUICK = {"__board_reboot_timeout": 60}
REQUIRED = "echo required > /run/reboot-required; echo libsimulated >> /run/reboot-required.pkgs"
GPU = {"resources": {"limits": {RESOURCE: 1}}}
POSTINST = f"#!/bin/sh\n{REQUIRED}\n"
ARCHIVE = "/srv/archive-security"


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A cluster with a Deployment whose pod has a GPU. A board that reboots is switched on again."""
    with lab.fresh(LAB, TYPES) as up:
        for one in up:
            board.switch_on_after_reboot(one, always=True)
        run_playbook(LAB, "site.yml").checked()
        Cluster(up).create_jobs(**GPU)
        yield up


@pytest.fixture
def cluster(boards: list[Board]) -> Cluster:
    return Cluster(boards)


def run(playbook: str, *arguments: str, **variables: object) -> PlaybookRun:
    """Run a playbook that reboots boards."""
    return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(QUICK | variables)}", *arguments)


def boots(boards: list[Board]) -> list[str]:
    """The boot id of each board."""
    return [board.boot_id(one) for one in boards]


def rebooted(boards: list[Board], before: list[str]) -> list[str]:
    """The boards that have started since."""
    pairs = zip(boards, boots(boards), before, strict=True)
    return [one.name for one, now, then in pairs if now != then]


def node_of_job(cluster: Cluster) -> str:
    """The node of the Deployment's running pod."""
    chosen = ("--selector=app=jobs", "--field-selector=status.phase=Running")
    return cluster.kubectl("get", "pods", *chosen, "--output=jsonpath={.items[*].spec.nodeName}")


def cordoned(cluster: Cluster) -> list[str]:
    """Nodes that take no pods, or that a run has not finished with."""
    return [
        node["metadata"]["name"]
        for node in cluster.nodes()
        if node["spec"].get("unschedulable")
        or "jetson-k3s.github.io/cordoned" in node["metadata"].get("annotations", {})
    ]


def test_board_that_needs_a_reboot_is_shown_and_check_mode_names_it(
    boards: list[Board], tmp_path: Path
) -> None:
    boards[2].exec("sh", "-c", REQUIRED)
    before = boots(boards)
    found = {one["name"]: one["reboot"] for one in cluster_status(LAB, tmp_path)["boards"]}
    assert found["jetson-1"] == {"required": False, "packages": [], "kernel": None}
    assert found["jetson-3"] == {"required": True, "packages": ["libsimulated"], "kernel": None}
    check = run("reboot.yml", "--check", board_reboot_only_if_required=True).checked()
    assert "jetson-3: is to reboot (libsimulated)" in check.output
    assert {name: recap.changed > 0 for name, recap in check.recap.items() if name != "localhost"} == {
        "jetson-1": False,
        "jetson-2": False,
        "jetson-3": True,
    }, check.output
    assert rebooted(boards, before) == []


def test_only_the_board_that_needs_it_reboots_and_the_same_command_then_changes_nothing(
    boards: list[Board], cluster: Cluster
) -> None:
    before = boots(boards)
    first = run("reboot.yml", board_reboot_only_if_required=True).checked()
    assert rebooted(boards, before) == ["jetson-3"]
    assert "rebooted: jetson-3" in first.output
    run("reboot.yml", board_reboot_only_if_required=True).unchanged()
    assert rebooted(boards, before) == ["jetson-3"]
    assert cordoned(cluster) == []


def test_agents_reboot_before_the_server_and_the_gpu_pod_moves(boards: list[Board], cluster: Cluster) -> None:
    before = boots(boards)
    moves: list[tuple[list[str], list[str]]] = []

    def watch(line: str) -> None:
        # Of the agents: where the server reboots, there is nobody to ask.
        if (
            line.startswith("TASK [jetson_k3s.cluster.board_reboot : Record that the reboot has started]")
            and len(moves) < 2
        ):
            moves.append((cordoned(cluster), node_of_job(cluster).split()))

    run_playbook(LAB, "reboot.yml", f"--extra-vars={json.dumps(QUICK)}", on_line=watch).checked()
    assert rebooted(boards, before) == [one.name for one in boards]
    assert [names for names, _ in moves] == [["jetson-2"], ["jetson-3"]], moves
    assert [names for names, on in moves if set(names) & set(on)] == [], "a pod on a board that reboots"
    assert node_of_job(cluster) in ("jetson-2", "jetson-3")
    assert cordoned(cluster) == []
    assert cluster.allocatable() == {one.name: 1 for one in boards}


def test_board_that_does_not_come_back_stops_the_run_and_the_same_command_goes_on(
    boards: list[Board], cluster: Cluster
) -> None:
    before = boots(boards)
    board.switch_on_after_reboot(boards[1], always=False)
    stopped = run("reboot.yml", __board_reboot_timeout=20)
    assert stopped.returncode != 0
    said = " ".join(stopped.output.split())
    assert "jetson-2: is not back in service." in said
    assert "Cordoned until a run has finished with them: jetson-2." in said
    assert "with --limit jetson-1,jetson-2,jetson-3." in said
    assert cordoned(cluster) == ["jetson-2"]
    board.switch_on_after_reboot(boards[1], always=True)
    board.start(boards[1])
    assert rebooted(boards, before) == ["jetson-2"]
    # It was rebooted, so that nothing is left but its return.
    run("reboot.yml", "--limit=jetson-2", board_reboot_only_if_required=True).checked()
    assert cordoned(cluster) == []


def test_run_that_is_cut_off_is_finished_by_the_same_command(boards: list[Board], cluster: Cluster) -> None:
    before = boots(boards)

    def cut(line: str) -> bool:
        return line.startswith("TASK [jetson_k3s.cluster.board_reboot : Reboot the board]")

    given = (f"--extra-vars={json.dumps(QUICK)}", "--limit=jetson-3")
    assert run_playbook(LAB, "reboot.yml", *given, on_line=cut).returncode != 0
    assert cordoned(cluster) == ["jetson-3"]
    board.wait_until_up(boards[2])
    run_playbook(LAB, "reboot.yml", *given).checked()
    assert rebooted(boards, before) == ["jetson-3"]
    assert cordoned(cluster) == []
    assert cluster.allocatable()["jetson-3"] == 1


def entry(package: Path) -> str:
    """Return the entry of a package in its archive's list."""
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    fields = run_command(["dpkg-deb", "--field", package]).stdout
    return f"{fields}Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {digest}\n\n"


@pytest.fixture
def archive(boards: list[Board], tmp_path: Path) -> None:
    """An archive of security updates on the boards: of packages that each of them has in an older version."""
    tmp_path.chmod(0o755)
    postinst = {"DEBIAN/postinst": POSTINST}
    newer = []
    for name, files in (("libsimulated", postinst), ("nvidia-l4t-simulated", {}), ("docker-simulated", {})):
        build_deb(tmp_path, name, "1", {})
        newer.append(entry(build_deb(tmp_path, name, "2", files)))
    (tmp_path / "Packages").write_text("".join(newer))
    (tmp_path / "Release").write_text("Suite: lab-security\n")
    for one in boards:
        docker("cp", str(tmp_path), f"{one.container}:{ARCHIVE}")
        one.exec("sh", "-c", f"dpkg --install {ARCHIVE}/*_1_all.deb && rm -rf /etc/apt/sources.list*")
        one.exec("sh", "-c", f"echo 'deb [trusted=yes] file:{ARCHIVE} ./' > /etc/apt/sources.list")


def versions(one: Board) -> dict[str, str]:
    """The versions of the SIMULATED packages that a board has."""
    said = one.exec("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", "*simulated")
    return dict(line.split() for line in said.splitlines())


@pytest.mark.usefixtures("archive")
def test_security_updates_come_in_turn_without_those_of_docker_and_l4t(
    boards: list[Board], cluster: Cluster
) -> None:
    before = boots(boards)
    run("os_update.yml").checked()
    updated = {"libsimulated": "2", "nvidia-l4t-simulated": "1", "docker-simulated": "1"}
    assert [versions(one) for one in boards] == [updated] * len(boards)
    assert rebooted(boards, before) == [one.name for one in boards]
    run("os_update.yml").unchanged()
    before = boots(boards)
    named = run(
        "os_update.yml", "--limit=jetson-2", os_update_packages=["security", "nvidia-l4t-*"]
    ).checked()
    assert versions(boards[1]) == updated | {"nvidia-l4t-simulated": "2"}
    # It was drained for that, and needed no reboot.
    assert "TASK [jetson_k3s.cluster.k3s : Ensure the node is drained]" in named.output
    assert rebooted(boards, before) == []
    assert cordoned(cluster) == []
