# SPDX-License-Identifier: Apache-2.0
"""The manifest of the device plugin as the role renders it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError  # type: ignore[import-untyped] # ansible-core has no types
from tegra_device_plugin.cli import find_command
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.config.units import PRESETS
from tegra_device_plugin.sharing import koordinator

from tests.unit.roles.loading import ROLES, load

role = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py")
answers = load("gpu_device_plugin/filter_plugins/gpu_device_plugin_answers.py")
DEPLOY = ROLES.parent / "plugin/deploy"
PLAIN, AGENT = ((DEPLOY / part / "daemonset.yaml").read_text() for part in ("base", "agent"))
DRIVER = [
    (DEPLOY / "dra" / name).read_text()
    for name in ("rbac.yaml", "admission.yaml", "deviceclasses.yaml", "daemonset.yaml")
]


def rendered(image: str = "plugin:9", runtime: str = "docker", **more: Any) -> list[dict[str, Any]]:
    """The objects of plugin and agent. Most of them tests/chart compares in full with the chart's."""
    text = role.rendered(PLAIN, image, "sha256:ab", runtime, False, **more)
    return [json.loads(part) for part in text.split("---\n")[1:]]


def driver(**more: Any) -> list[dict[str, Any]]:
    text = role.rendered_driver(DRIVER, "plugin:9", "sha256:ab", extended_resource=False, **more)
    return [json.loads(part) for part in text.split("---\n")[1:]]


def agent(mode: str, policy: str) -> dict[str, str]:
    return {"manifest": AGENT, "mode": mode, "qos_policy": policy}


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
    changes: tuple[dict[str, Any], ...] = (
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


def test_the_plain_manifests_sell_what_the_plugin_accepts() -> None:
    settings = config.load_plugin(DEPLOY / "units/config.yaml", {}, {})
    assert settings.units
    assert settings.gpu_limit_dir == Path("/var/lib/tegra-gpu-limit")


def test_the_role_knows_every_preset() -> None:
    assert {name: preset.memory.name for name, preset in PRESETS.items()} == role.MEMORY_RESOURCES


@pytest.mark.parametrize(
    ("mode", "policy", "privileged", "capabilities"),
    [
        ("report", "best-effort", None, {"drop": ["ALL"]}),
        ("evict", "best-effort", None, {"drop": ["ALL"], "add": ["KILL"]}),
        ("report", "burst-share", True, None),
        ("evict", "burst-share", True, None),
    ],
)
def test_the_agent_has_the_rights_that_its_mode_needs(
    mode: str, policy: str, privileged: bool | None, capabilities: dict[str, Any] | None
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


SHARED = {"name": "nvidia.com/gpu", "replicas": 2}
UNITS = {"memoryTotal": "4Gi"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sharing": {"timeSlicing": {"resources": [SHARED]}}},
        {"sharing": {"timeSlicing": {"renameByDefault": True, "resources": [SHARED]}}},
        {"sharing": {"timeSlicing": {"resources": [{**SHARED, "rename": "gpu-share"}]}}},
        {"resources": {"gpus": [{"pattern": "*", "name": "example.com/tegra"}]}},
        {"sharing": {"units": UNITS}},
        {"sharing": {"units": {**UNITS, "memoryResource": "gpu-memory"}}},
        {"sharing": {"units": {**UNITS, "preset": "hami"}}},
        {"sharing": {"units": {**UNITS, "preset": ["qgpu"]}}},
        {
            "resources": {"gpus": [{"pattern": "*", "name": "tegra"}]},
            "sharing": {
                "timeSlicing": {"renameByDefault": True, "resources": [{"name": "tegra", "replicas": 2}]}
            },
        },
    ],
)
def test_the_role_waits_for_the_resource_that_the_plugin_offers(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"version": "v1", **settings}))
    offered = config.load_plugin(file, {}, {})
    waited_for = offered.units.memory.name if offered.units else offered.resource
    assert role.resource({"version": "v1", **settings}) == waited_for
    assert role.resource({}) == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("runtime", "flags", "chosen"),
    [
        ("docker", {}, []),
        ("containerd", {}, ["--cdi-version=0.7.0"]),
        ("containerd", {"cdiVersion": "0.5.0"}, []),
    ],
)
def test_cdi_has_the_nodes_groups_where_the_runtime_is_known_to_read_them(
    runtime: str, flags: dict[str, str], chosen: list[str]
) -> None:
    objects = driver(container_runtime=runtime, config={"version": "v1", "flags": {"plugin": flags}})
    (daemonset,) = (one for one in objects if one["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert [argument for argument in container["args"] if "cdi" in argument] == chosen


def test_settings_reach_a_program_whose_standard_input_is_nobodys() -> None:
    variables = yaml.safe_load((ROLES / "gpu_device_plugin/vars/main.yml").read_text())
    settings = json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [SHARED]}}})
    program = variables["__gpu_device_plugin_with_settings"]
    asked = [sys.executable, "-c", program, settings, "config", "check", "/dev/stdin"]
    said = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "good: 2 x nvidia.com/gpu" in said.stdout
