# SPDX-License-Identifier: Apache-2.0
"""A node with Kubernetes 1.36: GPUs by claims (Dynamic Resource Allocation), faults included.

And the throttle taint, which older Kubernetes cannot limit to its own node, and unused GPUs: the agent finds
the pod of a process by its control group, which the lab's K3s does not make.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.devices import published

from tests import newer_go
from tests.acceptance.cluster import RESOURCE, Cluster, sleeper, wait_until
from tests.acceptance.playbook import PlaybookRun, cluster_status, run_playbook
from tests.lab import board, kubernetes_1_36
from tests.lab.board import Board
from tests.unit.plugin.dra.objects import gpu
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

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

LAB = "dra"
DRA, PLUGIN = "dra", "device-plugin"
CAPACITY = {"version": "v1", "sharing": {"dra": {"mode": "capacity", "memoryTotal": "6Gi"}}}
ALLOCATE = ("python3.11", "-m", "tegra_device_plugin", "allocate")
ALLOCATED = re.compile(r"allocated (\d+) of 4096 MiB, then CUDA was out of memory; .* of (\d+) MiB are free")
SHARES = {"version": "v1", "sharing": {"dra": {"mode": "shares", "shares": 3}}}
MEMORY = "jetson-k3s.github.io/gpu-memory"
UNITS = {
    "gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}},
    "gpu_device_plugin_agent": {"enabled": True, "unusedAfter": "1m"},
    "nvidia_docker_strict": True,
}
AGENT_LOG = (SYSTEM, "logs", "--selector=app.kubernetes.io/name=tegra-gpu-agent", "--tail=-1")
UNUSED_SECONDS = 180
THROTTLED = {"key": "jetson-k3s.github.io/throttled", "effect": "PreferNoSchedule"}
KINDS = (
    "clusterrole,clusterrolebinding,deviceclass,validatingadmissionpolicy,validatingadmissionpolicybinding"
)


@pytest.fixture(scope="module")
def node() -> Iterator[Board]:
    with newer_go.skipped_without():
        kubernetes_1_36.compiled()
    with kubernetes_1_36.fresh(LAB) as (up,):
        yield up


@pytest.fixture
def cluster(node: Board) -> Cluster:
    return Cluster([node])


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


def pod_with(
    claim: str | None, name: str, command: tuple[str, ...] = HOLD, *, again: bool = False
) -> dict[str, Any]:
    """Return a pod that computes on the GPU of its claim and keeps it."""
    container = sleeper({"command": list(command)})
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Always" if again else "Never",
        "containers": [container],
    }
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def devices(cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    """Return what the driver has published, by node."""
    items = cluster.get("resourceslices", f"--field-selector=spec.driver={DRIVER}")["items"]
    return {item["spec"]["nodeName"]: item["spec"].get("devices", []) for item in items}


def allocated(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the device that is allocated to a claim."""
    claim = cluster.get("resourceclaim", name)
    (device,) = claim["status"]["allocation"]["devices"]["results"]
    return dict(device)


def runs(cluster: Cluster, name: str) -> None:
    """Wait until a pod has computed on its GPU and keeps it."""

    def computed() -> bool:
        return cluster.phase(name) == "Running" and "computed" in cluster.kubectl("logs", name)

    wait_until(computed, f"{name} computes on the GPU", POD_SECONDS)


def waits(cluster: Cluster, name: str) -> None:
    """Wait until the scheduler has said that nothing is left for a pod."""
    wait_until(lambda: NONE_LEFT in cluster.unschedulable(name), f"{name} has to wait", POD_SECONDS)
    assert cluster.phase(name) == "Pending"


def ends(cluster: Cluster, *names: str) -> None:
    """Delete pods and claims (`pod/a`, `resourceclaim/b`) and wait until all are gone: none may hang."""
    cluster.kubectl("delete", *names, "--wait=true", f"--timeout={POD_SECONDS}s")


def driver_pod(cluster: Cluster) -> str | None:
    for item in cluster.get("pods", SYSTEM, DRIVER_PODS)["items"]:
        conditions = {one["type"]: one["status"] for one in item["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in item["metadata"]:
            return str(item["metadata"]["name"])
    return None


def throttle_tainted(cluster: Cluster) -> bool:
    """Return whether the node has the taint of a throttled board."""
    (node,) = cluster.nodes()
    return THROTTLED in node["spec"].get("taints", [])


def left_on(board: Board) -> list[str]:
    """Return what the driver has left of claims on a board: CDI files, and claims in its checkpoint."""
    files = board.exec("sh", "-c", f"ls -d {CDI_FILES} 2>/dev/null || true").split()
    text = board.exec("sh", "-c", f"cat {CHECKPOINT} 2>/dev/null || true")
    return files + (list(json.loads(text)["claims"]) if text.strip() else [])


def site(api: str, tags: str = "gpu_device_plugin,gpu_verify", **variables: Any) -> PlaybookRun:
    """Run the steps of site.yml that follow role k3s, for one of the APIs."""
    chosen = {"k3s_container_runtime": "containerd", "gpu_device_plugin_api": api, **variables}
    return run_playbook(LAB, "site.yml", f"--tags={tags}", f"--extra-vars={json.dumps(chosen)}")


def start(cluster: Cluster, name: str, **settings: Any) -> None:
    of_pod = {key: settings.pop(key) for key in ("again", "command") if key in settings}
    cluster.apply(claim(name, **settings), pod_with(name, name, **of_pod))


def end(cluster: Cluster, *names: str) -> None:
    ends(cluster, *(f"pod/{name}" for name in names))
    ends(cluster, *(f"resourceclaim/{name}" for name in names))


def ready_driver(cluster: Cluster) -> str:
    wait_until(lambda: driver_pod(cluster) is not None, "a Ready driver", 120)
    return str(driver_pod(cluster))


def test_one_run_deploys_the_driver_and_proves_the_gpus_by_claims(cluster: Cluster, node: Board) -> None:
    site(DRA).checked()
    (found,) = cluster.nodes()
    assert found["status"]["nodeInfo"]["kubeletVersion"] == kubernetes_1_36.VERSION
    assert found["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
    assert {name: [one["name"] for one in of_it] for name, of_it in devices(cluster).items()} == {
        node.name: ["igpu-0"]
    }
    assert cluster.allocatable() == {node.name: 0}
    assert "tegra-device-plugin" not in cluster.kubectl("get", "daemonsets", SYSTEM, "--output=name")
    site(DRA).unchanged()


def test_another_power_mode_is_published(cluster: Cluster, node: Board) -> None:
    node.exec("sh", "-c", "echo pmode:0002 > /var/lib/nvpmodel/status")

    def mode() -> Any:
        (device,) = devices(cluster)[node.name]
        return device["attributes"].get("powerMode")

    wait_until(lambda: mode() == {"int": 2}, "the power mode in the slice", 120)


def test_a_claim_brings_the_gpu_into_its_pod_and_the_next_one_waits(
    cluster: Cluster, node: Board, tmp_path: Path
) -> None:
    start(cluster, "one")
    runs(cluster, "one")
    assert {"/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"} <= set(
        cluster.kubectl("exec", "one", "--", "python3.11", "-c", LOOK).split()
    )
    given = allocated(cluster, "one")
    assert (given["driver"], given["pool"], given["device"]) == (DRIVER, node.name, "igpu-0")
    (shown,) = cluster_status(LAB, tmp_path)["nodes"]
    (device,) = shown["devices"]
    assert (shown["name"], device["name"], device["sharing"]) == (node.name, "igpu-0", "exclusive")
    (held,) = device["claims"]
    assert (device["taints"], held["namespace"], held["name"], held["pods"]) == (
        [],
        "default",
        "one",
        ["one"],
    )
    start(cluster, "two")
    waits(cluster, "two")
    end(cluster, "one")
    runs(cluster, "two")
    end(cluster, "two")
    assert left_on(node) == []


LOOK = "import pathlib; print(*(p for p in pathlib.Path('/dev').rglob('*') if p.is_char_device()), sep='\\n')"


def test_a_pod_without_a_claim_has_no_gpu(cluster: Cluster, node: Board) -> None:
    cluster.apply(pod_with(None, "none", ("python3.11", "-c", LOOK)))
    wait_until(lambda: cluster.phase("none") == "Succeeded", "a look around", 60)
    assert "nvmap" not in cluster.kubectl("logs", "none")
    ends(cluster, "pod/none")


def test_the_examples_of_the_documents_choose_the_board(
    cluster: Cluster, node: Board, tmp_path: Path
) -> None:
    examples = ("claim-by-compute-capability", "claim-by-memory", "claim-by-jetpack")
    jobs = [example.replace("claim", "gpu") for example in examples]
    start(cluster, "owner")
    runs(cluster, "owner")
    # A free GPU that none of them asks for.
    other = slices.spec("jetson-2", published(gpu(tmp_path, "xaviernx-jp5"), Dra(), taints=True), 1)
    cluster.apply(resource_slice("other", {**other, "nodeName": None, "allNodes": True}))
    try:
        for example in examples:
            apply_example(cluster, example)
        for name in jobs:
            job_waits(cluster, name)
        end(cluster, "owner")
        for name in jobs:
            job_passes(cluster, name)
    finally:
        cluster.kubectl("delete", "resourceslice", "other")
    ends(cluster, *(f"{kind}/{name}" for name in jobs for kind in ("job", "resourceclaimtemplate")))


def apply_example(cluster: Cluster, example: str) -> None:
    text = (CHECKOUT / f"docs/examples/{example}.yaml").read_text().replace("IfNotPresent", "Never")
    cluster.apply(*yaml.safe_load_all(text))


def job_passes(cluster: Cluster, job: str) -> None:
    cluster.kubectl("wait", "--for=condition=Complete", f"--timeout={POD_SECONDS}s", f"job/{job}")
    assert "Result = PASS" in cluster.kubectl("logs", f"job/{job}")


def job_waits(cluster: Cluster, job: str) -> None:
    def pods() -> list[str]:
        of_it = f"--selector=batch.kubernetes.io/job-name={job}"
        return [pod["metadata"]["name"] for pod in cluster.get("pods", of_it)["items"]]

    wait_until(lambda: bool(pods()), f"a pod of {job}", POD_SECONDS)
    waits(cluster, *pods())


def test_a_pod_that_asks_for_an_extended_resource_is_served_as_it_is(cluster: Cluster, node: Board) -> None:
    for name in ("train", "late"):
        cluster.hold_gpu(name, node.name)
    wait_until(lambda: cluster.phase("train") == "Running", "an unchanged pod runs", POD_SECONDS)
    assert "/dev/nvmap" in cluster.kubectl("exec", "train", "--", "python3.11", "-c", LOOK).split()
    wait_until(lambda: bool(cluster.unschedulable("late")), "the next one waits", POD_SECONDS)
    ends(cluster, "pod/train")
    wait_until(lambda: cluster.phase("late") == "Running", "the next one runs", POD_SECONDS)
    ends(cluster, "pod/late")
    wait_until(lambda: not left_on(node), "nothing is left of the claims", 30)


def test_a_pod_ends_although_the_driver_died_while_its_claim_was_prepared(
    cluster: Cluster, node: Board
) -> None:
    start(cluster, "orphan")
    runs(cluster, "orphan")
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/dra-")
    wait_until(lambda: driver_pod(cluster) is None, "no driver", 60)
    cluster.kubectl("delete", "pod", "orphan", "--wait=false")
    cluster.kubectl("delete", "resourceclaim", "orphan", "--wait=false")
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/dra=true")
    wait_until(lambda: gone(cluster, "pod", "orphan"), "the pod ends", 120)
    wait_until(lambda: gone(cluster, "resourceclaim", "orphan"), "the claim goes", 60)
    ready_driver(cluster)
    wait_until(lambda: not left_on(node), "nothing is left of the claim", 30)


def gone(cluster: Cluster, kind: str, name: str) -> bool:
    return not cluster.kubectl("get", kind, name, "--ignore-not-found", "--output=name").strip()


def test_a_pod_has_its_gpu_again_after_a_reboot(cluster: Cluster, node: Board) -> None:
    start(cluster, "survivor", again=True)
    runs(cluster, "survivor")
    before = cluster.started("survivor")
    board.reboot(node)
    wait_until(lambda: cluster.started("survivor") not in (None, before), "the pod runs again", 180)
    runs(cluster, "survivor")
    end(cluster, "survivor")
    assert left_on(node) == []


def test_a_gpu_that_dies_is_told_of_and_given_to_nobody(cluster: Cluster, node: Board) -> None:
    start(cluster, "sick")
    runs(cluster, "sick")
    health = partial(cluster.health_in_pod, "sick", "claim:gpu")
    wait_until(lambda: health() == ["Healthy"], "a healthy GPU in the pod", 60)
    try:
        board.set_state(node, "dead")
        wait_until(lambda: health() == ["Unhealthy"], "a dead GPU in the pod", 60)
        wait_until(lambda: tainted(cluster, node), "a tainted device", 30)
        end(cluster, "sick")
        start(cluster, "next")
        waits(cluster, "next")
    finally:
        board.set_state(node, "ready")
    wait_until(lambda: not tainted(cluster, node), "a device without a taint", 60)
    runs(cluster, "next")
    end(cluster, "next")


def tainted(cluster: Cluster, on: Board) -> bool:
    (device,) = devices(cluster)[on.name]
    return any(taint["effect"] == "NoSchedule" for taint in device.get("taints", []))


def as_driver(cluster: Cluster, token: str, wanted: dict[str, Any]) -> str:
    """Create a slice with a token of the driver's account; return what the API server says."""
    text = shlex.quote(json.dumps(wanted))
    way = "--kubeconfig=/dev/null --server=https://127.0.0.1:6443 --insecure-skip-tls-verify"
    return cluster.boards[0].exec(
        "sh", "-c", f"printf %s {text} | k3s kubectl {way} --token={token} create -f - 2>&1 || true"
    )


def resource_slice(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def forged(node: str, driver: str = DRIVER) -> dict[str, Any]:
    """Return a slice that no driver has published."""
    pool = {"name": "forged", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gold"}]}
    return resource_slice("forged", spec)


def test_a_nodes_driver_writes_no_slice_of_another_node(cluster: Cluster, node: Board) -> None:
    pod = ready_driver(cluster)
    account = ("create", "token", SYSTEM, "tegra-dra-driver")
    token = cluster.kubectl(*account, "--bound-object-kind=Pod", f"--bound-object-name={pod}").strip()
    for wanted, refusal in (
        (forged("jetson-2"), "writes slices of that node only, not of jetson-2"),
        (forged(node.name, "gpu.example.com"), f"writes slices of {DRIVER} only"),
    ):
        assert refusal in as_driver(cluster, token, wanted)
    nowhere = cluster.kubectl(*account).strip()
    assert "names no node" in as_driver(cluster, nowhere, forged(node.name))
    try:
        assert "created" in as_driver(cluster, token, forged(node.name))
    finally:
        cluster.kubectl("delete", "resourceslice", "forged", "--ignore-not-found")


def test_two_claims_share_the_memory_and_the_third_waits(cluster: Cluster, node: Board) -> None:
    site(DRA, gpu_device_plugin_config=CAPACITY).checked()
    for name in ("left", "right", "third"):
        start(cluster, name, device_class=SHARED, memory="3Gi")
        if name != "third":
            runs(cluster, name)
    waits(cluster, "third")
    results = [allocated(cluster, name) for name in ("left", "right")]
    assert [one["consumedCapacity"]["memory"] for one in results] == ["3Gi", "3Gi"]
    assert len({one["shareID"] for one in results}) == 2
    end(cluster, "left")
    runs(cluster, "third")
    start(cluster, "whole", device_class=SHARED)
    waits(cluster, "whole")
    end(cluster, "right", "third")
    # A claim that names no memory has all of it.
    runs(cluster, "whole")
    start(cluster, "little", device_class=SHARED, memory="64Mi")
    waits(cluster, "little")
    end(cluster, "whole", "little")
    assert left_on(node) == []

    apply_example(cluster, "claim-by-capacity")
    job_passes(cluster, "gpu-by-capacity")
    ends(cluster, "job/gpu-by-capacity", "resourceclaimtemplate/gpu-by-capacity")


def test_a_program_is_out_of_memory_where_its_claim_ends(cluster: Cluster, node: Board) -> None:
    start(cluster, "neighbour", device_class=SHARED, memory="2Gi", command=(*ALLOCATE, "1536", "--hold"))
    wait_until(lambda: cluster.phase("neighbour") == "Running", "the neighbour runs", POD_SECONDS)
    start(cluster, "greedy", device_class=SHARED, memory="3Gi", command=(*ALLOCATE, "4096"))
    wait_until(lambda: cluster.phase("greedy") == "Failed", "the greedy one ends", POD_SECONDS)
    said = ALLOCATED.search(cluster.kubectl("logs", "greedy"))
    assert said
    got, total = map(int, said.groups())
    assert 0.75 * 3072 < got <= 3072
    assert total == 3072
    assert "allocated 1536 of 1536 MiB" in cluster.kubectl("logs", "neighbour")
    assert cluster.phase("neighbour") == "Running"
    end(cluster, "neighbour", "greedy")
    assert left_on(node) == []


def test_shares_are_held_at_the_same_time(cluster: Cluster, node: Board) -> None:
    entry = json.dumps({"data": {"config.yaml": json.dumps(SHARES)}})
    cluster.kubectl(SYSTEM, "patch", "configmap", "tegra-dra-driver", f"--patch={entry}")
    cluster.kubectl(SYSTEM, "delete", "pods", DRIVER_PODS)
    wait_until(lambda: len(devices(cluster).get(node.name, [])) == 3, "three shares", 120)
    names = [f"share-{number}" for number in range(3)]
    for name in names:
        start(cluster, name, device_class=SHARED)
    for name in names:
        runs(cluster, name)
    start(cluster, "fourth", device_class=SHARED)
    waits(cluster, "fourth")
    end(cluster, *names, "fourth")


def test_change_of_the_api_is_refused_while_a_claim_is_allocated(cluster: Cluster, node: Board) -> None:
    start(cluster, "busy", device_class=SHARED)
    runs(cluster, "busy")
    run = site(PLUGIN, "gpu_device_plugin")
    assert run.returncode != 0
    assert "default/busy" in run.output
    assert ready_driver(cluster)
    end(cluster, "busy")


def test_change_to_the_device_plugin_leaves_nothing_of_the_driver(cluster: Cluster, node: Board) -> None:
    site(PLUGIN).checked()
    assert cluster.allocatable() == {node.name: 1}
    names = cluster.kubectl("get", KINDS, "--output=name")
    assert "tegra-dra-driver" not in names and DRIVER not in names
    assert "tegra-dra-driver" not in cluster.kubectl(
        SYSTEM, "get", "daemonset,serviceaccount,configmap,pods", "--output=name"
    )
    wait_until(lambda: devices(cluster) == {}, "no slice", 60)
    assert "jetson-k3s.github.io/dra" not in cluster.kubectl("get", "nodes", "--show-labels")


def test_a_throttled_board_has_the_taint_until_it_is_cool(cluster: Cluster, node: Board) -> None:
    def throttled(*, wanted: bool) -> None:
        """Set the heat, and wait for the taint or for its end."""
        board.simulate_heat(node, 2 if wanted else 0)
        wait_until(lambda: throttle_tainted(cluster) is wanted, f"a node that is tainted: {wanted}", 60)

    setting = "gpu_device_plugin_throttle_taint"
    label = "--selector=app.kubernetes.io/name=tegra-throttle-taint"
    kinds = f"daemonset,serviceaccount,{KINDS.replace('deviceclass,', '')}"
    site(PLUGIN, "gpu_device_plugin", **{setting: {"enabled": True, "removeAfter": "10s"}}).checked()
    assert len(cluster.get(kinds, "--all-namespaces", label)["items"]) == len(kinds.split(","))
    assert not throttle_tainted(cluster)
    throttled(wanted=True)
    throttled(wanted=False)
    throttled(wanted=True)
    site(PLUGIN, "gpu_device_plugin", **{setting: {"enabled": False}}).checked()
    assert not throttle_tainted(cluster)
    assert cluster.get(kinds, "--all-namespaces", label)["items"] == []


def test_a_program_on_the_cpu_is_in_the_status_and_others_are_not(node: Board, tmp_path: Path) -> None:
    """The board has no list of nvmap: the ledgers of the limit's library tell who has a CUDA context."""
    cluster = Cluster([node], runtime_class="nvidia")
    board.set_toolkit(node, "1.18.0")  # JetPack 6's own ignores strict mode
    site(PLUGIN, "nvidia_docker,gpu_device_plugin", **UNITS).checked()
    limits = {"resources": {"limits": {MEMORY: 1}}}
    cluster.create_sleeper("on-the-cpu", node.name, limits)
    cluster.create_sleeper("on-the-gpu", node.name, limits | {"command": [*ALLOCATE, "64", "--hold"]})

    def reported() -> bool:
        return "default/on-the-cpu container main has the GPU" in cluster.kubectl(*AGENT_LOG)

    wait_until(reported, "the agent reports the pod that does not use its GPU", UNUSED_SECONDS)
    (found,) = cluster_status(LAB, tmp_path)["nodes"]
    seconds = {holder["pod"]: holder["unused_seconds"] for holder in found["holders"]}
    assert seconds["on-the-gpu"] is None
    assert seconds["on-the-cpu"] >= 60
    assert "on-the-gpu container main has the GPU" not in cluster.kubectl(*AGENT_LOG)
    ends(cluster, "pod/on-the-cpu", "pod/on-the-gpu")
    site(PLUGIN, "nvidia_docker,gpu_device_plugin").checked()


def test_a_pods_status_says_that_its_gpu_has_died(node: Board) -> None:
    cluster = Cluster([node], runtime_class="nvidia")
    cluster.hold_gpu("train", node.name)
    try:
        wait_until(lambda: cluster.health_in_pod("train") == ["Healthy"], "a healthy GPU in the pod", 60)
        board.set_state(node, "dead")
        wait_until(lambda: cluster.health_in_pod("train") == ["Unhealthy"], "a dead GPU in the pod", 60)
        board.set_state(node, "ready")
        wait_until(lambda: cluster.health_in_pod("train") == ["Healthy"], "the GPU again in the pod", 60)
    finally:
        board.set_state(node, "ready")
        cluster.kubectl("delete", "pod", "train", "--wait=true")


def test_the_device_plugin_is_not_replaced_while_a_pod_has_its_gpu(node: Board) -> None:
    cluster = Cluster([node], runtime_class="nvidia")
    cluster.hold_gpu("train", node.name)
    wait_until(lambda: cluster.phase("train") == "Running", "a pod with a GPU", POD_SECONDS)
    run = site(DRA, "gpu_device_plugin")
    assert run.returncode != 0
    assert "default/train" in run.output
    assert cluster.allocatable()[node.name] == 1
    ends(cluster, "pod/train")


def test_a_board_that_is_reset_keeps_nothing_of_the_driver(cluster: Cluster, node: Board) -> None:
    site(DRA).checked()
    assert set(cluster.allocatable(RESOURCE).values()) == {0}
    run_playbook(LAB, "reset.yml", f"--extra-vars=k3s_reset_cluster={node.name}").checked()
    places = "/var/lib/kubelet /run/cdi/*.json /var/lib/tegra-gpu-limit"
    found = node.exec("sh", "-c", f"ls -d {places} 2>&1 || true")
    assert all("No such file" in line for line in found.splitlines()), found
