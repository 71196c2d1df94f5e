# SPDX-License-Identifier: Apache-2.0
"""One board supplies the images to the others. A new one crosses the way from the controller once.

The last board has Docker with the containerd image store, which Docker 29 has from the beginning: there an
image's id is that of its manifest. No package archive has Docker 29, so that is Debian's newest docker.io.
"""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import PLUGIN_PODS, RESOURCE, Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import Brought, bring_pause, bring_plugin, bring_registry, crossed, later_bundle
from tests.lab import k3s, lab
from tests.lab.board import Board
from tools import debian
from tools.engine import docker
from tools.process import ToolError

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "supply"
SUPPLIED = "--extra-vars=image_supply_host=jetson-2"
UNIT = "jetson-k3s-registry"
DATA = "/var/lib/jetson-k3s-registry"
TAGS = f"{DATA}/docker/registry/v2/repositories/jetson-k3s/_manifests/tags"
INSTEAD = "did not supply"
NEWEST_DOCKER = ("containerd", "docker-cli", "docker.io", "tini-static")
INSTALL = """
apt-get --yes --option=Dir::Etc::SourceList=/dev/null --option=Dir::Etc::SourceParts=/dev/null \\
    --option=Dpkg::Options::=--force-confold install /debs/*.deb
# Overlays do not nest, so containerd's images are on the board's volume.
mkdir --parents /etc/containerd
printf 'version = 2\\nroot = "/var/lib/docker/of-containerd"\\n' > /etc/containerd/config.toml
systemctl restart containerd docker
"""
STORE = {"features": {"containerd-snapshotter": True}}


def site(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", *arguments)


def rollout(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", "--tags=gpu_device_plugin", *arguments)


def registry(boards: list[Board]) -> str:
    return f"{boards[1].address}:5443"


def install_newest_docker(board: Board) -> None:
    """Install Debian's newest Docker with the containerd image store on a board, as its owner would."""
    docker("cp", f"{debian.package_files(*NEWEST_DOCKER, suite='testing')}/.", f"{board.container}:/debs")
    board.exec("sh", "-c", f"echo '{json.dumps(STORE)}' > /etc/docker/daemon.json")
    board.exec("env", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", INSTALL, timeout=300)
    assert "io.containerd.snapshotter" in board.exec("docker", "info", "--format={{.DriverStatus}}")


def image_id(board: Board, name: str) -> str:
    return board.exec("docker", "image", "inspect", "--format={{.Id}}", name, check=False)


def assert_all_have(boards: list[Board], image: Brought) -> None:
    """Check that the boards have an image; the last one has another id for it."""
    assert [image_id(board, image.name) for board in boards[:-1]] == [image.image] * (len(boards) - 1)
    assert image_id(boards[-1], image.name)


def plugins(boards: list[Board]) -> set[str]:
    pods = ("--namespace=kube-system", "get", "pods", f"--selector={PLUGIN_PODS}")
    images = "--output=jsonpath={.items[*].spec.containers[0].image}"
    return set(Cluster(boards).kubectl(*pods, images).split())


def left(board: Board) -> str:
    units = "/etc/systemd/system/{jetson-k3s,docker}-registry.service"
    places = f"{DATA} /etc/jetson-k3s-registry {units} /etc/docker/certs.d/* /usr/bin/docker-registry"
    return board.exec("bash", "-c", f"ls -d {places} 2> /dev/null || true")


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """Three boards that no playbook has touched, and a bundle with Debian's registry for the second one."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")) as up:
        bring_registry(LAB, jetpack=6)
        install_newest_docker(up[-1])
        yield up


@pytest.fixture(scope="module")
def first(boards: list[Board]) -> PlaybookRun:
    assert len(boards) == 3
    return site(SUPPLIED)


def test_first_run_brings_images_to_one_board_and_from_there_to_all(
    boards: list[Board], first: PlaybookRun
) -> None:
    assert first.returncode == 0, first.why
    assert INSTEAD not in first.output, first.output
    (name,) = plugins(boards)
    assert all(image_id(board, name) for board in boards)
    assert Cluster(boards).allocatable(RESOURCE) == {board.name: 1 for board in boards}
    # The names in the registry are nobody's business afterwards.
    for board in boards:
        assert "jetson-k3s" not in board.exec("docker", "image", "ls", "--format={{.Repository}}")
    assert [bool(DATA in left(board)) for board in boards] == [False, True, False]
    site(SUPPLIED).unchanged()


def test_nobody_can_push_to_the_registry(boards: list[Board], first: PlaybookRun) -> None:
    (name,) = plugins(boards)
    for board in boards:
        stranger = f"{registry(boards)}/jetson-k3s:stranger"
        board.exec("docker", "tag", name, stranger)
        with pytest.raises(ToolError, match=r"unsupported|405|not allowed"):
            board.exec("docker", "push", stranger)
        board.exec("docker", "image", "rm", stranger)
    supply = boards[1]
    assert "stranger" not in supply.exec("ls", TAGS)
    shown = supply.exec("systemctl", "show", "--property=User,MainPID", UNIT)
    settings = dict(line.split("=", 1) for line in shown.splitlines())
    assert settings["User"] == "jetson-k3s-registry"
    # Not even root could, where the service sees the file system.
    inside = ("nsenter", f"--target={settings['MainPID']}", "--mount")
    with pytest.raises(ToolError, match="Read-only file system"):
        supply.exec(*inside, "touch", f"{DATA}/mine")
    assert "docker-registry.service" not in supply.exec(
        "systemctl", "list-units", "--no-legend", "docker-reg*"
    )


def test_another_plugin_crosses_the_way_once(boards: list[Board], first: PlaybookRun) -> None:
    plugin = bring_plugin(LAB, "supplied")
    before = crossed(LAB)
    supplied = rollout(SUPPLIED)
    with_supply = crossed(LAB) - before
    assert supplied.returncode == 0, supplied.why
    assert INSTEAD not in supplied.output
    assert plugins(boards) == {plugin.name}
    assert_all_have(boards, plugin)
    # Of pause and the plugin; the plugin before it went from the registry.
    kept = boards[1].exec("ls", TAGS).split()
    assert (len(kept), plugin.image.partition(":")[2] in kept) == (2, True)

    site("--check", "--extra-vars=image_supply_host=").checked()
    assert DATA in left(boards[1])
    other = bring_plugin(LAB, "everywhere")
    before = crossed(LAB)
    everywhere = rollout("--extra-vars=image_supply_host=")
    without = crossed(LAB) - before
    assert everywhere.returncode == 0, everywhere.why
    assert plugins(boards) == {other.name}
    assert with_supply > plugin.size
    # Two boards' archives less; a run's own traffic, with modules and facts, is some megabytes.
    assert without - with_supply > 1.5 * plugin.size, (with_supply, without, plugin.size)


def test_without_the_variable_nothing_of_it_is_left(boards: list[Board], first: PlaybookRun) -> None:
    # The last test's second run was without it.
    assert [left(board) for board in boards] == [""] * 3
    assert "jetson-k3s-registry" not in boards[1].exec("cat", "/etc/passwd")
    again = site()
    assert {recap.changed for recap in again.recap.values()} == {0}, again.output


def test_registry_that_gives_another_image_is_found(boards: list[Board], first: PlaybookRun) -> None:
    victim, supply = boards[:2]
    plugin = bring_plugin(LAB, "wrong")
    wanted = plugin.image.partition(":")[2]
    site(SUPPLIED, "--tags=image_supply").checked()
    other = next(tag for tag in supply.exec("ls", TAGS).split() if tag != wanted)
    supply.exec("cp", f"{TAGS}/{other}/current/link", f"{TAGS}/{wanted}/current/link")
    run = rollout(SUPPLIED, f"--limit={victim.name}")
    assert run.recap[victim.name].failed == 1, run.output
    said = " ".join(run.output.split())
    assert f"{victim.name}: {supply.name} gave another image for {plugin.name}" in said
    assert f"the bundle has {plugin.image}, and {registry(boards)} gave sha256:{other}" in said
    assert image_id(victim, plugin.name) == ""
    # Its own board finds that as well, and puts the right one there.
    rollout(SUPPLIED).checked()
    assert plugins(boards) == {plugin.name}


def test_board_goes_on_without_a_registry_that_does_not_answer(
    boards: list[Board], first: PlaybookRun
) -> None:
    alone, supply = boards[:2]
    plugin = bring_plugin(LAB, "alone")
    supply.exec("systemctl", "stop", UNIT)
    run = rollout(SUPPLIED, f"--limit={alone.name}").checked()
    said = " ".join(run.output.split())
    assert f"{alone.name}: {supply.name} {INSTEAD} tegra-device-plugin-amd64.tar.gz" in said
    assert f"{registry(boards)} does not answer" in said
    assert image_id(alone, plugin.name) == plugin.image
    whole = rollout(SUPPLIED).checked()
    assert INSTEAD not in whole.output
    assert supply.exec("systemctl", "is-active", UNIT) == "active"
    assert plugins(boards) == {plugin.name}


def test_upgrade_has_the_new_images_from_there(boards: list[Board], first: PlaybookRun) -> None:
    newer = later_bundle(LAB)
    pause = bring_pause(newer, "upgraded")
    upgraded = run_playbook(LAB, "upgrade.yml", SUPPLIED, f"--extra-vars=jetson_k3s_bundle={newer}").checked()
    assert INSTEAD not in upgraded.output
    assert pause.image.partition(":")[2] in boards[1].exec("ls", TAGS).split()
    assert_all_have(boards, pause)
    assert {board.exec("k3s", "--version").split()[2] for board in boards} == {k3s.named_version("2")}
    assert Cluster(boards).allocatable(RESOURCE) == {board.name: 1 for board in boards}


def test_another_image_of_the_same_name_is_replaced(boards: list[Board], first: PlaybookRun) -> None:
    (name,) = plugins(boards)
    before = image_id(boards[2], name)
    boards[2].exec("sh", "-c", f"tar --create --files-from=/dev/null | docker import - {name}")
    rollout(SUPPLIED).checked()
    assert image_id(boards[2], name) == before


# Last, for the cluster goes with it.
def test_reset_takes_it_away(boards: list[Board], first: PlaybookRun) -> None:
    ends = f"--extra-vars=k3s_reset_cluster={boards[0].name}"
    run_playbook(LAB, "reset.yml", SUPPLIED, ends).checked()
    assert [left(board) for board in boards] == [""] * 3
