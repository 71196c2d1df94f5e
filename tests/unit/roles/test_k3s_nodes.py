# SPDX-License-Identifier: Apache-2.0
"""Nodes: what the modules ask of the API server, how a node is drained, and which plugin it gets."""

from __future__ import annotations

import copy
import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import playing
from tests.unit.roles.loading import Data, load

node_module = load("k3s/library/k3s_node.py")
kubectl = load("k3s/module_utils/k3s_kubectl.py")


def test_json_stream_is_cut_into_objects_wherever_the_pieces_end() -> None:
    text = '{\n "a": 1\n}\n{"b": "}{"}\n'
    for cut in range(len(text)):
        stream = kubectl.JsonStream()
        assert [*stream.feed(text[:cut]), *stream.feed(text[cut:])] == [{"a": 1}, {"b": "}{"}]


CONNECTION_REFUSED = (
    "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"
)


def scripted(patch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Have a script in the place of K3s, which counts its calls, and no pause between them."""
    program = directory / "k3s"
    program.write_text(f'#!/bin/sh\necho call >> "$0.calls"\n{script}\n')
    program.chmod(0o755)
    patch.setattr(kubectl, "K3S", str(program))
    patch.setattr(kubectl.time, "sleep", lambda _: None)


def test_request_is_repeated_while_the_api_server_restarts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = f'[ "$(wc -l < "$0.calls")" -gt 2 ] && exec cat\necho "{CONNECTION_REFUSED}" >&2\nexit 1'
    scripted(monkeypatch, tmp_path, script)
    assert kubectl.run("apply", "--filename=-", stdin="manifest") == "manifest"


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (("node", "node"), "node --field-selector=metadata.name=node"),
        (("--namespace=n", "pod", "p"), "--namespace=n pod --field-selector=metadata.name=p"),
        (("daemonset", "d", "--namespace=n"), "daemonset --field-selector=metadata.name=d --namespace=n"),
        (("pods", "--selector=a=b"), "pods --selector=a=b"),
    ],
)
def test_object_is_watched_as_a_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: tuple[str, ...], asked: str
) -> None:
    script = """echo "$*" > "$0.arguments"; echo '{"n": 1}'; echo '{"n": 2}'; exec sleep 60"""
    scripted(monkeypatch, tmp_path, script)
    assert kubectl.wait_until(lambda item: item["n"] == 2, "two", 30, *argv) == {"n": 2}
    assert (tmp_path / "k3s.arguments").read_text() == f"kubectl get --watch --output=json {asked}\n"


def test_apis_of_the_server_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, tmp_path, "echo v1; echo resource.k8s.io/v1beta1")
    assert [kubectl.knows(api) for api in ("v1", "resource.k8s.io/v1beta1", kubectl.DRA)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, CONNECTION_REFUSED), (60, "error dialing backend: connection refused"), (60, "Forbidden")],
)
def test_permanent_error_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: int, said: str
) -> None:
    scripted(monkeypatch, tmp_path, f'echo "{said}" >&2\nexit 1')
    monkeypatch.setattr(kubectl, "RESTART_SECONDS", seconds)
    with pytest.raises(kubectl.KubectlError, match=f"kubectl get nodes: {re.escape(said)}"):
        kubectl.run("get", "nodes")
    assert (tmp_path / "k3s.calls").read_text().count("call") == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "has not registered"),
        ({"conditions": [{"type": "Ready", "status": "False", "message": "no network"}]}, "no network"),
        ({}, "kubelet has not reported"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "offers no nvidia.com/gpu"),
    ],
)
def test_complaint_names_the_missing_part(status: Data | None, words: str) -> None:
    assert words in node_module.complaint(None if status is None else {"status": status}, "nvidia.com/gpu")


schedule = load("k3s/library/k3s_node_schedule.py")


def node(ready: bool = True, **allocatable: str) -> Data:
    """A node; `gpu` stands for nvidia.com/gpu."""
    names = {"gpu": "nvidia.com/gpu", "memory": "memory", "cpu": "cpu"}
    return {
        "status": {
            "allocatable": {names[key]: value for key, value in allocatable.items()},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
    }


def test_kubernetes_own_resources_are_not_waited_for() -> None:
    assert schedule.extended(node(gpu="4", memory="7Gi", cpu="6")) == {"nvidia.com/gpu": 4}
    # What a node has not offered before its restart it need not offer afterwards.
    assert schedule.extended(node(gpu="0")) == {}
    assert schedule.extended({"status": {}}) == {}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (node(gpu="4"), ""),
        (node(gpu="5"), ""),
        (node(gpu="3"), "3 nvidia.com/gpu instead of 4"),
        (node(), "0 nvidia.com/gpu instead of 4"),
        (node(ready=False, gpu="4"), "it is not Ready"),
    ],
)
def test_missing_resources_of_a_node_are_named(there: Data, words: str) -> None:
    assert schedule.lacking(there, {"nvidia.com/gpu": 4}) == words


def a_slice(*devices: Data) -> Data:
    """A ResourceSlice of the DRA driver."""
    return {"kind": "ResourceSlice", "spec": {"driver": "gpu.example.org", "devices": list(devices)}}


TAINTED = {"name": "igpu-1", "taints": [{"key": "unhealthy", "effect": "NoSchedule"}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[list[Data]]:
    """A server with claims: the slices of each request, of which the last stays."""
    looks: list[list[Data]] = [[]]
    monkeypatch.setattr(schedule, "knows", lambda api: api == "resource.k8s.io/v1")
    monkeypatch.setattr(schedule, "listed", lambda *_: looks.pop(0) if looks[1:] else looks[0])
    monkeypatch.setattr(schedule, "wait_until", lambda *_: None)
    monkeypatch.setattr(schedule.time, "sleep", lambda _: None)
    return looks


def test_devices_that_a_claim_can_have_are_counted(server: list[list[Data]]) -> None:
    server[:] = [[a_slice({"name": "igpu-0"}, TAINTED), a_slice({"name": "igpu-2"})]]
    assert schedule.devices("jetson-1") == {"gpu.example.org": 2}
    server[:] = [[a_slice({"name": "igpu-0", "taints": [{"key": "hot", "effect": "None"}]})]]
    assert schedule.devices("jetson-1") == {"gpu.example.org": 1}
    server[:] = [[a_slice(TAINTED), a_slice()]]
    assert schedule.devices("jetson-1") == {}


def test_devices_of_claims_are_waited_for(server: list[list[Data]]) -> None:
    well = [a_slice({"name": "igpu-0"})]
    server[:] = [[], [a_slice(TAINTED)], well]
    schedule.wait_offered("jetson-1", {"gpu.example.org": 1}, 120)
    assert server == [well]
    server[:] = [[a_slice(TAINTED)]]
    with pytest.raises(schedule.KubectlError, match=r"after 0 s 0 gpu\.example\.org instead of 1"):
        schedule.wait_offered("jetson-1", {"gpu.example.org": 1}, 0)


def member(name: str, ready: bool = True, voter: bool | None = True) -> Data:
    """A node; `voter` is None where it has no etcd."""
    conditions = {"Ready": ready} | ({} if voter is None else {"EtcdIsVoter": voter})
    told = [{"type": kind, "status": str(value)} for kind, value in conditions.items()]
    return {"metadata": {"name": name}, "status": {"conditions": told}}


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ([], ""),  # the only server is no majority of anything
        ([member("b", voter=None)], ""),
        ([member("b"), member("c")], ""),
        ([member("b"), member("c", ready=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c", voter=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c"), member("d"), member("e", ready=False)], ""),
    ],
)
def test_last_server_of_a_majority_is_not_drained(others: list[Data], problem: str) -> None:
    nodes = [member("a"), *others]
    if problem:
        with pytest.raises(schedule.KubectlError, match=problem):
            schedule.check_quorum("a", nodes)
    else:
        schedule.check_quorum("a", nodes)


def test_kubelet_has_to_report_the_boot_of_its_board() -> None:
    there = node(gpu="1")
    there["status"]["nodeInfo"] = {"bootID": "before"}
    assert schedule.lacking(there, {}, "after") == "its kubelet has not reported since the board started"
    assert schedule.lacking(there, {"nvidia.com/gpu": 1}, "before") == ""


@pytest.mark.parametrize(
    ("annotation", "offers"),
    [
        (None, {"nvidia.com/gpu": 1}),
        ("true", {"nvidia.com/gpu": 1}),  # by a release before
        ('{"nvidia.com/gpu": 4, "gpu.example.org": 1}', {"nvidia.com/gpu": 4, "gpu.example.org": 1}),
    ],
)
def test_repeated_run_knows_the_offers_before_the_cordon(
    monkeypatch: pytest.MonkeyPatch, annotation: str | None, offers: dict[str, int]
) -> None:
    """The kubelet offers less until the device plugin has registered again."""
    annotations = {} if annotation is None else {schedule.CORDONED: annotation}
    seen = node(gpu="1") | {"metadata": {"name": "a", "annotations": annotations}, "spec": {}}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(schedule, "get", lambda *_: seen)
    monkeypatch.setattr(schedule, "listed", lambda *_: [])
    monkeypatch.setattr(schedule, "knows", lambda _: False)
    monkeypatch.setattr(schedule, "run", lambda *argv: calls.append(argv))
    given: Data = {"name": "a", "state": "drained", "drain_arguments": [], "offers": {}, "boot_id": None}
    found = playing.outcome(monkeypatch, schedule, given | {"quorum": False, "timeout": 1})
    assert (found["offers"], found["cordoned"]) == (offers, annotation is not None)
    recorded = calls[0][-1].partition("=")[2]
    assert schedule.recorded({"metadata": {"annotations": {schedule.CORDONED: recorded}}}) == offers


reset = load("k3s_reset/library/k3s_reset.py")

MOUNTINFO = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
30 20 8:2 / /var/lib/rancher rw - ext4 /dev/sdb1 rw
31 20 0:40 / /var/lib/kubelet/pods/1/volumes/secret rw - tmpfs tmpfs rw
32 31 0:41 / /var/lib/kubelet/pods/1/volumes/secret/a\\040b rw - nfs nas:/home rw
33 20 0:42 / /var/lib/kubelets rw - tmpfs tmpfs rw
"""


def test_mounts_inside_the_trees_go_the_innermost_first() -> None:
    assert reset.mounts_below(["/var/lib/rancher/k3s", "/var/lib/kubelet"], MOUNTINFO) == [
        "/var/lib/kubelet/pods/1/volumes/secret/a b",
        "/var/lib/kubelet/pods/1/volumes/secret",
    ]


def test_a_tree_that_is_a_mount_is_its_owners() -> None:
    assert reset.mounts_below(["/var/lib/rancher"], MOUNTINFO) == []


def test_processes_go_with_their_descendants() -> None:
    assert reset.family([5], {1: 0, 5: 1, 6: 5, 7: 6, 8: 1}) == [5, 6, 7]


@pytest.mark.parametrize(
    ("pod", "drained"),
    [
        ({"metadata": {"ownerReferences": [{"kind": "DaemonSet"}]}, "status": {"phase": "Running"}}, True),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "status": {}}, True),
        ({"metadata": {}, "status": {"phase": "Succeeded"}}, True),
        ({"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}, "status": {"phase": "Running"}}, False),
        ({"metadata": {}, "status": {"phase": "Pending"}}, False),
    ],
)
def test_drained_is_a_node_without_pods_that_could_leave(pod: Data, drained: bool) -> None:
    assert schedule.is_drained([pod]) is drained


PLUGIN, AGENT = "tegra-device-plugin", "tegra-gpu-agent"
SELECTOR = f"app.kubernetes.io/name in ({PLUGIN}, {AGENT})"
OLD_IMAGE, IMAGE = "tegra-device-plugin:1", "tegra-device-plugin:2"
BOARD, OTHER_BOARD = "jetson-1", "jetson-2"


@dataclass
class FakeServer:
    """The fields are what a test orders. DaemonSets are at their second template, and nodes at the first."""

    names: tuple[str, ...] = (PLUGIN,)
    renewed: tuple[str, ...] = ()  # nodes that have the pods of the second template already
    seen: bool = True  # by the controller, before it is waited for
    ends: bool = True  # the kubelet ends pods that are deleted
    waits: str = ""  # the reason why the new pod's container does not run
    comes: bool = True  # a new pod
    deleted: list[str] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kubectl = importlib.import_module("ansible.module_utils.k3s_kubectl")
        self.timed_out, self.error = kubectl.WatchTimeoutError, kubectl.KubectlError
        self.pods = [
            self.pod(name, node, node in self.renewed) for name in self.names for node in (BOARD, OTHER_BOARD)
        ]
        for name in ("run", "get", "wait_until"):
            monkeypatch.setattr(node_module, name, getattr(self, name))
        monkeypatch.setattr(kubectl, "get", self.get)  # what lists calls it there
        monkeypatch.setattr(node_module, "K3S", "/bin/sh")  # there is a K3s

    def run(self, *argv: str) -> str:
        """Delete pods, or say what they have said."""
        match argv:
            case ("delete", "pods", "--namespace=kube-system", "--ignore-not-found", "--wait=false", *names):
                self.deleted += names
                for pod in [one for one in self.pods if one["metadata"]["name"] in names]:
                    self.end(pod)
            case ("logs", "--namespace=kube-system", *_):
                return "the plugin's last words\n"
            case _:
                raise AssertionError(argv)
        return ""

    def end(self, pod: Data) -> None:
        if not self.ends:
            pod["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
            return
        self.pods.remove(pod)
        if self.comes:
            self.pods.append(self.pod(pod["owner"], pod["spec"]["nodeName"], new=True))

    def get(self, kinds: str, *argv: str) -> Data | None:
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
        revisions = [self.revision(name, new) for name in self.names for new in (self.seen, False)]
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
    def node(name: str) -> Data:
        """A node that offers a GPU all the time: the old plugin's."""
        ready = {"type": "Ready", "status": "True"}
        status = {"conditions": [ready], "allocatable": {"nvidia.com/gpu": "1"}}
        return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}

    def daemonset(self, name: str) -> Data:
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

    def revision(self, name: str, new: bool) -> Data:
        """A ControllerRevision. Its name's order is not that of the revisions."""
        metadata = {"name": "a" if new else "b", **self.owned(name, new)}
        return {"kind": "ControllerRevision", "revision": 10 if new else 9, "metadata": metadata}

    @staticmethod
    def owned(name: str, new: bool) -> Data:
        labels = {"controller-revision-hash": f"{name}-{'new' if new else 'old'}"}
        return {"labels": labels, "ownerReferences": [{"uid": f"uid-{name}"}]}

    def pod(self, name: str, node: str, new: bool) -> Data:
        waits = self.waits if new else ""
        state = {"waiting": {"reason": waits, "message": "x"}} if waits else {"running": {}}
        return {
            "kind": "Pod",
            "owner": name,
            "metadata": {
                "name": f"{name}-{node}-{'new' if new else 'old'}",
                "annotations": {"jetson-k3s.github.io/image-id": "sha256:bbbb" if new else "sha256:aaaa"},
                **self.owned(name, new),
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


def result_of(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, renew: bool = True, check_mode: bool = False
) -> Data:
    server.install(monkeypatch)
    params: Data = {
        "name": BOARD, "labels": {}, "resource": "nvidia.com/gpu", "driver": None,
        "provider": SELECTOR, "renew": renew, "timeout": 5,
    }  # fmt: skip
    return playing.outcome(monkeypatch, node_module, params, check_mode)


def test_a_template_that_the_controller_has_not_seen_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(seen=False)
    assert result_of(server, monkeypatch)["changed"] is True
    assert server.deleted == [f"{PLUGIN}-{BOARD}-old"]
    assert server.watched[:2] == ["node", "daemonset"]


def test_check_mode_replaces_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    for renewed, told in (((), f"kubectl delete pods {PLUGIN}-{BOARD}-old\n"), ((BOARD,), "")):
        server = FakeServer(renewed=renewed)
        said = result_of(server, monkeypatch, check_mode=True)
        assert said == {"changed": bool(told), "diff": {"prepared": told}}
        assert (server.deleted, server.watched) == ([], [])


def test_no_pod_is_replaced_without_renew(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    assert result_of(server, monkeypatch, renew=False)["changed"] is False
    assert server.deleted == []


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            FakeServer(ends=False),
            [f"Pod {PLUGIN}-{BOARD}-old runs {OLD_IMAGE} (image-id sha256:aaaa)", "restart K3s on the board"],
        ),
        (FakeServer(waits="ErrImageNeverPull"), ["ErrImageNeverPull: x", "run playbooks/site.yml"]),
        (FakeServer(waits="CrashLoopBackOff"), ["CrashLoopBackOff: x", "the plugin's last words"]),
        (FakeServer(comes=False), ["It has no pod there.", f"describe daemonset {PLUGIN}"]),
    ],
    ids=["old-pod-stays", "no-image", "crashes", "no-pod"],
)
def test_plugin_that_is_not_replaced_is_reported(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, words: list[str]
) -> None:
    result = result_of(server, monkeypatch)
    assert result["failed"]
    assert f"node {BOARD}: DaemonSet {PLUGIN} does not run {IMAGE} (image-id sha256:bbbb)" in result["msg"]
    assert [word for word in words if word not in result["msg"]] == []
    assert OTHER_BOARD not in result["msg"]


def test_orphaned_pods_are_deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(names=(PLUGIN, AGENT), renewed=(BOARD, OTHER_BOARD))
    server.install(monkeypatch)
    server.names = (AGENT,)
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(node_module, "run", lambda *argv: called.append(argv))
    node_module.remove_orphans(SELECTOR, BOARD, 5)
    waits = ("delete", "pods", "--namespace=kube-system", "--ignore-not-found", "--timeout=5s")
    assert called == [(*waits, f"{PLUGIN}-{BOARD}-new")]
    server.names = (PLUGIN, AGENT)
    node_module.remove_orphans(SELECTOR, BOARD, 5)
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
def test_tainted_devices_are_not_free(devices: list[Data], offered: bool) -> None:
    assert bool(node_module.free_devices({"spec": {"devices": devices}})) is offered
