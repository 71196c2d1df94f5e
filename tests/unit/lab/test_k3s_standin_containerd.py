# SPDX-License-Identifier: Apache-2.0
"""The stand-in where containerd runs the pods: its configuration, and the network of the pods."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.lab.k3s_standin import cgroups, cni, config, containerd
from tests.lab.k3s_standin.errors import StandinError

PLUGIN = "io.containerd.cri.v1.runtime"


def node(name: str, subnet: str | None, address: str) -> dict[str, object]:
    """Return a Node as the API server has it."""
    return {
        "metadata": {"name": name},
        "spec": {"podCIDR": subnet} if subnet else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }


@pytest.mark.parametrize("nvidia", [None, "/usr/bin/nvidia-container-runtime"])
def test_nvidias_runtime_is_one_of_containerds_where_the_board_has_it(nvidia: str | None) -> None:
    text = containerd.configuration(Path("/data"), "pause:1", Path("/cni"), Path("/bin"), nvidia)
    runtime = tomllib.loads(text)["plugins"][PLUGIN]
    runtimes = runtime["containerd"]["runtimes"]
    assert runtimes["runc"]["options"]["BinaryName"] == "runc"
    assert runtimes.get("nvidia", {}).get("options", {}).get("BinaryName") == nvidia
    assert runtime["cni"] == {"bin_dirs": ["/bin"], "conf_dir": "/cni"}


def test_pods_of_other_nodes_are_behind_those_nodes() -> None:
    nodes = [
        node("own", "10.42.0.0/24", "10.0.0.1"),
        node("other", "10.42.1.0/24", "10.0.0.2"),
        node("new", None, "10.0.0.3"),
    ]
    assert cni.routes(nodes, "own") == {"10.42.1.0/24": "10.0.0.2"}


def test_the_bridge_has_the_nodes_subnet() -> None:
    bridge = json.loads(cni.conflist("10.42.3.0/24"))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.42.3.0/24"}]]


def test_each_kubernetes_has_its_runtime(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert config.load("server", [], {}, none, runtime="containerd").runtime == "containerd"
    with pytest.raises(StandinError, match="drives containerd only: leave out --docker"):
        config.load("server", ["--docker"], {}, none, runtime="containerd")


@pytest.mark.parametrize(
    ("own", "root"),
    [
        ("4:memory:/docker/7d41/system.slice/k3s.service\n0::/x\n", "/docker/7d41"),
        ("4:memory:/docker/7d41\n", "/docker/7d41"),
        ("0::/system.slice/k3s.service\n", "/"),
    ],
)
def test_the_boards_cgroup_is_above_its_services(own: str, root: str) -> None:
    assert cgroups.root(own) == root


def test_cgroups_that_docker_left_out_are_made(tmp_path: Path) -> None:
    mounts = f"cgroup {tmp_path}/hugetlb cgroup rw 0 0\ncgroup2 {tmp_path}/unified cgroup2 rw 0 0\n"
    cgroups.ensure("/docker/7d41", cgroups.hierarchies(mounts))
    assert [path.name for path in tmp_path.iterdir()] == ["hugetlb"]
    assert (tmp_path / "hugetlb" / "docker" / "7d41").is_dir()
