# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED kubectl with one node, whose scheduler counts GPUs and whose pods do as they are named."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.roles.places import COLLECTION, Data

RESOURCE = "nvidia.com/gpu"
ALLOCATING = ("greedy", "neighbour")
COMPUTED = "computed 65536 numbers on Orin in 1.5 ms, all are right\n"
SHARED = f"ansible_collections.{COLLECTION}.plugins.module_utils"
UTILS = ("claims", "pods", "node", "sharing", "restarts", "diagnosis", "access")
REFUSED = "unsupported device id: X"
FAILED = "cudaGetDeviceCount returned 100\n-> no CUDA-capable device is detected\nResult = FAIL\n"
PASSED = """\
Detected {detected} CUDA Capable device(s)

Device 0: "Orin"
  CUDA Capability Major/Minor version number:    8.7
  Total amount of global memory:                 8192 MBytes ({memory_bytes} bytes)
  (016) Multiprocessors, (128) CUDA Cores/MP:    2048 CUDA Cores
  Integrated GPU sharing Host Memory:            {integrated}
Result = PASS
"""


@dataclass
class FakeCluster:
    """The fields are faults that a test orders."""

    resource: str = RESOURCE
    api: str = "device-plugin"
    taint: str = ""  # of the GPU's device
    meaning: str = ""  # of the plugin's configuration, in its own words
    replicas: int = 1
    allocatable: int = 1
    capacity: int = 1
    ready: bool | None = True  # None: at the second request
    late: bool = False  # the GPU is offered when somebody watches for it
    plugin: str | None = "ready"
    plugin_container: str = "docker://plugin"
    holder_phase: str = "Running"
    query: str = "passed"
    refuses: str = ""  # the reason that the kubelet gives if the container runtime refuses pods
    root_only: bool = False
    user_nodes: str = "node /dev/nvmap 0:44 660 "  # what user 1000 can open
    blind: bool = False  # a pod without a request cannot list its nodes
    exclusive: bool = True
    holders_end: bool = False  # as soon as another pod has to wait for them
    silent: bool = False
    nodes: str = "/dev/nvmap"
    uninvited_nodes: str = ""
    detected: int = 1
    integrated: str = "Yes"
    memory_bytes: int = 8 << 30
    units_mib: int = 0  # of memory in units
    context_mib: int = 0
    unlimited: bool = False  # no pod's memory is
    free_mib: dict[str, int] = field(default_factory=dict)  # for a pod, besides its share
    fatal_greed: bool = False  # the neighbour dies of it
    mute: str = ""  # pod that says nothing and runs on
    dies_saying: dict[str, str] = field(default_factory=dict)  # its last words, by pod
    wrong: bool = False  # what the GPU computes
    taken_away: bool = False  # the holder's device nodes
    failing_exec: int = 0  # calls of exec in the holder that do not reach its kubelet
    users: list[str] = field(default_factory=list)
    registers_again: bool = False
    restarts_holder: bool = False
    boots: int = 0
    refuses_after_boot: str = ""  # why the kubelet does not admit the pod again
    manifests: Data = field(default_factory=dict)
    templates: Data = field(default_factory=dict)  # of claims
    pods: dict[str, str] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)
    ending: dict[str, str] | None = None  # of a namespace that does not end: its metadata
    orphaned: list[str] = field(default_factory=list)  # pods that went while their containers ran on
    logs_of_plugin: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take kubectl's place in all modules that call it."""
        kubectl = importlib.import_module(f"{SHARED}.k3s_kubectl")
        self.error, self.timed_out = kubectl.KubectlError, kubectl.WatchTimeoutError
        for util in UTILS:
            module = importlib.import_module(f"{SHARED}.gpu_verify_{util}")
            for name in ("run", "get", "wait_until"):
                monkeypatch.setattr(module, name, getattr(self, name), raising=False)
        # A clock of its own: each reading adds a second, and sleep takes none.
        clock = SimpleNamespace(monotonic=count().__next__, sleep=lambda _seconds: None)
        for util in ("pods", "restarts"):
            module = importlib.import_module(f"{SHARED}.gpu_verify_{util}")
            monkeypatch.setattr(module, "time", clock)

    def share(self, replicas: int) -> None:
        self.replicas = self.allocatable = self.capacity = replicas

    def allocate_units(self, meaning: str, resource: str, devices: int, mib: int, context_mib: int) -> None:
        self.share(devices)
        self.resource, self.meaning = resource, meaning
        self.units_mib, self.context_mib = mib, context_mib

    def run(self, *argv: str, stdin: str = "", accept: tuple[int, ...] = (0,)) -> str:
        if self.silent:
            raise self.error("connection refused")
        match argv:
            case ("create", "namespace", name):
                self.namespaces.add(name)
            case ("delete", "namespace", name, *_):
                self.end(name)
            case ("delete", "pods", *_):
                self.pods.clear()
            case ("create", *_):
                self.create(json.loads(stdin))
            case ("exec", _, _, *_, "check", "--host-root=/host", _):
                return self.meaning or f"/etc/config.yaml: good: {self.replicas} x {RESOURCE}\n"
            case ("exec", name, _, "--", *command) if "compute" in command:
                return self.compute_again(name)
            case ("exec", name, *_):
                self.pods[name] = "ended"
                if 137 not in accept:  # killed with its container
                    raise self.error("kubectl exec: command terminated with exit code 137")
            case ("logs", "--namespace=kube-system", *_):
                self.logs_of_plugin += 1
                registered = f"registered {'with the kubelet' if self.api == 'dra' else self.resource}\n"
                registered *= self.logs_of_plugin if self.registers_again else 1
                return f"{registered}WARNING the GPU is unhealthy: hung\n"
            case ("logs", name, *_):
                return self.log(name)
        return ""

    def end(self, namespace: str) -> None:
        if self.ending:
            raise self.error("timed out waiting for the condition")
        self.namespaces.discard(namespace)
        # API servers before 1.21 give running pods the grace of those that have ended: none.
        if "ended" in self.pods.values():
            self.orphaned += [pod for pod, state in self.pods.items() if state == "running"]
        self.pods.clear()

    def create(self, manifest: Mapping[str, Any]) -> None:
        assert self.namespaces, "an object without its namespace"
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ResourceClaimTemplate":
            self.templates[name] = manifest["spec"]["spec"]
            return
        (container,) = manifest["spec"]["containers"]
        owners = name == "devicequery" and container["image"] == "dq:1"
        assert owners or container["image"] == "plugin:1", container
        assert container["imagePullPolicy"] == "Never"
        self.manifests[name] = manifest
        self.pods[name] = "new"

    def log(self, name: str) -> str:
        failed = FAILED if self.query == "failed" or (self.root_only and name == "nonroot") else ""
        match name:
            case "devicequery" | "nonroot":
                passed = PASSED.format(
                    detected=self.detected, memory_bytes=self.memory_bytes, integrated=self.integrated
                )
                return f"user 1000 with groups 44 1000\n{self.user_nodes}\n{failed or passed}"
            case "uninvited":
                return "" if self.blind else f"{self.uninvited_nodes}\nready\n"
            case name if name in ALLOCATING:
                return self.allocated(name)
        if self.wrong:
            return f"{self.nodes}\ntegra-device-plugin: 7 of 65536 numbers came back wrong from the GPU\n"
        return f"{self.nodes}\n{COMPUTED}"

    def compute_again(self, name: str) -> str:
        assert self.pods[name] == "running"
        if self.failing_exec:
            self.failing_exec -= 1
            raise self.error("kubectl exec: error dialing backend: connection refused")
        if self.taken_away:
            said = "tegra-device-plugin: cuInit: CUDA_ERROR_NO_DEVICE (100)"
            raise self.error(f"kubectl exec: {said}\ncommand terminated with exit code 1")
        return "" if name == self.mute else COMPUTED

    def allocated(self, name: str) -> str:
        if name in self.dies_saying or name == self.mute:
            return self.dies_saying.get(name, "")
        *_, asked, hold = self.manifests[name]["spec"]["containers"][0]["command"]
        assert hold == "--hold"
        share = self.units_mib * self.asks(name) // self.allocatable - self.context_mib
        free = self.free_mib.get(name, int(asked))
        got = min(int(asked), free if self.unlimited else min(free, share))
        got -= 0 if got == int(asked) else got % 16
        end = "" if got == int(asked) else ", then CUDA was out of memory"
        return f"allocated {got} of {asked} MiB{end}; CUDA says that {share - got} of {share} MiB are free\n"

    def get(self, kind: str, *argv: str) -> Data | None:
        if self.silent:
            raise self.error("connection refused")
        match kind:
            case "node":
                return self.node()
            case "namespace":
                return {"metadata": self.ending}
            case "pods" if "--all-namespaces" in argv:
                items = [*map(self.user, self.users), *self.holding()]
            case "pods" if any(word.startswith("--selector") for word in argv):
                items = [self.plugin_pod()] if self.plugin else []
            case "resourceslices":
                items = self.slices()
            case "resourceclaims":
                running = (pod for pod, state in self.pods.items() if state == "running")
                items = [self.claim(pod) for pod in (*self.users, *running)]
            case "pods" | "events":
                items = self.warnings() if kind == "events" else []
            case _:
                return self.pod(argv[0])
        return {"items": items}

    def wait_until(self, satisfied: Any, what: str, _timeout: int, *argv: str) -> Data:
        """A watch: an object that does not satisfy now never will."""
        kind, name = argv[-2:]
        self.late = self.late and kind == "pod"
        match kind:
            case "node":
                item = self.node()
            case "resourceslices":
                item = next(iter(self.slices()), {"spec": {}})
            case _:
                item = self.plugin_pod() if name == "plugin" else self.pod(name)
        if not satisfied(item):
            raise self.timed_out(f"{what} did not happen", item)
        return item

    def node(self) -> Data:
        ready, self.ready = self.ready, self.ready is not False
        return {
            "metadata": {"labels": {}},
            "status": {
                "nodeInfo": {"kubeletVersion": "v1.33.5+k3s1", "containerRuntimeVersion": "docker://27.5.1"},
                "capacity": {self.resource: str(0 if self.late else self.capacity)},
                "allocatable": {self.resource: str(0 if self.late else self.allocatable)},
                "conditions": [{"type": "Ready", "status": str(bool(ready)), "message": "kubelet"}],
            },
        }

    def slices(self) -> list[Data]:
        return [{"spec": {"devices": self.devices()}}] if self.capacity and not self.late else []

    def devices(self) -> list[Data]:
        taints = [{"key": "example.com/unhealthy", "value": self.taint, "effect": "NoSchedule"}]
        sharing = "shares" if self.allocatable > 1 else "exclusive"
        device = {
            "attributes": {"sharing": {"string": sharing}},
            **({"taints": taints} if self.taint else {}),
        }
        return [{"name": f"igpu-0-{number}", **device} for number in range(self.allocatable)]

    def claim(self, pod: str) -> Data:
        given = {"driver": "gpu.jetson-k3s.github.io", "pool": "jetson-1", "device": "igpu-0"}
        return {
            "metadata": {"namespace": "default", "name": f"{pod}-gpu"},
            "status": {"allocation": {"devices": {"results": [given]}}, "reservedFor": [{"name": pod}]},
        }

    def plugin_pod(self) -> Data:
        configured = bool(self.meaning or self.replicas > 1)
        environment = [{"name": "CONFIG_FILE", "value": "/etc/config.yaml"}] * configured
        return {
            "metadata": {"name": "plugin"},
            "spec": {"containers": [{"image": "plugin:1", "env": environment}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"containerID": self.plugin_container, "restartCount": 0}],
                "conditions": [{"type": "Ready", "status": "True" if self.plugin == "ready" else "False"}],
            },
        }

    def user(self, name: str) -> Data:
        return {
            "metadata": {"namespace": "default", "name": name},
            "status": {"phase": "Running"},
            "spec": {"containers": [{"resources": {"limits": {self.resource: "1"}}}]},
        }

    def holding(self) -> list[Data]:
        return [self.user(name) for name, state in self.pods.items() if state == "running"]

    def warnings(self) -> list[Data]:
        """What the kubelet says of pods that its runtime refuses."""
        warning = {"type": "Warning", "reason": "Failed", "message": REFUSED}
        return [{**warning, "involvedObject": {"name": name}} for name in self.pods if self.refuses]

    def pod(self, name: str) -> Data:
        status: Data = {"phase": "Pending"}
        if name not in self.pods:
            return {"status": {"phase": "Active"}}  # the namespace's service account
        if self.refuses == "ContainerCannotRun":
            ended = {"reason": self.refuses, "message": REFUSED}
            status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
        elif self.refuses:
            status["containerStatuses"] = [{"state": {"waiting": {"reason": self.refuses}}}]
        elif name in ("devicequery", "nonroot"):
            status["phase"] = "Failed" if FAILED in self.log(name) else "Succeeded"
        elif name == "kernel":
            status["phase"] = "Failed" if self.wrong else "Succeeded"
        elif name == "uninvited" or self.pods[name] == "ended":
            status["phase"] = "Succeeded"
        elif name in self.dies_saying or (self.fatal_greed and name == "neighbour" and "greedy" in self.pods):
            status["phase"] = "Failed"
        elif self.exclusive and self.full(name):
            if self.holders_end:
                self.pods.update({other: "ended" for other in self.pods if other != name})
            claims = "cannot allocate all claims"
            words = claims if self.api == "dra" else f"Insufficient {self.resource}"
            refused = f"0/1 nodes are available: 1 {words}."
            status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": refused}]
        elif name == "survivor" and self.boots and self.refuses_after_boot:
            reason = "UnexpectedAdmissionError"
            status = {"phase": "Failed", "reason": reason, "message": self.refuses_after_boot}
        elif name == "holder" and self.holder_phase != "Running":
            status["phase"] = self.holder_phase
        else:
            self.pods[name] = "running"
            container = f"docker://{self.logs_of_plugin if self.restarts_holder else 1}"
            status = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "containerID": container,
                        "restartCount": self.boots,
                        "state": {"running": {"startedAt": "2026-11-21T01:02:00Z"}},
                    }
                ],
            }
        return {"metadata": {"name": name}, "status": status}

    def full(self, name: str) -> bool:
        """Do others have so many devices that too few are left?"""
        others = [other for other, state in self.pods.items() if state == "running" and other != name]
        return sum(map(self.asks, others)) + self.asks(name) > self.allocatable

    def asks(self, name: str) -> int:
        spec = self.manifests[name]["spec"]
        container = spec["containers"][0]
        if self.api == "dra":
            assert "limits" not in container.get("resources", {})
            (request,) = (
                request
                for one in spec.get("resourceClaims", [])
                for request in self.templates[one["resourceClaimTemplateName"]]["devices"]["requests"]
            )
            return int(request["exactly"]["count"])
        return int(container.get("resources", {}).get("limits", {}).get(self.resource, 0))
