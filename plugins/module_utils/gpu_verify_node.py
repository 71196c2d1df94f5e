# SPDX-License-Identifier: Apache-2.0
"""Checks of a node that start no pod: Ready, Docker's runtime, the device plugin, the allocatable GPUs.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import re
from typing import Dict, Match, Optional

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_claims as claims
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_diagnosis import (
    PLUGIN_NAMESPACE,
    plugin_log,
    plugin_pod,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import why
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed, Record
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    WatchTimeoutError,
    condition,
    get,
    is_true,
    run,
    wait_until,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_quantities import integer

RUNTIME = "nvidia"
WORDS = {"device-plugin": "the device plugin", claims.DRA: "the DRA driver"}
LABELS = {"device-plugin": "jetson-k3s.github.io/device-plugin", claims.DRA: "jetson-k3s.github.io/dra"}
# The kubelet probes the plugin every 5 s (plugin/deploy/base), and a new plugin has to start first.
READY_SECONDS = 30
# The plugin's log line with the reason why the GPU is unhealthy.
UNHEALTHY = re.compile(r"the GPU is unhealthy: (.+)$", re.MULTILINE)
# The plugin's summary of a configuration: `4 x nvidia.com/gpu`; several resources of a GPU in units.
CONFIGURED = re.compile(r": good: (\d+ x \S+(?:, \d+ x \S+)*)$", re.MULTILINE)
# And which resource is memory, how much, and the part that is charged for a process's CUDA context.
MEMORY = re.compile(r"^promised: no more than (\S+) of (\S+) is allocated$", re.MULTILINE)
CONTEXT = re.compile(r"^a process is charged (\S+) for its CUDA context$", re.MULTILINE)
# Its quantities: bytes, in the largest unit without a fraction.
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
# Pods that share the memory, each with an equal part.
SHARERS = 2


def node_ready(params: Data, record: Record) -> None:
    """The node is Ready, and takes part in the cluster."""
    name = params["node"]
    try:
        wait_until(lambda item: is_true(item, "Ready"), "Ready", params["timeout"], "node", name)
    except WatchTimeoutError as timeout:
        if timeout.last is None:
            raise CheckFailed("the cluster has no node {}".format(name)) from timeout
        said = condition(timeout.last, "Ready")
        raise CheckFailed(
            "the node {} is not Ready: {}".format(name, said.get("message") or "its kubelet says nothing")
        ) from timeout
    record.prove("the node {} is Ready".format(name))


def default_runtime(params: Data, record: Record) -> None:
    """Docker's default runtime is NVIDIA's; where containerd runs the pods its RuntimeClass exists."""
    if params["runtime_class"]:
        runtime_class = get("runtimeclass", params["runtime_class"])
        if runtime_class is None:
            raise CheckFailed("the cluster has no RuntimeClass {}".format(params["runtime_class"]))
        record.prove(
            "RuntimeClass {} has the handler {handler}".format(params["runtime_class"], **runtime_class)
        )
        return
    docker = params["engine"]
    if "unasked" in docker:
        raise OSError("the board did not answer: {}".format(docker["unasked"]))
    if not docker.get("ServerVersion"):
        raise CheckFailed(
            "Docker does not answer on the board: {}".format(docker.get("error", "no reason given"))
        )
    found = docker.get("DefaultRuntime")
    if found != RUNTIME:
        raise CheckFailed("Docker's default runtime is {}, not {}".format(found, RUNTIME))
    path = (docker.get("Runtimes") or {}).get(RUNTIME, {}).get("path", "path unknown")
    record.prove("docker info: default runtime {} ({}), Docker {ServerVersion}".format(found, path, **docker))


def plugin_ready(params: Data, record: Record) -> Data:
    """The pod of the plugin, or of the DRA driver, that is Ready on the node."""
    name, words = params["node"], WORDS[params["api"]]
    node = get("node", name)
    if node is None:
        raise CheckFailed("the cluster has no node {}".format(name))
    if not is_true(node, "Ready"):
        # A kubelet that has just started is NotReady for some seconds.
        try:
            node = wait_until(lambda item: is_true(item, "Ready"), "Ready", READY_SECONDS, "node", name)
        except WatchTimeoutError as timeout:
            said = condition(timeout.last or node, "Ready").get("message", "its kubelet has not reported")
            raise CheckFailed("node {} is not Ready: {}".format(name, said)) from timeout
    item = plugin_pod(name)
    if item is None:
        label = LABELS[params["api"]]
        value = (node["metadata"].get("labels") or {}).get(label)
        raise CheckFailed(
            "no pod of {} is on {} (its label {} is {})".format(words, name, label, value or "not set")
        )
    pod = item["metadata"]["name"]
    try:
        # The kubelet may not have probed a plugin that this run deployed.
        item = wait_until(
            lambda item: is_true(item, "Ready"),
            "Ready",
            READY_SECONDS,
            "--namespace=" + PLUGIN_NAMESPACE,
            "pod",
            pod,
        )
    except WatchTimeoutError as timeout:
        raise CheckFailed("pod {} of {} is not Ready: {}".format(pod, words, why(timeout.last))) from timeout
    record.prove("pod {} is Ready, image {}".format(pod, item["spec"]["containers"][0]["image"]))
    return item


def counted(node: Optional[Data], field: str, resource: str) -> int:
    """The number of a resource in a node's `capacity` or `allocatable`; 0 if missing."""
    return integer((((node or {}).get("status") or {}).get(field) or {}).get(resource, "0"))


def plugin_registered(params: Data, gpu: Data, record: Record) -> None:
    """The plugin's pod is Ready and the kubelet counts its resource.

    Writes what the plugin is configured to offer into `gpu`: `resource`, its `devices`, `replicas` (how many
    pods they are for), and whether memory is `limited` to what a pod asks for. Where it is, `memory_bytes` is
    how much there is for all, and `context_bytes` what each process is charged for its context.
    """
    name = params["node"]
    item = plugin_ready(params, record)
    offer = configured(item)
    if offer:
        gpu.update(offer)
        record.prove("it is configured to offer {devices} x {resource}".format(**offer))
    resource = gpu["resource"]
    try:
        # A kubelet that has just started knows no device, and says so after what the one before it has said.
        node = wait_until(
            lambda item: counted(item, "capacity", resource) > 0,
            resource,
            params["timeout"],
            "node",
            name,
        )
    except WatchTimeoutError as timeout:
        raise CheckFailed("the kubelet of {} knows no {}".format(name, resource)) from timeout
    record.prove("capacity {}: {}".format(resource, counted(node, "capacity", resource)))


def driver_registered(params: Data, gpu: Data, record: Record) -> None:
    """The same for the DRA driver: its pod is Ready, and the node has devices. Each pod takes one."""
    plugin_ready(params, record)
    found = claims.wait_for_devices(params["node"], params["timeout"])
    if not found:
        raise CheckFailed("{} has no ResourceSlice of {}".format(params["node"], claims.DRIVER))
    limited = claims.sharing_of(found) == "capacity"  # a pod sees the memory of its claim
    gpu.update(resource=claims.name_of_class(found), devices=len(found), replicas=len(found), limited=limited)
    record.prove("ResourceSlice of {}: {}".format(claims.DRIVER, ", ".join(one["name"] for one in found)))


def software(name: str) -> Dict[str, Optional[str]]:
    """Software on the node, as it reports: K3s, the engine of its pods, the device plugin's image.

    Unknown values are None.
    """
    node, item = get("node", name), plugin_pod(name)
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    return {
        "k3s": info.get("kubeletVersion"),
        "container_runtime": info.get("containerRuntimeVersion"),
        "device_plugin": item["spec"]["containers"][0]["image"] if item else None,
    }


def configured(item: Data) -> Optional[Data]:
    """The configured offer in the log of a plugin's pod; None without one."""
    container = item["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
    path = environment.get("CONFIG_FILE")
    if not path:
        return None
    where = ("--namespace=" + PLUGIN_NAMESPACE, item["metadata"]["name"], "--")
    check = ("python3.11", "-m", "tegra_device_plugin", "config", "check", "--host-root=/host", path)
    said = run("exec", *where, *check)
    match = CONFIGURED.search(said)
    if match is None:
        raise CheckFailed(
            "the device plugin does not say what its configuration means: {}".format(said.strip())
        )
    return offer_of(match.group(1), MEMORY.search(said), CONTEXT.search(said))


def quantity(text: str) -> int:
    """Bytes of a quantity in the plugin's output."""
    number = text.rstrip("KMGi")
    return int(number) * UNITS[text[len(number) :]]


def offer_of(counts: str, memory: Optional[Match[str]], context: Optional[Match[str]]) -> Data:
    """The keys of `gpu` from the plugin's summary: `4 x NAME, ...`, and maybe memory and contexts."""
    offered = {}
    for one in counts.split(", "):
        count, _, name = one.partition(" x ")
        offered[name] = int(count)
    if memory is None:
        ((resource, devices),) = offered.items()
        return {"resource": resource, "devices": devices, "replicas": devices, "limited": False}
    resource = memory.group(2)
    devices = offered[resource]
    return {
        "resource": resource,
        "devices": devices,
        "replicas": min(devices, SHARERS),
        "limited": True,
        "memory_bytes": quantity(memory.group(1)),
        "context_bytes": quantity(context.group(1)) if context else 0,
    }


def allocatable(params: Data, gpu: Data, record: Record) -> None:
    """The node's allocatable number is the configured one; writes `allocatable` into `gpu`."""
    name, resource, devices = params["node"], gpu["resource"], gpu["devices"]
    try:
        # As of the capacity: the number may still be that of the kubelet before.
        node: Optional[Data] = wait_until(
            lambda item: counted(item, "allocatable", resource) == devices,
            resource,
            READY_SECONDS,
            "node",
            name,
        )
    except WatchTimeoutError as timeout:
        node = timeout.last
    found = counted(node, "allocatable", resource)
    gpu["allocatable"] = found
    record.prove("allocatable {}: {}, expected {}".format(resource, found, devices))
    if found != devices:
        item = plugin_pod(name)
        cause = UNHEALTHY.findall(plugin_log(item)) if item and found < devices else []
        raise CheckFailed(
            "the node offers {} {} to pods, not {}".format(found or "no", resource, devices)
            + (", the plugin says: {}".format(cause[-1]) if cause else "")
        )


def devices_offered(params: Data, gpu: Data, record: Record) -> None:
    """The same for the DRA driver: no device has a taint."""
    found = claims.devices(params["node"])
    tainted = [
        "{}: {}".format(one["name"], ", ".join(claims.taints(one))) for one in found if claims.taints(one)
    ]
    gpu["allocatable"] = len(found) - len(tainted)
    record.prove("devices {}, expected {}".format(gpu["allocatable"], gpu["devices"]))
    if tainted:
        raise CheckFailed("these devices have taints, so no pod gets them: {}".format("; ".join(tainted)))
