# SPDX-License-Identifier: Apache-2.0
"""The compatibility matrix and the rules about inventory, bundle and token."""

import copy
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.unit.roles.conftest import ROLES, Load

MATRIX = ROLES / "preflight/vars/main"
RULES = yaml.safe_load((MATRIX / "compatibility.yml").read_text())["__preflight_rules"]
KERNEL = yaml.safe_load((MATRIX / "kernel.yml").read_text())["__preflight_kernel"]
GOOD: dict[str, Any] = {
    "platform": "tegra",
    "jetpack": "6.2",
    "arch": "aarch64",
    "hostname": "jetson-1",
    "machine_id": "aa",
    "python": "3.10.12",
    "clock": {"board": 1_000_000.0, "asked": 1_000_000.0},
    "cgroup_version": 2,
    "cgroup_controllers": ["cpu", "cpuset", "io", "memory", "pids"],
    "kernel_features": {entry["feature"]: True for entry in KERNEL},
    "default_route": True,
    "iptables": {"version": "1.8.7", "backend": "nf_tables"},
    "memory_bytes": 8 * 10**9,
    "disks": {
        name: {"path": path, "filesystem": 1, "total_bytes": 64 * 10**9, "free_bytes": 20 * 10**9}
        for name, path in {
            "docker": "/var/lib/docker",
            "k3s": "/var/lib/rancher",
            "kubelet": "/var/lib/kubelet",
            "uploads": "/var/tmp",
        }.items()
    },
    "controller": {"ansible_core": "2.19.4"},
    "role": "server",
    "container_runtime": "docker",
    "flannel_backend": "vxlan",
    "strict": False,
    "gpu_device_plugin_api": "device-plugin",
    "gpu_device_plugin_config": {},
    "docker": {
        "installed": True,
        "running": True,
        "version": "27.5.1",
        "min_api_version": "1.24",
        "containerd_store": False,
        "cgroup_driver": "systemd",
        "conflicting_flags": [],
        "daemon_json": {"exists": False, "error": None, "config": {}},
    },
    "nvidia_runtime": {"path": "/usr/bin/nvidia-container-runtime", "version": "1.16.2"},
    "k3s": {
        "version": None,
        "server": {"installed": False, "command": None},
        "agent": {"installed": False, "command": None},
        "settings": {"flannel-backend": None, "node-ip": None},
        "kubelet_arguments": {"cgroup-driver": None, "fail-cgroupv1": None},
        "feature_gates": {"kube-apiserver": [], "kube-scheduler": [], "kubelet": []},
        "registries": None,
    },
    "bundle": {"k3s_version": "v1.33.5+k3s1"},
}
DRA = {
    "gpu_device_plugin_api": "dra",
    "container_runtime": "containerd",
    "bundle__k3s_version": "v1.36.2+k3s1",
}
CAPACITY = {"version": "v1", "sharing": {"dra": {"mode": "capacity", "memoryTotal": "6Gi"}}}
GATES = {
    "k3s__feature_gates__kube-apiserver": ["DRAConsumableCapacity"],
    "k3s__feature_gates__kube-scheduler": ["DRAConsumableCapacity"],
}
UNITS = {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("preflight/filter_plugins/preflight.py")


def with_facts(**changes: Any) -> dict[str, Any]:
    """Good facts with some changed; `a__b` is the key b inside a."""
    facts = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = facts
        for parent in parents:
            place = place[parent]
        place[key] = value
    return facts


NO_K3S = {"installed": False, "command": None}
IS_SERVER = {"k3s": {"server": {"installed": True}, "agent": NO_K3S}}
IS_AGENT = {"k3s": {"server": NO_K3S, "agent": {"installed": True}}}
IS_BARE = {"k3s": {"server": NO_K3S, "agent": NO_K3S}}


@pytest.mark.parametrize(
    ("others", "fix"),
    [
        ([IS_SERVER, IS_AGENT], "Put b, or another server that runs, first"),
        ([IS_BARE, IS_AGENT], "data were on this server alone"),
    ],
)
def test_a_server_without_k3s_does_not_begin_a_second_cluster(
    module: ModuleType, others: list[dict[str, Any]], fix: str
) -> None:
    fleet = {"a": IS_BARE, "b": others[0], "c": others[1]}
    (found,) = module.findings_of_server("a", fleet, "a")
    assert (found["id"], found["level"]) == ("server-new", "error")
    assert "c (agent)" in found["found"]
    assert fix in found["fix"]
    # The others are stopped with their server, and have no problem of their own.
    assert module.findings_of_server("c", fleet, "a") == []


def running(role: str, active: bool = True) -> dict[str, Any]:
    """Facts of a board that has K3s in a role."""
    return {"k3s": {"server": NO_K3S, "agent": NO_K3S} | {role: {"installed": True, "active": active}}}


@pytest.mark.parametrize(
    ("fleet", "asked"),
    [
        ({"a": running("server"), "b": running("server")}, "a"),
        ({"b": running("server"), "d": running("agent")}, "b"),
        ({"b": running("server", active=False), "c": running("server")}, "c"),
        ({"b": IS_BARE, "d": running("agent")}, "a"),
        ({"d": running("agent")}, "a"),
    ],
    ids=["all answer", "the first is down", "another has stopped", "no other runs", "no server answers"],
)
def test_another_server_is_asked_while_the_first_is_down(
    module: ModuleType, fleet: dict[str, Any], asked: str
) -> None:
    everyone = ["a", "b", "c", "d"]
    assert module.asked("a", fleet, ["a", "b", "c"], everyone) == asked
    assert module.asked("a", fleet, ["a", "b", "c"], ["d"]) == "a", "with --limit it was not looked at"


def test_a_new_board_waits_for_the_server_that_it_joins(module: ModuleType) -> None:
    (found,) = module.findings_of_joining(IS_BARE, "a", "b")
    assert (found["id"], found["level"]) == ("server-down", "error")
    assert "put b first in the inventory" in found["fix"]
    assert module.findings_of_joining(IS_BARE, "a", "a") == []
    assert module.findings_of_joining(running("agent"), "a", "b") == []


@pytest.mark.parametrize(
    "fleet",
    [
        {"a": IS_BARE},
        {"a": IS_BARE, "b": IS_BARE, "c": IS_BARE},
        {"a": IS_SERVER, "b": IS_BARE, "c": IS_AGENT},
        {"a": IS_AGENT, "b": IS_SERVER},
    ],
)
def test_bare_boards_and_a_server_that_is_there_begin_no_second_cluster(
    module: ModuleType, fleet: dict[str, Any]
) -> None:
    server = "b" if fleet["a"] is IS_AGENT else "a"
    assert [module.findings_of_server(name, fleet, server) for name in fleet] == [[] for _ in fleet]


@pytest.mark.parametrize(
    ("sold", "requests", "left"),
    [
        ("", "1Gi", None),
        ("2Gi", "", 2 << 30),
        ("2Gi", "70Mi 170Mi 1G", (2 << 30) - (240 << 20) - 10**9),
        ("2Gi", "1500m 128974848 0.5Gi", (2 << 30) - 2 - 128974848 - (1 << 29)),
        ("5Gi", "", -(1 << 30)),
        ("much", "5Mim", 4 << 30),  # refused elsewhere
    ],
)
def test_memory_that_is_neither_sold_nor_asked_for(
    module: ModuleType, sold: str, requests: str, left: int | None
) -> None:
    assert module.memory_left(4 << 30, sold, requests) == left


def test_no_entry_of_the_matrix_has_a_key_that_nobody_reads() -> None:
    common = {"level", "when", "fix", "reference"}
    assert {key for rule in RULES for key in rule} == common | {"id", "require", "found", "expected"}
    assert {key for entry in KERNEL for key in entry} == common | {"feature", "option", "without"}


def test_a_good_board_has_no_findings(module: ModuleType) -> None:
    assert module.findings_of_rules(GOOD, RULES) == []


@pytest.mark.parametrize(
    ("changes", "finding", "level"),
    [
        ({"platform": "none", "jetpack": "6.2"}, "not-a-jetson", "error"),
        ({"jetpack": None}, "jetpack-unknown", "warning"),
        ({"jetpack": "4.2"}, "jetpack-unknown", "warning"),
        ({"jetpack": "4"}, "jetpack-unknown", "warning"),
        ({"arch": "armv7l"}, "architecture", "error"),
        ({"controller__ansible_core": "2.15.9"}, "ansible-core", "error"),
        ({"controller__ansible_core": "2.21.0"}, "ansible-core-untested", "warning"),
        ({"python": "3.6.9", "controller__ansible_core": "2.18.1"}, "ansible-core-python-3.6", "error"),
        ({"default_route": False}, "default-route", "error"),
        (
            {"default_route": False, "k3s__settings__node-ip": "10.0.0.1"},
            "default-route-services",
            "warning",
        ),
        ({"memory_bytes": 10**9}, "memory", "warning"),
        ({"cgroup_controllers": ["cpu", "cpuset"]}, "cgroup-controllers", "error"),
        ({"docker__containerd_store": True}, "docker-containerd-store", "warning"),
        ({"docker__installed": False}, "docker-absent", "warning"),
        ({"docker__daemon_json__error": "line 3"}, "docker-daemon-json", "error"),
        ({"docker__conflicting_flags": ["--add-runtime"]}, "docker-flags", "error"),
        ({"docker__version": "18.06.3-ce"}, "docker-too-old", "error"),
        (
            {"docker__min_api_version": "1.44", "bundle__k3s_version": "v1.27.16+k3s1"},
            "k3s-docker-api-dropped",
            "error",
        ),
        ({"nvidia_runtime__path": None}, "nvidia-runtime-absent", "warning"),
        ({"jetpack": "7.0", "nvidia_runtime__version": "1.17.8"}, "nvidia-runtime-jetpack7", "error"),
        ({"jetpack": "7", "nvidia_runtime__version": "1.17.8"}, "nvidia-runtime-jetpack7", "error"),
        ({"jetpack": "6", "nvidia_runtime__version": "1.10.0"}, "nvidia-runtime-jetpack5", "error"),
        ({"jetpack": "5.1.1", "nvidia_runtime__version": "1.10.0"}, "nvidia-runtime-jetpack5", "error"),
        ({"jetpack": "4.6", "nvidia_runtime__version": "1.0.1"}, "nvidia-runtime-clone3", "error"),
        ({"strict": True, "nvidia_runtime__version": "1.11.0"}, "nvidia-runtime-strict", "error"),
        ({"strict": True, "nvidia_runtime__version": "1.17.9"}, "nvidia-runtime-strict", "error"),
        (
            {
                "strict": True,
                "jetpack": "4.4",
                "nvidia_runtime__version": "1.0.5",
                "docker__version": "19.03.6",
                "bundle__k3s_version": "v1.27.16+k3s1",
            },
            "nvidia-runtime-strict-jetpack4",
            "error",
        ),
        ({"gpu_device_plugin_config": UNITS}, "units-without-strict", "error"),
        (
            {"gpu_device_plugin_config": UNITS, "container_runtime": "containerd"},
            "units-without-strict",
            "error",
        ),
        ({"gpu_device_plugin_config": UNITS, "strict": True}, "nvidia-runtime-strict", "error"),
        ({"memory_left_bytes": -1}, "units-memory", "error"),
        ({"memory_left_bytes": 1_700_000_000}, "units-memory-low", "warning"),
        ({"cgroup_version": 1, "bundle__k3s_version": "v1.35.2+k3s1"}, "k3s-cgroup-v1", "error"),
        ({"k3s__kubelet_arguments__cgroup-driver": "cgroupfs"}, "k3s-cgroup-driver", "error"),
        ({"bundle__k3s_version": "v1.24.2+k3s1"}, "k3s-without-docker", "error"),
        ({"bundle__k3s_version": "v1.28.6+k3s1"}, "k3s-docker-25-1.28", "error"),
        ({"bundle__k3s_version": "v1.29.1+k3s1"}, "k3s-docker-25-1.29", "error"),
        (
            {"container_runtime": "containerd", "bundle__k3s_version": "v1.20.2+k3s.standin"},
            "k3s-containerd-without-nvidia",
            "error",
        ),
        ({**DRA, "container_runtime": "docker"}, "dra-docker", "error"),
        ({**DRA, "bundle__k3s_version": "v1.33.5+k3s1"}, "dra-k3s", "error"),
        ({**DRA, "nvidia_runtime__version": "1.7.0", "jetpack": "4.6.1"}, "dra-toolkit", "error"),
        (
            {
                **DRA,
                "gpu_device_plugin_config": UNITS,
                "strict": True,
                "nvidia_runtime__version": "1.18.0",
            },
            "dra-units",
            "error",
        ),
        (
            {**DRA, "gpu_device_plugin_config": {"sharing": {"timeSlicing": {"replicas": 4}}}},
            "dra-time-slicing",
            "error",
        ),
        ({"gpu_device_plugin_config": CAPACITY}, "dra-settings", "error"),
        (
            {
                **DRA,
                **GATES,
                "bundle__k3s_version": "v1.34.1+k3s1",
                "gpu_device_plugin_config": CAPACITY,
            },
            "dra-capacity-kubelet",
            "error",
        ),
        (
            {
                **DRA,
                **GATES,
                "bundle__k3s_version": "v1.34.1+k3s1",
                "gpu_device_plugin_config": CAPACITY,
                "k3s__feature_gates__kubelet": ["DRAConsumableCapacity"],
                "k3s__feature_gates__kube-apiserver": [],
            },
            "dra-capacity-apiserver",
            "error",
        ),
        (
            {
                **DRA,
                **GATES,
                "bundle__k3s_version": "v1.35.0+k3s1",
                "gpu_device_plugin_config": CAPACITY,
                "k3s__feature_gates__kubelet": ["DRAConsumableCapacity"],
                "k3s__feature_gates__kube-scheduler": [],
            },
            "dra-capacity-scheduler",
            "error",
        ),
        ({**DRA, "cgroup_version": 1}, "k3s-cgroup-v1", "error"),
    ],
)
def test_each_incompatibility_is_found_alone(
    module: ModuleType, changes: dict[str, Any], finding: str, level: str
) -> None:
    found = module.findings_of_rules(with_facts(**changes), RULES)
    assert [(entry["id"], entry["level"]) for entry in found] == [(finding, level)]


@pytest.mark.parametrize(
    "changes",
    [
        # K3s goes down to the API of an engine as flashed.
        {"docker__version": "20.10.24+dfsg1", "docker__min_api_version": "1.12"},
        {"docker__version": "20.10.24+dfsg1", "docker__min_api_version": None},
        {"docker__version": "29.1.0", "docker__min_api_version": "1.44"},
        {"docker__version": "24.0.7", "bundle__k3s_version": "v1.28.6+k3s1"},
        {"bundle__k3s_version": "v1.28.7+k3s1"},
        {"cgroup_version": 1},
        {
            "cgroup_version": 1,
            "bundle__k3s_version": "v1.35.2+k3s1",
            "k3s__kubelet_arguments__fail-cgroupv1": "false",
        },
        {"k3s__kubelet_arguments__cgroup-driver": "systemd"},
        {"k3s__kubelet_arguments__cgroup-driver": "cgroupfs", "docker__cgroup_driver": "cgroupfs"},
        {"k3s__kubelet_arguments__cgroup-driver": "cgroupfs", "docker__running": False},
        {"jetpack": "4.6.1", "nvidia_runtime__version": None},
        {"jetpack": "4.6.1", "nvidia_runtime__version": "1.7.0", "strict": True},
        {"jetpack": "4.4", "nvidia_runtime__version": "1.0.1", "docker__version": "19.03.6"},
        {"nvidia_runtime__version": "1.18.0", "strict": True},
        {"nvidia_runtime__version": None, "strict": True},
        {"nvidia_runtime__version": "1.18.0", "strict": True, "gpu_device_plugin_config": UNITS},
        {"gpu_device_plugin_config": {"version": "v1", "sharing": {"timeSlicing": {"replicas": 4}}}},
        DRA,
        {**DRA, "bundle__k3s_version": "v1.34.1+k3s1", "cgroup_version": 1},
        {**DRA, "gpu_device_plugin_config": CAPACITY},
        {
            **DRA,
            **GATES,
            "bundle__k3s_version": "v1.34.1+k3s1",
            "gpu_device_plugin_config": CAPACITY,
            "k3s__feature_gates__kubelet": ["A", "DRAConsumableCapacity"],
        },
        # The server has these components, and an agent knows nothing of them.
        {
            **DRA,
            "role": "agent",
            "bundle__k3s_version": "v1.34.1+k3s1",
            "gpu_device_plugin_config": CAPACITY,
            "k3s__feature_gates__kubelet": ["DRAConsumableCapacity"],
        },
        {**DRA, "gpu_device_plugin_config": {"sharing": {"dra": {"mode": "shares", "shares": 4}}}},
        {"gpu_device_plugin_config": {"version": "v1", "sharing": None}},
        {"gpu_device_plugin_config": None},
        {"jetpack": "7.1", "nvidia_runtime__version": "1.18.0"},
        {"jetpack": "7", "nvidia_runtime__version": "1.18.0"},
        {"jetpack": "6"},
        {"jetpack": "6.0 EA"},
        {"jetpack": "5.0.1 DP"},
        {"role": "agent", "memory_bytes": 10**9},
        {"python": "3.6.9", "controller__ansible_core": "2.16.14"},
        {"python": "3.8.10"},
        {"container_runtime": "containerd", "docker__installed": False},
        {"docker__running": False, "docker__version": None},
    ],
)
def test_what_works_is_not_refused(module: ModuleType, changes: dict[str, Any]) -> None:
    assert module.findings_of_rules(with_facts(**changes), RULES) == []


def test_all_problems_are_reported_at_once(module: ModuleType) -> None:
    found = module.findings_of_rules(
        with_facts(platform="none", nvidia_runtime__path=None, arch="armv7l", docker__installed=False),
        RULES,
    )
    assert {entry["id"] for entry in found} >= {"not-a-jetson", "architecture", "docker-absent"}


@pytest.mark.parametrize("entry", KERNEL, ids=lambda entry: entry["feature"])
def test_each_missing_kernel_feature_is_found_alone(module: ModuleType, entry: dict[str, Any]) -> None:
    facts = with_facts(**{f"kernel_features__{entry['feature']}": False})
    if entry["feature"] == "iptable_raw":
        facts["docker"]["version"] = "28.0.1"
    (found,) = module.findings_of_rules(facts, module.rules_of_kernel(KERNEL))
    assert found["id"] == "kernel-" + entry["feature"].replace("_", "-")
    assert entry["without"] in found["found"]


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_features": {}},
        {"kernel_features": {entry["feature"]: None for entry in KERNEL}},
        {"kernel_features__nf_tables": False, "iptables__backend": "legacy"},
        {"kernel_features__vxlan": False, "flannel_backend": "host-gw"},
        {"kernel_features__vxlan": False, "flannel_backend": None},
        {"kernel_features__iptable_raw": False, "docker__version": "28.0.2"},
    ],
)
def test_kernel_that_does_not_tell_or_does_not_matter_is_left_alone(
    module: ModuleType, changes: dict[str, Any]
) -> None:
    assert module.findings_of_rules(with_facts(**changes), module.rules_of_kernel(KERNEL)) == []


def test_facts_tell_every_kernel_feature_of_the_matrix(load: Load) -> None:
    features = load("jetson_facts/module_utils/jetson_kernel.py").KERNEL_FEATURES
    assert {entry["feature"] for entry in KERNEL} == features.keys()


def test_rules_are_complete_and_their_ids_unique(module: ModuleType) -> None:
    rules = RULES + module.rules_of_kernel(KERNEL)
    assert len({rule["id"] for rule in rules} | module.CODED.keys()) == len(rules) + len(module.CODED)
    for rule in rules:
        assert rule.keys() >= {"id", "level", "require", "found", "expected", "fix"}
        assert rule["level"] in ("error", "warning")


@pytest.mark.parametrize(
    ("text", "key"),
    [("v1.20.2+k3s.standin", (1, 20, 2)), ("20.10.24+dfsg1", (20, 10, 24)), ("18.06.3-ce", (18, 6, 3))],
)
def test_version_key_takes_the_leading_numbers(module: ModuleType, text: str, key: tuple[int, ...]) -> None:
    assert module.version_key(text) == key


def bundle(**errors: str | None) -> dict[str, Any]:
    names = (
        "bundle.yml",
        "k3s-arm64",
        "k3s-airgap-images-arm64.tar.gz",
        "tegra-device-plugin-arm64.tar.gz",
        "device-query-arm64.tar.gz",
    )
    files: dict[str, dict[str, str | None]] = {name: {"error": None} for name in names}
    files.update({name.replace("_", "-"): {"error": error} for name, error in errors.items()})
    return {"path": "/bundle", "errors": [], "files": files, "delta": None}


def test_whole_bundle_has_no_findings(module: ModuleType) -> None:
    assert module.findings_of_bundle(bundle(), "aarch64") == []


def test_only_files_for_this_architecture_matter(module: ModuleType) -> None:
    assert module.findings_of_bundle(bundle(k3s_amd64="damaged"), "aarch64") == []
    assert [
        entry["found"] for entry in module.findings_of_bundle(bundle(k3s_arm64="damaged"), "aarch64")
    ] == ["k3s-arm64: damaged"]


def test_bundle_of_another_architecture_names_each_missing_file(module: ModuleType) -> None:
    found = [entry["found"] for entry in module.findings_of_bundle(bundle(), "x86_64")]
    assert len(found) == 4
    assert "k3s-amd64: not listed in SHA256SUMS" in found


def test_one_error_of_the_whole_bundle_is_enough(module: ModuleType) -> None:
    broken = bundle() | {"errors": ["no such directory"], "files": {}}
    assert [entry["id"] for entry in module.findings_of_bundle(broken, "aarch64")] == ["bundle-unusable"]


@pytest.mark.parametrize(
    ("supply", "runtime", "finding"),
    [
        ("", "containerd", None),
        ("b", "docker", None),
        ("c", "docker", "image-supply-host"),
        ("c", "containerd", "image-supply-host"),
        ("b", "containerd", "image-supply-containerd"),
    ],
)
def test_board_that_supplies_images_is_one_of_the_cluster_and_has_docker(
    module: ModuleType, supply: str, runtime: str, finding: str | None
) -> None:
    found = module.findings_of_image_supply(with_facts(container_runtime=runtime), supply, ["a", "b"])
    assert [(entry["id"], entry["level"]) for entry in found] == ([(finding, "error")] if finding else [])
    if finding == "image-supply-host":
        assert ("'c'" in found[0]["found"], "a, b" in found[0]["fix"]) == (True, True)


def test_duplicate_names_and_machine_ids_are_found_on_each_board(module: ModuleType) -> None:
    fleet = {"a": with_facts(), "b": with_facts(), "c": with_facts(hostname="other", machine_id="bb")}
    assert [entry["id"] for entry in module.findings_of_fleet("a", fleet)] == [
        "hostname-duplicate",
        "machine-id-duplicate",
    ]
    assert module.findings_of_fleet("c", fleet) == []


def disks(**changes: dict[str, int]) -> dict[str, Any]:
    """The good board's disks, some of them others."""
    return {name: disk | changes.get(name, {}) for name, disk in GOOD["disks"].items()}


SMALL = {"total_bytes": 16 * 10**9, "free_bytes": 2 * 10**9}
EVERYWHERE = dict.fromkeys(GOOD["disks"], SMALL)
NEARLY_FULL = dict.fromkeys(GOOD["disks"], SMALL | {"free_bytes": 7 * 10**8})
THERE = {"k3s__version": GOOD["bundle"]["k3s_version"]}


@pytest.mark.parametrize(
    ("changed", "more", "ids"),
    [
        ({}, {}, []),
        (NEARLY_FULL, {}, ["disk-full"]),
        # 16 GB: 1.5 GB are taken, and 0.5 GB are less than 5 %.
        (EVERYWHERE, {}, ["disk-eviction"]),
        (EVERYWHERE, THERE, []),
        (NEARLY_FULL, THERE, ["disk-eviction"]),
        # Docker's data on an SSD: what matters is what lies on the small disk.
        (EVERYWHERE | {"docker": {"filesystem": 2}}, {}, []),
        ({"k3s": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}}, {}, ["disk-full"]),
        ({"uploads": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 2 * 10**8}}, {}, ["disk-full"]),
        # Nobody evicts pods for the sake of /var/tmp.
        ({"uploads": {"filesystem": 2, "total_bytes": 10**10, "free_bytes": 4 * 10**8}}, {}, []),
        ({"docker": {"filesystem": 2, "free_bytes": 0}}, {"container_runtime": "containerd"}, []),
    ],
)
def test_room_is_judged_where_it_is_taken_and_against_the_kubelets_limit(
    module: ModuleType, changed: dict[str, Any], more: dict[str, Any], ids: list[str]
) -> None:
    facts = with_facts(disks=disks(**changed), **more)
    assert [entry["id"] for entry in module.findings_of_disks(facts)] == ids


def test_disk_is_named_by_what_lies_there(module: ModuleType) -> None:
    changed = {"k3s": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}}
    (found,) = module.findings_of_disks(with_facts(disks=disks(**changed)))
    assert found["found"] == "0.3 of 1.0 GB free on the disk with /var/lib/rancher"


NOW = 1_000_020.0  # the boards were asked 20 s ago
HOUR = 3600


def clocks(**ahead: float) -> dict[str, dict[str, Any]]:
    """Boards whose clocks are so many seconds ahead of the controller's."""
    asked = NOW - 20
    return {
        name: with_facts(clock={"board": asked + 10 + seconds, "asked": asked})
        for name, seconds in ahead.items()
    }


@pytest.mark.parametrize(
    ("board", "server", "ids", "fix"),
    [
        (0, 0, [], ""),
        (55, 0, [], ""),
        (-HOUR, -HOUR, [], ""),
        (-90, 0, ["clock-server-drift"], "On jetson-2: "),
        (90, 0, ["clock-server-drift"], "On jetson-2: "),
        (0, HOUR, ["clock-server"], "On jetson-1: "),
        (-400, 0, ["clock-server"], "On jetson-2: "),
        (-60 * 24 * HOUR, 0, ["clock"], "On jetson-2: "),
        (40 * 24 * HOUR, 40 * 24 * HOUR, ["clock"], "On jetson-2: "),
    ],
)
def test_clock_is_compared_with_the_controller_and_the_server(
    module: ModuleType, board: float, server: float, ids: list[str], fix: str
) -> None:
    fleet = clocks(**{"jetson-1": server, "jetson-2": board})
    found = module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW)
    assert [entry["id"] for entry in found] == ids
    for entry in found:
        assert entry["fix"].startswith(fix)
        assert "this computer has 1970-01-12 13:47:00 (all UTC)" in entry["found"]


def test_clock_of_the_server_is_compared_with_the_controller(module: ModuleType) -> None:
    fleet = clocks(**{"jetson-1": -HOUR * 24 * 300})
    assert [entry["id"] for entry in module.findings_of_clock("jetson-1", fleet, "jetson-1", NOW)] == [
        "clock"
    ]


def test_a_slow_board_is_not_taken_for_a_wrong_clock(module: ModuleType) -> None:
    fleet = clocks(**{"jetson-1": 0, "jetson-2": 0})
    assert module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW + 600) == []


def test_server_that_was_not_looked_at_is_not_compared(module: ModuleType) -> None:
    fleet = clocks(**{"jetson-2": -HOUR})
    assert module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW) == []


@pytest.mark.parametrize("hostname", ["jetson_1", "-x", "ä"])
def test_hostname_that_cannot_be_a_node_name_is_found(module: ModuleType, hostname: str) -> None:
    found = module.findings_of_fleet("a", {"a": with_facts(hostname=hostname)})
    assert [entry["id"] for entry in found] == ["hostname-invalid"]


@pytest.mark.parametrize(
    ("command", "ids", "words"),
    [
        ("k3s server --docker --disable traefik", [], ""),
        ("k3s server --node-name gate", ["k3s-foreign-unit"], "--node-name cannot be taken over"),
        ("k3s server -d /mnt/k3s", ["k3s-foreign-unit"], "-d cannot be taken over"),
    ],
)
def test_installation_of_the_stock_script_is_taken_over_when_asked(
    module: ModuleType, command: str, ids: list[str], words: str
) -> None:
    facts = with_facts(k3s__server={"installed": True, "command": f"/usr/local/bin/{command}"})
    found = module.findings_of_role(facts, "server", True)
    assert [entry["id"] for entry in found] == ids
    assert all(words in entry["fix"] for entry in found)


def test_bundle_needs_no_k3s_where_it_is_downloaded(module: ModuleType) -> None:
    content = bundle(k3s_arm64="missing")
    del content["files"]["k3s-airgap-images-arm64.tar.gz"]
    assert module.findings_of_bundle(content, "aarch64", "download") == []


@pytest.mark.parametrize(
    ("changes", "role", "ids"),
    [
        ({}, "server", []),
        ({"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server"}}, "server", []),
        (
            {"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server --docker"}},
            "server",
            ["k3s-foreign-unit"],
        ),
        (
            {"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server"}},
            "agent",
            ["k3s-other-role"],
        ),
        ({"k3s__agent": {"installed": True, "command": "/usr/local/bin/k3s agent"}}, "agent", []),
    ],
)
def test_k3s_of_another_role_or_hand_is_found(
    module: ModuleType, changes: dict[str, Any], role: str, ids: list[str]
) -> None:
    assert [entry["id"] for entry in module.findings_of_role(with_facts(**changes), role)] == ids


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ({}, 0),
        ({"changed": True}, 0),
        ({"reason": "unreachable", "msg": "x"}, 0),
        ({"reason": "refused", "msg": "x"}, 1),
        ({"reason": "other-ca", "msg": "x"}, 1),
        ({"reason": "malformed", "msg": "x"}, 1),
    ],
)
def test_refused_token_is_a_finding_and_a_server_that_is_not_up_yet_is_none(
    module: ModuleType, answer: dict[str, Any], count: int
) -> None:
    assert len(module.findings_of_token(answer)) == count


@pytest.mark.parametrize(
    ("groups", "ids"),
    [
        ({"server": ["a"], "agent": ["b"]}, []),
        ({"server": ["b"], "agent": ["a"]}, []),
        ({"server": ["a"], "agent": ["a"]}, ["group-both"]),
        ({"server": ["b"]}, ["group-none"]),
    ],
)
def test_board_belongs_to_one_group(module: ModuleType, groups: dict[str, list[str]], ids: list[str]) -> None:
    assert [entry["id"] for entry in module.findings_of_groups("a", groups)] == ids


@pytest.mark.parametrize(
    ("token", "count"),
    [(None, 0), ("0123456789abcdef", 0), ("short", 1), ("K10" + "0" * 64 + "::server:short", 1)],
)
def test_short_token_is_a_warning_that_does_not_tell_it(
    module: ModuleType, token: str | None, count: int
) -> None:
    found = module.findings_of_token_strength(token)
    assert len(found) == count
    assert token is None or token not in str(found)


def test_accepted_warning_is_kept_but_not_shown_and_an_error_is_not_accepted(module: ModuleType) -> None:
    findings = module.findings_of_rules(with_facts(memory_bytes=10**9, arch="armv7l"), RULES)
    accepted = module.accept(findings, ["memory", "architecture"], RULES)
    assert {entry["id"]: entry["level"] for entry in accepted} == {
        "memory": "accepted",
        "architecture": "error",
    }
    assert "memory" not in module.report(accepted, "jetson-1")


def test_accepting_what_does_not_exist_is_an_error(module: ModuleType) -> None:
    assert [entry["id"] for entry in module.accept([], ["defualt-route"], RULES)] == ["accepted-unknown"]
    assert module.accept([], ["default-route", "machine-id-duplicate"], RULES) == []


@pytest.mark.parametrize(
    ("installed", "wanted", "found"),
    [
        ("v1.34.1+k3s1", "v1.33.5+k3s1", ["k3s-newer"]),
        ("v1.33.5+k3s1", "v1.33.4+k3s2", ["k3s-newer"]),
        ("v1.33.5+k3s2", "v1.33.5+k3s1", []),
        ("v1.33.5+k3s1", "v1.34.1+k3s1", []),
        (None, "v1.33.5+k3s1", []),
        ("v1.33.5+k3s1", None, []),
    ],
)
def test_k3s_does_not_go_back(
    module: ModuleType, installed: str | None, wanted: str | None, found: list[str]
) -> None:
    facts = with_facts(k3s__version=installed, bundle__k3s_version=wanted)
    assert [entry["id"] for entry in module.findings_of_version(facts)] == found


@pytest.mark.parametrize(
    ("role", "installed", "server", "found"),
    [
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", None, True),
        # New to a cluster that is older.
        ("agent", None, "v1.33.5+k3s1", True),
        # It was off when the others were upgraded, or is new; then a server goes by itself.
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", False),
        ("agent", None, "v1.34.0+k3s1", False),
        ("server", "v1.33.5+k3s1", "v1.34.0+k3s1", True),
        ("server", "v1.34.0+k3s1", "v1.34.0+k3s1", False),
        ("server", None, None, False),
    ],
)
def test_another_minor_version_comes_with_an_upgrade(
    module: ModuleType, role: str, installed: str | None, server: str | None, found: bool
) -> None:
    facts = with_facts(k3s__version=installed, bundle__k3s_version="v1.34.1+k3s1", role=role)
    findings = module.findings_of_upgrade(facts, server)
    assert [entry["id"] for entry in findings] == (["k3s-upgrade"] if found else [])
    assert module.findings_of_upgrade(facts, server, upgrades=True) == []


def test_report_names_host_cause_and_fix(module: ModuleType) -> None:
    entry = module.finding("group-none", "this", "that", "do so")
    text = module.report([entry], "jetson-7")
    assert text.splitlines() == [
        "jetson-7: preflight found 1 problem; nothing was changed on this board.",
        "1. [error] group-none",
        "   found:    this",
        "   expected: that",
        "   fix:      do so",
        "   url:      docs/troubleshooting.md#group-none",
    ]


@pytest.fixture
def bundle_module(load: Load) -> ModuleType:
    return load("preflight/library/bundle_facts.py")


def test_bundle_facts_of_a_damaged_file(bundle_module: ModuleType, tmp_path: Path) -> None:
    versions = {
        "version": 1,
        "k3s_version": "v1",
        "plugin_image": "a:1",
        "device_query_image": "b:1",
        "pause_image": "c:1",
    }
    (tmp_path / "bundle.yml").write_text(yaml.safe_dump(versions))
    (tmp_path / "k3s-arm64").write_text("k3s")
    sums = [f"{bundle_module.sha256(str(path))}  {path.name}" for path in sorted(tmp_path.iterdir())]
    (tmp_path / "SHA256SUMS").write_text("\n".join([*sums, "0" * 64 + "  gone", ""]))
    (tmp_path / "k3s-arm64").write_text("K3s")
    facts = bundle_module.inspect(str(tmp_path))
    assert facts["errors"] == []
    assert facts["versions"] == versions
    assert facts["files"]["bundle.yml"]["error"] is None
    assert "SHA256SUMS says" in facts["files"]["k3s-arm64"]["error"]
    assert facts["files"]["gone"]["error"] == "missing"


def test_bundle_facts_of_an_archive_of_packages(bundle_module: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / "debs-jetpack6-arm64.tar"
    names = ("./nvidia-container-toolkit_1.18.0-1_arm64.deb", "tzdata_1%3a2025b-0_all.deb", "./README")
    with tarfile.open(archive, "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    state = bundle_module.check_file(str(archive), bundle_module.sha256(str(archive)))
    assert (state["error"], state["packages"]) == (
        None,
        {"nvidia-container-toolkit": "1.18.0-1", "tzdata": "1:2025b-0"},
    )
    archive.write_text("no archive")
    state = bundle_module.check_file(str(archive), bundle_module.sha256(str(archive)))
    assert (state["packages"], "not an archive of Debian packages" in state["error"]) == ({}, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2\n", "version: 1"),
        ("- a\n", "version: 1"),
        ("version: 1\nk3s_version: v1\n", "lacks plugin_image"),
        ("a: [", "not YAML"),
    ],
)
def test_unusable_bundle_yml_is_named(
    bundle_module: ModuleType, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    (tmp_path / "bundle.yml").write_text(text)
    assert words in bundle_module.inspect(str(tmp_path))["errors"][0]


def test_absent_bundle_is_named(bundle_module: ModuleType, tmp_path: Path) -> None:
    assert "SHA256SUMS" in bundle_module.inspect(str(tmp_path / "none"))["errors"][0]


def test_damaged_list_of_sums_is_named_with_its_line(bundle_module: ModuleType) -> None:
    with pytest.raises(bundle_module.BundleError, match="line 2"):
        bundle_module.parse_sums("0" * 64 + "  a\nnonsense\n")
