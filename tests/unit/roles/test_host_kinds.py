# SPDX-License-Identifier: Apache-2.0
"""Boards and plain hosts: which steps each takes, and what preflight and the plans say of a plain host."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_fleet
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    bundle,
    gpu_status,
    gpu_verify,
    host_kinds,
    preflight_boards,
    preflight_inventory,
    preflight_rules,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight as planning

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import RULES, with_facts
from tests.unit.roles.test_gpu_verify_plan import plan as verify_plan
from tests.unit.roles.test_nvidia_docker_plan import BARE, DOCKER
from tests.unit.roles.test_nvidia_docker_plan import plan as docker_plan
from tests.unit.roles.test_preflight_plan import AGENT, SERVER, TABLES, board, ids

# Words of a Jetson alone.
OF_JETSONS = re.compile(r"JetPack|L4T|Tegra|NVIDIA|extlinux|nvpmodel|flash", re.IGNORECASE)
NO_RUNTIME: Data = {"path": None, "version": None, "optional_lists": [], "config": {"keys": []}}
SERVER_FACTS: Data = {
    "platform": "none",
    **dict.fromkeys(("jetpack", "l4t", "soc")),
    "arch": "x86_64",
    "kernel": "6.1.0-18-amd64",
    "kernel_package": "linux-image-6.1.0-18-amd64",
    "nvidia_runtime": NO_RUNTIME,
}
PLAIN: Data = {"host_kind": "plain", "container_runtime": "containerd"}


@pytest.mark.parametrize(
    ("kind", "runtime", "steps"),
    [
        ("board", "docker", {"docker", "gpu_device_plugin", "gpu_pods", "power_mode"}),
        ("board", "containerd", {"gpu_device_plugin", "gpu_pods", "nvidia_runtime", "power_mode"}),
        ("plain", "docker", {"docker"}),
        ("plain", "containerd", set()),
    ],
)
def test_each_kind_of_host_takes_its_steps(kind: str, runtime: str, steps: set[str]) -> None:
    assert {step for step in host_kinds.STEPS if host_kinds.takes(kind, step, runtime)} == steps


def test_a_host_is_a_board_unless_the_inventory_says_plain() -> None:
    hostvars = {"a": {}, "b": {"jetson_k3s_host_kind": "plain"}, "c": {"jetson_k3s_host_kind": "board"}}
    assert host_kinds.boards_of("abc", hostvars) == ["a", "c"]
    assert preflight_inventory.findings_of_kinds("abc", hostvars) == []
    (found,) = preflight_inventory.findings_of_kinds("a", {"a": {"jetson_k3s_host_kind": "server"}})
    assert (found["id"], found["found"]) == ("host-kind", "jetson_k3s_host_kind of a is server")


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
def test_preflight_of_a_plain_server_has_no_finding_of_a_board(runtime: str) -> None:
    """Its settings are those of the cluster: strict mode, units and jtop are for its boards."""
    for_boards: Data = {
        "strict": True,
        "jtop": True,
        "config": {"version": "v1", "sharing": {"units": {"memoryTotal": "7Gi"}}},
    }
    facts: Data = SERVER_FACTS | {"docker__installed": runtime == "docker"}
    settings = PLAIN | {"container_runtime": runtime} | for_boards
    given = board(SERVER, facts={SERVER: facts}, **settings)
    assert ids(planning.findings(given, TABLES, 1_000_000.0)) == []
    assert planning.plan(given)["reads_requests"] is False


@pytest.mark.parametrize(
    ("platform", "kind", "expected"),
    [
        ("none", "board", ["not-a-jetson"]),
        ("tegra", "plain", ["declared-plain-but-jetson"]),
        ("tegra", "board", []),
        ("none", "plain", []),
    ],
)
def test_the_host_has_to_be_of_the_kind_that_the_inventory_says(
    platform: str, kind: str, expected: list[str]
) -> None:
    facts = with_facts(platform=platform, host_kind=kind, model="NVIDIA Jetson AGX Orin")
    found = preflight_rules.findings_of_rules(facts, RULES)
    assert ids(found) == expected
    assert all("jetson_k3s_host_kind" in one["fix"] for one in found)


BROKEN: Data = {
    "arch": "riscv64",
    "default_route": False,
    "memory_bytes": 10**9,
    "cgroup_lacks": {"memory": "cgroup_disable"},
    "cgroup_version": 1,
    "kernel_lacks": {"overlay": "not set", "vxlan": "not set", "xt_comment": "not set"},
    "boot_arguments": "differs",
    "mig_instances": 2,
    "bundle__k3s_version": "v1.36.0+k3s1",
    "iptables": {"changes": "no nat", "not_tried": None, "problem": "no nat", "raw": None},
}


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
def test_advice_for_a_plain_host_is_not_that_for_a_jetson(runtime: str) -> None:
    facts = with_facts(**{**SERVER_FACTS, **PLAIN, **BROKEN, "container_runtime": runtime})
    found = preflight_rules.findings_of_rules(facts | preflight_boards.kernel_facts(facts), RULES)
    assert {"cgroup-controllers", "k3s-cgroup-v1", "kernel-overlay", "iptables"} <= set(ids(found))
    assert {"kernel-arguments", "gpu-mig"} & set(ids(found)) == set()
    for one in found:
        assert one["fix"], one["id"]
        if one["id"] != "architecture":
            assert not OF_JETSONS.search(json.dumps([one["found"], one["expected"], one["fix"]])), one


def test_boards_share_one_runtime_and_a_plain_host_has_its_own() -> None:
    table = [{"name": "k3s_container_runtime", "of": "cluster", "group": "k3s_cluster", "boards": True,
              "default": "docker", "shown": True, "reason": "one DaemonSet"}]  # fmt: skip
    hostvars: dict[str, Data] = {
        "a": {"jetson_k3s_host_kind": "plain", "k3s_container_runtime": "containerd"},
        "b": {},
        "c": {},
    }
    members = {"k3s_cluster": ["a", "b", "c"]}
    assert preflight_inventory.findings_of_common(table, ["cluster"], members, hostvars) == []
    hostvars["c"] = {"k3s_container_runtime": "containerd"}
    (found,) = preflight_inventory.findings_of_common(table, ["cluster"], members, hostvars)
    assert found["expected"] == "one value for all boards of [k3s_cluster]: one DaemonSet"


def test_docker_of_a_plain_host_gets_no_runtime_of_nvidia() -> None:
    given: Any = {"with_runtime": False, "daemon_config": {}}
    bare = docker_plan(BARE, **given, confirmed=["update-runtime"])
    assert (bare["missing"], bare["runtime_packages"], bare["asked"]) == (["docker.io"], [], False)
    assert "runtimes" not in bare["daemon_keys"]
    daemon: Data = {"error": None, "config": {"log-driver": "local"}}
    running = docker_plan({"docker": DOCKER | {"daemon_json": daemon, "default_runtime": "runc"}}, **given)
    assert running["configures"] is False, "runc is the default runtime, and stays"


def test_verification_of_a_plain_host_starts_no_pod_and_checks_the_node() -> None:
    catalogue = [{"id": "node-ready", "stages": ["node"], "kind": "plain"}, {"id": "x", "stages": ["node"]}]
    for kind, expected in (("plain", ["node-ready"]), ("board", ["x"])):
        state = gpu_verify.state_after({}, catalogue, "", kind=kind)
        assert [check["id"] for check in gpu_verify.of_stage(catalogue, "node", state)] == expected
    planned = verify_plan(kind="plain")
    assert (planned["loads"], planned["busy"]) == (False, "a plain host has no GPU")
    assert planned["board"]["kind"] == "plain"
    assert report_fleet.computer({"board": planned["board"]}) == "plain host"


def test_status_says_which_node_is_a_plain_host() -> None:
    hostvars: Any = {
        "Server": {"jetson_k3s_host_kind": "plain"},
        AGENT: {"ansible_facts": {"jetson": {"hostname": "Renamed"}}},
    }
    kinds = gpu_status.kinds_of(hostvars, hostvars)
    assert kinds == {"server": "plain", "renamed": "board"}
    node: Data = {"ready": True, "labels": {}, "capacity": {}, "allocatable": {}}
    observed: Data = {
        "nodes": [node | {"name": "server"}, node | {"name": "foreign"}],
        **{name: [] for name in ("pods", "devices", "claims", "gpu_plugins")},
        "answers": {name: {"problem": "no pod of the device plugin"} for name in ("server", "foreign")},
    }
    found = gpu_status.status(observed, kinds)
    assert [(one["name"], one["kind"], one["problem"] is None) for one in found["nodes"]] == [
        ("foreign", None, False),
        ("server", "plain", True),
    ]
    assert "server   Ready  -       -    -        none, plain host" in gpu_status.table(found)


def test_bundle_has_k3s_for_the_boards_and_for_plain_hosts() -> None:
    found = bundle.downloads(["arm64", "arm64", "amd64"], "https://mirror/v1")
    assert [(one["from"], one["to"]) for one in found] == [
        ("k3s-arm64", "k3s-arm64"),
        ("k3s-airgap-images-arm64.tar.gz", "k3s-airgap-images-arm64.tar.gz"),
        ("k3s", "k3s-amd64"),
        ("k3s-airgap-images-amd64.tar.gz", "k3s-airgap-images-amd64.tar.gz"),
    ]
    assert found[2]["checksums"] == "https://mirror/v1/sha256sum-amd64.txt"
