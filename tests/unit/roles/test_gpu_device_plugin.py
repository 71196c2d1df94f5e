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
from tegra_device_plugin.commands import agent as agent_command
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.config.presets import PRESETS
from tegra_device_plugin.sharing import koordinator

from tests.unit.roles.conftest import ROLES, Load


def test_daemonset_gets_image_and_its_id_and_is_never_pulled(load: Load) -> None:
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    daemonset = next(
        document
        for document in map(
            json.loads, render(plain, "plugin:9", "sha256:ab", "docker", False).split("---\n")[1:]
        )
        if document["kind"] == "DaemonSet"
    )
    template = daemonset["spec"]["template"]
    assert {container["image"] for container in template["spec"]["containers"]} == {"plugin:9"}
    assert {container["imagePullPolicy"] for container in template["spec"]["containers"]} == {"Never"}
    assert template["metadata"]["annotations"]["jetson-k3s.github.io/image-id"] == "sha256:ab"
    # Docker mode: K3s refuses any runtimeClassName there.
    assert "runtimeClassName" not in template["spec"]


LABELS = {
    "nvidia.com/gpu.count": "1",
    "jetson-k3s.github.io/power-mode": "MODE_15W",
    "nvidia.com/gpu.family": "",
}


def test_labels_of_the_plugin_are_taken_and_no_others(load: Load) -> None:
    labels = load("gpu_device_plugin/filter_plugins/gpu_device_plugin_answers.py").labels
    assert (labels(json.dumps(LABELS)), labels("")) == (LABELS, {})
    for key, value in {
        "node-role.kubernetes.io/control-plane": "true",
        "--server": "https://evil",
        "nvidia.com/--all": "",
        "nvidia.com/a\n": "",
        "nvidia.com/a": "b c",
        "nvidia.com/b": ["c"],
    }.items():
        with pytest.raises(AnsibleFilterError, match="The node was not labelled"):
            labels(json.dumps(LABELS | {key: value}))
    for text in ("[]", "{", "1"):
        with pytest.raises(AnsibleFilterError, match="JSON"):
            labels(text)


def test_device_of_the_node_is_taken_and_no_other_object(load: Load) -> None:
    device = load("gpu_device_plugin/filter_plugins/gpu_device_plugin_answers.py").device
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


def rendered(
    load: Load, container_runtime: str, strict: bool, config: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Rendered objects by kind."""
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    texts = render(plain, "plugin:9", "sha256:ab", container_runtime, strict, config=config).split("---\n")[
        1:
    ]
    return {document["kind"]: document for document in map(json.loads, texts)}


def test_containerd_gets_the_runtime_class_that_docker_has_not(load: Load) -> None:
    assert set(rendered(load, "docker", False)) == {"DaemonSet"}
    assert rendered(load, "containerd", False)["RuntimeClass"]["handler"] == "nvidia"


def test_no_pod_is_renewed_but_by_the_run_of_its_board(load: Load) -> None:
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    chosen = {"manifest": AGENT, "mode": "report", "qos_policy": "best-effort"}
    texts = render(plain, "plugin:9", "sha256:ab", "docker", False, agent=chosen).split("---\n")[1:]
    strategies = [document["spec"]["updateStrategy"] for document in map(json.loads, texts)]
    assert strategies == [{"type": "OnDelete"}] * 2


def test_settings_are_a_config_map_that_the_plugin_reads(load: Load) -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
    config = {"version": "v1", "sharing": sharing}
    objects = rendered(load, "docker", False, config)
    assert json.loads(objects["ConfigMap"]["data"]["config.yaml"]) == config
    template = objects["DaemonSet"]["spec"]["template"]
    (plugin,) = template["spec"]["containers"]
    assert {"name": "CONFIG_FILE", "value": "/etc/tegra-device-plugin/config.yaml"} in plugin["env"]
    mounted = {mount["name"]: mount["mountPath"] for mount in plugin["volumeMounts"]}
    assert mounted["config"] == "/etc/tegra-device-plugin"
    volume = {"name": "config", "configMap": {"name": objects["ConfigMap"]["metadata"]["name"]}}
    assert volume in template["spec"]["volumes"]
    # Other settings make the pods new.
    other = rendered(load, "docker", False, {**config, "flags": {}})["DaemonSet"]["spec"]["template"]
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"]


def test_strict_mode_hands_out_volume_mounts(load: Load) -> None:
    def arguments(strict: bool) -> list[str]:
        spec = rendered(load, "docker", strict)["DaemonSet"]["spec"]["template"]["spec"]
        found: list[str] = spec["containers"][0]["args"]
        return found

    assert set(arguments(True)) - set(arguments(False)) == {"--device-list-strategy=volume-mounts"}


def test_image_with_jetson_stats_sees_the_socket_of_jtop_and_nothing_else_of_run(load: Load) -> None:
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered

    def host_paths(image: str) -> set[str]:
        (text,) = render(plain, image, "sha256:ab", "docker", False).split("---\n")[1:]
        spec = json.loads(text)["spec"]["template"]["spec"]
        names = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert names == {volume["name"] for volume in spec["volumes"]}
        return {volume["hostPath"]["path"] for volume in spec["volumes"]}

    assert host_paths("plugin:9-jtop") - host_paths("plugin:9") == {"/run/jtop"}


@pytest.mark.parametrize("on_host", [False, True])
def test_metrics_are_at_ports_of_the_board_only_when_asked(load: Load, on_host: bool) -> None:
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    chosen = {"manifest": AGENT, "mode": "report", "qos_policy": "best-effort"}
    texts = render(plain, "plugin:9", "sha256:ab", "docker", False, agent=chosen, metrics_on_host=on_host)
    specs = [json.loads(text)["spec"]["template"]["spec"] for text in texts.split("---\n")[1:]]
    ports = [port for spec in specs for container in spec["containers"] for port in container["ports"]]
    assert [port.get("hostPort") for port in ports] == ([9400, 9401] if on_host else [None, None])


UNITS = {"memoryTotal": "4Gi"}


@pytest.mark.parametrize("directory", [None, "/srv/limit"])
def test_units_get_the_directory_of_the_memory_limit_and_nothing_else_does(
    load: Load, directory: str | None
) -> None:
    flags = {"flags": {"plugin": {"gpuLimitDir": directory}}} if directory else {}

    def host_paths(sharing: dict[str, Any]) -> dict[str, bool]:
        """Of every host directory: may the plugin write there."""
        settings = {"version": "v1", "sharing": sharing, **flags}
        spec = rendered(load, "docker", False, settings)["DaemonSet"]["spec"]["template"]["spec"]
        paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
        mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] in paths]
        assert all(one["mountPath"].removeprefix("/host") == paths[one["name"]] for one in mounts)
        return {paths[one["name"]]: not one.get("readOnly") for one in mounts}

    with_units = host_paths({"units": UNITS})
    without = host_paths({"timeSlicing": {"resources": [SHARED]}})
    assert with_units.items() - without.items() == {(directory or "/var/lib/tegra-gpu-limit", True)}
    assert without.items() <= with_units.items()


def test_koordinators_agent_is_told_where_its_names_are_used(load: Load) -> None:
    def mounts(preset: str) -> list[dict[str, Any]]:
        settings = {"version": "v1", "sharing": {"units": {**UNITS, "preset": preset}}}
        spec = rendered(load, "docker", False, settings)["DaemonSet"]["spec"]["template"]["spec"]
        names = {volume["name"] for volume in spec["volumes"]}
        found: list[dict[str, Any]] = spec["containers"][0]["volumeMounts"]
        assert {mount["name"] for mount in found} == names
        return [mount for mount in found if "koordlet" in mount["mountPath"]]

    assert mounts("hami") == []
    assert mounts("koordinator") == [{"name": "koordlet", "mountPath": f"/host{koordinator.DIRECTORY}"}]


def test_the_role_deploys_units_as_the_plain_manifests_do(load: Load) -> None:
    settings = {"version": "v1", "sharing": {"units": UNITS}}
    ours = rendered(load, "docker", False, settings)["DaemonSet"]["spec"]["template"]["spec"]
    patch = yaml.safe_load((ROLES.parent / "plugin/deploy/units/daemonset.yaml").read_text())
    plain = patch["spec"]["template"]["spec"]
    assert [one for one in ours["volumes"] if one["name"] == "gpu-limit"] == plain["volumes"][1:]
    assert plain["containers"][0]["volumeMounts"][1] in ours["containers"][0]["volumeMounts"]


def test_the_plain_manifests_sell_what_the_plugin_accepts() -> None:
    settings = config.load_plugin(ROLES.parent / "plugin/deploy/units/config.yaml", {}, {})
    assert settings.units
    assert settings.gpu_limit_dir == Path("/var/lib/tegra-gpu-limit")


def test_the_role_knows_every_preset(load: Load) -> None:
    role = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py")
    assert {name: preset.memory.name for name, preset in PRESETS.items()} == role.MEMORY_RESOURCES


AGENT = (ROLES.parent / "plugin/deploy/agent/daemonset.yaml").read_text()


def agent(load: Load, mode: str, policy: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The node agent's pod specification; the plugin's is what it is without an agent."""
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    wanted = {"manifest": AGENT, "mode": mode, "qos_policy": policy}

    def documents(agent: dict[str, str] | None) -> list[dict[str, Any]]:
        text = render(plain, "plugin:9-jtop", "sha256:ab", "docker", True, config=config, agent=agent)
        return [json.loads(part) for part in text.split("---\n")[1:]]

    plugin, found, *more = documents(wanted)
    assert [plugin, *more] == documents(None)
    assert found["metadata"]["name"] == "tegra-gpu-agent"
    annotations = found["spec"]["template"]["metadata"]["annotations"]
    assert annotations["jetson-k3s.github.io/image-id"] == "sha256:ab"
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


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
    load: Load, mode: str, policy: str, privileged: bool | None, capabilities: dict[str, Any] | None
) -> None:
    spec = agent(load, mode, policy)
    assert spec.get("hostPID", False) == (mode == "evict")
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert (context.get("privileged"), context.get("capabilities")) == (privileged, capabilities)
    # Kubernetes refuses a privileged container that says no to privilege escalation.
    assert context.get("allowPrivilegeEscalation") is (None if privileged else False)
    assert (container["image"], container["imagePullPolicy"]) == ("plugin:9-jtop", "Never")
    parser = argparse.ArgumentParser()
    agent_command.add_arguments(parser)
    options = parser.parse_args(container["args"][1:])  # the plugin's strict mode is none of its options
    assert (options.mode, options.qos_policy) == (mode, policy)


def test_the_agent_runs_in_the_process_namespace_of_a_thor(load: Load) -> None:
    chosen = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").chosen_agent
    assert (
        chosen(AGENT, "report", "best-effort", host_pid=True)["spec"]["template"]["spec"]["hostPID"] is True
    )


def test_the_agent_reads_the_settings_and_the_ledgers_of_the_plugin(load: Load) -> None:
    settings = {"version": "v1", "sharing": {"units": UNITS}}
    spec = agent(load, "report", "burst-share", settings)
    ledgers = {"name": "gpu-limit", "mountPath": "/var/lib/tegra-gpu-limit", "readOnly": True}
    assert ledgers in spec["containers"][0]["volumeMounts"]
    (container,) = spec["containers"]
    assert {"name": "CONFIG_FILE", "value": "/etc/tegra-device-plugin/config.yaml"} in container["env"]
    names = {mount["name"] for mount in container["volumeMounts"]}
    assert names == {volume["name"] for volume in spec["volumes"]}


SHARED = {"name": "nvidia.com/gpu", "replicas": 2}


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
    load: Load, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"version": "v1", **settings}))
    offered = config.load_plugin(file, {}, {})
    role = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py")
    waited_for = offered.units.memory.name if offered.units else offered.resource
    assert role.resource({"version": "v1", **settings}) == waited_for
    assert role.resource({}) == "nvidia.com/gpu"


DRA = ROLES.parent / "plugin/deploy/dra"
DRIVER_MANIFESTS = [
    (DRA / name).read_text()
    for name in ("rbac.yaml", "admission.yaml", "deviceclasses.yaml", "daemonset.yaml")
]


def driver(load: Load, **settings: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The DRA driver's objects as the role renders them, by kind and name."""
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered_driver
    text = render(DRIVER_MANIFESTS, "plugin:9", "sha256:ab", **{"extended_resource": False, **settings})
    assert text.startswith("---")
    found = [json.loads(part) for part in text.split("---\n")[1:]]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def test_the_driver_is_deployed_as_its_plain_manifests_say(load: Load) -> None:
    plain = {
        (document["kind"], document["metadata"]["name"]): document
        for text in DRIVER_MANIFESTS
        for document in yaml.safe_load_all(text)
        if document
    }
    ours = driver(load)
    daemonset = ours.pop(("DaemonSet", "tegra-dra-driver"))
    plain.pop(("DaemonSet", "tegra-dra-driver"))
    assert ours == plain
    assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}
    template = daemonset["spec"]["template"]
    assert template["metadata"]["annotations"]["jetson-k3s.github.io/image-id"] == "sha256:ab"
    (container,) = template["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("plugin:9", "Never")


def test_the_extended_resource_is_named_where_the_server_has_the_field(load: Load) -> None:
    def name(extended_resource: bool) -> str | None:
        classes = driver(load, extended_resource=extended_resource)
        spec = classes["DeviceClass", "gpu.jetson-k3s.github.io"]["spec"]
        assert "extendedResourceName" not in classes["DeviceClass", "shared.gpu.jetson-k3s.github.io"]["spec"]
        found: str | None = spec.get("extendedResourceName")
        return found

    assert (name(True), name(False)) == ("nvidia.com/gpu", None)


def test_the_drivers_settings_are_a_config_map_of_its_own(load: Load) -> None:
    flags = {"plugin": {"gpuLimitDir": "/srv/limit"}}
    config = {"version": "v1", "flags": flags, "sharing": {"dra": {"mode": "shares", "shares": 2}}}
    objects = driver(load, config=config)
    assert json.loads(objects["ConfigMap", "tegra-dra-driver"]["data"]["config.yaml"]) == config
    spec = objects["DaemonSet", "tegra-dra-driver"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "tegra-dra-driver"
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (mounts["gpu-limit"], volumes["gpu-limit"]["hostPath"]["path"]) == ("/srv/limit", "/srv/limit")


@pytest.mark.parametrize(
    ("runtime", "flags", "chosen"),
    [
        ("docker", {}, []),
        ("containerd", {}, ["--cdi-version=0.7.0"]),
        ("containerd", {"cdiVersion": "0.5.0"}, []),
    ],
)
def test_cdi_has_the_nodes_groups_where_the_runtime_is_known_to_read_them(
    load: Load, runtime: str, flags: dict[str, str], chosen: list[str]
) -> None:
    objects = driver(load, container_runtime=runtime, config={"version": "v1", "flags": {"plugin": flags}})
    (container,) = objects["DaemonSet", "tegra-dra-driver"]["spec"]["template"]["spec"]["containers"]
    assert [argument for argument in container["args"] if "cdi" in argument] == chosen


def test_the_drivers_metrics_are_at_a_port_of_the_board_only_when_asked(load: Load) -> None:
    for asked in (False, True):
        template = driver(load, metrics_on_host=asked)["DaemonSet", "tegra-dra-driver"]["spec"]["template"]
        (port,) = template["spec"]["containers"][0]["ports"]
        assert port.get("hostPort") == (9400 if asked else None)


def test_settings_reach_a_program_whose_standard_input_is_nobodys() -> None:
    variables = yaml.safe_load((ROLES / "gpu_device_plugin/vars/main.yml").read_text())
    settings = json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [SHARED]}}})
    program = variables["__gpu_device_plugin_with_settings"]
    asked = [sys.executable, "-c", program, settings, "config", "check", "/dev/stdin"]
    said = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "good: 2 x nvidia.com/gpu" in said.stdout
