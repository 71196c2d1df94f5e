# SPDX-License-Identifier: Apache-2.0
"""The rules of preflight, and what becomes of all findings."""

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_kernel
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_boards import kernel_facts

from tests.unit.roles.places import PLUGINS, ROLES, Data
from tests.unit.roles.preflight_facts import KERNEL, RELEASES, RULES, TOOLKIT, data, with_facts

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
ENGINE: Data = {"origin": "package", "path": "/opt/docker/dockerd", "package": None}
UNITS = {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}


STRICT = {"strict": True, "nvidia_runtime__version": "1.18.0"}
OF_ZEROS = "@sha256:" + "0" * 64
CUDA_LIST = {"nvidia_runtime__optional_lists": ["cuda.csv"]}


UNIFIED = "systemd.unified_cgroup_hierarchy=1"
# Changes of a good board, and the only finding that they make.
INCOMPATIBLE: list[tuple[Data, str]] = [
    ({"platform": "none", "jetpack": "6.2"}, "not-a-jetson"),
    ({"jetpack": None}, "jetpack-unknown"),
    ({"jetpack": "4.2"}, "jetpack-unknown"),
    ({"arch": "armv7l"}, "architecture"),
    ({"mig_instances": 2}, "gpu-mig"),
    ({"controller__ansible_core": "2.15.9"}, "ansible-core"),
    ({"controller__ansible_core": "2.22.0"}, "ansible-core-untested"),
    ({"python": "3.6.9", "controller__ansible_core": "2.18.1"}, "ansible-core-python-3.6"),
    ({"python": "3.8.10", "controller__ansible_core": "2.20.0"}, "ansible-core-python-3.8"),
    ({"default_route": False}, "default-route"),
    ({"default_route": False, "k3s__settings__node-ip": "10.0.0.1"}, "default-route-services"),
    ({"memory_bytes": 10**9}, "memory"),
    ({"cgroup_lacks": {"pids": "CONFIG_CGROUP_PIDS is not set"}}, "cgroup-controllers"),
    ({"iptables__problem": "table nat: no"}, "iptables"),
    (
        {
            "kernel_modules": {"path": "/lib/modules/5.15.148-tegra", "others": "no kernel"},
            "iptables__problem": "table nat: no",
            "iptables__changes": "table nat: no",
        },
        "kernel-modules",
    ),
    ({"iptables__changes": "table nat: no"}, "iptables-variant"),
    ({"iptables__not_tried": "unshare: no"}, "iptables-not-tried"),
    ({"iptables__raw": "table raw: no", "docker__version": "28.0.1"}, "kernel-iptable-raw"),
    ({"docker__running": False, "docker__failure": "failed (exit-code)"}, "docker-failed"),
    ({"docker__containerd_store": True}, "docker-containerd-store"),
    ({"container_runtime": "containerd", "docker__running": False}, "docker-stand-by"),
    ({"packages__unattended": ["docker.io"]}, "docker-unattended-upgrades"),
    ({"docker__installed": False, "docker__engine": ENGINE | {"origin": None}}, "docker-absent"),
    ({"docker__installed": False, "docker__engine": ENGINE | {"origin": "snap"}}, "docker-snap"),
    ({"docker__installed": False, "docker__engine": ENGINE | {"origin": "podman"}}, "docker-podman"),
    ({"docker__engine": ENGINE | {"origin": "static"}}, "docker-static"),
    ({"docker__unit": False, "docker__engine": ENGINE | {"origin": "other"}}, "docker-without-unit"),
    ({"docker__installed": False, "docker__engine": ENGINE | {"origin": "static"}}, "docker-path"),
    ({"docker__daemon_json__error": "line 3"}, "docker-daemon-json"),
    ({"docker__conflicting_flags": ["--add-runtime"]}, "docker-flags"),
    ({"docker__version": "18.06.3-ce"}, "docker-too-old"),
    ({"docker__min_api_version": "1.44", "bundle__k3s_version": "v1.27.16+k3s1"}, "k3s-docker-api-dropped"),
    ({"nvidia_runtime__path": None}, "nvidia-runtime-absent"),
    ({"jetpack": "7.0", "nvidia_runtime__version": "1.17.8"}, "nvidia-runtime-jetpack7"),
    ({"jetpack": "5.1.1", "nvidia_runtime__version": "1.10.0"}, "nvidia-runtime-jetpack5"),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.0.1"}, "nvidia-runtime-clone3"),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.1.0"}, "nvidia-runtime-jetpack4"),
    (
        {"jetpack": "4.4", "nvidia_runtime__version": "1.6.0", "docker__version": "19.03.6"},
        "nvidia-runtime-jetpack4",
    ),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.9.0", **CUDA_LIST}, "nvidia-runtime-lists"),
    ({"strict": True, "nvidia_runtime__version": "1.16.2"}, "nvidia-runtime-strict"),
    (
        {
            "strict": True,
            "jetpack": "4.4",
            "nvidia_runtime__version": "1.0.5",
            "docker__version": "19.03.6",
            "bundle__k3s_version": "v1.27.16+k3s1",
        },
        "nvidia-runtime-strict-jetpack4",
    ),
    ({"gpu_device_plugin_config": UNITS}, "units-without-strict"),
    ({**CONTAINERD, "gpu_device_plugin_config": UNITS}, "units-without-strict"),
    ({"gpu_device_plugin_config": UNITS, "strict": True}, "nvidia-runtime-strict"),
    ({"memory_left_bytes": -1}, "units-memory"),
    ({"memory_left_bytes": 1_700_000_000}, "units-memory-low"),
    ({"cgroup_version": 1, "bundle__k3s_version": "v1.35.2+k3s1"}, "k3s-cgroup-v1"),
    ({"k3s__kubelet_arguments__fail-swap-on": "true"}, "k3s-swap"),
    ({"boot_arguments": f"lacks {UNIFIED}"}, "kernel-arguments"),
    ({"k3s__kubelet_arguments__cgroup-driver": "cgroupfs"}, "k3s-cgroup-driver"),
    ({"bundle__k3s_version": "v1.24.2+k3s1"}, "k3s-without-docker"),
    ({"bundle__k3s_version": "v1.28.6+k3s1"}, "k3s-docker-25-1.28"),
    ({"bundle__k3s_version": "v1.29.1+k3s1"}, "k3s-docker-25-1.29"),
    ({**CONTAINERD, "bundle__k3s_version": "v1.20.15+k3s1"}, "k3s-containerd-without-nvidia"),
    ({**DRA, "container_runtime": "docker"}, "dra-docker"),
    ({**DRA, "bundle__k3s_version": "v1.33.5+k3s1"}, "dra-k3s"),
    (
        {"gpu_device_plugin_throttle_taint": True, "bundle__k3s_version": "v1.29.15+k3s1"},
        "throttle-taint-k3s",
    ),
    ({**DRA, "nvidia_runtime__version": "1.7.0", "jetpack": "4.6.1"}, "dra-toolkit"),
    ({**STRICT, **DRA, "gpu_device_plugin_config": UNITS}, "dra-units"),
    ({**DRA, "gpu_device_plugin_config": {"sharing": {"timeSlicing": {"replicas": 4}}}}, "dra-time-slicing"),
    ({**DRA, "gpu_device_plugin_config": {"devices": [{"preset": "dla"}]}}, "dra-devices"),
    ({"gpu_device_plugin_config": CAPACITY}, "dra-settings"),
    ({**GATED, **GATES}, "dra-capacity-kubelet"),
    ({**GATED, **GATES, **KUBELET_GATE, "k3s__feature_gates__kube-apiserver": []}, "dra-capacity-apiserver"),
    ({**GATED, **GATES, **KUBELET_GATE, "k3s__feature_gates__kube-scheduler": []}, "dra-capacity-scheduler"),
    ({**DRA, "cgroup_version": 1}, "k3s-cgroup-v1"),
    ({"k3s__version": "v1.34.1+k3s1"}, "k3s-newer"),
    ({"k3s__version": "v1.33.6+k3s1"}, "k3s-newer"),
    ({"other_unit__installed": True}, "k3s-other-role"),
    ({"own_unit__command": "/usr/local/bin/k3s server --docker"}, "k3s-foreign-unit"),
    ({"foreign_runtime": "containerd"}, "k3s-runtime"),
    ({"groups": ["agent", "server"]}, "group-both"),
    ({"groups": []}, "group-none"),
    ({"kubectl_server": "jetson-2"}, "server-down"),
    ({"token_refused": "refused", "token_message": "the token is refused"}, "join-token"),
    ({"token_refused": "untrusted", "token_message": "another CA"}, "join-token"),
    ({"token_length": 15}, "join-token-weak"),
    ({"k3s__agents_join_with": "servers"}, "agent-token-shared"),
    ({"registries": True, "registries_docker": ["a", "b"]}, "registries-docker"),
    ({"registries": True, "registries_problems": ["a"]}, "registries"),
    ({**CONTAINERD, "registries": True, "registries_problems": ["a", "b"]}, "registries"),
    ({**CONTAINERD, "registries": True, "k3s__registries": "owner"}, "registries-foreign"),
    ({"registries": True, "credentials": True, "k3s__credentials": "owner"}, "credentials-foreign"),
    ({"proxy__problems": ["a"]}, "proxy"),
    ({"proxy__given": True, "proxy__inside": ["10.42.0.1 is in 10.42.0.0/16"]}, "proxy-range"),
    ({"proxy__given": True, "proxy__elsewhere": ["proxies in daemon.json"]}, "proxy-docker"),
    ({"release_url": "ftp://mirror.example/k3s"}, "release-url"),
    ({"release_url": "http://mirror.example/k3s"}, "release-url-plain"),
    ({"datastore": {"external": True, "servers": 3, "restores": False}}, "datastore-servers"),
    ({"datastore": {"external": True, "servers": 1, "restores": True}}, "datastore-restore"),
    ({"image_supply_host": "jetson-9"}, "image-supply-host"),
    ({"jtop_lacks_wheels": True}, "jtop-wheels"),
    ({**CONTAINERD, "image_supply_host": "jetson-2"}, "image-supply-containerd"),
    ({"update": {"asked": True, "version": ""}}, "runtime-update"),
    ({"held_packages": ["docker.io"]}, "packages-held"),
    *(
        ({"gpu_device_plugin_image": image}, "plugin-image")
        for image in (
            "registry.example/b:0.1.0",
            "registry.example/b@sha256:0",
            f"owner/b{OF_ZEROS}",
            f"b{OF_ZEROS}",
            f"registry.example/b --privileged{OF_ZEROS}",
        )
    ),
]


@pytest.mark.parametrize(("changes", "finding"), INCOMPATIBLE)
def test_each_incompatibility_is_found_alone(changes: Data, finding: str) -> None:
    found = preflight.findings_of_rules(with_facts(**changes), RULES)
    assert [entry["id"] for entry in found] == [finding]


@pytest.mark.parametrize(
    "changes",
    [
        {},
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
        {"nvidia_runtime__version": None, "strict": True},
        {**STRICT, "gpu_device_plugin_config": UNITS},
        {"gpu_device_plugin_config": {"version": "v1", "sharing": {"timeSlicing": {"replicas": 4}}}},
        {**DRA, "bundle__k3s_version": "v1.34.1+k3s1", "cgroup_version": 1},
        {**DRA, "gpu_device_plugin_config": CAPACITY},
        {**GATED, **GATES, "k3s__feature_gates__kubelet": ["A", "DRAConsumableCapacity"]},
        # The server has these components, and an agent knows nothing of them.
        {**GATED, **KUBELET_GATE, "role": "agent"},
        {**DRA, "gpu_device_plugin_config": {"sharing": {"dra": {"mode": "shares", "shares": 4}}}},
        {"gpu_device_plugin_config": None},
        {"jetpack": "7", "nvidia_runtime__version": "1.18.0"},
        {"jetpack": "6.0 EA"},
        {"role": "agent", "memory_bytes": 10**9},
        {"python": "3.6.9", "controller__ansible_core": "2.16.14"},
        {"container_runtime": "containerd", "docker__installed": False},
        {"docker__running": False, "docker__version": None},
        {"k3s__version": "v1.33.5+k3s2"},
        {"k3s__version": "v1.33.5-rc2+k3s1"},
        {"k3s__version": "v1.33.4+k3s1", "bundle__k3s_version": None},
        {"own_unit__command": "/usr/local/bin/k3s server"},
        {"own_unit__command": "k3s server --docker", "foreign_runtime": "docker", "takes_over": True},
        {"foreign_runtime": "containerd", "migrates": True},
        {"kubectl_server": "jetson-2", "k3s__agent__installed": True},
        {"token_length": 16},
        {**CONTAINERD, "k3s__registries": "owner"},
        {**CONTAINERD, "k3s__registries": "role", "registries": True, "registries_docker": ["mirrors"]},
        {"k3s__credentials": "owner", "k3s__registries": "owner", "registries": True},
        {"k3s__credentials": "role", "registries": True, "credentials": True},
        {"proxy__given": True},
        {"proxy__elsewhere": ["proxies in daemon.json"]},
        {"release_url": "http://mirror.example/k3s", "release_pinned": True},
        {"release_url": "file:///srv/k3s"},
        {"datastore": {"external": True, "servers": 1, "restores": False}},
        {"role": "agent", "datastore": {"external": True, "servers": 3, "restores": True}},
        {"image_supply_host": "jetson-2"},
        {**CONTAINERD, "image_supply_host": "jetson-2", "bundle_images": ["app.tar.gz"]},
        {"update": {"asked": True, "version": "1.18.0"}},
        {"gpu_device_plugin_image": f"registry.example:5000/a/b:0.1.0-own{OF_ZEROS}"},
        {"gpu_device_plugin_image": f"localhost/b{OF_ZEROS}"},
    ],
)
def test_a_compatible_board_has_no_findings(changes: Data) -> None:
    assert preflight.findings_of_rules(with_facts(**changes), RULES) == []


LACKS = "CONFIG_X is not set (module x)"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"kernel_lacks": {"veth": LACKS}}, {"kernel-veth": "JetPack's own kernel"}),
        (
            {"kernel_lacks": {"veth": LACKS}, "kernel_package": None},
            {"kernel-veth": "5.15.148-tegra is of no"},
        ),
        ({"iptables__problem": "no", "kernel_package": None}, {"iptables": "the vendor of the board"}),
        ({"kernel_lacks": {"vxlan": LACKS}}, {"kernel-vxlan": "flannel-backend: host-gw"}),
        ({"kernel_lacks": {"vxlan": LACKS}, "flannel_backend": "host-gw"}, {}),
        ({"kernel_lacks": {"vxlan": LACKS}, "flannel_backend": None}, {}),
        ({"kernel_lacks": {"ip_set": LACKS}, "network_policy": False}, {}),
        ({"kernel_lacks": {"nf_tables": LACKS, "iptable_raw": LACKS}}, {}),
        ({"iptables__raw": "table raw: no", "docker__version": "28.0.2"}, {}),
        ({"iptables__raw": "no", "docker__version": "28.0.1", "container_runtime": "containerd"}, {}),
        ({"kernel_lacks": {"ip_set": LACKS}}, {"kernel-ip-set": "disable-network-policy"}),
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
def test_kernel_feature_matters_with_its_setting(changes: Data, found: dict[str, str]) -> None:
    findings = preflight.findings_of_rules(with_facts(**changes), RULES)
    assert {entry["id"] for entry in findings} == found.keys()
    for entry in findings:
        assert found[entry["id"]] in entry["fix"]


@pytest.mark.parametrize(
    ("entry", "feature"),
    [(entry, feature) for entry in KERNEL for feature in entry.get("features", [entry["feature"]])],
    ids=lambda value: value if isinstance(value, str) else value["feature"],
)
def test_each_missing_kernel_feature_is_found_alone(entry: Data, feature: str) -> None:
    facts = with_facts(kernel_lacks={feature: LACKS})
    for condition in entry.get("when", []):
        facts["docker"]["version"] = condition.get("from", facts["docker"]["version"])
        if condition["fact"] == "flannel_backend" and "equals" in condition:
            facts["flannel_backend"] = condition["equals"]
    found = {one["id"]: one for one in preflight.findings_of_rules(facts, RULES)}
    own = found.pop("kernel-" + entry["feature"].replace("_", "-"))
    assert own["found"] == f"{feature} ({LACKS}): {entry['without']}"
    # Docker 28.0.0 and network policies use the same sets.
    assert set(found) <= {"kernel-ip-set"}


def test_text_that_is_no_version_is_as_unknown() -> None:
    """A board that is not trusted names the versions."""
    hostile = {"docker__version": "../hostile", "docker__runc": "hostile", "nvidia_runtime__version": "-1"}
    findings = preflight.findings_of_rules(with_facts(**hostile, k3s__version="hostile"), RULES)
    assert {"docker-too-old", "k3s-newer"} <= {one["id"] for one in findings}


def test_missing_controller_is_named() -> None:
    facts = with_facts(cgroup_lacks={"pids": "CONFIG_CGROUP_PIDS is not set"})
    (found,) = preflight.findings_of_rules(facts, RULES)
    assert found["found"].endswith("are missing: pids (CONFIG_CGROUP_PIDS is not set)")


def test_kernel_without_modules_is_one_finding() -> None:
    release, other = "5.15.148-tegra", "5.15.185-tegra"
    lacks = {"vxlan": LACKS, "veth": LACKS, "xt_set": "CONFIG_NETFILTER_XT_SET is not set (module xt_set)"}
    missing = {"path": f"/lib/modules/{release}", "kernels": [other], "features": ["veth", "vxlan"]}
    facts = with_facts(
        iptables__problem="table nat: no", **kernel_facts({"kernel_lacks": lacks, "kernel_modules": missing})
    )
    assert facts["kernel_modules"] == {"path": f"/lib/modules/{release}", "others": other}
    found = {one["id"]: one for one in preflight.findings_of_rules(facts, RULES)}
    assert sorted(found) == ["kernel-ip-set", "kernel-modules"]
    assert found["kernel-modules"]["found"] == (
        f"Linux {release} runs, and /lib/modules/{release} is missing (there are modules of {other})"
    )
    assert "sudo reboot" in found["kernel-modules"]["fix"]
    none = kernel_facts({"kernel_lacks": {}, "kernel_modules": {**missing, "kernels": []}})
    assert none["kernel_modules"]["others"] == "no kernel"


def test_facts_tell_every_kernel_feature_of_the_matrix() -> None:
    features = jetson_kernel.KERNEL_FEATURES
    assert {name for entry in KERNEL for name in entry.get("features", [entry["feature"]])} <= features.keys()


def test_rules_are_complete_and_their_ids_unique() -> None:
    assert len({rule["id"] for rule in RULES} | preflight.WARNINGS) == len(RULES) + len(preflight.WARNINGS)
    for rule in RULES:
        assert rule.keys() >= {"id", "require", "found", "expected", "fix"}
        assert rule.get("level", "error") in ("error", "warning")


# All others stop a board.
LENIENT = {
    "docker-static",
    "agent-token-shared",
    "ansible-core-untested",
    "default-route-services",
    "docker-absent",
    "docker-authorization-plugins",
    "docker-containerd-store",
    "docker-failed",
    "docker-firewall-backend",
    "docker-hosts-tcp",
    "docker-iptables",
    "docker-no-new-privileges",
    "docker-seccomp-profile",
    "docker-stand-by",
    "docker-storage-driver",
    "docker-ulimit-nofile",
    "docker-ulimit-nproc",
    "docker-unattended-upgrades",
    "gpu-mig",
    "image-supply-containerd",
    "iptables-not-tried",
    "iptables-variant",
    "jetpack-unknown",
    "join-token-weak",
    "kernel-arguments",
    "kernel-ip-set",
    "kernel-ip-set-calico",
    "memory",
    "nvidia-runtime-absent",
    "nvidia-runtime-lists",
    "units-memory-low",
    *(entry["id"] for entry in (*RELEASES, *TOOLKIT) if entry.get("level") == "warning"),
    "toolkit-unread",
}


def test_warnings_are_these_and_their_findings_exist() -> None:
    assert {rule["id"] for rule in RULES if rule.get("level") == "warning"} == LENIENT
    code = "".join(path.read_text() for path in PLUGINS.glob("*/preflight_*.py"))
    assert [name for name in sorted(preflight.WARNINGS) if f'"{name}"' not in code] == []


def test_k3s_of_the_default_bundle_fits_each_way_to_the_gpu() -> None:
    k3s = yaml.safe_load((ROLES / "bundle/defaults/main.yml").read_text())["__bundle_k3s_newest"]
    assert data("context")["__preflight_k3s"] == k3s  # without a bundle
    for ways in ({}, DRA, {**DRA, "gpu_device_plugin_config": CAPACITY}):
        assert preflight.findings_of_rules(with_facts(**{**ways, "bundle__k3s_version": k3s}), RULES) == []


def test_accepted_warning_is_kept_but_not_shown_and_an_error_is_not_accepted() -> None:
    findings = preflight.findings_of_rules(with_facts(memory_bytes=10**9, arch="armv7l"), RULES)
    accepted = preflight.accept(findings, ["memory", "architecture"], RULES)
    assert {entry["id"]: entry["level"] for entry in accepted} == {
        "accepted-unknown": "error",
        "memory": "accepted",
        "architecture": "error",
    }
    assert "memory" not in preflight.report(accepted, "jetson-1")


def test_accepting_an_unknown_finding_is_an_error() -> None:
    assert [entry["id"] for entry in preflight.accept([], ["defualt-route"], RULES)] == ["accepted-unknown"]
    assert preflight.accept([], ["default-route-services", "machine-id-duplicate"], RULES) == []


def test_report_names_host_cause_and_fix() -> None:
    entry = {"id": "group-none", "found": "this", "expected": "that", "fix": "do so"}
    text = preflight.report(preflight.accept([entry], [], RULES), "jetson-7")
    assert text.splitlines() == [
        "jetson-7: preflight found 1 problem; nothing was changed on this board.",
        "1. [error] group-none",
        "   found:    this",
        "   expected: that",
        "   fix:      do so",
        f"   url:      {page('docs/troubleshooting.md#group-none')}",
    ]


LINES: dict[str, Data] = {  # of JetPack: the releases of its board, and the newest Docker for its Ubuntu
    "4.4": {"jetpack": "4.4", "kernel": "4.9.140-tegra", "docker__version": "24.0.2", "cgroup_version": 1},
    "4.6": {"jetpack": "4.6.1", "kernel": "4.9.253-tegra", "docker__version": "24.0.2", "cgroup_version": 1},
    "5": {"jetpack": "5.1.1", "kernel": "5.10.104-tegra", "cgroup_version": 1},
    "6": {"jetpack": "6.2", "kernel": "5.15.148-tegra"},
    "7": {"jetpack": "7.0", "kernel": "6.8.12-tegra", "nvidia_runtime__version": "1.18.0"},
}
OLD_TOOLKIT = {"nvidia_runtime__version": "1.6.0"}
IGNORES_STRICT = {"nvidia_runtime__version": "1.11.0", "strict": True}


@pytest.mark.parametrize(
    ("line", "changes", "finding", "advice", "useless"),
    [
        ("4.4", OLD_TOOLKIT, "nvidia-runtime-jetpack4", "apt dist-upgrade", "--only-upgrade"),
        ("4.6", OLD_TOOLKIT, "nvidia-runtime-jetpack4", "--only-upgrade", "dist-upgrade"),
        ("4.6", IGNORES_STRICT, "nvidia-runtime-strict", "nvidia-container-toolkit=1.7.0", "--only-upgrade"),
        ("6", IGNORES_STRICT, "nvidia-runtime-strict", "--only-upgrade", "1.7.0"),
        ("6", {"kernel_lacks": {"veth": LACKS}}, "kernel-veth", "nvidia-l4t-kernel", "nothing"),
        # NVIDIA's package would replace the kernel of another vendor (ark_jetson_kernel#119).
        (
            "6",
            {"kernel_lacks": {"veth": LACKS}, "kernel_package": None},
            *("kernel-veth", "Do not install NVIDIA's kernel over it", "reinstall"),
        ),
        (
            "6",
            {"kernel_lacks": {"veth": LACKS}, "kernel_package": "nvidia-l4t-rt-kernel"},
            *("kernel-veth", "--reinstall nvidia-l4t-rt-kernel`", "nvidia-l4t-kernel"),
        ),
        ("4.6", {"iptables__problem": "no"}, "iptables", "nvidia-l4t-kernel", "nothing"),
        ("4.6", {"bundle__k3s_version": "v1.36.2"}, "k3s-cgroup-v1", "with K3s 1.34", UNIFIED),
        (
            "5",
            {"bundle__k3s_version": "v1.36.2", "k3s_source": "download"},
            "k3s-cgroup-v1",
            "set `k3s_version: v1.34.12+k3s1`",
            "bundle",
        ),
        (
            "5",
            {"bundle__k3s_version": "v1.36.2", "k3s__version": "v1.36.2"},
            "k3s-cgroup-v1",
            UNIFIED,
            "1.34",
        ),
    ],
)
def test_advice_works_on_the_board_that_gets_it(
    line: str, changes: Data, finding: str, advice: str, useless: str
) -> None:
    found = preflight.findings_of_rules(with_facts(**LINES[line] | changes), RULES)
    (fix,) = (entry["fix"] for entry in found if entry["id"] == finding)
    assert (advice in fix, useless in fix) == (True, False), fix


def test_texts_of_a_finding_have_the_values_of_the_board() -> None:
    facts = with_facts(foreign_runtime="containerd", held_packages=["docker.io", "runc"])
    runtime, held = preflight.findings_of_rules(facts, RULES)
    assert "with containerd" in runtime["found"]
    assert "run site.yml" in runtime["fix"] and "change to docker" in runtime["fix"]
    assert held["found"].startswith("apt holds docker.io, runc,")
