# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/pods.md and docs/devices.md from top to bottom: the output is the page's.

Cameras, encoder and PyTorch are SIMULATED.
"""

import doctest
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.arm64 import build as plugin
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import reports_dir, run_here, run_playbook
from tests.docs import markdown
from tests.docs.commands import PROMPT
from tests.lab import inventory, lab, lab_dir
from tests.lab.board import Board
from tools import debian
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "pods"
PODS, DEVICES = (markdown.read(CHECKOUT / "docs" / name) for name in ("pods.md", "devices.md"))
OWN_IMAGE = "registry.example.com/cuda-app:1.0"
# Nodes of other devices, which no container may use unless it gets them. To open them changes nothing.
FUSE, TUN, NULL = "c 10 229", "c 10 200", "c 1 3"
BY_PATH = "/dev/v4l/by-path/platform-3610000.usb-usb-0:2.%d:1.0-video-index0"
CAMERAS = {"front": ("/dev/video0", FUSE, BY_PATH % 1), "rear": ("/dev/video2", TUN, BY_PATH % 2)}
ARGUS = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/argus_socket'); s.listen(); s.accept()"
)
# What the board has got by `docker tag`, and what needs a base image of NVIDIA's.
UNTRIED = (f"docker save {OWN_IMAGE} | ssh", "docker buildx build")
DURATION = re.compile(r"\b([0-9.]+ ?(ms|[smh]))+\b")


def steps(page: markdown.Document) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page with their prompts, and what each has to say; empty for anything."""
    for block in page.blocks:
        if block.language == "sh":
            yield from ((f"$ {line}", "") for line in block.text.splitlines())
        if block.language == "console":
            for part in re.split(r"^(?=\S*\$ )", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output


STEPS = [
    (page, *step)
    for page in (PODS, DEVICES)
    for step in steps(page)
    if not any(one in step[0] for one in UNTRIED)
]


def settings(page: markdown.Document) -> dict[str, Any]:
    """Return the variables of the page's first block of settings."""
    found: dict[str, Any] = yaml.safe_load(
        next(block.text for block in page.blocks if block.language == "yaml")
    )
    return found


def plug(board: Board, camera: str) -> None:
    """Plug a SIMULATED camera in: its node, then its link, as udev makes them."""
    node, number, link = CAMERAS[camera]
    board.exec(
        "sh", "-c", f"mknod {node} {number}; mkdir -p {Path(link).parent}; ln -s ../../{node[5:]} {link}"
    )


def unplug(board: Board, camera: str) -> None:
    node, _, link = CAMERAS[camera]
    board.exec("rm", node, link)


def said(expected: str, got: str) -> bool:
    """Compare outputs; times may differ, and so may blanks and what the page leaves out by `...`."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(DURATION.sub("T", expected), DURATION.sub("T", got), options)


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with lab.fresh(LAB, ("agxorin-jp6",)) as (one,):
        one.exec("sh", "-c", f"mknod /dev/v4l2-nvenc {NULL}")
        for camera in CAMERAS:
            plug(one, camera)
        run_playbook(LAB, "site.yml", "-e", json.dumps(settings(DEVICES))).checked()
        yield one


@pytest.fixture(scope="module")
def places(board: Board, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what stands for the names of the pages."""
    directory = tmp_path_factory.mktemp("examples")
    for manifest in (CHECKOUT / "docs/examples").glob("*.yaml"):
        text = re.sub(r"image: dustynv/.*", f"image: {plugin.reference()}", manifest.read_text())
        text = re.sub(r"command: .*torch.*", "command: [python3.11, -m, tegra_device_plugin, compute]", text)
        (directory / manifest.name).write_text(text)
    shared: dict[str, dict[str, Any]] = {"gpu_device_plugin_config": {}}
    for page in (DEVICES, PODS):
        shared["gpu_device_plugin_config"] |= settings(page)["gpu_device_plugin_config"]
        (directory / Path(page.name).name).with_suffix(".yml").write_text(yaml.safe_dump(shared))
    here = f"-i {lab_dir(LAB)}/inventory.ini -e gpu_verify_reports={reports_dir(LAB)}"
    image = inventory.bundle_path(LAB) / f"tegra-device-plugin-{debian.architecture()}.tar.gz"
    return {
        f"docker save {OWN_IMAGE}": f"gunzip --stdout {image}",
        "> cuda-app.tar.gz": f"> {directory}/cuda-app.tar.gz",
        "src=cuda-app.tar.gz": f"src={directory}/cuda-app.tar.gz",
        "ssh jetson@192.168.1.11": f"docker exec --interactive {board.container}",
        "docs/examples/": f"{directory}/",
        "-i inventory ": f"{here} -e @{directory}/PAGE.yml ",
        f"sudo docker build --tag {OWN_IMAGE} .": f"docker tag {plugin.reference()} {OWN_IMAGE}",
        "sudo systemctl restart nvargus-daemon": f'systemd-run --quiet python3 -c "{ARGUS}"',
    }


@pytest.mark.parametrize(("page", "command", "output"), STEPS, ids=[command for _, command, _ in STEPS])
def test_command_of_the_page_says_what_the_page_shows(
    places: dict[str, str], board: Board, page: markdown.Document, command: str, output: str
) -> None:
    prompt = PROMPT.match(command)
    assert prompt
    text = prompt["command"]
    for name, place in places.items():
        text = text.replace(name, place)
    text = text.replace("/PAGE.yml", f"/{Path(page.name).stem}.yml")
    if prompt["where"] is None:
        done = run_here("bash", "-c", text, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stdout
        return
    got = board.exec("sh", "-c", text, check=not output)
    deadline = time.monotonic() + 120
    while output and not said(output, got):
        assert time.monotonic() < deadline, got
        time.sleep(0.5)
        got = board.exec("sh", "-c", text, check=False)


def test_camera_that_is_only_mounted_is_not_permitted(board: Board) -> None:
    pod = yaml.safe_load((CHECKOUT / "docs/examples/usb-camera.yaml").read_text())
    (container,) = pod["spec"]["containers"]
    del container["resources"]
    container["volumeMounts"] = [{"name": "camera", "mountPath": "/dev/video0"}]
    pod["spec"]["volumes"] = [{"name": "camera", "hostPath": {"path": "/dev/video0", "type": "CharDevice"}}]
    cluster = Cluster([board])
    cluster.apply(pod)
    wait_until(lambda: cluster.phase("usb-camera") == "Failed", "the camera is not opened", 60)
    assert "Operation not permitted" in cluster.kubectl("logs", "usb-camera")
    cluster.kubectl("delete", "pod", "usb-camera")


def test_camera_that_is_unplugged_is_not_allocatable_and_comes_back_with_another_number(board: Board) -> None:
    cluster = Cluster([board])
    name = "jetson-k3s.github.io/camera-front"

    def counts(capacity: int, allocatable: int) -> bool:
        (status,) = (node["status"] for node in cluster.nodes())
        return (status["capacity"][name], status["allocatable"][name]) == (str(capacity), str(allocatable))

    wait_until(lambda: counts(1, 1), "both cameras are there", 60)
    unplug(board, "front")
    wait_until(lambda: counts(1, 0), "the front camera is unplugged", 60)  # a kubelet reports every 10 s
    _, number, link = CAMERAS["front"]
    board.exec("sh", "-c", f"mknod /dev/video4 {number}; ln -s ../../video4 {link}")
    wait_until(lambda: counts(1, 1), "the front camera is plugged in again", 60)
    cluster.apply(yaml.safe_load((CHECKOUT / "docs/examples/usb-camera.yaml").read_text()))
    wait_until(lambda: cluster.phase("usb-camera") == "Succeeded", "the new node is opened", 60)
    cluster.kubectl("delete", "pod", "usb-camera")


def test_pattern_that_matches_a_disk_stops_site_yml(board: Board) -> None:
    board.exec("sh", "-c", "mknod /dev/camera-disk b 7 0")
    group = {"paths": [{"path": "/dev/camera*"}]}
    devices = [{"name": "camera", "groups": [group]}]
    variables = {"gpu_device_plugin_config": {"version": "v1", "devices": devices}}
    run = run_playbook(LAB, "site.yml", "-e", json.dumps(variables))
    assert run.returncode != 0
    assert "no container gets /dev/camera-disk: a block device" in run.output
    board.exec("rm", "/dev/camera-disk")


@pytest.mark.parametrize("works", [True, False])
def test_ci_of_another_repository_tests_its_image(board: Board, tmp_path: Path, works: bool) -> None:
    """The build is SIMULATED: the device plugin's image stands for the repository's."""
    bundle = inventory.bundle_path(LAB) / f"tegra-device-plugin-{debian.architecture()}.tar.gz"
    programs = {
        "docker": f'[ "$1" = save ] || exit 0; exec gunzip --stdout {bundle}',
        "ssh": f'shift; exec docker exec --interactive {board.container} sh -c "$*"',
    }
    docker = shutil.which("docker")
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text.replace('exec docker', f'exec {docker}')}\n")
        (tmp_path / name).chmod(0o755)
    manifest = (CHECKOUT / "docs/examples" / "gpu-test").with_suffix(".yaml").read_text()
    tried = manifest if works else manifest.replace("[compute]", "[no-command]")
    (tmp_path / "gpu-test.yaml").write_text(tried)
    board.exec("docker", "tag", plugin.reference(), OWN_IMAGE)
    job = yaml.safe_load((CHECKOUT / "docs/ci/own-image.yml").read_text())["jobs"]["test"]
    place = {**job["env"], "IMAGE": OWN_IMAGE, "NODE": board.name, "JOB": f"gpu-test-{works}".lower()}
    place["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    steps = [step["run"] for step in job["steps"] if "run" in step]
    ended = [run_here("bash", "-e", "-c", f"cd {tmp_path}\n{step}", **place) for step in steps]
    said = "\n".join(one.stdout for one in ended)
    assert [one.returncode for one in ended] == [0, 0, int(not works), 0], said
    assert ("all are right" if works else "no-command") in said
    assert OWN_IMAGE not in board.exec("docker", "images", "--format={{.Repository}}:{{.Tag}}")
    assert board.exec("k3s", "kubectl", "get", "jobs", "--output=name") == ""
