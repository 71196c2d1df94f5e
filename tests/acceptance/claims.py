# SPDX-License-Identifier: Apache-2.0
"""Claims of Dynamic Resource Allocation and pods that have them, on a lab's cluster."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tests.acceptance.cluster import Cluster, wait_until
from tests.lab.board import Board

DRIVER = "gpu.jetson-k3s.github.io"
SHARED = f"shared.{DRIVER}"
API_VERSION = "resource.k8s.io/v1"
DRIVER_PODS = "--selector=app.kubernetes.io/name=tegra-dra-driver"
SYSTEM = "--namespace=kube-system"
HOLD = ("python3.11", "-m", "tegra_device_plugin", "compute", "--hold")
NONE_LEFT = "cannot allocate all claims"
# A claim that could not be prepared the kubelet tries again after a minute, such as one that is too new for
# the API server's node authorizer.
POD_SECONDS = 150
CHECKPOINT = f"/var/lib/kubelet/plugins/{DRIVER}/checkpoint.json"
CDI_FILES = f"/var/run/cdi/{DRIVER}-claim-*.json"


def apply(cluster: Cluster, *objects: Mapping[str, Any]) -> None:
    text = "\n---\n".join(map(json.dumps, objects))
    cluster.boards[0].exec("sh", "-c", f"printf %s {shlex.quote(text)} | k3s kubectl apply -f -")


def claim(name: str, *, device_class: str = DRIVER, memory: str = "") -> dict[str, Any]:
    """Return a claim for one device; `memory` is what it asks of it."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if memory:
        exactly["capacity"] = {"requests": {"memory": memory}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(
    name: str,
    image: str,
    *,
    claim: str | None,
    node: str,
    command: tuple[str, ...] = HOLD,
    again: bool = False,
) -> dict[str, Any]:
    """Return a pod on a node that computes on the GPU of its claim and holds it."""
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command),
    }
    spec: dict[str, Any] = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Always" if again else "Never",
        "containers": [container],
    }
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def get(cluster: Cluster, kind: str, *arguments: str) -> Any:
    return json.loads(cluster.kubectl("get", kind, *arguments, "--output=json"))


def devices(cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    """Return what the driver has published, by node."""
    items = get(cluster, "resourceslices", f"--field-selector=spec.driver={DRIVER}")["items"]
    return {item["spec"]["nodeName"]: item["spec"].get("devices", []) for item in items}


def given(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Return what a claim was given."""
    allocation = get(cluster, "resourceclaim", name).get("status", {}).get("allocation", {})
    results: list[dict[str, Any]] = allocation.get("devices", {}).get("results", [])
    return results


def runs(cluster: Cluster, name: str, seconds: float = POD_SECONDS) -> float:
    """Wait until a pod has computed on its GPU and holds it; return the seconds it took."""

    def computed() -> bool:
        return cluster.phase(name) == "Running" and "computed" in cluster.kubectl("logs", name)

    return wait_until(computed, f"{name} computes on the GPU", seconds)


def waits(cluster: Cluster, name: str) -> None:
    """Wait until the scheduler has said that nothing is left for a pod."""
    wait_until(lambda: NONE_LEFT in cluster.unschedulable(name), f"{name} has to wait", POD_SECONDS)
    assert cluster.phase(name) == "Pending"


def ends(cluster: Cluster, *names: str) -> None:
    """Delete pods and claims (`pod/a`, `resourceclaim/b`) and wait until all are gone: none may hang."""
    cluster.kubectl("delete", *names, "--wait=true", f"--timeout={POD_SECONDS}s")


def driver_pod(cluster: Cluster, node: str) -> str | None:
    for item in get(cluster, "pods", SYSTEM, DRIVER_PODS, f"--field-selector=spec.nodeName={node}")["items"]:
        conditions = {one["type"]: one["status"] for one in item["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in item["metadata"]:
            return str(item["metadata"]["name"])
    return None


def left_on(board: Board) -> list[str]:
    """Return what the driver has left of claims on a board: CDI files, and claims in its checkpoint."""
    files = board.exec("sh", "-c", f"ls -d {CDI_FILES} 2>/dev/null || true").split()
    text = board.exec("sh", "-c", f"cat {CHECKPOINT} 2>/dev/null || true")
    return files + (list(json.loads(text)["claims"]) if text.strip() else [])
