# SPDX-License-Identifier: Apache-2.0
"""The plain manifests of the device plugin and of the DRA driver, made fit for one bundle."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import yaml

# Makes the pods new when an image was built again under the same name.
IMAGE_ID_ANNOTATION = "jetson-k3s.github.io/image-id"
# Makes them new when their settings have changed.
CONFIG_ANNOTATION = "jetson-k3s.github.io/config-sha256"

# The settings' place, as in plugin/deploy/time-slicing. Their ConfigMap has the name of its DaemonSet.
CONFIG_DIRECTORY, CONFIG_NAME = "/etc/tegra-device-plugin", "config.yaml"
PLUGIN, AGENT = "tegra-device-plugin", "tegra-gpu-agent"
# By API, the label of the nodes on which the DaemonSet runs. Its value says which configuration.
API_LABELS = {"device-plugin": "jetson-k3s.github.io/device-plugin", "dra": "jetson-k3s.github.io/dra"}
# A taint while the board is throttled (throttling/ of the plugin), and the label of the nodes that get it.
THROTTLE_TAINT = "tegra-throttle-taint"
TAINT = "jetson-k3s.github.io/throttled:PreferNoSchedule"
TAINT_LABEL = "jetson-k3s.github.io/throttle-taint"
# With "false", NVIDIA's GPU operator puts none of its pods on a node (its controllers/state_manager.go).
OPERANDS_LABEL = "nvidia.com/gpu.deploy.operands"
# Of the objects of a configuration with a name, whose pods are not those of the default's DaemonSet.
CONFIGURATION_LABEL = "jetson-k3s.github.io/configuration"

RESOURCE = "nvidia.com/gpu"  # what an exclusive GPU is called
# The resource name of GPU memory in units, by preset (config/units.py of the plugin).
MEMORY_RESOURCES = {
    "none": "jetson-k3s.github.io/gpu-memory",
    "hami": "nvidia.com/gpumem",
    "elastic": "elasticgpu.io/gpu-memory",
    "qgpu": "tke.cloud.tencent.com/qgpu-memory",
    "vcuda": "tencent.com/vcuda-memory",
    "gpushare": "aliyun.com/gpu-mem",
    "metax": "metax-tech.com/vmemory",
    "koordinator": "koordinator.sh/gpu-memory-ratio",
}
# The DRA driver, also the name of its class of exclusive GPUs.
DRIVER = "gpu.jetson-k3s.github.io"
# Mounted into containers with a memory limit. The kubelet mounts it, so this is a path of the host.
LIMIT_DIRECTORY = "/var/lib/tegra-gpu-limit"

# Where the plugin tells Koordinator's node agent of the GPU, with that preset (its sharing/koordinator.py).
KOORDLET_DIRECTORY = "/var/run/koordlet"

# Paths of a board that only `devices` in the settings need (sharing/device_nodes.py of the plugin): udev's
# properties of devices, and the names of sockets on which a process listens, without access to them.
UDEV_DATA, UNIX_SOCKETS = "/run/udev/data", "/proc/1/net/unix"
# Where nvpmodel stores the power mode, for `boardMetrics` (board/detection.py of the plugin).
NVPMODEL = "/var/lib/nvpmodel"

# A board's pods are renewed by the run that has brought the image there (k3s_node), not by the controller.
# That would also renew those of boards that are not in the run and have no such image. And it would stop at a
# board that is off, whose pod counts as unavailable.
UPDATE_STRATEGY = {"type": "OnDelete"}

# K3s finds NVIDIA's runtime by itself and calls it this; its own RuntimeClass may be disabled.
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def config_map(name: str, namespace: str, text: str) -> dict[str, Any]:
    """The plugin's settings, or the driver's, in the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {CONFIG_NAME: text},
    }


def resource(config: dict[str, Any]) -> str:
    """The extended resource that a plugin with these settings offers: a shared one may have another name.

    Of a GPU in units it is its memory, which is offered last: it needs most to be so. The settings are those
    that the plugin has accepted on the board.
    """
    if units := config.get("sharing", {}).get("units"):
        return _full_name(units.get("memoryResource") or MEMORY_RESOURCES[units.get("preset", "none")])
    gpus = config.get("resources", {}).get("gpus", [])
    name = _full_name(gpus[0]["name"]) if gpus else RESOURCE
    slicing = config.get("sharing", {}).get("timeSlicing", {})
    for shared in slicing.get("resources", []):
        if "rename" in shared:
            return _full_name(shared["rename"])
        if slicing.get("renameByDefault"):
            return f"{name}.shared"
    return name


def _full_name(name: str) -> str:
    """NVIDIA's format leaves its own prefix out."""
    return name if "/" in name else f"nvidia.com/{name}"


def suffixed(name: str, configuration: str) -> str:
    """The name of an object of a configuration; the default's is that of the plain manifests."""
    return f"{name}-{configuration}" if configuration else name


def with_name(daemonset: dict[str, Any], configuration: str) -> None:
    """Make it the DaemonSet of a configuration, on the nodes that have its name as their label's value."""
    if not configuration:
        return
    metadata, spec = daemonset["metadata"], daemonset["spec"]
    metadata["name"] = suffixed(metadata["name"], configuration)
    for labels in (
        metadata["labels"],
        spec["selector"]["matchLabels"],
        spec["template"]["metadata"]["labels"],
    ):
        labels[CONFIGURATION_LABEL] = configuration
    selector = spec["template"]["spec"]["nodeSelector"]
    for label in selector.keys() & set(API_LABELS.values()):
        selector[label] = configuration


def with_settings(template: dict[str, Any], name: str, text: str) -> None:
    """Have the pods of a template read their settings from the ConfigMap of that name."""
    template["metadata"]["annotations"][CONFIG_ANNOTATION] = hashlib.sha256(text.encode()).hexdigest()
    template["spec"].setdefault("volumes", []).append({"name": "config", "configMap": {"name": name}})
    for container in template["spec"]["containers"]:
        file = {"name": "CONFIG_FILE", "value": f"{CONFIG_DIRECTORY}/{CONFIG_NAME}"}
        container.setdefault("env", []).append(file)
        mount = {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True}
        container.setdefault("volumeMounts", []).append(mount)


def with_host_directory(
    spec: dict[str, Any], name: str, path: str, mount_path: str, *, read_only: bool = False
) -> None:
    """Mount a directory of the board into the containers of a specification."""
    directory = {"path": path, "type": "DirectoryOrCreate"}
    spec.setdefault("volumes", []).append({"name": name, "hostPath": directory})
    for container in spec["containers"]:
        mount = {"name": name, "mountPath": mount_path} | ({"readOnly": True} if read_only else {})
        container.setdefault("volumeMounts", []).append(mount)


def device_paths(config: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The host's paths that the devices in these settings need, as volumes by name. Most need none."""
    entries = _mappings(config.get("devices"))
    groups = [group for entry in entries for group in _mappings(entry.get("groups"))]
    paths = [path for group in groups for path in _mappings(group.get("paths"))]
    found = {}
    if any(path.get("udev") for path in paths):
        found["udev"] = {"path": UDEV_DATA, "type": "Directory"}
    if any(entry.get("preset") == "argus" for entry in entries):
        found["unix-sockets"] = {"path": UNIX_SOCKETS, "type": "File"}
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    """The mappings of a list. The plugin on the board rejects all else, with its place."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def with_settings_paths(spec: dict[str, Any], config: dict[str, Any]) -> None:
    """Mount what these settings need and others do not into the plugin's container, read-only."""
    paths = device_paths(config)
    if _mapping(_mapping(config.get("flags")).get("plugin")).get("boardMetrics"):
        paths["nvpmodel"] = {"path": NVPMODEL, "type": "DirectoryOrCreate"}
    for name, host_path in paths.items():
        spec["volumes"].append({"name": name, "hostPath": host_path})
        for container in spec["containers"]:
            mount = {"name": name, "mountPath": f"/host{host_path['path']}", "readOnly": True}
            container["volumeMounts"].append(mount)


def with_image(daemonset: dict[str, Any], image: str, image_id: str) -> None:
    """Run this image, never from a registry; only the run of a board renews its pod."""
    daemonset["spec"]["updateStrategy"] = UPDATE_STRATEGY
    template = daemonset["spec"]["template"]
    template.setdefault("metadata", {}).setdefault("annotations", {})[IMAGE_ID_ANNOTATION] = image_id
    for container in template["spec"]["containers"]:
        container["image"] = image
        container["imagePullPolicy"] = "Never"


def with_host_ports(spec: dict[str, Any]) -> None:
    """Serve the metrics of a specification's pods at the same port of the board."""
    for container in spec["containers"]:
        for port in container["ports"]:
            if port["name"] == "metrics":
                port["hostPort"] = port["containerPort"]


def chosen_agent(
    manifest: str,
    rights: dict[str, Any],
    mode: str,
    qos_policy: str,
    *,
    host_pid: bool = False,
    unused_after: str = "",
) -> dict[str, Any]:
    """The node agent's DaemonSet with those `rights` that its mode and policy need, and no more."""
    document: dict[str, Any] = yaml.safe_load(manifest)
    needed = [rights.get(choice, {}) for choice in (mode, qos_policy)]
    spec = document["spec"]["template"]["spec"]
    if host_pid or any(one.get("hostPID") for one in needed):
        spec["hostPID"] = True
    for container in spec["containers"]:
        container["args"] = [*container["args"], f"--mode={mode}", f"--qos-policy={qos_policy}"]
        if unused_after:
            container["args"].append(f"--unused-after={unused_after}")
        for name, path in sorted(path for one in needed for path in one.get("hostPaths", {}).items()):
            mount = {"name": name, "mountPath": f"/host{path}", "readOnly": True}
            container["volumeMounts"] = [*container["volumeMounts"], mount]
            spec["volumes"] = [
                *spec["volumes"],
                {"name": name, "hostPath": {"path": path, "type": "Directory"}},
            ]
        context = container["securityContext"]
        for one in needed:
            context = {**context, **one.get("securityContext", {})}
        container["securityContext"] = {key: value for key, value in context.items() if value is not None}
    return document


def rendered(
    manifest: str,
    image: str,
    image_id: str,
    container_runtime: str,
    strict: bool,
    *,
    name: str = "",
    config: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    metrics_on_host: bool = False,
) -> list[dict[str, Any]]:
    """The objects of a configuration, with this image in every DaemonSet and never from a registry.

    For containerd the RuntimeClass that GPU pods name is added; in strict mode the plugin hands the GPU out
    as a volume mount, which a pod cannot make up. `name` is '' for the default, whose objects have the names
    of the plain manifest. `config` are the plugin's settings, as a ConfigMap; with
    units of GPU memory, the pods get the directory of the memory limit as well.
    `agent` has the node agent's manifest, rights, mode and policy, if it is wanted. With `metrics_on_host`
    the metrics are at the board's own ports as well.
    """
    plugin: dict[str, Any] = yaml.safe_load(manifest)
    spec = plugin["spec"]["template"]["spec"]
    if strict:
        for container in spec["containers"]:
            container["args"] = [*container["args"], "--device-list-strategy=volume-mounts"]
    with_settings_paths(spec, config or {})
    documents = [plugin]
    if agent:
        documents.append(chosen_agent(**agent))
    for document in documents:
        with_image(document, image, image_id)
        with_name(document, name)
        template = document["spec"]["template"]
        if metrics_on_host:
            with_host_ports(template["spec"])
        if config:
            with_settings(template, suffixed(PLUGIN, name), json.dumps(config, indent=2))
            if units := config.get("sharing", {}).get("units"):
                path = config.get("flags", {}).get("plugin", {}).get("gpuLimitDir", LIMIT_DIRECTORY)
                read_only = document is not plugin
                with_host_directory(template["spec"], "gpu-limit", path, path, read_only=read_only)
                if document is plugin and units.get("preset") == "koordinator":
                    with_host_directory(spec, "koordlet", KOORDLET_DIRECTORY, f"/host{KOORDLET_DIRECTORY}")
    if config:
        text = json.dumps(config, indent=2)
        documents.append(config_map(suffixed(PLUGIN, name), plugin["metadata"]["namespace"], text))
    if container_runtime == "containerd":
        documents.append(RUNTIME_CLASS)
    return documents


def rendered_driver(
    manifests: list[str],
    image: str,
    image_id: str,
    *,
    extended_resource: bool,
    name: str = "",
    container_runtime: str = "docker",
    config: dict[str, Any] | None = None,
    metrics_on_host: bool = False,
) -> list[dict[str, Any]]:
    """The objects of a configuration of the DRA driver, with this image and never from a registry.

    With `extended_resource` pods that ask for nvidia.com/gpu are served as well, which Kubernetes before 1.36
    cannot. `config` are the driver's settings, as a ConfigMap. With containerd, which is 2.0 or newer in each
    K3s with DRA, CDI specs have the groups of the device nodes. A Docker engine's version is not known here.
    """
    documents = [document for text in manifests for document in yaml.safe_load_all(text) if document]
    (driver,) = (document for document in documents if document["kind"] == "DaemonSet")
    with_image(driver, image, image_id)
    with_name(driver, name)
    template = driver["spec"]["template"]
    if metrics_on_host:
        with_host_ports(template["spec"])
    flags = (config or {}).get("flags", {}).get("plugin", {})
    if container_runtime == "containerd" and "cdiVersion" not in flags:
        for container in template["spec"]["containers"]:
            container["args"] = [*container["args"], "--cdi-version=0.7.0"]
    if config:
        if directory := flags.get("gpuLimitDir"):
            _move_limit(template["spec"], directory)
        own, text = driver["metadata"]["name"], json.dumps(config, indent=2)
        with_settings(template, own, text)
        documents.append(config_map(own, driver["metadata"]["namespace"], text))
    if extended_resource:
        (whole,) = (document for document in documents if document["metadata"]["name"] == DRIVER)
        whole["spec"]["extendedResourceName"] = RESOURCE
    return documents


def rendered_throttle_taint(
    manifests: list[str], image: str, image_id: str, *, remove_after: str = "", metrics_on_host: bool = False
) -> list[dict[str, Any]]:
    """The objects of the throttle taint, with this image and never from a registry.

    `remove_after` is a duration; '' for the program's own.
    """
    documents = [document for text in manifests for document in yaml.safe_load_all(text) if document]
    (daemonset,) = (document for document in documents if document["kind"] == "DaemonSet")
    with_image(daemonset, image, image_id)
    spec = daemonset["spec"]["template"]["spec"]
    if metrics_on_host:
        with_host_ports(spec)
    if remove_after:
        for container in spec["containers"]:
            container["args"] = [*container["args"], f"--remove-after={remove_after}"]
    return documents


def _move_limit(spec: dict[str, Any], directory: str) -> None:
    (volume,) = (one for one in spec["volumes"] if one["name"] == "gpu-limit")
    volume["hostPath"]["path"] = directory
    for container in spec["containers"]:
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "gpu-limit")
        mount["mountPath"] = directory


def joined(documents: list[dict[str, Any]]) -> str:
    """The objects as JSON documents, each once: configurations have some in common."""
    # It begins with "---": ansible-core 2.16 makes an object of a text that begins with "{".
    return "".join(dict.fromkeys(f"---\n{json.dumps(document, indent=2)}\n" for document in documents))
