# SPDX-License-Identifier: Apache-2.0
"""Images of the user: compared with the boards, sent once over a slow link, kept, replaced and removed.

Three boards with a registry at their site: first with Docker, then with containerd.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance import user_images
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import bring_images, bring_registry, crossed, shaped
from tests.acceptance.user_images import NAME, payload
from tests.lab import lab
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "images"
SUPPLIED = "--extra-vars=image_supply_host=jetson-2"
KEEPERS = "--filter=label=io.github.jetson-k3s.keeps=bundle_images"
STORE = "/var/lib/jetson-k3s-registry"
TAGS = f"{STORE}/docker/registry/v2/repositories/jetson-k3s/_manifests/tags"
ON_THEIR_WAY = "ls /var/lib/jetson-k3s/images 2> /dev/null || true"
MEGABYTES = 40
MB = 1_000_000
# Of a run with few tasks on three boards: modules, facts.
OVERHEAD = 12 * MB


def site(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", *arguments)


def images(*archives: str) -> str:
    return "--extra-vars=" + json.dumps({"bundle_images": list(archives)})


def load(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", "--tags=user_images", *arguments)


def image_id(board: Board, name: str = NAME) -> str:
    return board.exec("docker", "image", "inspect", "--format={{.Id}}", name, check=False)


def run_pod(cluster: Cluster, board: Board) -> None:
    """Run the image on a board, which no registry has."""
    cluster.create_sleeper("app", board.name, {"image": NAME, "command": ["/pause"]})
    wait_until(lambda: cluster.phase("app") == "Running", "the pod of the user's image to run", 60)
    cluster.kubectl("delete", "pod", "app")


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6", "orinnano-jp6")) as up:
        bring_registry(LAB, jetpack=6)
        yield up


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    """The cluster, before it has an image of the user."""
    site(SUPPLIED).checked()
    return Cluster(boards)


@pytest.fixture(scope="module")
def base() -> bytes:
    """The layer that all versions of the image have."""
    return payload(1, MEGABYTES)


def test_check_image_says_it_of_each_board(boards: list[Board], tmp_path: Path) -> None:
    user_images.write(tmp_path / "app.tar", [])
    user_images.write(tmp_path / "wrong.tar", [], arch="arm64")
    good = run_playbook(LAB, "check_image.yml", f"--extra-vars=user_images_check={tmp_path}/app.tar")
    assert good.checked().output.count(f"{NAME} fits") == len(boards)
    bad = run_playbook(LAB, "check_image.yml", f"--extra-vars=user_images_check={tmp_path}/wrong.tar")
    said = " ".join(bad.output.split())
    assert bad.returncode != 0
    for board in boards:
        assert f"{NAME} is an image for arm64, and {board.name} is amd64" in said
    assert "docker buildx build --platform linux/amd64" in said


def test_image_crosses_the_link_once_for_all_boards(
    boards: list[Board], cluster: Cluster, base: bytes, tmp_path: Path
) -> None:
    archive = tmp_path / "app.tar"
    image = user_images.write(archive, [base, payload(2, 1)])
    bring_images(LAB, archive)
    before = crossed(LAB)
    load(SUPPLIED, images(str(archive))).checked()
    sent = crossed(LAB) - before
    assert [image_id(board) for board in boards] == [image] * len(boards)
    assert sent < (MEGABYTES + 1) * MB + OVERHEAD, sent
    run_pod(cluster, boards[2])
    for board in boards:
        assert board.exec("docker", "ps", "--all", "--quiet", KEEPERS)
    load(SUPPLIED, images(str(archive))).unchanged()


def test_next_version_sends_its_new_layer(
    boards: list[Board], cluster: Cluster, base: bytes, tmp_path: Path
) -> None:
    archive, old = tmp_path / "app.tar", image_id(boards[0])
    image = user_images.write(archive, [base, payload(3, 2)])
    bring_images(LAB, archive)
    before = crossed(LAB)
    load(SUPPLIED, images(str(archive))).checked()
    sent = crossed(LAB) - before
    assert [image_id(board) for board in boards] == [image] * len(boards)
    assert sent < 2 * MB + OVERHEAD < MEGABYTES * MB, sent
    # The version before it is gone.
    assert [image_id(board, old) for board in boards] == [""] * len(boards)


def test_run_after_a_cut_goes_on(boards: list[Board], cluster: Cluster, tmp_path: Path) -> None:
    archive, supply = tmp_path / "app.tar", boards[1]
    image = user_images.write(archive, [payload(4, MEGABYTES)])
    bring_images(LAB, archive)
    parts = f"du --bytes --summarize {STORE}/partial 2> /dev/null | cut -f 1"

    def cut(line: str) -> bool:
        """Kill the run when a third of the layer is there."""
        if "Send the layers that the registry lacks" not in line:
            return False
        there = f"the first pieces in {STORE}/partial"
        wait_until(lambda: int(supply.exec("sh", "-c", parts) or 0) > MEGABYTES * MB // 3, there, 120)
        return True

    before = crossed(LAB)
    with shaped(LAB, 10):
        run_playbook(LAB, "site.yml", "--tags=user_images", SUPPLIED, images(str(archive)), on_line=cut)
    first = crossed(LAB) - before
    assert image_id(boards[0]) != image
    load(SUPPLIED, images(str(archive))).checked()
    sent = crossed(LAB) - before
    assert [image_id(board) for board in boards] == [image] * len(boards)
    assert first > MEGABYTES * MB // 3
    assert sent < 1.3 * MEGABYTES * MB + 2 * OVERHEAD, (first, sent)


def test_image_of_another_architecture_stops_before_anything_is_sent(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    archive = tmp_path / "other.tar"
    user_images.write(archive, [], name="other:1", arch="arm64")
    bring_images(LAB, archive, architectures=["amd64", "arm64"])
    run = load(SUPPLIED, images("other.tar"))
    said = " ".join(run.output.split())
    assert run.returncode != 0
    assert f"other:1 is an image for arm64, and {boards[0].name} is amd64" in said
    assert "docker buildx build --platform linux/amd64" in said


def test_without_the_setting_nothing_of_it_is_left(boards: list[Board], cluster: Cluster) -> None:
    bring_images(LAB)
    load(SUPPLIED).checked()
    assert [image_id(board) for board in boards] == [""] * len(boards)
    assert [board.exec("docker", "ps", "--all", "--quiet", KEEPERS) for board in boards] == [""] * len(boards)
    load(SUPPLIED).unchanged()


def test_board_without_a_registry_gets_the_layers_that_it_lacks(
    boards: list[Board], cluster: Cluster, base: bytes, tmp_path: Path
) -> None:
    archive, one = tmp_path / "app.tar", boards[2]
    alone = (f"--limit={one.name}", "--extra-vars=image_supply_host=", images("app.tar"))
    user_images.write(archive, [base])
    bring_images(LAB, archive)
    load(*alone).checked()
    image = user_images.write(archive, [base, payload(5, 1)])
    bring_images(LAB, archive)
    before = crossed(LAB)
    load(*alone).checked()
    sent = crossed(LAB) - before
    assert image_id(one) == image
    assert sent < MB + OVERHEAD, sent
    assert one.exec("sh", "-c", ON_THEIR_WAY) == ""


PINNED = "k3s ctr --namespace=k8s.io images ls | grep -F io.cri-containerd.pinned=pinned | grep -F {} || true"


def contained_names(board: Board) -> list[str]:
    return board.exec("k3s", "ctr", "--namespace=k8s.io", "images", "ls", "--quiet").split()


# The last two, for the cluster becomes another one.
def test_containerd_pulls_the_image_pins_it_and_loses_it(
    boards: list[Board], cluster: Cluster, base: bytes, tmp_path: Path
) -> None:
    ends = f"--extra-vars=k3s_reset_cluster={boards[0].name}"
    run_playbook(LAB, "reset.yml", SUPPLIED, ends).checked()
    contained = ("--extra-vars=k3s_container_runtime=containerd image_supply_host=jetson-2",)
    archive = tmp_path / "app.tar"
    site(*contained).checked()
    # No host of the site has Docker, so the registry has none of the bundle's own images.
    assert boards[1].exec("sh", "-c", f"ls {TAGS} 2> /dev/null || true") == ""

    # Of the next version, only the layer that is new.
    for layers, megabytes in ([base], MEGABYTES), ([base, payload(6, 1)], 1):
        image = user_images.write(archive, layers)
        bring_images(LAB, archive)
        before = crossed(LAB)
        load(*contained, images(str(archive))).checked()
        sent = crossed(LAB) - before
        assert sent < megabytes * MB + OVERHEAD < 2 * MEGABYTES * MB, sent
        assert boards[1].exec("ls", TAGS) == image.partition(":")[2]
        for board in boards:
            assert NAME in board.exec("sh", "-c", PINNED.format(NAME))
            # The names in the registry are gone.
            assert not [name for name in contained_names(board) if "/jetson-k3s" in name]
        load(*contained, images(str(archive))).unchanged()
    run_pod(Cluster(boards, "nvidia"), boards[2])

    bring_images(LAB)
    load(*contained).checked()
    for board in boards:
        assert NAME not in contained_names(board)
    load(*contained).unchanged()


def test_containerd_without_a_registry_gets_the_image_from_the_controller(
    boards: list[Board], cluster: Cluster, base: bytes, tmp_path: Path
) -> None:
    archive, one = tmp_path / "app.tar", boards[2]
    contained = "--extra-vars=k3s_container_runtime=containerd image_supply_host="
    alone = (f"--limit={one.name}", contained, images("app.tar"))
    user_images.write(archive, [base])
    bring_images(LAB, archive)
    load(*alone).checked()
    assert NAME in one.exec("sh", "-c", PINNED.format(NAME))
    assert one.exec("sh", "-c", ON_THEIR_WAY) == ""
    load(*alone).unchanged()
