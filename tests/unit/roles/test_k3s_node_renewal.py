# SPDX-License-Identifier: Apache-2.0
"""A board goes on with the device plugin that its run has deployed, and with no older one.

A SIMULATED kubectl stands for the server: two nodes, and DaemonSets that make a pod anew when it is deleted.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.roles import playing
from tests.unit.roles.loading import load

module = load("k3s/library/k3s_node.py")

PLUGIN, AGENT = "tegra-device-plugin", "tegra-gpu-agent"
SELECTOR = f"app.kubernetes.io/name in ({PLUGIN}, {AGENT})"
OLD_IMAGE, IMAGE = "tegra-device-plugin:1", "tegra-device-plugin:2"
NODE, OTHER = "jetson-1", "jetson-2"
NEVER = (
    "ErrImageNeverPull",
    'Container image "tegra-device-plugin:2" is not present with pull policy of Never',
)


@dataclass
class FakeServer:
    """The fields are what a test orders. DaemonSets are at their second template, and nodes at the first."""

    names: tuple[str, ...] = (PLUGIN,)
    renewed: tuple[str, ...] = ()  # nodes that have the pods of the second template already
    seen: bool = True  # by the controller, before it is waited for
    ends: bool = True  # the kubelet ends pods that are deleted
    waits: tuple[str, str] | None = None  # what hinders the new pod's container
    comes: bool = True  # a new pod
    deleted: list[str] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)
    told: list[tuple[str, ...]] = field(default_factory=list)  # about the node

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kubectl = importlib.import_module("ansible.module_utils.k3s_kubectl")
        self.timed_out, self.error = kubectl.WatchTimeoutError, kubectl.KubectlError
        self.pods = [
            self.pod(name, node, node in self.renewed) for name in self.names for node in (NODE, OTHER)
        ]
        for name in ("run", "get", "wait_until"):
            monkeypatch.setattr(module, name, getattr(self, name))
        monkeypatch.setattr(kubectl, "get", self.get)  # what lists calls it there
        monkeypatch.setattr(module, "K3S", "/bin/sh")  # there is a K3s

    def run(self, *argv: str) -> str:
        """Delete pods, or say what they have said."""
        match argv:
            case ("delete", "pods", "--namespace=kube-system", "--ignore-not-found", "--wait=false", *names):
                self.deleted += names
                for pod in [one for one in self.pods if one["metadata"]["name"] in names]:
                    self.end(pod)
            case ("logs", "--namespace=kube-system", *_):
                return "the plugin's last words\n"
            case (verb, "--overwrite", "node", node, *what) if node == NODE:
                self.told.append((verb, *what))
            case _:
                raise AssertionError(argv)
        return ""

    def end(self, pod: dict[str, Any]) -> None:
        if not self.ends:
            pod["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
            return
        self.pods.remove(pod)
        if self.comes:
            self.pods.append(self.pod(pod["owner"], pod["spec"]["nodeName"], new=True))

    def get(self, kinds: str, *argv: str) -> dict[str, Any] | None:
        """One object or a list, and nothing at all instead of an empty one."""
        if kinds == "node":
            return self.node(argv[0])
        assert argv[:2] == ("--namespace=kube-system", f"--selector={SELECTOR}")
        if kinds == "pods":
            return {"items": self.there(argv[2], self.pods)}
        assert kinds == "daemonsets,controllerrevisions,pods"
        if not self.names:
            return None
        daemonsets = [self.daemonset(name) for name in self.names]
        revisions = [
            self.revision(name, new)
            for name in self.names
            for new in ((True, False) if self.seen else (False,))
        ]
        return {"items": copy.deepcopy([*daemonsets, *revisions, *self.pods])}

    def wait_until(self, satisfied: Any, _what: str, _timeout: int, kind: str, *argv: str) -> Any:
        """A watch: what does not satisfy now never will. What the controller is to see, it then sees."""
        self.watched.append(kind)
        if kind == "daemonset":
            self.seen = True
            items = [self.daemonset(argv[0])]
        elif kind == "node":
            items = [self.node(argv[0])]
        else:
            _namespace, selector, there = argv
            revision = selector.removeprefix(f"--selector={SELECTOR},controller-revision-hash=")
            items = [
                pod
                for pod in self.there(there, self.pods)
                if pod["metadata"]["labels"]["controller-revision-hash"] == revision
            ]
        for item in items:
            if satisfied(item):
                return item
        raise self.timed_out("it did not happen", items[-1] if items else None)

    @staticmethod
    def there(field_selector: str, pods: list[Any]) -> list[Any]:
        node = field_selector.removeprefix("--field-selector=spec.nodeName=")
        return [pod for pod in pods if pod["spec"]["nodeName"] == node]

    @staticmethod
    def node(name: str) -> dict[str, Any]:
        """A node that offers a GPU all the time: the old plugin's."""
        ready = {"type": "Ready", "status": "True"}
        return {
            "metadata": {"name": name, "labels": {"kept": "1", "old": "1", "new": "0"}},
            "spec": {},
            "status": {"conditions": [ready], "allocatable": {"nvidia.com/gpu": "1"}},
        }

    def daemonset(self, name: str) -> dict[str, Any]:
        template = {
            "metadata": {"annotations": {"jetson-k3s.github.io/image-id": "sha256:bbbb"}},
            "spec": {"containers": [{"name": "main", "image": IMAGE}]},
        }
        return {
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "generation": 2},
            "spec": {"template": template},
            "status": {"observedGeneration": 2 if self.seen else 1},
        }

    def revision(self, name: str, new: bool) -> dict[str, Any]:
        """A ControllerRevision. Its name's order is not that of the revisions."""
        return {
            "kind": "ControllerRevision",
            "revision": 10 if new else 9,
            "metadata": {
                "name": "a" if new else "b",
                "labels": {"controller-revision-hash": f"{name}-{'new' if new else 'old'}"},
                "ownerReferences": [{"uid": f"uid-{name}"}],
            },
        }

    def pod(self, name: str, node: str, new: bool) -> dict[str, Any]:
        waits = self.waits if new else None
        reason, message = waits or ("", "")
        state = {"waiting": {"reason": reason, "message": message}} if waits else {"running": {}}
        return {
            "kind": "Pod",
            "owner": name,
            "metadata": {
                "name": f"{name}-{node}-{'new' if new else 'old'}",
                "labels": {"controller-revision-hash": f"{name}-{'new' if new else 'old'}"},
                "annotations": {"jetson-k3s.github.io/image-id": "sha256:bbbb" if new else "sha256:aaaa"},
                "ownerReferences": [{"uid": f"uid-{name}"}],
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": IMAGE if new else OLD_IMAGE}],
            },
            "status": {
                "phase": "Pending" if waits else "Running",
                "conditions": [{"type": "Ready", "status": "False" if waits else "True"}],
                "containerStatuses": [{"state": state, "restartCount": 0}],
            },
        }


def outcome(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, *, check_mode: bool = False, **changes: Any
) -> dict[str, Any]:
    server.install(monkeypatch)
    params: dict[str, Any] = {
        "name": NODE,
        "labels": {},
        "resource": "nvidia.com/gpu",
        "driver": None,
        "provider": SELECTOR,
        "renew": True,
        "timeout": 5,
        **changes,
    }
    return playing.outcome(monkeypatch, module, params, check_mode)


def test_the_node_gets_its_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(names=())
    labels = {"kept": 1, "old": None, "absent": None, "new": "1"}
    wanted: dict[str, Any] = {"labels": labels}
    commands = f"kubectl label node {NODE} new=1 old-\n"
    assert outcome(server, monkeypatch, check_mode=True, **wanted) == {
        "changed": True,
        "diff": {"prepared": commands},
    }
    assert server.told == []
    assert outcome(server, monkeypatch, **wanted)["diff"]["prepared"] == commands
    assert server.told == [("label", "new=1", "old-")]


def test_a_template_that_the_controller_has_not_seen_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(seen=False)
    assert outcome(server, monkeypatch)["changed"] is True
    assert server.deleted == [f"{PLUGIN}-{NODE}-old"]
    assert server.watched[:2] == ["node", "daemonset"]


def test_check_mode_says_that_a_pod_would_be_replaced_and_replaces_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for renewed, told in (((), f"kubectl delete pods {PLUGIN}-{NODE}-old\n"), ((NODE,), "")):
        server = FakeServer(renewed=renewed)
        said = outcome(server, monkeypatch, check_mode=True)
        assert said == {"changed": bool(told), "diff": {"prepared": told}}
        assert (server.deleted, server.watched) == ([], [])


def test_check_mode_knows_a_cluster_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(FakeServer(names=()), monkeypatch, check_mode=True)["changed"] is False


def test_who_only_waits_for_the_gpu_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    assert outcome(server, monkeypatch, renew=False)["changed"] is False
    assert server.deleted == []


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            FakeServer(ends=False),
            [
                f"Pod {PLUGIN}-{NODE}-old runs {OLD_IMAGE} (image-id sha256:aaaa)",
                " and is Running, Ready, being ended since ",
                "restart K3s on the board",
            ],
        ),
        (
            FakeServer(waits=NEVER),
            [
                f"Pod {PLUGIN}-{NODE}-new runs {IMAGE}",
                "Pending, not Ready, ErrImageNeverPull: ",
                "run playbooks/site.yml",
            ],
        ),
        (
            FakeServer(waits=("CrashLoopBackOff", "back-off 5m0s")),
            [
                "CrashLoopBackOff: back-off 5m0s",
                f"describe pod {PLUGIN}-{NODE}-new",
                "the plugin's last words",
            ],
        ),
        (FakeServer(comes=False), ["It has no pod there.", f"describe daemonset {PLUGIN}"]),
    ],
    ids=["old-pod-stays", "no-image", "crashes", "no-pod"],
)
def test_a_board_whose_plugin_is_not_renewed_is_told_what_runs_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, words: list[str]
) -> None:
    result = outcome(server, monkeypatch)
    assert result["failed"]
    for word in [
        f"node {NODE}: DaemonSet {PLUGIN} does not run {IMAGE} (image-id sha256:bbbb) there.",
        "(waited 5 s)",
        *words,
    ]:
        assert word in result["msg"]
    assert OTHER not in result["msg"]


def test_pods_whose_daemonset_is_gone_are_ended_before_the_labels_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(names=(PLUGIN, AGENT), renewed=(NODE, OTHER))
    server.install(monkeypatch)
    server.names = (AGENT,)
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "run", lambda *argv: called.append(argv))
    module.remove_orphans(SELECTOR, NODE, 5)
    waits = ("delete", "pods", "--namespace=kube-system", "--ignore-not-found", "--timeout=5s")
    assert called == [(*waits, f"{PLUGIN}-{NODE}-new")]
    server.names = (PLUGIN, AGENT)
    module.remove_orphans(SELECTOR, NODE, 5)
    assert len(called) == 1


@pytest.mark.parametrize(
    ("devices", "offered"),
    [
        ([], False),
        ([{"name": "igpu-0"}], True),
        ([{"name": "igpu-0", "taints": [{"key": "a/b", "effect": "NoSchedule"}]}], False),
        ([{"name": "igpu-0", "taints": [{"key": "a/b", "effect": "None"}]}], True),
    ],
)
def test_a_slice_offers_the_devices_that_pods_can_be_given(
    devices: list[dict[str, Any]], offered: bool
) -> None:
    assert bool(module.free_devices({"spec": {"devices": devices}})) is offered
