# SPDX-License-Identifier: Apache-2.0
"""Disks and directories that the roles write to: what is mounted there, and what Docker's images lie on."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_engine, jetson_places
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_boards, preflight_places

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import with_facts

ROOT = "/dev/mmcblk0p1 / ext4 rw,relatime 0 0\n"
RUN = "tmpfs /run tmpfs rw,nosuid,nodev,noexec 0 0\n"
OVERLAYROOT = (
    "tmpfs-root /media/root-rw tmpfs rw,relatime 0 0\n"
    "overlayroot / overlay rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay,workdir=/w 0 0\n"
)


def tree(root: Path, mounts: str, *directories: str) -> str:
    for one in ("proc", *directories):
        (root / one).mkdir(parents=True, exist_ok=True)
    (root / "proc/mounts").write_text(mounts)
    return str(root)


FINDINGS: list[tuple[str, str, list[str], str]] = [
    ("", "", [], ""),
    ("/dev/sda1 /usr ext4 ro 0 0\n", "", ["place-read-only"], "/usr/local/bin on /usr (ext4)"),
    ("/dev/sda1 /etc ext4 ro 0 0\n", "", ["place-read-only"], "/etc/systemd/system, /etc/rancher"),
    ("/dev/root / squashfs ro 0 0\n", "", ["place-read-only"], "/usr/local/bin"),
    ("/dev/sda1 /usr/local/bin ext4 rw,noexec 0 0\n", "", ["place-noexec"], "/usr/local/bin on"),
    (
        "/dev/sda1 /var ext4 rw,noexec 0 0\n",
        "",
        ["place-noexec"],
        "/var/lib/rancher/k3s/data, /var/lib/kubelet on",
    ),
    ("/dev/sda1 /var/lib/rancher/k3s/data ext4 rw,noexec 0 0\n", "", ["place-noexec"], "k3s/data on"),
    ("/dev/sda1 /var/log ext4 rw,noexec 0 0\n", "", [], ""),  # no program runs there
    ("/dev/sda1 /etc ext4 rw,noexec 0 0\n", "", [], ""),
    ("log2ram /var/log tmpfs rw 0 0\n", "", [], ""),  # logs of pods may go
    ("tmpfs /etc tmpfs rw 0 0\n", "", ["place-in-memory"], "/etc/systemd/system"),
    (OVERLAYROOT, "", ["place-in-memory"], "/usr/local/bin"),
    # An overlay on a disk keeps its files, and so may one whose upper directory cannot be seen.
    ("/dev/sda1 /data ext4 rw 0 0\noverlay /etc overlay rw,upperdir=/data/etc,workdir=/w 0 0\n", "", [], ""),
    ("overlay / overlay rw,lowerdir=/l,upperdir=/elsewhere/u,workdir=/w 0 0\n", "", [], ""),
    ("/dev/sda1 /etc/docker ext4 ro 0 0\n", "docker", ["place-read-only"], "/etc/docker on"),
    ("/dev/sda1 /etc/docker ext4 ro 0 0\n", "", [], ""),
    ("/dev/sda1 /var/lib/dpkg ext4 rw,noexec 0 0\n", "packages", ["place-noexec"], "/var/lib/dpkg on"),
    ("/dev/sda1 /var/backups ext4 ro 0 0\n", "packages docker rename registry", [], ""),
    ("/dev/sda1 /etc/jetson-k3s-registry ext4 ro 0 0\n", "registry", ["place-read-only"], "registry on"),
]


@pytest.mark.parametrize(("mounts", "conditions", "expected", "words"), FINDINGS)
def test_directories_of_the_roles_are_writable_and_run_programs(
    tmp_path: Path, mounts: str, conditions: str, expected: list[str], words: str
) -> None:
    directories = [place.path.lstrip("/") for place in jetson_places.PLACES]
    found_there = jetson_places.place_facts(tree(tmp_path, ROOT + RUN + mounts, *directories))
    findings = preflight_places.findings_of_places(with_facts(places=found_there), conditions.split())
    assert [one["id"] for one in findings] == expected
    assert all(words in one["found"] and one["fix"] for one in findings)


def test_place_that_is_a_link_is_judged_where_it_leads(tmp_path: Path) -> None:
    root = tree(
        tmp_path, ROOT + "/dev/sda1 /var/usrlocal ext4 rw,noexec 0 0\n", "usr", "var/usrlocal/bin", "var/lib"
    )
    (tmp_path / "usr/local").symlink_to("../var/usrlocal")
    found = jetson_places.place_facts(root)
    assert found["places"]["/usr/local/bin"] == "/var/usrlocal"
    assert found["places"]["/var/lib/rancher/k3s/data"] == "/"
    assert json.dumps(found)


def test_a_place_that_only_a_new_k3s_needs_is_not_judged_later(tmp_path: Path) -> None:
    places = jetson_places.place_facts(tree(tmp_path, ROOT + "/dev/a /usr ext4 ro 0 0\n", "usr/local/bin"))
    there = with_facts(places=places, k3s__version=with_facts()["bundle"]["k3s_version"])
    assert preflight_places.findings_of_places(there, []) == []


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        ({"free_bytes": 60 * 10**6}, ["place-full"]),
        ({"free_inodes": 100}, ["place-full"]),
        ({"free_inodes": None}, []),  # btrfs
        ({"read_only": True, "noexec": True, "free_bytes": 0}, ["place-read-only"]),  # one cause, one finding
    ],
)
def test_room_for_the_files_of_the_roles(change: Data, ids: list[str]) -> None:
    facts = with_facts()
    facts["places"]["mounts"]["/"].update(change)
    assert [one["id"] for one in preflight_places.findings_of_places(facts, [])] == ids
    # The same file system has a finding about its disk already.
    assert preflight_places.findings_of_places(facts, [], {1}) == []


@pytest.mark.parametrize(
    ("fstab", "path", "point"),
    [
        ("UUID=1 /mnt/nvme ext4 defaults,nofail 0 2\n", "/mnt/nvme/docker", "/mnt/nvme"),
        ("UUID=1 /mnt/nvme ext4 noauto 0 2\n", "/mnt/nvme/docker", None),
        ("# UUID=1 /mnt/nvme ext4 defaults 0 2\n", "/mnt/nvme/docker", None),
        ("UUID=1 /mnt/a\\040b ext4 defaults 0 2\n", "/mnt/a b/docker", "/mnt/a b"),
        ("/dev/root / ext4 defaults 0 1\nswap none swap sw 0 0\n", "/var/lib/docker", None),
        ("UUID=1 /run ext4 defaults 0 1\n", "/run/docker", None),
        ("UUID=1 /mnt/nv ext4 defaults 0 1\n", "/mnt/nvme", None),
        ("short\n", "/mnt/nvme", None),
    ],
)
def test_disk_that_is_not_mounted(tmp_path: Path, fstab: str, path: str, point: str | None) -> None:
    root = tree(tmp_path, ROOT + RUN, "etc")
    (tmp_path / "etc/fstab").write_text(fstab)
    assert jetson_places.unmounted(root, jetson_places.mounts(root), path) == point
    facts = with_facts(disks__docker__unmounted=point)
    found = preflight_places.findings_of_unmounted(facts)
    assert [f"sudo mount {point}" in one["fix"] for one in found] == [True] * (point is not None)


INSTALLED_BY = {"docker.io": "/usr/bin\n/usr/bin/dockerd\n", "docker-ce": "/usr/bin/docker-proxy\n"}


@pytest.mark.parametrize(
    ("files", "program", "running", "expected"),
    [
        (INSTALLED_BY, "/usr/bin/dockerd", None, ("package", "docker.io")),
        (INSTALLED_BY, "/bin/dockerd", None, ("package", "docker.io")),
        (INSTALLED_BY, "/usr/local/bin/dockerd", None, ("static", None)),
        ({}, "/usr/bin/dockerd", None, ("static", None)),
        ({}, None, "/opt/docker/dockerd", ("static", None)),
        (INSTALLED_BY, "/usr/bin/dockerd", "/opt/docker/dockerd", ("static", None)),
        ({"snap": ""}, None, None, ("snap", None)),
        (INSTALLED_BY | {"snap": ""}, "/usr/bin/dockerd", None, ("snap", "docker.io")),
        ({"podman": ""}, None, None, ("podman", None)),
        ({}, None, None, (None, None)),
        ({"rpm": ""}, "/usr/bin/dockerd", None, ("other", None)),
    ],
)
def test_origin_of_the_engine(
    tmp_path: Path, files: Data, program: str | None, running: str | None, expected: tuple[str | None, ...]
) -> None:
    if "rpm" not in files:
        (tmp_path / jetson_engine.DPKG).mkdir(parents=True)
    for name in files.keys() & INSTALLED_BY.keys():
        (tmp_path / jetson_engine.DPKG / f"{name}.list").write_text(files[name])
    if "snap" in files:
        (tmp_path / jetson_engine.SNAPS[0]).mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir(parents=True)
    if "podman" in files:
        (tmp_path / jetson_engine.CLIENT).write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')
    if running:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/docker.pid").write_text("42")
        (tmp_path / "proc/42").mkdir(parents=True)
        (tmp_path / "proc/42/exe").symlink_to(running)
    found = jetson_engine.engine_facts(str(tmp_path), program)
    assert (found["origin"], found["package"]) == expected
    assert found["path"] == (running or program)


MARKER = ["driver-type", "io.containerd.snapshotter.v1"]


@pytest.mark.parametrize(
    ("info", "version", "images", "expected"),
    [
        ({"ServerVersion": "29.1.0", "DriverStatus": [MARKER]}, "29.1.0", True, True),
        ({"ServerVersion": "29.1.0", "DriverStatus": [["Backing", "extfs"]]}, "29.1.0", False, False),
        ({}, "29.1.0", False, True),  # not started yet
        ({}, "29.1.0", True, False),  # after an update Docker keeps its own store
        ({}, "28.5.2", False, False),
        ({}, None, False, False),
    ],
)
def test_image_store_of_the_engine(
    tmp_path: Path, info: Data, version: str | None, images: bool, expected: bool
) -> None:
    if images:
        (tmp_path / "image").mkdir()
    assert jetson_engine.uses_containerd_store(info, MARKER, version, str(tmp_path)) is expected


@pytest.mark.parametrize(
    ("command", "config", "place"),
    [
        (
            "/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock",
            None,
            "/var/lib/containerd",
        ),
        ("dockerd --containerd=/x", 'version = 2\nroot = "/mnt/nvme/containerd"\n', "/mnt/nvme/containerd"),
        ("dockerd --containerd=/x", '[plugins]\n  root_path = "/x"\n', "/var/lib/containerd"),
        (None, None, "/var/lib/containerd"),
        ("/usr/local/bin/dockerd", None, "/data/docker/containerd/daemon"),
    ],
)
def test_containerd_of_the_engine_has_a_place_of_its_own(
    tmp_path: Path, command: str | None, config: str | None, place: str
) -> None:
    (tmp_path / "etc/containerd").mkdir(parents=True)
    if config:
        (tmp_path / jetson_engine.CONTAINERD_CONFIG).write_text(config)
    assert jetson_engine.containerd_root(str(tmp_path), command, "/data/docker") == place


def store(**more: Any) -> Data:
    """A board with Docker's data on an NVMe disk, and 1.6 GB on the eMMC."""
    small = {"total_bytes": 14 * 10**9, "free_bytes": 16 * 10**8}
    facts = with_facts(docker__containerd_store=True, docker__data_root="/mnt/nvme/docker", **more)
    for name in ("k3s", "kubelet", "uploads", "containerd"):
        facts["disks"][name].update(small)
    facts["disks"]["docker"].update({"filesystem": 9, "path": "/mnt/nvme/docker"})
    return facts


def test_images_of_the_containerd_store_are_not_below_data_root() -> None:
    # https://github.com/moby/moby/issues/50517
    (found,) = preflight_boards.findings_of_disks(store())
    assert (found["id"], "/var/lib/containerd" in found["found"]) == ("disk-eviction", True)
    assert "images are in /var/lib/containerd: mount a larger disk there" in found["fix"]
    assert "set data-root" not in found["fix"]
    assert preflight_boards.findings_of_disks(store() | {"container_runtime": "containerd"})
    own = store(docker__containerd_root="/mnt/nvme/docker/containerd/daemon")
    assert preflight_boards.findings_of_disks(own) == []
    without = store()
    without["docker"]["containerd_store"] = False
    assert preflight_boards.findings_of_disks(without) == []


def test_two_directories_of_one_overlay_are_one_finding() -> None:
    facts = with_facts(disks__k3s__type="overlay", disks__docker__type="overlay")
    (found,) = preflight_boards.findings_of_disks(facts)
    assert found["found"] == "/var/lib/rancher/k3s, /var/lib/docker: overlay file system"
