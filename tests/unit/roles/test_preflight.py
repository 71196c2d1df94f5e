# SPDX-License-Identifier: Apache-2.0
"""The compatibility matrix, and what becomes of all findings."""

import ast
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.preflight_facts import GOOD, KERNEL, RULES, with_facts

module = load("preflight/filter_plugins/preflight.py")

DRA = {
    "gpu_device_plugin_api": "dra",
    "container_runtime": "containerd",
    "bundle__k3s_version": "v1.36.2+k3s1",
}
CAPACITY = {"version": "v1", "sharing": {"dra": {"mode": "capacity", "memoryTotal": "6Gi"}}}
GATES = {
    f"k3s__feature_gates__{part}": ["DRAConsumableCapacity"] for part in ("kube-apiserver", "kube-scheduler")
}
KUBELET_GATE = {"k3s__feature_gates__kubelet": ["DRAConsumableCapacity"]}
# Where capacity is a feature that has to be switched on.
GATED = {**DRA, "bundle__k3s_version": "v1.34.1+k3s1", "gpu_device_plugin_config": CAPACITY}
CONTAINERD = {"container_runtime": "containerd"}
UNITS = {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}


CUDA_LIST = {"nvidia_runtime__optional_lists": ["cuda.csv"]}


def test_a_good_board_has_no_findings() -> None:
    assert module.findings_of_rules(GOOD, RULES) == []


UNIFIED = "systemd.unified_cgroup_hierarchy=1"
# Changes of a good board, and the only finding that they make.
INCOMPATIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"platform": "none", "jetpack": "6.2"}, "not-a-jetson", "error"),
    ({"jetpack": None}, "jetpack-unknown", "warning"),
    ({"jetpack": "4.2"}, "jetpack-unknown", "warning"),
    ({"jetpack": "4"}, "jetpack-unknown", "warning"),
    ({"arch": "armv7l"}, "architecture", "error"),
    ({"mig_instances": 2}, "gpu-mig", "warning"),
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
    ({"cgroup_lacks": {"pids": "CONFIG_CGROUP_PIDS is not set"}}, "cgroup-controllers", "error"),
    ({"iptables__problem": "table nat: no"}, "iptables", "error"),
    ({"iptables__changes": "table nat: no"}, "iptables-variant", "warning"),
    ({"iptables__not_tried": "unshare: no"}, "iptables-not-tried", "warning"),
    ({"iptables__raw": "table raw: no", "docker__version": "28.0.1"}, "kernel-iptable-raw", "error"),
    ({"docker__running": False, "docker__failure": "failed (exit-code)"}, "docker-failed", "warning"),
    ({"docker__containerd_store": True}, "docker-containerd-store", "warning"),
    ({"packages__unattended": ["docker.io"]}, "docker-unattended-upgrades", "warning"),
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
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.1.0"}, "nvidia-runtime-jetpack4", "error"),
    (
        {"jetpack": "4.4", "nvidia_runtime__version": "1.6.0", "docker__version": "19.03.6"},
        "nvidia-runtime-jetpack4",
        "error",
    ),
    (
        {"jetpack": "4.6", "nvidia_runtime__version": "1.9.0", **CUDA_LIST},
        "nvidia-runtime-lists",
        "warning",
    ),
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
    ({**CONTAINERD, "gpu_device_plugin_config": UNITS}, "units-without-strict", "error"),
    ({"gpu_device_plugin_config": UNITS, "strict": True}, "nvidia-runtime-strict", "error"),
    ({"memory_left_bytes": -1}, "units-memory", "error"),
    ({"memory_left_bytes": 1_700_000_000}, "units-memory-low", "warning"),
    ({"cgroup_version": 1, "bundle__k3s_version": "v1.35.2+k3s1"}, "k3s-cgroup-v1", "error"),
    (
        {"cgroup_version": 1, "bundle__k3s_version": "v1.35.2+k3s1", "kernel_arguments__adds": [UNIFIED]},
        "k3s-cgroup-v1",
        "error",
    ),
    ({"k3s__kubelet_arguments__fail-swap-on": "true"}, "k3s-swap", "error"),
    ({"kernel_arguments__changes": f"lacks {UNIFIED}"}, "kernel-arguments", "warning"),
    ({"k3s__kubelet_arguments__cgroup-driver": "cgroupfs"}, "k3s-cgroup-driver", "error"),
    ({"bundle__k3s_version": "v1.24.2+k3s1"}, "k3s-without-docker", "error"),
    ({"bundle__k3s_version": "v1.28.6+k3s1"}, "k3s-docker-25-1.28", "error"),
    ({"bundle__k3s_version": "v1.29.1+k3s1"}, "k3s-docker-25-1.29", "error"),
    (
        {**CONTAINERD, "bundle__k3s_version": "v1.20.15+k3s1"},
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
    ({**GATED, **GATES}, "dra-capacity-kubelet", "error"),
    (
        {**GATED, **GATES, **KUBELET_GATE, "k3s__feature_gates__kube-apiserver": []},
        "dra-capacity-apiserver",
        "error",
    ),
    (
        {**GATED, **GATES, **KUBELET_GATE, "k3s__feature_gates__kube-scheduler": []},
        "dra-capacity-scheduler",
        "error",
    ),
    ({**DRA, "cgroup_version": 1}, "k3s-cgroup-v1", "error"),
]


@pytest.mark.parametrize(("changes", "finding", "level"), INCOMPATIBLE)
def test_each_incompatibility_is_found_alone(changes: dict[str, Any], finding: str, level: str) -> None:
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
        {"jetpack": "4.6.1", "nvidia_runtime__version": "1.8.1", **CUDA_LIST},
        {"jetpack": "4.6.1", "nvidia_runtime__version": "1.9.0"},
        {"jetpack": "4.4", "nvidia_runtime__version": "1.0.1", "docker__version": "19.03.6"},
        {"nvidia_runtime__version": "1.18.0", "strict": True},
        {"nvidia_runtime__version": None, "strict": True},
        {"nvidia_runtime__version": "1.18.0", "strict": True, "gpu_device_plugin_config": UNITS},
        {"gpu_device_plugin_config": {"version": "v1", "sharing": {"timeSlicing": {"replicas": 4}}}},
        DRA,
        {**DRA, "bundle__k3s_version": "v1.34.1+k3s1", "cgroup_version": 1},
        {**DRA, "gpu_device_plugin_config": CAPACITY},
        {**GATED, **GATES, "k3s__feature_gates__kubelet": ["A", "DRAConsumableCapacity"]},
        # The server has these components, and an agent knows nothing of them.
        {**GATED, **KUBELET_GATE, "role": "agent"},
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
def test_what_works_is_not_refused(changes: dict[str, Any]) -> None:
    assert module.findings_of_rules(with_facts(**changes), RULES) == []


LACKS = "CONFIG_X is not set (module x)"


@pytest.mark.parametrize(
    ("entry", "feature"),
    [(entry, feature) for entry in KERNEL for feature in entry.get("features", [entry["feature"]])],
    ids=lambda value: value if isinstance(value, str) else value["feature"],
)
def test_each_missing_kernel_feature_is_found_alone(entry: dict[str, Any], feature: str) -> None:
    facts = with_facts(kernel_lacks={feature: LACKS})
    for condition in entry.get("when", []):
        facts["docker"]["version"] = condition.get("from", facts["docker"]["version"])
        if condition["fact"] == "flannel_backend" and "equals" in condition:
            facts["flannel_backend"] = condition["equals"]
    found = {entry["id"]: entry for entry in module.findings_of_rules(facts, module.rules_of_kernel(KERNEL))}
    own = found.pop("kernel-" + entry["feature"].replace("_", "-"))
    assert own["found"] == f"{LACKS}: {entry['without']}"
    # Docker 28.0.0 and network policies use the same sets.
    assert set(found) <= {"kernel-ip-set"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"kernel_lacks": {"vxlan": LACKS}, "flannel_backend": "host-gw"}, {}),
        ({"kernel_lacks": {"vxlan": LACKS}, "flannel_backend": None}, {}),
        ({"kernel_lacks": {"ip_set": LACKS}, "network_policy": False}, {}),
        ({"kernel_lacks": {"nf_tables": LACKS, "iptable_raw": LACKS}}, {}),
        ({"iptables__raw": "table raw: no", "docker__version": "28.0.2"}, {}),
        ({"iptables__raw": "no", "docker__version": "28.0.1", "container_runtime": "containerd"}, {}),
        ({"kernel_lacks": {"ip_set": LACKS}}, {"kernel-ip-set": "disable-network-policy"}),
        (
            {"kernel_lacks": {"ip_set": LACKS}, "flannel_backend": None},
            {"kernel-ip-set": "disable-network-policy"},
        ),
        # K3s' own controller is not what enforces policies there.
        (
            {"kernel_lacks": {"ip_set": LACKS}, "flannel_backend": "none"},
            {"kernel-ip-set-calico": "take `flannel-backend` out"},
        ),
        ({"kernel_lacks": {"ip_set_bitmap_port": LACKS}}, {}),
        (
            {"kernel_lacks": {"ip_set_hash_ip": "a", "xt_NFLOG": "b"}, "docker__version": "28.0.0"},
            {"kernel-ip-set": "disable-network-policy"},
        ),
    ],
)
def test_a_missing_kernel_feature_is_found_where_it_matters(
    changes: dict[str, Any], found: dict[str, str]
) -> None:
    findings = module.findings_of_rules(with_facts(**changes), RULES + module.rules_of_kernel(KERNEL))
    assert {entry["id"] for entry in findings} == found.keys()
    for entry in findings:
        assert found[entry["id"]] in entry["fix"]


def test_facts_tell_every_kernel_feature_of_the_matrix() -> None:
    features = load("jetson_facts/module_utils/jetson_kernel.py").KERNEL_FEATURES
    assert {name for entry in KERNEL for name in entry.get("features", [entry["feature"]])} <= features.keys()


def test_rules_are_complete_and_their_ids_unique() -> None:
    rules = RULES + module.rules_of_kernel(KERNEL)
    assert len({rule["id"] for rule in rules} | module.CODED.keys()) == len(rules) + len(module.CODED)
    for rule in rules:
        assert rule.keys() >= {"id", "level", "require", "found", "expected", "fix"}
        assert rule["level"] in ("error", "warning")


def test_k3s_of_the_default_bundle_fits_each_way_to_the_gpu() -> None:
    k3s = yaml.safe_load((ROLES / "bundle/defaults/main.yml").read_text())["__bundle_k3s_newest"]
    context = yaml.safe_load((ROLES / "preflight/vars/main/context.yml").read_text())
    assert context["__preflight_k3s"] == k3s  # without a bundle
    for ways in ({}, DRA, {**DRA, "gpu_device_plugin_config": CAPACITY}):
        assert module.findings_of_rules(with_facts(**{**ways, "bundle__k3s_version": k3s}), RULES) == []


@pytest.mark.parametrize(
    ("kernel", "adds", "advice"),
    [
        ("5.10.104-tegra", [], f"Or add `{UNIFIED}` to APPEND"),
        ("5.10.104-tegra", [UNIFIED], "Or `sudo reboot`. APPEND"),
        ("4.9.253-tegra", [UNIFIED], "k3s_agent_config. Or use a bundle"),
    ],
)
def test_board_that_will_boot_with_cgroup_v2_is_told_to_reboot(
    kernel: str, adds: list[str], advice: str
) -> None:
    facts = with_facts(cgroup_version=1, kernel=kernel, bundle__k3s_version="v1.36.2+k3s1")
    facts["kernel_arguments"]["adds"] = adds
    (found,) = module.findings_of_rules(facts, [rule for rule in RULES if rule["id"] == "k3s-cgroup-v1"])
    assert advice in found["fix"]


def test_accepted_warning_is_kept_but_not_shown_and_an_error_is_not_accepted() -> None:
    findings = module.findings_of_rules(with_facts(memory_bytes=10**9, arch="armv7l"), RULES)
    accepted = module.accept(findings, ["memory", "architecture"], RULES)
    assert {entry["id"]: entry["level"] for entry in accepted} == {
        "memory": "accepted",
        "architecture": "error",
    }
    assert "memory" not in module.report(accepted, "jetson-1")


@pytest.mark.parametrize(
    "name",
    [
        "image-supply-containerd", "image-supply-host", "registries", "registries-docker",
        "registries-foreign", "server-down", "server-new", "server-unanswered",
    ],
)  # fmt: skip
def test_findings_of_code_that_stop_a_board(name: str) -> None:
    (found,) = module.accept([{"id": name, "found": "", "expected": "", "fix": ""}], [name], RULES)
    assert found["level"] == "error"


@pytest.mark.parametrize("name", ["boards", "bundle", "identity", "k3s", "network"])
def test_findings_of_code_have_a_level(name: str) -> None:
    """The value of the key `id` is a constant, or a condition between constants."""
    code = (ROLES / f"preflight/filter_plugins/preflight_{name}.py").read_text()
    ids = {
        part.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "id"
        for part in ast.walk(value)
        if isinstance(part, ast.Constant)
    }
    assert ids
    assert ids <= module.CODED.keys()


def test_accepting_what_does_not_exist_is_an_error() -> None:
    assert [entry["id"] for entry in module.accept([], ["defualt-route"], RULES)] == ["accepted-unknown"]
    assert module.accept([], ["default-route", "machine-id-duplicate"], RULES) == []


def test_report_names_host_cause_and_fix() -> None:
    entry = {"id": "group-none", "found": "this", "expected": "that", "fix": "do so"}
    text = module.report(module.accept([entry], [], RULES), "jetson-7")
    assert text.splitlines() == [
        "jetson-7: preflight found 1 problem; nothing was changed on this board.",
        "1. [error] group-none",
        "   found:    this",
        "   expected: that",
        "   fix:      do so",
        "   url:      docs/troubleshooting.md#group-none",
    ]
