# SPDX-License-Identifier: Apache-2.0
"""Whether a board can run an image, by what the image's configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_requirements import requirements
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import image_fit

from tests.docs import CHECKOUT
from tests.lab import archive
from tests.unit.roles.places import COLLECTION, Data
from tests.unit.roles.playing import answer, play_text

BOARDS: dict[str, Data] = {
    "nano": {"arch": "aarch64", "l4t": "32.7.4"},
    "xavier": {"arch": "aarch64", "l4t": "35.4.1"},
    "orin": {"arch": "aarch64", "l4t": "36.4.0"},
    "thor": {"arch": "aarch64", "l4t": "38.2.0"},
    "new-orin": {"arch": "aarch64", "l4t": "39.1"},
    "virtual": {"arch": "x86_64", "l4t": "36.4.0"},
    "server": {"arch": "x86_64", "l4t": None},
}


def described(name: str, arch: str = "arm64", *env: str, **labels: str) -> Data:
    config = {"architecture": arch, "config": {"Env": list(env), "Labels": labels or None}}
    return {**requirements(config, name), "name": name}


PLAIN = described("app:1")
AMD64 = described("app:1", "amd64")
CUDA12 = described("app:1", "arm64", "CUDA_VERSION=12.6.11")
CUDA11 = described("app:1", "arm64", "CUDA_VERSION=11.4.19")
FOR_SERVERS = described("app:1", "arm64", "CUDA_VERSION=12.2.0", "NVARCH=sbsa")
R36, R35 = described("dustynv/l4t-pytorch:r36.4.0"), described("x/l4t-pytorch:r35.2.1-pth2.0-py3")
BASED = described(
    "app:1", "arm64", **{"org.opencontainers.image.base.name": "nvcr.io/nvidia/l4t-jetpack:r36.4.0"}
)
VERSIONED = described("app:1", "arm64", "L4T_VERSION=35.4.1")


@pytest.mark.parametrize(
    ("image", "board", "found"),
    [
        (PLAIN, "orin", None),
        (PLAIN, "server", "image-architecture"),
        (AMD64, "orin", "image-architecture"),
        (AMD64, "server", None),
        (CUDA12, "orin", None),
        (CUDA12, "nano", "image-cuda"),
        (CUDA12, "xavier", "image-cuda"),
        (CUDA12, "thor", None),
        (CUDA11, "orin", None),
        (FOR_SERVERS, "orin", "image-server-cuda"),
        (FOR_SERVERS, "thor", None),
        (R36, "orin", None),
        (R36, "xavier", "image-l4t"),
        (R35, "orin", "image-l4t"),
        (R36, "new-orin", "image-l4t"),
        (described("a:r38.2.0"), "new-orin", None),
        (BASED, "xavier", "image-l4t"),
        (BASED, "orin", None),
        (VERSIONED, "orin", "image-l4t"),
        (described("app:r3"), "orin", None),
    ],
)
def test_image_and_board(image: Data, board: str, found: str | None) -> None:
    problem = image_fit.problem(image, image_fit.board_of(board, BOARDS[board]))
    assert (problem or {}).get("id") == found


def test_answer_names_image_board_and_the_base_image_to_take() -> None:
    assert image_fit.verdict([AMD64], "orin", BOARDS["orin"])["text"] == (
        "app:1 is an image for amd64, and orin is arm64. Build it for the board: "
        "docker buildx build --platform linux/arm64 ..."
    )
    said = image_fit.verdict([R35], "orin", BOARDS["orin"])
    assert said == {
        "fits": False,
        "text": "x/l4t-pytorch:r35.2.1-pth2.0-py3 is an image for L4T 35.2.1, and orin has L4T 36.4.0 "
        "(JetPack 6). Build the image from nvcr.io/nvidia/l4t-cuda:12.6.11-runtime (docs/pods.md).",
    }
    good = image_fit.verdict([CUDA12], "orin", BOARDS["orin"])
    assert good == {"fits": True, "text": "orin (arm64, L4T 36.4.0): app:1 fits (arm64, CUDA 12.6.11)"}


def test_archive_for_two_architectures_fits_both() -> None:
    for board in ("orin", "server"):
        assert image_fit.verdict([AMD64, PLAIN], board, BOARDS[board])["fits"]


def test_base_images_are_those_of_the_document() -> None:
    text = (CHECKOUT / "docs/pods.md").read_text()
    for generation, release in image_fit.RELEASES.items():
        assert f"| {generation} | " in text and f"`{release.base}`" in text


PLAY = """\
- hosts: k3s_cluster
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ given }}", cacheable: true}
    - ansible.builtin.import_role: {name: COLLECTION.user_images, tasks_from: read}
    - ansible.builtin.import_role: {name: COLLECTION.user_images, tasks_from: check}
"""


def test_playbook_says_it_for_each_board(tmp_path: Path) -> None:
    image = tmp_path / "app.tar.gz"
    archive.write(image, ["app:1"], "arm64", {"Env": ["CUDA_VERSION=12.6.11"]}, {"/app": b"program"})
    run = play_text(
        tmp_path,
        PLAY.replace("COLLECTION", COLLECTION),
        groups={"k3s_cluster": {name: {"given": BOARDS[name]} for name in ("orin", "xavier")}},
        variables={"user_images_check": str(image)},
        fails=True,
    )
    assert "orin (arm64, L4T 36.4.0): app:1 fits (arm64, CUDA 12.6.11)" in run.said
    assert (
        "app:1 has CUDA 12.6.11, and xavier has L4T 35.4.1 (JetPack 5), whose driver is of CUDA 11"
        in run.said
    )
    assert "Build the image from nvcr.io/nvidia/l4t-cuda:11.4.19-runtime" in run.said


def test_image_of_a_registry_needs_skopeo() -> None:
    said = answer("image_info", {"image": "registry.example.com/app:1.0"}, PATH="/nowhere")
    assert "skopeo is not on this computer" in said["msg"] and "sudo apt install skopeo" in said["msg"]
