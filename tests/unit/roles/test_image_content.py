# SPDX-License-Identifier: Apache-2.0
"""One identity of an image: by the archive of a bundle, and by what Docker tells of each of its stores."""

from pathlib import Path
from typing import Any

import pytest

from tests.lab import archive
from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import play_text

content = load("image_content/module_utils/image_content.py")
archives = load("preflight/module_utils/bundle_archive.py")

CONFIG = {"Entrypoint": ["/pause"], "Env": ["A=1"], "Labels": {"made": "here"}}
# As Docker 20.10 tells it of its own store: each setting is there, also an empty one.
OWN_STORE = {
    "Hostname": "",
    "Image": "",
    "Tty": False,
    "Cmd": None,
    "User": "",
    "WorkingDir": "",
    "Volumes": None,
    "OnBuild": None,
}
# As Docker 28.5 tells it of the containerd image store. Docker 29 leaves out each setting that is empty.
CONTAINERD_STORE: dict[str, Any] = {
    "Cmd": None,
    "OnBuild": None,
    "User": "",
    "Volumes": None,
    "WorkingDir": "",
}


@pytest.fixture
def image(tmp_path: Path) -> tuple[str, str]:
    """The id and the identity of an image in an archive."""
    archive.write(tmp_path / "x.tar.gz", ["docker.io/a:1"], "arm64", CONFIG, {"/pause": b"program"})
    found: dict[str, tuple[str, str]] = archives.archived_images(str(tmp_path / "x.tar.gz"))
    return found["a:1"]


@pytest.mark.parametrize("told", [OWN_STORE, CONTAINERD_STORE, {}], ids=["20.10", "28.5", "29"])
@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"Id": "sha256:of-another-manifest", "Created": "2026-01-01T00:00:00Z"}, True),
        ({"Architecture": "amd64"}, False),
        ({"RootFS": {"Layers": []}}, False),
        ({"RootFS": {"Layers": ["sha256:other"]}}, False),
        ({"Config": CONFIG | {"Env": ["A=2"]}}, False),
        ({"Config": CONFIG | {"Labels": {"made": "elsewhere"}}}, False),
        ({"Config": CONFIG | {"User": "root"}}, False),
    ],
    ids=["same", "another manifest", "architecture", "no layer", "layer", "environment", "label", "user"],
)
def test_image_is_known_in_each_store_and_no_other_is(
    tmp_path: Path, image: tuple[str, str], told: dict[str, Any], changed: dict[str, Any], same: bool
) -> None:
    documents = archives.documents(str(tmp_path / "x.tar.gz"))
    layers = archives.json.loads(documents[f"{image[0].partition(':')[2]}.json"])["rootfs"]["diff_ids"]
    inspected = {
        "Id": image[0],
        "RepoTags": ["a:1", "b:1"],
        "Os": "linux",
        "Architecture": "arm64",
        "RootFS": {"Type": "layers", "Layers": layers},
        "Config": CONFIG,
    } | changed
    inspected["Config"] = told | inspected["Config"]
    found = content.contents_by_name([inspected])
    assert [found[name] == image[1] for name in ("a:1", "b:1")] == [same, same]


PLAY = """\
- hosts: server
  gather_facts: false
  vars_files: [VARS]
  vars: {__nvidia_docker_archive: x.tar.gz}
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ {'docker': given} }}", cacheable: true}
    - ansible.builtin.debug: {msg: "lacks {{ __nvidia_docker_lacks | sort | join(',') }}."}
"""
BUNDLED = {
    "images": {"a:1": "sha256:config-a", "b:1": "sha256:config-b"},
    "contents": {"a:1": "content:a", "b:1": "content:b"},
}


def test_only_images_that_docker_lacks_are_loaded(tmp_path: Path) -> None:
    boards: dict[str, dict[str, Any]] = {
        "bare": {"images": {}, "contents": {}},
        "own-store": {"images": BUNDLED["images"], "contents": {}},
        "own-store-older": {"images": BUNDLED["images"] | {"b:1": "sha256:config-c"}, "contents": {}},
        "containerd": {
            "images": dict.fromkeys(BUNDLED["images"], "sha256:m"),
            "contents": BUNDLED["contents"],
        },
        "containerd-older": {
            "images": {"a:1": "sha256:m"},
            "contents": {"a:1": "content:a", "b:1": "content:c"},
        },
    }
    run = play_text(
        tmp_path,
        PLAY.replace("VARS", str(ROLES / "nvidia_docker/vars/main.yml")),
        groups={"server": {name: {"given": given} for name, given in boards.items()}},
        variables={"preflight_bundle_info": {"files": {"x.tar.gz": BUNDLED}}},
    )
    lacks = {name: run.said.split(f"ok: [{name}] => msg: lacks ")[1].split(".")[0] for name in boards}
    assert lacks == {
        "bare": "a:1,b:1",
        "own-store": "",
        "own-store-older": "b:1",
        "containerd": "",
        "containerd-older": "b:1",
    }
