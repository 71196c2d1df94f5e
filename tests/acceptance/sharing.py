# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for a share of the GPU, and what they say that they got."""

import json
from collections.abc import Mapping
from typing import Any

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab.board import Board, set_toolkit

UNITS = {"gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}}
STRICT = {"nvidia_docker_strict": True}
CONFIG_MAP = "tegra-device-plugin"
POD_SECONDS = 90


def sell_units(lab: str, board: Board) -> PlaybookRun:
    set_toolkit(board, "1.18.0")  # JetPack 6's own ignores strict mode
    return run_playbook(lab, "site.yml", f"--extra-vars={json.dumps(UNITS | STRICT)}")


def ask(cluster: Cluster, name: str, mib: int, limits: Mapping[str, int], **pod_settings: str) -> None:
    settings = {
        "command": ["python3.11", "-m", "tegra_device_plugin", "allocate", str(mib), "--hold"],
        "resources": {"limits": limits},
    }
    cluster.create_sleeper(name, cluster.boards[0].name, settings, **pod_settings)


def configure(cluster: Cluster, settings: Mapping[str, Any]) -> None:
    """Give the plugin other settings, and let it begin anew: by itself it takes a kubelet's minute."""
    entry = {"data": {"config.yaml": json.dumps(settings)}}
    namespace = "--namespace=kube-system"
    cluster.kubectl(namespace, "patch", "configmap", CONFIG_MAP, f"--patch={json.dumps(entry)}")
    pod = cluster.plugin_pod(cluster.boards[0].name)
    assert pod
    cluster.kubectl(namespace, "delete", "pod", pod)


def said(cluster: Cluster, pod: str, restarts: int = 0) -> str:
    """Wait until a pod's program has said what it got, and give it."""
    lines: list[str] = []

    def heard() -> bool:
        started = cluster.started(pod)
        lines[:] = cluster.kubectl("logs", pod).splitlines()
        return started is not None and started[1] == restarts and any("allocated" in line for line in lines)

    wait_until(heard, f"{pod} has allocated; it says {lines}", POD_SECONDS)
    return next(line for line in lines if line.startswith("allocated"))
