# SPDX-License-Identifier: Apache-2.0
"""The device plugin as the role deploys it: manifests, containers and answers, and pods that keep the API."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.jetson_k3s.cluster.plugins.modules import container_command, koordinator_device
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_api_users as api_users
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_manifest as manifest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_device_plugin as planning
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_device_plugin_answers as answers
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from tegra_device_plugin import plugin
from tegra_device_plugin.agent import node_agent
from tegra_device_plugin.cli import find_command
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.config.units import PRESETS
from tegra_device_plugin.dra import driver as dra_driver
from tegra_device_plugin.sharing import koordinator
from tegra_device_plugin.telemetry import jtop

from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, ROLES, Data
from tests.unit.roles.playing import MODULE, answer, outcome

DEPLOY = ROLES.parent / "plugin/deploy"
PLAIN, AGENT = ((DEPLOY / part / "daemonset.yaml").read_text() for part in ("base", "agent"))
RIGHTS = json.loads((DEPLOY / "agent/rights.json").read_text())
DRIVER = [(DEPLOY / "dra" / name).read_text() for name in ("cluster.yaml", "daemonset.yaml")]


def rendered(image: str = "plugin:9", runtime: str = "docker", **more: Any) -> list[Data]:
    """The objects of plugin and agent. Most of them tests/chart compares in full with the chart's."""
    return manifests.rendered(PLAIN, image, "sha256:ab", runtime, False, **more)


def driver(**more: Any) -> list[Data]:
    return manifests.rendered_driver(DRIVER, "plugin:9", "sha256:ab", extended_resource=False, **more)


def agent(mode: str, policy: str) -> Data:
    return {"manifest": AGENT, "rights": RIGHTS, "mode": mode, "qos_policy": policy}


def mounted(daemonset: Data, root: Path) -> set[Path]:
    """Directories of the board in a pod that can be deleted there and made again, `root` being /host.

    They are those that the pod writes, or that the kubelet makes. The kernel's file systems and those of the
    operating system are neither.
    """
    spec = daemonset["spec"]["template"]["spec"]
    types = {one["name"]: one["hostPath"]["type"] for one in spec["volumes"] if "hostPath" in one}
    (container,) = spec["containers"]
    paths = {
        one["mountPath"]
        for one in container["volumeMounts"]
        if types.get(one["name"]) == "DirectoryOrCreate"
        or (types.get(one["name"]) == "Directory" and not one.get("readOnly"))
    }
    of_host = {path: root / path.removeprefix("/host/") for path in paths if path.startswith("/host/")}
    for path in of_host.values():
        path.mkdir(parents=True)
    return {of_host.get(path, Path(path)) for path in paths}


def test_plugin_watches_each_directory_that_can_be_deleted_under_its_mount(tmp_path: Path) -> None:
    units = {"sharing": {"units": {"preset": "koordinator", "memoryTotal": "6Gi"}}}
    directories = mounted(rendered(config=units)[0], tmp_path)
    assert {Path("/var/lib/tegra-gpu-limit"), tmp_path / "var/run/koordlet"} <= directories
    watched = set(plugin.mounted_directories(config.PluginSettings(host_root=tmp_path)))
    assert directories - watched == set()


def test_dra_driver_watches_each_directory_that_can_be_deleted_under_its_mount(tmp_path: Path) -> None:
    (daemonset,) = (one for one in driver() if one["kind"] == "DaemonSet")
    directories = mounted(daemonset, tmp_path)
    assert tmp_path / "var/run/cdi" in directories
    settings = config.DraSettings(Dra(), "node", host_root=tmp_path)
    assert directories - set(dra_driver.mounted_directories(settings)) == set()


def test_agent_watches_each_directory_that_can_be_deleted_under_its_mount(tmp_path: Path) -> None:
    directories = mounted(yaml.safe_load(AGENT), tmp_path)
    assert tmp_path / "var/log/pods" in directories
    settings = config.AgentSettings(host_root=tmp_path)
    assert directories - set(node_agent.mounted_directories(settings)) == set()


def test_each_pod_has_the_boards_own_image_and_is_renewed_by_the_run_of_its_board() -> None:
    objects = [*rendered(agent=agent("report", "best-effort")), *driver()]
    specs = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "DaemonSet"}
    assert specs.keys() == {"tegra-device-plugin", "tegra-gpu-agent", "tegra-dra-driver"}
    for spec in specs.values():
        assert spec["updateStrategy"] == {"type": "OnDelete"}
        annotations = spec["template"]["metadata"]["annotations"]
        assert annotations["jetson-k3s.github.io/image-id"] == "sha256:ab"
        (container,) = spec["template"]["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("plugin:9", "Never")


LABELS = {
    "nvidia.com/gpu.count": "1",
    "jetson-k3s.github.io/power-mode": "MODE_15W",
    "nvidia.com/gpu.family": "",
}


def test_labels_of_the_plugin_are_taken_and_no_others() -> None:
    assert (answers.labels(json.dumps(LABELS)), answers.labels("")) == (LABELS, {})
    for key, value in {
        "node-role.kubernetes.io/control-plane": "true",
        "--server": "https://evil",
        "nvidia.com/--all": "",
        "nvidia.com/a\n": "",
        "nvidia.com/a": "b c",
        "nvidia.com/b": ["c"],
    }.items():
        with pytest.raises(AnsibleFilterError, match="The node was not labelled"):
            answers.labels(json.dumps(LABELS | {key: value}))
    for text in ("[]", "{", "1"):
        with pytest.raises(AnsibleFilterError, match="JSON"):
            answers.labels(text)


def test_device_of_the_node_is_taken_and_no_other_object() -> None:
    device = answers.device
    right = koordinator.device("jetson-2", [DEVICE_INFO])
    assert device(json.dumps(right), "jetson-2") == right
    assert device("", "jetson-2") is None
    more = right | {"metadata": right["metadata"] | {"ownerReferences": [], "namespace": "kube-system"}}
    assert device(json.dumps(more | {"rules": []}), "jetson-2") == right
    changes: tuple[Data, ...] = (
        {"kind": "ClusterRoleBinding"},
        {"apiVersion": "v1"},
        {"metadata": right["metadata"] | {"name": "jetson-1"}},
        {"metadata": right["metadata"] | {"labels": {"a": "b"}}},
        {"metadata": []},
        {"spec": None},
    )
    for change in changes:
        with pytest.raises(AnsibleFilterError, match="Nothing was applied"):
            device(json.dumps(right | change), "jetson-2")


DEVICE_INFO = {
    "vendor": "nvidia",
    "model": "orin-nano",
    "uuid": "tegra",
    "minor": "0",
    "resources": {"koordinator.sh/gpu-core": "100"},
    "status": {"healthy": True},
}


def test_the_plain_manifests_have_settings_of_the_plugin() -> None:
    settings = config.load_plugin(DEPLOY / "units/config.yaml", {}, {})
    assert settings.units
    assert settings.gpu_limit_dir == Path("/var/lib/tegra-gpu-limit")


def test_settings_reach_a_program_without_a_standard_input() -> None:
    given = json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [SHARED]}}})
    asked = [sys.executable, "-c", planning.WITH_SETTINGS, given, "config", "check", "/dev/stdin"]
    said = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "good: 2 x nvidia.com/gpu" in said.stdout


def test_the_role_knows_every_preset() -> None:
    assert {name: preset.memory.name for name, preset in PRESETS.items()} == manifests.MEMORY_RESOURCES


@pytest.mark.parametrize(
    ("mode", "policy", "privileged", "capabilities"),
    [
        ("report", "best-effort", None, {"drop": ["ALL"]}),
        ("evict", "best-effort", None, {"drop": ["ALL"], "add": ["KILL"]}),
        ("report", "burst-share", True, None),
        ("evict", "burst-share", True, None),
        ("report", "per-pod", True, None),
    ],
)
def test_agent_has_the_rights_of_its_mode(
    mode: str, policy: str, privileged: bool | None, capabilities: Data | None
) -> None:
    plugin, found = rendered(agent=agent(mode, policy))
    assert [plugin] == rendered()
    spec = found["spec"]["template"]["spec"]
    assert spec.get("hostPID", False) == (mode == "evict")
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert (context.get("privileged"), context.get("capabilities")) == (privileged, capabilities)
    # Kubernetes refuses a privileged container that says no to privilege escalation.
    assert context.get("allowPrivilegeEscalation") is (None if privileged else False)
    parser = argparse.ArgumentParser()
    find_command("agent").add_arguments(parser)
    options = parser.parse_args(container["args"][1:])
    assert (options.mode, options.qos_policy) == (mode, policy)
    of_runtime = [one for one in spec["volumes"] if one["hostPath"]["path"] == "/run/k3s"]
    assert bool(of_runtime) == (policy == "per-pod")
    assert {one["name"] for one in spec["volumes"]} == {one["name"] for one in container["volumeMounts"]}


SHARED = {"name": "nvidia.com/gpu", "replicas": 2}
UNITS = {"memoryTotal": "4Gi"}
# What pods may see of a directory where services of root have their sockets: jtop's runs what a client sends.
OWN_IN_RUN = {"/var/run/cdi", "/var/run/koordlet", "/run/udev/data"}
DEVICES = [
    {"preset": "argus"},
    {"name": "camera", "groups": [{"paths": [{"path": "/dev/video*", "udev": {"ID_MODEL_ID": "0825"}}]}]},
]


def test_no_pod_has_a_socket_of_a_service_of_roots() -> None:
    koordinator_too = {
        "version": "v1",
        "sharing": {"units": UNITS | {"preset": "koordinator"}},
        "devices": DEVICES,
    }
    pods = [
        pod
        for variants in (
            rendered(agent=agent("evict", "burst-share"), config=koordinator_too, metrics_on_host=True),
            rendered(runtime="containerd"),
            driver(config=koordinator_too, metrics_on_host=True),
        )
        for pod in variants
        if pod["kind"] == "DaemonSet"
    ]
    paths = {
        volume["hostPath"]["path"]
        for pod in pods
        for volume in pod["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in volume
    }
    assert {path for path in paths if path == "/" or "run" in path.split("/")} <= OWN_IN_RUN
    assert jtop.SOCKET.removesuffix("/relay.sock") in {path.lstrip("/") for path in paths}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"devices": DEVICES}, {"/run/udev/data", "/proc/1/net/unix"}),
        ({"devices": DEVICES[:1]}, {"/proc/1/net/unix"}),
        ({"devices": [{"name": "camera", "groups": [{"paths": [{"path": "/dev/video0"}]}]}]}, set()),
        ({"flags": {"plugin": {"boardMetrics": True}}}, {"/var/lib/nvpmodel"}),
        ({"flags": {"plugin": {"boardMetrics": False}}}, set()),
    ],
)
def test_settings_need_no_right_and_only_the_paths_that_they_name(settings: Data, more: set[str]) -> None:
    without = rendered(config={"version": "v1"})[0]["spec"]["template"]["spec"]
    spec = rendered(config={"version": "v1", **settings})[0]["spec"]["template"]["spec"]
    (before,), (container,) = without["containers"], spec["containers"]
    mounts = [one for one in container["volumeMounts"] if one not in before["volumeMounts"]]
    assert {one["mountPath"].removeprefix("/host") for one in mounts} == more
    assert all(one["readOnly"] for one in mounts)
    added = [one["hostPath"]["path"] for one in spec["volumes"] if one not in without["volumes"]]
    assert set(added) == more
    for key in ("volumeMounts", "volumes"):
        before.pop(key, None), container.pop(key, None), without.pop(key, None), spec.pop(key, None)
    assert spec == without


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
@pytest.mark.parametrize("config", [{}, {"version": "v1", "sharing": {"units": {"memoryTotal": "4Gi"}}}])
@pytest.mark.parametrize("on_host", [False, True])
def test_the_pod_reads_the_relay_of_jtop_without_any_right(runtime: str, config: Data, on_host: bool) -> None:
    plugin = rendered(runtime=runtime, config=config, metrics_on_host=on_host)[0]
    spec = plugin["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not context.get("privileged")
    assert not any(spec.get(name) for name in ("hostPID", "hostNetwork", "hostIPC"))
    below = [one for one in container["volumeMounts"] if "jtop" in one["mountPath"]]
    assert below == [{"name": "jtop", "mountPath": f"/host{jtop.DIRECTORY}", "readOnly": True}]
    # Neither the directory above it, which has settings of root's, nor the root of the host.
    hosts = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    above = {str(parent) for parent in Path(jtop.DIRECTORY).parents}
    assert jtop.DIRECTORY in hosts
    assert not hosts & above


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sharing": {"timeSlicing": {"renameByDefault": True, "resources": [SHARED]}}},
        {"sharing": {"timeSlicing": {"resources": [{**SHARED, "rename": "gpu-share"}]}}},
        {"sharing": {"units": UNITS}},
        {"sharing": {"units": {**UNITS, "memoryResource": "gpu-memory"}}},
        {"sharing": {"units": {**UNITS, "preset": "hami"}}},
        {
            "resources": {"gpus": [{"pattern": "*", "name": "tegra"}]},
            "sharing": {
                "timeSlicing": {"renameByDefault": True, "resources": [{"name": "tegra", "replicas": 2}]}
            },
        },
    ],
)
def test_role_waits_for_the_plugins_resource(settings: Data, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"version": "v1", **settings}))
    offered = config.load_plugin(file, {}, {})
    waited_for = offered.units.memory.name if offered.units else offered.resource
    assert manifests.resource({"version": "v1", **settings}) == waited_for
    assert manifests.resource({}) == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("runtime", "flags", "chosen"),
    [
        ("docker", {}, []),
        ("containerd", {}, ["--cdi-version=0.7.0"]),
        ("containerd", {"cdiVersion": "0.5.0"}, []),
    ],
)
def test_cdi_version_with_groups_is_for_containerd(
    runtime: str, flags: dict[str, str], chosen: list[str]
) -> None:
    objects = driver(container_runtime=runtime, config={"version": "v1", "flags": {"plugin": flags}})
    (daemonset,) = (one for one in objects if one["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert [argument for argument in container["args"] if "cdi" in argument] == chosen


def user_pod(name: str, resource: str = "nvidia.com/gpu", phase: str = "Running", **spec: Any) -> Data:
    container = {"resources": {"limits": {resource: "1", "memory": "1Gi"}}}
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {"phase": phase},
        "spec": {"containers": [container], "nodeName": "a", **spec},
    }


def claim(name: str, *pods: str, driver: str = "gpu.jetson-k3s.github.io", pool: str = "a") -> Data:
    results = [{"driver": driver, "pool": pool, "device": "igpu-0"}]
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"name": one} for one in pods],
        },
    }


def cluster(monkeypatch: pytest.MonkeyPatch, label: str, settings: Data | None = None) -> None:
    """A SIMULATED kubectl of a cluster whose node `a` has this label."""
    node = {"metadata": {"labels": {label: "some-configuration"}}}
    lists = {
        "configmaps": [
            {"metadata": {"name": name}, "data": {"config.yaml": json.dumps(settings)}}
            for name in ("tegra-device-plugin-some-configuration", "of-somebody")
        ],
        "pods": [
            user_pod("train"),
            user_pod("ended", phase="Succeeded"),
            user_pod("waits", nodeName=""),
            user_pod("other", "example.com/fpga"),
            user_pod("named", "example.com/share"),
        ],
        "resourceclaims": [
            claim("held", "user"),
            claim("free"),
            claim("foreign", "user2", driver="gpu.example.com"),
            claim("elsewhere", "user3", pool="b"),
            {"metadata": {"namespace": "n", "name": "new"}},
        ],
    }
    monkeypatch.setattr(api_users, "get", lambda _kind, name: node if name == "a" else None)
    monkeypatch.setattr(api_users, "listed", lambda kind, *_: lists[kind])


SHARE_RESOURCE = "example.com/share"


@pytest.mark.parametrize(
    ("wanted", "there", "sharing", "users"),
    [
        ("device-plugin", "dra", None, ["n/user"]),
        ("device-plugin", "device-plugin", None, []),
        ("dra", "dra", None, []),
        ("dra", "device-plugin", None, ["n/train"]),
        # The settings may name the resource.
        (
            "dra",
            "device-plugin",
            {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "rename": SHARE_RESOURCE}]}},
            ["n/named", "n/train"],
        ),
        ("dra", "device-plugin", {"units": {"memoryResource": SHARE_RESOURCE}}, ["n/named", "n/train"]),
    ],
)
def test_pods_that_use_the_other_api_are_found(
    monkeypatch: pytest.MonkeyPatch, wanted: str, there: str, sharing: Data | None, users: list[str]
) -> None:
    cluster(monkeypatch, f"jetson-k3s.github.io/{there}", {"version": "v1", "sharing": sharing})
    assert api_users.users(wanted, "a") == users
    assert api_users.users(wanted, "b") == []


@pytest.mark.parametrize("name", [name for preset in PRESETS.values() for name in preset.names])
def test_every_resource_of_the_plugin_is_known(name: str) -> None:
    assert api_users.holders([user_pod("p", name)], set()) == ["n/p"]


def test_objects_of_other_settings_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*arguments: str) -> str:
        asked.append(arguments)
        return "daemonset.apps/old\n"

    monkeypatch.setattr(manifest, "run", run)
    assert manifest.leftovers([]) == []
    assert manifest.leftovers(["daemonset.apps/old"]) == ["daemonset.apps/old"]
    (arguments,) = asked
    assert {"get", "--namespace=kube-system", "--ignore-not-found", "daemonset.apps/old"} < set(arguments)


def test_unchanged_objects_are_no_change() -> None:
    assert manifest.changed_objects("daemonset.apps/a unchanged\n") == []
    changed = "daemonset.apps/a configured"
    assert manifest.changed_objects(f"{changed}\nconfigmap/b unchanged\n") == [changed]


OUR_DEVICE = koordinator.device("jetson-1", [DEVICE_INFO])


class KoordinatorCluster:
    """A SIMULATED kubectl with Koordinator's CRD and the node: the objects that there are, by kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.objects: Data = {
            "customresourcedefinition": {},
            "node": {"metadata": {"name": "jetson-1", "uid": "u-1"}},
        }
        self.applied: list[Data] = []
        monkeypatch.setattr(koordinator_device, "get", lambda kind, _name: self.objects.get(kind))
        monkeypatch.setattr(koordinator_device, "run", self.run)
        monkeypatch.setattr(koordinator_device, "has_kubectl", lambda: True)

    def run(self, verb: str, *_argv: str, stdin: str, accept: tuple[int, ...] = (0,)) -> str:
        wanted = json.loads(stdin)
        if verb == "diff":
            return "" if self.objects.get(koordinator_device.KIND) == wanted else "+ health: true"
        self.applied.append(wanted)
        self.objects[koordinator_device.KIND] = wanted
        return ""

    def play(self, check_mode: bool = False) -> Data:
        return outcome(self.patch, koordinator_device, {"device": OUR_DEVICE}, check_mode)


@pytest.fixture
def koordinator_cluster(monkeypatch: pytest.MonkeyPatch) -> KoordinatorCluster:
    return KoordinatorCluster(monkeypatch)


def test_koordinator_device_is_made_once_and_goes_with_its_node(
    koordinator_cluster: KoordinatorCluster,
) -> None:
    assert koordinator_cluster.play(check_mode=True)["changed"] is True
    assert koordinator_cluster.applied == []
    assert koordinator_cluster.play()["changed"] is True
    (made,) = koordinator_cluster.applied
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "jetson-1", "u-1")
    assert made["spec"] == OUR_DEVICE["spec"]
    assert koordinator_cluster.play()["changed"] is False
    assert len(koordinator_cluster.applied) == 1


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        ({"customresourcedefinition": None}, "does not have the CRD devices.scheduling.koordinator.sh"),
        ({koordinator_device.KIND: {"metadata": {"labels": None}}}, "koordlet makes it"),
        ({koordinator_device.KIND: {"metadata": {"labels": {"a": "b"}}}}, "koordlet makes it"),
        ({"node": None}, "does not have this node"),
    ],
)
def test_koordinator_device_of_others_is_left_alone(
    koordinator_cluster: KoordinatorCluster, objects: Data, found: str
) -> None:
    koordinator_cluster.objects |= objects
    result = koordinator_cluster.play()
    assert (result["changed"], koordinator_cluster.applied) == (False, [])
    assert found in result["found"]


NAME = "tegra-device-plugin-command"
# SIMULATED: K3s' ctr. `run` shows which container it was to make, and takes long if a file `slow` is there.
CTR = """\
#!/bin/sh
echo "$*" >> "$0.calls"
case "$*" in
*" containers ls "*) cat "$0.containers" ;;
*" run "*)
    echo "$*"
    if [ -e "$0.slow" ]; then echo $$ > "$0.runs"; exec sleep 60; fi
    exit 3 ;;
esac
"""


@pytest.fixture
def ctr(tmp_path: Path) -> Path:
    program = tmp_path / "k3s"
    program.write_text(CTR)
    program.chmod(0o755)
    (tmp_path / "k3s.containers").touch()
    return program


def container_arguments(ctr: Path) -> Data:
    argv = [str(ctr), "ctr", "--namespace=k8s.io", "run", "--rm", "image", NAME, "labels"]
    return {"argv": argv, "name": NAME, "stdin": None}


def path_of(ctr: Path) -> str:
    return f"{ctr.parent}:{os.environ['PATH']}"


def test_each_run_has_a_container_of_its_own_and_removes_what_killed_runs_have_left(ctr: Path) -> None:
    living = f"{NAME}-{container_command.process(str(os.getpid()))}"
    dead = (f"{NAME}-{os.getpid()}-1", f"{NAME}-999999999-5")
    others = ("0af1", f"owners-{NAME}-1-1", NAME)
    ctr.with_suffix(".containers").write_text("\n".join([living, *dead, *others]))
    first, second = (
        answer("container_command", container_arguments(ctr), PATH=path_of(ctr)) for _ in range(2)
    )
    assert (first["rc"], first["changed"]) == (3, False)
    made = {one["stdout"].split()[-2] for one in (first, second)}
    assert len(made) == 2
    assert all(re.fullmatch(rf"{NAME}-\d+-\d+", name) for name in made)
    calls = ctr.with_suffix(".calls").read_text().splitlines()
    removed = [call.split()[-1] for call in calls if "containers delete" in call]
    assert removed == [*dead, *dead]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_container_of_a_run_that_is_ended_is_removed(ctr: Path, number: signal.Signals) -> None:
    ctr.with_suffix(".slow").touch()
    given = json.dumps({"ANSIBLE_MODULE_ARGS": container_arguments(ctr)})
    module = f"ansible_collections.{COLLECTION}.plugins.modules.container_command"
    started = subprocess.Popen(
        [sys.executable, "-c", MODULE, module],
        cwd=CHECKOUT,
        env=os.environ | {"PATH": path_of(ctr), "PYTHONPATH": f"{CHECKOUT}/.collections"},
        stdin=subprocess.PIPE,
        text=True,
    )
    assert started.stdin
    started.stdin.write(given)
    started.stdin.close()
    runs = ctr.with_suffix(".runs")
    while not (runs.exists() and runs.read_text().strip()):
        assert started.poll() is None
    started.send_signal(number)
    assert started.wait(60) != 0
    os.kill(int(runs.read_text()), signal.SIGKILL)
    deleted = [call for call in ctr.with_suffix(".calls").read_text().splitlines() if " delete " in call]
    assert [call.rpartition(f" {NAME}-")[0] for call in deleted] == [
        "ctr --namespace=k8s.io tasks delete --force",
        "ctr --namespace=k8s.io containers delete",
    ]
