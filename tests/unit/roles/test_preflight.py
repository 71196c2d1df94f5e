# SPDX-License-Identifier: Apache-2.0
"""The compatibility matrix, what becomes of all findings, and where the advice of a rule works."""

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import yaml

from tests.unit.roles.loading import ROLES, Data, load
from tests.unit.roles.preflight_facts import KERNEL, RULES, with_facts

preflight = load("preflight/filter_plugins/preflight.py")

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


STRICT = {"strict": True, "nvidia_runtime__version": "1.18.0"}
CUDA_LIST = {"nvidia_runtime__optional_lists": ["cuda.csv"]}


UNIFIED = "systemd.unified_cgroup_hierarchy=1"
# Changes of a good board, and the only finding that they make.
INCOMPATIBLE: list[tuple[Data, str, str]] = [
    ({"platform": "none", "jetpack": "6.2"}, "not-a-jetson", "error"),
    ({"jetpack": None}, "jetpack-unknown", "warning"),
    ({"jetpack": "4.2"}, "jetpack-unknown", "warning"),
    ({"arch": "armv7l"}, "architecture", "error"),
    ({"mig_instances": 2}, "gpu-mig", "warning"),
    ({"controller__ansible_core": "2.15.9"}, "ansible-core", "error"),
    ({"controller__ansible_core": "2.21.0"}, "ansible-core-untested", "warning"),
    ({"python": "3.6.9", "controller__ansible_core": "2.18.1"}, "ansible-core-python-3.6", "error"),
    ({"default_route": False}, "default-route", "error"),
    ({"default_route": False, "k3s__settings__node-ip": "10.0.0.1"}, "default-route-services", "warning"),
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
    ({"jetpack": "5.1.1", "nvidia_runtime__version": "1.10.0"}, "nvidia-runtime-jetpack5", "error"),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.0.1"}, "nvidia-runtime-clone3", "error"),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.1.0"}, "nvidia-runtime-jetpack4", "error"),
    (
        {"jetpack": "4.4", "nvidia_runtime__version": "1.6.0", "docker__version": "19.03.6"},
        "nvidia-runtime-jetpack4",
        "error",
    ),
    ({"jetpack": "4.6", "nvidia_runtime__version": "1.9.0", **CUDA_LIST}, "nvidia-runtime-lists", "warning"),
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
    ({**CONTAINERD, "bundle__k3s_version": "v1.20.15+k3s1"}, "k3s-containerd-without-nvidia", "error"),
    ({**DRA, "container_runtime": "docker"}, "dra-docker", "error"),
    ({**DRA, "bundle__k3s_version": "v1.33.5+k3s1"}, "dra-k3s", "error"),
    ({**DRA, "nvidia_runtime__version": "1.7.0", "jetpack": "4.6.1"}, "dra-toolkit", "error"),
    ({**STRICT, **DRA, "gpu_device_plugin_config": UNITS}, "dra-units", "error"),
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
def test_each_incompatibility_is_found_alone(changes: Data, finding: str, level: str) -> None:
    found = preflight.findings_of_rules(with_facts(**changes), RULES)
    assert [(entry["id"], entry["level"]) for entry in found] == [(finding, level)]


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
    ],
)
def test_a_compatible_board_has_no_findings(changes: Data) -> None:
    assert preflight.findings_of_rules(with_facts(**changes), RULES) == []


LACKS = "CONFIG_X is not set (module x)"


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
    found = {
        entry["id"]: entry for entry in preflight.findings_of_rules(facts, preflight.rules_of_kernel(KERNEL))
    }
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
    findings = preflight.findings_of_rules(with_facts(**changes), RULES + preflight.rules_of_kernel(KERNEL))
    assert {entry["id"] for entry in findings} == found.keys()
    for entry in findings:
        assert found[entry["id"]] in entry["fix"]


def test_facts_tell_every_kernel_feature_of_the_matrix() -> None:
    features = load("jetson_facts/module_utils/jetson_kernel.py").KERNEL_FEATURES
    assert {name for entry in KERNEL for name in entry.get("features", [entry["feature"]])} <= features.keys()


def test_rules_are_complete_and_their_ids_unique() -> None:
    rules = RULES + preflight.rules_of_kernel(KERNEL)
    assert len({rule["id"] for rule in rules} | preflight.CODED.keys()) == len(rules) + len(preflight.CODED)
    for rule in rules:
        assert rule.keys() >= {"id", "require", "found", "expected", "fix"}
        assert rule.get("level", "error") in ("error", "warning")


def test_k3s_of_the_default_bundle_fits_each_way_to_the_gpu() -> None:
    k3s = yaml.safe_load((ROLES / "bundle/defaults/main.yml").read_text())["__bundle_k3s_newest"]
    context = yaml.safe_load((ROLES / "preflight/vars/main/context.yml").read_text())
    assert context["__preflight_k3s"] == k3s  # without a bundle
    for ways in ({}, DRA, {**DRA, "gpu_device_plugin_config": CAPACITY}):
        assert preflight.findings_of_rules(with_facts(**{**ways, "bundle__k3s_version": k3s}), RULES) == []


@pytest.mark.parametrize(
    ("kernel", "adds", "advice"),
    [
        ("5.10.104-tegra", [], f"Or add `{UNIFIED}` to APPEND"),
        ("5.10.104-tegra", [UNIFIED], "Or `sudo reboot`. APPEND"),
        ("4.9.253-tegra", [UNIFIED], "k3s_agent_config. Or use a bundle"),
    ],
)
def test_advice_for_cgroup_v2_depends_on_the_next_boot(kernel: str, adds: list[str], advice: str) -> None:
    facts = with_facts(cgroup_version=1, kernel=kernel, bundle__k3s_version="v1.36.2+k3s1")
    facts["kernel_arguments"]["adds"] = adds
    (found,) = preflight.findings_of_rules(facts, [rule for rule in RULES if rule["id"] == "k3s-cgroup-v1"])
    assert advice in found["fix"]


def test_accepted_warning_is_kept_but_not_shown_and_an_error_is_not_accepted() -> None:
    findings = preflight.findings_of_rules(with_facts(memory_bytes=10**9, arch="armv7l"), RULES)
    accepted = preflight.accept(findings, ["memory", "architecture"], RULES)
    assert {entry["id"]: entry["level"] for entry in accepted} == {
        "memory": "accepted",
        "architecture": "error",
    }
    assert "memory" not in preflight.report(accepted, "jetson-1")


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
    assert ids <= preflight.CODED.keys()


def test_accepting_an_unknown_finding_is_an_error() -> None:
    assert [entry["id"] for entry in preflight.accept([], ["defualt-route"], RULES)] == ["accepted-unknown"]
    assert preflight.accept([], ["default-route", "machine-id-duplicate"], RULES) == []


def test_report_names_host_cause_and_fix() -> None:
    entry = {"id": "group-none", "found": "this", "expected": "that", "fix": "do so"}
    text = preflight.report(preflight.accept([entry], [], RULES), "jetson-7")
    assert text.splitlines() == [
        "jetson-7: preflight found 1 problem; nothing was changed on this board.",
        "1. [error] group-none",
        "   found:    this",
        "   expected: that",
        "   fix:      do so",
        "   url:      docs/troubleshooting.md#group-none",
    ]


version = preflight.version_key


class Line(NamedTuple):
    """A line of JetPack as flashed, and the newest packages of its archives."""

    jetpack: str
    kernel: str
    python: str
    toolkit: str  # in NVIDIA's archive for this L4T
    docker_ce: str  # of docker.com for its Ubuntu
    cgroups: tuple[int, ...]  # JetPack 4 and 5 boot with version 1; a kernel before 5.2 has no complete 2


# L4T's archives, and download.docker.com: 18.04 has no Docker after 24.0.2, 20.04 none after 28.1.1.
LINES = {
    "JetPack 4.4": Line("4.4", "4.9.140-tegra", "3.6.9", "1.0.1", "24.0.2", (1,)),
    "JetPack 4.6": Line("4.6.1", "4.9.253-tegra", "3.6.9", "1.7.0", "24.0.2", (1,)),
    "JetPack 5": Line("5.1.1", "5.10.104-tegra", "3.8.10", "1.11.0", "28.1.1", (1, 2)),
    "JetPack 6": Line("6.2", "5.15.148-tegra", "3.10.12", "1.16.2", "29.1.0", (2,)),
    "JetPack 7": Line("7.0", "6.8.12-tegra", "3.12.3", "1.18.0", "29.1.0", (2,)),
}
INSTALLED = (None, "v1.34.2+k3s1", "v1.36.2+k3s1")

Board = Data
# A command or a setting of an advice, and where it works: board, line, version that the rule asks for.
WORKS: dict[str, Callable[[Board, Line, str], bool]] = {
    r"systemd.unified_cgroup_hierarchy=1": lambda board, *_: version(board["kernel"]) >= (5, 2),
    # From Kubernetes 1.31 on (pkg/kubelet/apis/config: FailCgroupV1).
    r"fail-cgroupv1=false": lambda board, *_: version(board["bundle"]["k3s_version"]) >= (1, 31),
    r"a bundle with K3s 1\.34": lambda board, *_: version(board["k3s"]["version"] or "0")[:2] <= (1, 34),
    r"pip install 'ansible-core==2\.16\.\*'": lambda *_: True,
    r"pip install 'ansible-core==2\.19\.\*'": lambda board, *_: version(board["python"]) >= (3, 8),
    r"make venv": lambda board, *_: version(board["python"]) >= (3, 8),
    r"apt install --only-upgrade nvidia-container-toolkit`? from NVIDIA's own": (
        lambda board, *_: version(board["jetpack"]) >= (5,)
    ),
    r"apt install --only-upgrade nvidia-container-toolkit(?! nvidia|`? from)": (
        lambda _, line, wanted: version(line.toolkit) >= version(wanted)
    ),
    r"nvidia-container-toolkit nvidia-container-runtime nvidia-docker2": (
        lambda board, line, wanted: (
            version(board["jetpack"]) < (5,) and version(line.toolkit) >= version(wanted)
        )
    ),
    r"nvidia-container-toolkit=1\.7\.0": lambda board, *_: version(board["jetpack"]) < (5,),
    r"apt dist-upgrade": lambda board, *_: version(board["jetpack"]) < (4, 6, 1),
    r"docker-ce=5:27\.5\.1": lambda _, line, __: version(line.docker_ce) >= (27, 5, 1),
    r"Docker 28\.0\.2": lambda _, line, __: version(line.docker_ce) >= (28, 0, 2),
    r"nvidia-l4t-kernel": lambda board, *_: version(board["jetpack"]) < (7,),
    r"features: {containerd-snapshotter": lambda _, line, __: version(line.docker_ce) >= (24,),
    r"min-api-version": lambda _, line, __: version(line.docker_ce) >= (29,),
    r"nvidia-smi": lambda board, *_: version(board["jetpack"]) >= (7,),
    r"DRAConsumableCapacity=true": lambda board, *_: version(board["bundle"]["k3s_version"]) >= (1, 34),
}
# Commands of every Ubuntu from 18.04 on, and settings that no board refuses.
ANYWHERE = re.compile(
    r"sudo (reboot|apt update|apt install iptables|apt install --only-upgrade docker\.io|"
    r"apt-mark hold (docker-ce|docker\.io containerd)|journalctl .*|systemctl edit docker|unshare .*|"
    r"update-alternatives .*)|"
    r"python3 -m json\.tool .*|cgroup_disable|disable-network-policy: true|exec-opts|"
    r"fail-swap-on|swapon --show|-e jetson_k3s_confirm=.*|"
    r"flannel-(backend|iface).*|(kubelet|kube-\w+)-arg|memoryTotal|node-ip|shares|sharing.*|timeSlicing|units"
)


def boards(line: str, changes: Data) -> list[Board]:
    """Boards of this line with these changes, by cgroup version and by the K3s that is installed."""
    of_line = LINES[line]
    flashed = {"jetpack": of_line.jetpack, "kernel": of_line.kernel, "python": of_line.python}
    docker = {"docker__version": min("27.5.1", of_line.docker_ce, key=version)}
    return [
        with_facts(**{**docker, **changes, **flashed, "cgroup_version": cgroup, "k3s__version": installed})
        for cgroup in of_line.cgroups
        for installed in INSTALLED
    ]


def can_exist(board: Board, line: Line) -> bool:
    """Has the line's Ubuntu this Docker, its GPU MIG? K3s does not go back, which is a finding of its own."""
    docker, installed = board["docker"]["version"], board["k3s"]["version"]
    old = installed and version(installed)[:2] > version(board["bundle"]["k3s_version"])[:2]
    dropped = version(board["docker"]["min_api_version"] or "1.24") >= (1, 44)  # as Docker 29 has it
    newest = max(version(docker or "0"), (29,) if dropped else (0,))
    mig = board["mig_instances"] and version(board["jetpack"]) < (7,)
    return not old and not mig and newest <= version(line.docker_ce)


@pytest.mark.parametrize("line", LINES)
def test_advice_works_on_the_board_that_gets_it(line: str) -> None:
    rules = RULES + preflight.rules_of_kernel(KERNEL)
    wanted = {rule["id"]: str(rule["require"].get("from", "0")) for rule in rules}
    missing: list[Data] = [
        {
            "kernel_lacks": dict.fromkeys(entry.get("features", [entry["feature"]]), "-"),
            "flannel_backend": one,
        }
        for entry in KERNEL
        for one in ("vxlan", "none")
    ]
    fired = set()
    for changes in [changes for changes, _, _ in INCOMPATIBLE] + missing:
        for board in boards(line, changes):
            if not can_exist(board, LINES[line]):
                continue
            for found in preflight.findings_of_rules(board, rules):
                fired.add(found["id"])
                where = f"{found['id']} on {line}, cgroup v{board['cgroup_version']}: {found['fix']}"
                assert found["fix"], where
                for act, works in WORKS.items():
                    if re.search(act, found["fix"]):
                        assert works(board, LINES[line], wanted[found["id"]]), f"{act}: {where}"
                for command in re.findall(r"`([^`]+)`", found["fix"]):
                    decided = ANYWHERE.fullmatch(command) or any(re.search(act, command) for act in WORKS)
                    assert decided, f"where does `{command}` work? {where}"
                assert not re.search(r"(?<!`)\bsudo ", found["fix"]), where
    assert len(fired) > 25
