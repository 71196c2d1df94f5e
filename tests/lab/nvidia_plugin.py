# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own device plugin on a node of the lab, beside ours."""

import json
from typing import Any

from tests.lab import archive, gomodules
from tests.lab.board import Board
from tests.lab.staging import directory
from tools import debian
from tools.engine import docker

RECIPE = gomodules.Recipe("nvidia-plugin", ("tool",), cgo=True)
IMAGE = "nvidia-device-plugin:lab"
NAME = "nvidia-device-plugin-daemonset"
LABELS = {"name": "nvidia-device-plugin-ds"}
SOCKETS = "/var/lib/kubelet/device-plugins"


def load(node: Board, engine: str = "containerd") -> None:
    """Load its image into what runs the node's pods: K3s' containerd, or Docker."""
    arch = debian.architecture()
    program = gomodules.programs(RECIPE, arch) / "nvidia-device-plugin"
    with directory() as stage:
        path = stage / "nvidia-plugin.tar.gz"
        settings = {"Entrypoint": ["/nvidia-device-plugin"]}
        archive.write(path, [IMAGE], arch, settings, {"nvidia-device-plugin": program.read_bytes()})
        docker("cp", str(path), f"{node.container}:/root/nvidia-plugin.tar.gz")
    # The ctr of K3s 1.25 reads no compressed archive.
    commands = {"containerd": "k3s ctr --namespace=k8s.io images import -", "docker": "docker load"}
    node.exec("bash", "-ec", f"set -o pipefail; gunzip < /root/nvidia-plugin.tar.gz | {commands[engine]}")


def manifests(node: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """NVIDIA's own DaemonSet (deployments/static/nvidia-device-plugin.yml), with a configuration.

    A virtual board does not show its Tegra to containers, so the strategy is named.
    """
    settings = {"namespace": "kube-system", "name": NAME}
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--config-file=/config/config.json", "--device-discovery-strategy=tegra"],
        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "device-plugin", "mountPath": SOCKETS},
            {"name": "config", "mountPath": "/config"},
        ],
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        "containers": [container],
        "volumes": [
            {"name": "device-plugin", "hostPath": {"path": SOCKETS}},
            {"name": "config", "configMap": {"name": NAME}},
        ],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": settings,
            "data": {"config.json": json.dumps(config)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": settings,
            "spec": {
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": spec},
            },
        },
    ]
