# SPDX-License-Identifier: Apache-2.0
"""What role gpu_device_plugin deploys on a board: its decisions, from the board's facts and the settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

from ansible.module_utils.compat.version import LooseVersion
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as configurations,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_stand_by as standing_by,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import nvidia_docker, plugin_image

THOR = "tegra264"

PLUGIN_OBJECTS = ["daemonset.apps/tegra-device-plugin", "configmap/tegra-device-plugin"]
AGENT_OBJECTS = ["daemonset.apps/tegra-gpu-agent"]
DRIVER_OBJECTS = [
    *(
        f"{kind}/tegra-dra-driver"
        for kind in (
            *("daemonset.apps", "configmap", "serviceaccount"),
            *("clusterrole.rbac.authorization.k8s.io", "clusterrolebinding.rbac.authorization.k8s.io"),
            "validatingadmissionpolicy.admissionregistration.k8s.io",
            "validatingadmissionpolicybinding.admissionregistration.k8s.io",
        )
    ),
    *(f"deviceclass.resource.k8s.io/{name}gpu.jetson-k3s.github.io" for name in ("", "shared.")),
]
TAINT_OBJECTS = [
    f"{kind}/{manifests.THROTTLE_TAINT}"
    for kind in (
        *("daemonset.apps", "serviceaccount"),
        *("clusterrole.rbac.authorization.k8s.io", "clusterrolebinding.rbac.authorization.k8s.io"),
        "validatingadmissionpolicy.admissionregistration.k8s.io",
        "validatingadmissionpolicybinding.admissionregistration.k8s.io",
    )
]
# Before this version a server has no such policies, and tokens of pods do not name the node.
TAINT_SINCE = "1.30"
# Before this version a server does not know the kinds of DRA, and has never had any.
DRA_SINCE = "1.34"
EXTENDED_RESOURCE_SINCE = "1.36"  # pods that ask for nvidia.com/gpu get a claim
DURATION = "[1-9][0-9]{0,4}[smh]"  # as the agent reads it (config/options.py of the plugin)
PIDFD_SINCE = "5.3"  # Linux' pidfd_open, by which the agent ends a process

# What the plugin reads of a board, and what it gets of it in a container of its own.
PATHS = ("/sys", "/dev", "/etc", "/proc/meminfo", "/proc/driver")
JTOP = "/var/lib/jetson-k3s/jtop"  # the directory of the relay's socket
JTOP_PYTHON = "3.7"  # on the board: JetPack 4 has 3.6
# Begins the name of the container of a run with containerd. Each run has one of its own.
CONTAINER = "tegra-device-plugin-command"
# `ctr run` does not tell a program that its standard input has ended, if that was before the program began.
# So the settings are an argument, which becomes the program's standard input.
WITH_SETTINGS = (
    "import os, runpy, sys; file = os.memfd_create('settings'); os.write(file, sys.argv.pop(1).encode()); "
    "os.dup2(file, 0); runpy.run_module('tegra_device_plugin', run_name='__main__')"
)


class Settings(TypedDict):
    """What the inventory says, and what other roles have found."""

    api: str
    image: str
    config: dict[str, Any]
    agent: dict[str, Any]
    throttle_taint: dict[str, Any]
    metrics_on_host: bool
    jtop: bool
    container_runtime: str
    credentials: bool
    """Whether the kubelet has credentials of registries, which Docker takes, too."""
    strict: bool
    node: str
    k3s_version: str
    """Of the server. Boards may have an older one."""


class Inventory(TypedDict):
    """What is the same for all boards."""

    configurations: list[configurations.Configuration]
    """Of all boards."""
    sources: Mapping[str, Any]
    """The plain manifests (`Sources`)."""
    tmpfiles: str
    """Path of the file for the directories of the instance that stands by."""


class Command(TypedDict):
    """A container of the plugin's image on the board: arguments of the module container_command."""

    argv: list[str]
    name: str | None
    stdin: str | None


class Engine(TypedDict):
    """Commands of the pods' engine, each without the image's name."""

    inspect: list[str]
    pull: list[str]


class Plan(TypedDict):
    """What the tasks carry out."""

    refused: list[str]
    """Why these settings cannot be deployed on this board."""
    api: str
    image: dict[str, str]
    """As plugin_image.Image."""
    loaded: bool
    """Whether Docker has the image of the bundle already."""
    prepares: bool
    """Whether anything comes before the labels: the end of settings that are refused, the image, or jtop."""
    loads: bool
    """Whether the image may have to be loaded or pulled. What containerd has is no fact."""
    engine: Engine
    jtop: bool
    """Whether jtop is installed."""
    labels_command: Command
    koordinator_command: Command | None
    """Only with Koordinator's preset."""
    stands_by: bool
    """Whether an instance starts with the board's Docker, before the kubelet."""
    labels: dict[str, str | None]
    """Labels of the node that say which DaemonSet runs there; None removes one."""
    absent_taints: list[str]
    """Taints of the node that no pod removes, such as one that was there at a power loss."""
    absent: list[str]
    """Objects of agents that are not wanted. They go."""
    kept: list[str]
    """The DaemonSets of the inventory. Others go as soon as no node has their label's value."""
    unused: dict[str, list[str]]
    """Objects that no board needs, by the label of the nodes that do. They go as soon as no node has that."""
    renderings: list[dict[str, Any]]
    """Of each configuration, and of the throttle taint, the arguments of the manifest's filter."""
    stand_by: dict[str, Any] | None
    """The instance that stands by, as stand_by() of its module has it."""
    stands_by_otherwise: bool
    """Whether an instance with other settings stands by. It goes before the pod is renewed."""


def refusals(jetson: Mapping[str, Any], settings: Settings, board: str) -> Iterator[str]:
    """Why these settings cannot be deployed on this board."""
    remove_after = throttle_taint(settings)
    if remove_after and not re.fullmatch(DURATION, remove_after):
        yield (
            f"{board}: gpu_device_plugin_throttle_taint.removeAfter is {remove_after!r}. Write a number of "
            "seconds, minutes or hours, such as 90s, 10m or 1h, or leave it out."
        )
    agent = configurations.agent_of(settings["agent"])
    units = settings["config"].get("sharing", {}).get("units")
    if not agent["enabled"]:
        return
    if settings["api"] != "device-plugin":
        yield (
            f"{board}: gpu_device_plugin_agent works with the device plugin only, and gpu_device_plugin_api "
            f"is {settings['api']}. Leave one of them out of the inventory."
        )
    if agent["unused_after"] and not re.fullmatch(DURATION, agent["unused_after"]):
        yield (
            f"{board}: gpu_device_plugin_agent.unusedAfter is {agent['unused_after']!r}. Write a number of "
            "seconds, minutes or hours, such as 90s, 10m or 1h, or leave it out."
        )
    if agent["mode"] == "evict":
        if LooseVersion(jetson["kernel"]) < LooseVersion(PIDFD_SINCE):
            yield (
                f"{board}: gpu_device_plugin_agent.mode evict needs Linux {PIDFD_SINCE} (pidfd_open), and "
                f"this board has {jetson['kernel']}. Use `report` for it."
            )
        if re.match(r"0+[A-Za-z]*$", str((units or {}).get("contextOverhead", "0"))):
            yield (
                f"{board}: gpu_device_plugin_agent.mode evict needs contextOverhead in `sharing.units` of "
                "gpu_device_plugin_config: the GPU memory of one CUDA context. Without it, the agent would "
                "end pods that keep their limit. Measure a context (docs/sharing.md), or use `report`."
            )
    elif jetson["soc"] == THOR and not agent["host_pid"]:
        yield (
            f"{board}: set hostPID: true in gpu_device_plugin_agent. This board is a Thor, whose driver "
            "names processes by the board's own numbers, and the node agent has to see the same."
        )
    if agent["qos_policy"] in ("burst-share", "per-pod") and units is None:
        yield (
            f"{board}: gpu_device_plugin_agent.qosPolicy {agent['qos_policy']} divides the GPU's time "
            "by the pods' shares, and none is configured here. Give gpu_device_plugin_config `sharing.units` "
            "(docs/sharing.md), or use `best-effort`."
        )


def throttle_taint(settings: Settings) -> str | None:
    """The time after which the taint is removed; '' for the program's own, None if there is no taint."""
    given = settings["throttle_taint"]
    return str(given.get("removeAfter") or "") if boolean(given.get("enabled", False)) else None


def engine_of(settings: Settings) -> Engine:
    """How the pods' engine says what it knows of an image, and how it pulls one."""
    if settings["container_runtime"] == "containerd":
        return {"inspect": ["k3s", "crictl", "inspecti"], "pull": ["k3s", "crictl", "pull"]}
    # With the credentials of the kubelet, where role k3s has written them.
    config = ["--config", "/var/lib/kubelet"] if settings["credentials"] else []
    return {"inspect": ["docker", "image", "inspect"], "pull": ["docker", *config, "pull", "--quiet"]}


def command(
    arguments: list[str],
    image: plugin_image.Image,
    settings: Settings,
    stdin: str | None,
    more_paths: tuple[str, ...] = (),
) -> Command:
    """The plugin's image on the board itself, before there is a DaemonSet."""
    paths = PATHS + more_paths
    if settings["container_runtime"] == "docker":
        volumes = [f"--volume={path}:/host{path}:ro" for path in paths]
        run = ["docker", "run", "--rm", "--network=none", "--read-only"]
        options = [*(["--interactive"] if stdin else []), *volumes]
        return {"argv": [*run, *options, image.name, *arguments], "name": None, "stdin": stdin}
    # containerd has an image of a registry by its digest.
    name = re.sub(r":[^:/]+@", "@", image.name)
    if image.source != "registry":
        name = f"docker.io/library/{image.name}"
    mounts = [f"--mount=type=bind,src={path},dst=/host{path},options=rbind:ro" for path in paths]
    run = ["k3s", "ctr", "--namespace=k8s.io", "run", "--rm", "--read-only", *mounts]
    # Arguments replace the image's entrypoint here.
    program = ["-c", WITH_SETTINGS, stdin] if stdin else ["-m", "tegra_device_plugin"]
    argv = [*run, name, CONTAINER, "python3.11", *program, *arguments]
    return {"argv": argv, "name": CONTAINER, "stdin": stdin}


def has_jtop(jetson: Mapping[str, Any], settings: Settings) -> bool:
    """Whether jtop is wanted on this board, and its Python is new enough."""
    return bool(boolean(settings["jtop"]) and LooseVersion(jetson["python"]) >= LooseVersion(JTOP_PYTHON))


def labels_command(image: plugin_image.Image, settings: Settings, *, jtop: bool) -> Command:
    """The command that prints the node's labels. How many share the GPU is among them."""
    agent, config = configurations.agent_of(settings["agent"]), settings["config"]
    arguments = ["labels", "--host-root=/host", "--output=json"]
    arguments += ["--config=/dev/stdin"] if config else []
    arguments += [f"--qos-policy={agent['qos_policy']}"] if agent["enabled"] else []
    stdin = json.dumps(config) if config else None
    devices = [one["path"] for one in manifests.device_paths(config).values()]
    return command(arguments, image, settings, stdin, (*([JTOP] if jtop else []), *devices))


def koordinator_command(image: plugin_image.Image, settings: Settings) -> Command | None:
    """The command that prints Koordinator's Device of the node, with its preset."""
    config = settings["config"]
    units = config.get("sharing", {}).get("units", {})
    if units.get("preset") != "koordinator":
        return None
    arguments = ["koordinator-device", "--host-root=/host", "--config=/dev/stdin", settings["node"]]
    return command(arguments, image, settings, json.dumps(config))


def unwanted_agents(found: Iterable[configurations.Configuration]) -> list[str]:
    """DaemonSets of agents that these configurations do not want, as `kubectl delete` takes them."""
    return [
        f"daemonset.apps/{manifests.suffixed(manifests.AGENT, one['name'])}"
        for one in found
        if one["api"] == "device-plugin" and not one["agent"]["enabled"]
    ]


def unused_objects(
    found: Iterable[configurations.Configuration], k3s_version: str, *, tainted: bool
) -> dict[str, list[str]]:
    """Objects of the APIs and of the taint that no board has, by the label of the nodes that have it."""
    version = LooseVersion(k3s_version.lstrip("v"))
    objects = {"device-plugin": [*PLUGIN_OBJECTS, *AGENT_OBJECTS]}
    if version >= LooseVersion(DRA_SINCE):
        objects["dra"] = DRIVER_OBJECTS
    unused = {
        manifests.API_LABELS[api]: list(those)
        for api, those in objects.items()
        if api not in {one["api"] for one in found}
    }
    if not tainted and version >= LooseVersion(TAINT_SINCE):
        unused[manifests.TAINT_LABEL] = list(TAINT_OBJECTS)
    return unused


def kept_daemonsets(found: list[configurations.Configuration]) -> list[str]:
    """The DaemonSets of these configurations."""
    return sorted(
        manifests.suffixed(prefix, one["name"])
        for one in found
        for prefix in (
            configurations.DAEMONSETS[one["api"]],
            *([manifests.AGENT] if one["agent"]["enabled"] else []),
        )
    )


def rendering(
    image: plugin_image.Image, one: configurations.Configuration, settings: Settings
) -> dict[str, Any]:
    """Arguments of the filter that renders the manifest of a configuration."""
    common = {
        "name": one["name"],
        "image": image.name,
        "image_id": image.identity,
        "container_runtime": settings["container_runtime"],
        "config": one["config"],
        "metrics_on_host": boolean(settings["metrics_on_host"]),
    }
    if one["api"] == "dra":
        version = LooseVersion(settings["k3s_version"].lstrip("v"))
        return common | {"extended_resource": version >= LooseVersion(EXTENDED_RESOURCE_SINCE)}
    return common | {"strict": one["strict"], "agent": one["agent"] if one["agent"]["enabled"] else None}


def taint_rendering(image: plugin_image.Image, settings: Settings) -> list[dict[str, Any]]:
    """The same for the manifest of the throttle taint; none without it."""
    remove_after = throttle_taint(settings)
    if remove_after is None:
        return []
    return [
        {
            "image": image.name,
            "image_id": image.identity,
            "metrics_on_host": boolean(settings["metrics_on_host"]),
            "remove_after": remove_after,
        }
    ]


def has_archive(image: plugin_image.Image, bundle: Mapping[str, Any], docker: Mapping[str, Any]) -> bool:
    """Whether Docker has the images of the plugin's archive, and keeps them."""
    bundled = bundle["files"].get(image.archive)
    if image.source == "registry" or not bundled:
        return False
    lacks = nvidia_docker.lacking_images(bundled, docker)
    return not lacks and nvidia_docker.keeps_images(bundled, docker, image.archive)


def known_daemonsets(servers: Iterable[Mapping[str, Any]]) -> set[str]:
    """DaemonSets of kube-system by the results of module k3s_nodes; none while the cluster is silent."""
    return {name for server in servers for name in server.get("daemonsets", [])}


def may_use_other_api(
    api: str, servers: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether pods of the node may use a GPU by the other API: it has the label, or the cluster is silent.

    `servers` are the results of module k3s_nodes, `nodes` what they say of this node.
    """
    (other,) = (label for name, label in manifests.API_LABELS.items() if name != api)
    return not known_daemonsets(servers) or any(node["labels"].get(other) for node in nodes)


def present(objects: Iterable[str], servers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of the DaemonSets that may be there; `objects` are KIND/NAME.

    `servers` are the results of module k3s_nodes.
    """
    known = known_daemonsets(servers)
    return [one for one in objects if not known or one.partition("/")[2] in known]


def may_have_surplus(kept: Iterable[str], servers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the cluster may have objects of a configuration or an API that no board has.

    `servers` are the results of module k3s_nodes. Of such objects the DaemonSet goes last.
    """
    known = known_daemonsets(servers)
    names = (*configurations.DAEMONSETS.values(), manifests.AGENT, manifests.THROTTLE_TAINT)
    return not known or not {one for one in known if one.startswith(names)} <= {*kept}


def offers(config: dict[str, Any], api: str) -> dict[str, int]:
    """What the node offers when all is well, at least: an extended resource, or devices of the DRA driver."""
    return {manifests.DRIVER if api == "dra" else manifests.resource(config): 1}


def plan(
    jetson: Mapping[str, Any],
    bundle: Mapping[str, Any],
    settings: Settings,
    board: str,
    inventory: Inventory,
) -> Plan:
    """What is deployed on a board.

    `jetson` are its facts, `bundle` what the module bundle_info has found, `board` its name in the inventory.
    """
    found = inventory["configurations"]
    image = plugin_image.image_of(settings["image"], bundle, jetson["arch"])
    docker = jetson["docker"]
    in_docker = settings["container_runtime"] == "docker"
    jtop = has_jtop(jetson, settings)
    (own,) = (one for one in found if board in one["boards"])
    value = configurations.label_value(own["name"])
    stands_by = settings["api"] == "device-plugin" and (in_docker or bool(docker["running"]))
    refused, stand_by = list(refusals(jetson, settings, board)), None
    if stands_by and not refused:
        text = manifest([rendering(image, own, settings)], inventory["sources"])
        stand_by = standing_by.stand_by(text, inventory["tmpfiles"])
    tainted = throttle_taint(settings) is not None
    loads = not (in_docker and has_archive(image, bundle, docker))
    return {
        "refused": refused,
        "prepares": bool(refused or loads or jtop),
        "api": settings["api"],
        "image": image._asdict(),
        "loaded": image.name in docker["images"],
        "loads": loads,
        "engine": engine_of(settings),
        "jtop": jtop,
        "labels_command": labels_command(image, settings, jtop=jtop),
        "koordinator_command": koordinator_command(image, settings),
        # Docker is there with JetPack, also where K3s uses its own containerd. The kubelet waits for a DRA
        # driver by itself.
        "stands_by": stands_by,
        "labels": {
            # NVIDIA's GPU operator leaves the board alone, installed before or after.
            manifests.OPERANDS_LABEL: "false",
            **{label: value if api == own["api"] else None for api, label in manifests.API_LABELS.items()},
            manifests.TAINT_LABEL: "true" if tainted else None,
        },
        "absent_taints": [] if tainted else [manifests.TAINT],
        "absent": unwanted_agents(found),
        "kept": [*kept_daemonsets(found), *([manifests.THROTTLE_TAINT] if tainted else [])],
        "unused": unused_objects(found, settings["k3s_version"], tainted=tainted),
        "renderings": [
            *(rendering(image, one, settings) for one in found),
            *taint_rendering(image, settings),
        ],
        "stand_by": stand_by,
        "stands_by_otherwise": bool(stand_by and docker["running"] and serves_otherwise(stand_by, docker)),
    }


def serves_otherwise(stand_by: Mapping[str, Any], docker: Mapping[str, Any]) -> bool:
    """Whether the instance that stands by has other settings, by the facts of Docker."""
    settings = hashlib.sha256(stand_by["config"].encode()).hexdigest()
    return docker["stand_by_settings"] not in (None, settings)


class Sources(NamedTuple):
    """Texts of the plain manifests, in plugin/deploy."""

    plugin: str
    agent: str
    agent_rights: str
    driver: list[str]
    throttle_taint: list[str]


def manifest(renderings: Iterable[Mapping[str, Any]], sources: Mapping[str, Any]) -> str:
    """The manifest of configurations of a plan, made from the texts of the plain ones (`Sources`)."""
    texts = Sources(**sources)
    documents: list[dict[str, Any]] = []
    for one in renderings:
        given = dict(one)
        if "remove_after" in given:
            documents += manifests.rendered_throttle_taint(texts.throttle_taint, **given)
            continue
        if "extended_resource" in given:
            documents += manifests.rendered_driver(texts.driver, **given)
            continue
        if agent := given.pop("agent"):
            given["agent"] = {
                "manifest": texts.agent,
                "rights": json.loads(texts.agent_rights),
                **{key: agent[key] for key in ("mode", "qos_policy", "host_pid", "unused_after")},
            }
        documents += manifests.rendered(texts.plugin, **given)
    return manifests.joined(documents)


FILTERS = {
    "gpu_device_plugin_plan": plan,
    "gpu_device_plugin_manifest": manifest,
    "gpu_device_plugin_may_have_surplus": may_have_surplus,
    "gpu_device_plugin_may_use_other_api": may_use_other_api,
    "gpu_device_plugin_offers": offers,
    "gpu_device_plugin_present": present,
    "gpu_device_plugin_builders": plugin_image.builders,
    "gpu_device_plugin_lacks_wheels": plugin_image.lacks_wheels,
    "gpu_device_plugin_unbuilt": plugin_image.unbuilt,
    "gpu_device_plugin_wrong_archive": plugin_image.wrong_archive,
}
