# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device plugin in a cluster, by the templates of its pods.

It offers nvidia.com/gpu, as the device plugin of the boards does. On a node with both, the kubelet uses the
plugin that has registered last.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import posixpath
import re
from typing import Any, Dict, List

Data = Dict[str, Any]

# Where each device plugin has its socket (kubelet, pkg/apis/deviceplugin/v1beta1/constants.go).
SOCKETS = "/var/lib/kubelet/device-plugins"
# Of NVIDIA's chart, of its plain manifest, of its GPU operator and of forks such as HAMi.
PROGRAM = "nvidia-device-plugin"
IMAGE = re.compile(r"(^|/)nvidia/k8s-device-plugin([:@]|$)")
# Label of the nodes of the GPU operator's plugin (its assets/state-device-plugin/0500_daemonset.yaml).
OPERATED = "nvidia.com/gpu.deploy.device-plugin"
NAME, RELEASE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
ENDED = ("Succeeded", "Failed")


def is_program(container: Data) -> bool:
    """Is the container NVIDIA's plugin, by its image, its name or its command?"""
    words = (container.get("command") or []) + (container.get("args") or [])
    return (
        bool(IMAGE.search(container.get("image", "")))
        or container["name"].startswith(PROGRAM)
        or any(posixpath.basename(word) == PROGRAM for word in words)
    )


def is_plugin(spec: Data) -> bool:
    """Are pods with this spec NVIDIA's plugin? Other pods of its image do not mount SOCKETS."""
    paths = [(volume.get("hostPath") or {}).get("path", "") for volume in spec.get("volumes") or []]
    return any(path.rstrip("/") == SOCKETS for path in paths) and any(map(is_program, spec["containers"]))


def origin(namespace: str, name: str, labels: Data, spec: Data) -> Data:
    """The plugin's DaemonSet, and what has installed it: a release of NVIDIA's chart, or its GPU operator."""
    of_chart = labels.get(NAME) == PROGRAM
    return {
        "namespace": namespace,
        "name": name,
        "release": labels.get(RELEASE, "") if of_chart else "",
        "operator": OPERATED in (spec.get("nodeSelector") or {}),
    }


def plugin_daemonsets(daemonsets: List[Data]) -> List[Data]:
    """The DaemonSets of NVIDIA's plugin, each with the nodes that it selects."""
    found = []
    for daemonset in daemonsets:
        metadata, template = daemonset["metadata"], daemonset["spec"]["template"]
        spec = template["spec"]
        if not is_plugin(spec):
            continue
        labels = (template.get("metadata") or {}).get("labels") or {}
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        found.append(
            dict(
                origin(metadata["namespace"], metadata["name"], labels, spec),
                selector=spec.get("nodeSelector") or {},
                terms=(required or {}).get("nodeSelectorTerms"),
            )
        )
    return found


def plugin_pods(pods: List[Data]) -> List[Data]:
    """The pods of NVIDIA's plugin that have not ended, each with its node."""
    found = []
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        ended = (pod.get("status") or {}).get("phase") in ENDED or "deletionTimestamp" in metadata
        if ended or not spec.get("nodeName") or not is_plugin(spec):
            continue
        owners = [one["name"] for one in metadata.get("ownerReferences") or [] if one["kind"] == "DaemonSet"]
        name = owners[0] if owners else metadata["name"]
        facts = origin(metadata["namespace"], name, metadata.get("labels") or {}, spec)
        found.append(dict(facts, node=spec["nodeName"]))
    return found
