# SPDX-License-Identifier: Apache-2.0
"""Boards with Internet need no bundle: what is known without one, and the plugin's image from a registry."""

import os
from pathlib import Path

import pytest

from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.test_bundle_index import archive

KNOWN = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: preflight, tasks_from: bundle.yml}
    - ansible.builtin.debug:
        msg: "{{ preflight_bundle_info.files | first }} {{ preflight_bundle_info.versions.k3s_version }}"
"""
PULL = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: gpu_device_plugin, tasks_from: image.yml}
"""
BUILD = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: preflight, tasks_from: bundle.yml}
    - ansible.builtin.import_role: {name: gpu_device_plugin, tasks_from: build.yml}
    - ansible.builtin.debug:
        msg: >-
          {{ __gpu_device_plugin_image }} {{ __gpu_device_plugin_image_id }} {{ preflight_bundle_info.path }}
"""
IMAGE = f"registry.example:5000/tegra-device-plugin:1@sha256:{'0' * 64}"
# Containerd's client on a board: it has the images that are files beside it.
CRICTL = """\
#!/bin/sh
[ "$1" = crictl ] && [ "$3" = "$IMAGE" ] || exit 3
case $2 in
    inspecti) [ -e "$0.image" ] ;;
    pull) if [ -n "$REFUSAL" ]; then echo "$REFUSAL" >&2; exit 1; fi; touch "$0.image" ;;
esac
"""


def test_what_is_known_are_the_release_of_k3s_and_the_images_that_were_built(tmp_path: Path) -> None:
    archive(tmp_path / "tegra-device-plugin-arm64.tar.gz", "a:1")
    variables = {"__preflight_built": str(tmp_path), "__preflight_k3s": "v1"}
    run = play_text(tmp_path, KNOWN, variables=variables)
    assert "tegra-device-plugin-arm64.tar.gz v1" in run.said


@pytest.fixture
def path(tmp_path: Path) -> str:
    program = tmp_path / "bin/k3s"
    program.parent.mkdir()
    program.write_text(CRICTL)
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def pull(directory: Path, path: str, *arguments: str, refusal: str = "") -> Run:
    variables = {"gpu_device_plugin_image": IMAGE, "__gpu_device_plugin_container_runtime": "containerd"}
    fails = bool(refusal)
    return play_text(
        directory, PULL, *arguments, variables=variables, fails=fails, PATH=path, IMAGE=IMAGE, REFUSAL=refusal
    )


def test_board_pulls_the_image_once(tmp_path: Path, path: str) -> None:
    checked = pull(tmp_path, path, "--check")
    assert f"localhost: {IMAGE} would be pulled" in checked.said
    assert not (tmp_path / "bin/k3s.image").exists()
    assert "changed=1" in pull(tmp_path, path).stdout
    assert (tmp_path / "bin/k3s.image").exists()
    assert "changed=0" in pull(tmp_path, path).stdout


def test_registry_that_does_not_answer_is_named_in_a_sentence(tmp_path: Path, path: str) -> None:
    run = pull(tmp_path, path, refusal="dial tcp 192.0.2.1:5000: connect: no route to host")
    assert (
        f"localhost: the board could not pull {IMAGE} (gpu_device_plugin_image): "
        "dial tcp 192.0.2.1:5000: connect: no route to host. Correct the reference"
    ) in run.said


# In place of what builds the image, once its environment is there: the archive is a file beside the checkout.
BUILDER = """\
#!/bin/sh
[ -e image ] || exit 3
[ -e ../archive ] || { echo 'lab: a line before' >&2; echo 'error: no Docker' >&2; exit 1; }
mkdir -p dist
cp ../archive "dist/tegra-device-plugin-$4.tar.gz"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name, text in {"tools/bootstrap.sh": 'touch "$1"', ".venv/bin/python": BUILDER}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root


def build(directory: Path, checkout: Path, *arguments: str, fails: bool = False, **variables: str) -> Run:
    settings = {
        "__preflight_built": f"{checkout}/dist",
        "__gpu_device_plugin_checkout": str(checkout),
        **variables,
    }
    groups = {"server": ["jetson-1", "jetson-2"]}
    return play_text(directory, BUILD, *arguments, groups=groups, variables=settings, fails=fails)


def test_image_that_is_missing_is_built_once(tmp_path: Path, checkout: Path) -> None:
    archive(tmp_path / "archive", "tegra-device-plugin:1")
    checked = build(tmp_path, checkout, "--check")
    assert f"There is no {checkout}/dist/tegra-device-plugin-arm64.tar.gz" in checked.said
    assert "would be built on this computer" in checked.said
    assert not (checkout / "dist").exists()
    run = build(tmp_path, checkout)
    assert "is built on this computer" in run.said
    assert run.said.count("tegra-device-plugin:1 sha256:") == 2
    assert build(tmp_path, checkout).stdout.count("changed=0") == 2


def test_computer_that_cannot_build_is_told_the_ways_out(tmp_path: Path, checkout: Path) -> None:
    run = build(tmp_path, checkout, fails=True)
    assert (
        "The plugin's image could not be built on this computer: no Docker. Do one of these: install Docker "
        "or Podman on this computer; set gpu_device_plugin_image"
    ) in run.said


def test_nothing_is_built_where_a_registry_has_the_image(tmp_path: Path, checkout: Path) -> None:
    run = build(tmp_path, checkout, gpu_device_plugin_image=IMAGE)
    assert run.stdout.count("changed=0") == 2
    assert f"{IMAGE} sha256:{'0' * 64} {checkout}/dist" in run.said
