# SPDX-License-Identifier: Apache-2.0
"""Nodes: what the modules ask of the API server, how a node is drained, and which plugin it gets."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_kubectl as kubectl
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_offers as offered
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_owner as owners
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_node as node_module
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_node_schedule as schedule
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_reset as reset
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s

from tests.unit.roles import playing
from tests.unit.roles.places import Data

PASSWORD = ".node-password.k3s"


CONNECTION_REFUSED = (
    "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"
)


def scripted(patch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Have a script in the place of K3s, which counts its calls, and no pause between them."""
    program = directory / "k3s"
    program.write_text(f'#!/bin/sh\necho call >> "$0.calls"\n{script}\n')
    program.chmod(0o755)
    patch.setattr(kubectl, "K3S", str(program))
    patch.setattr("time.sleep", lambda _: None)


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
    # The end of a line, and half an object, come by themselves.
    pieces = "printf '{\"n\": 1}'; sleep 0.1; printf '\\n{\"n\":'; sleep 0.1; echo ' 2}'"
    scripted(monkeypatch, tmp_path, f'echo "$*" > "$0.arguments"; {pieces}; exec sleep 60')
    assert kubectl.wait_until(lambda item: item["n"] == 2, "two", 30, *argv) == {"n": 2}
    assert (tmp_path / "k3s.arguments").read_text() == f"kubectl get --watch --output=json {asked}\n"


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


def test_server_says_which_apis_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, tmp_path, "echo v1; echo resource.k8s.io/v1beta1")
    known = [kubectl.knows(api) for api in ("v1", "resource.k8s.io/v1beta1", kubectl.DRA)]
    assert known == [True, True, False]


def node(ready: bool = True, **allocatable: str) -> Data:
    """A node; `gpu` stands for nvidia.com/gpu."""
    names = {"gpu": "nvidia.com/gpu", "memory": "memory", "cpu": "cpu"}
    return {
        "status": {
            "allocatable": {names[key]: value for key, value in allocatable.items()},
            "conditions": [{"type": "Ready", "status": str(ready), "message": "no network"}],
        }
    }


def test_kubernetes_own_resources_are_not_waited_for() -> None:
    assert offered.extended(node(gpu="4", memory="7Gi", cpu="6")) == {"nvidia.com/gpu": 4}
    # What a node has not offered before its restart it need not offer afterwards.
    assert offered.extended(node(gpu="0")) == {}
    assert offered.extended({"status": {}}) == {}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (node(gpu="4"), ""),
        (node(gpu="5"), ""),
        (node(gpu="3"), "3 nvidia.com/gpu instead of 4"),
        (node(), "0 nvidia.com/gpu instead of 4"),
        (None, "it has not registered"),
        ({"status": {}}, "it is not Ready: the kubelet has not reported"),
        (node(ready=False, gpu="4"), "it is not Ready: no network"),
    ],
)
def test_missing_resources_of_a_node_are_named(there: Data | None, words: str) -> None:
    assert offered.lacking(there, {"nvidia.com/gpu": 4}) == words


def a_slice(*devices: Data) -> Data:
    """A ResourceSlice of the DRA driver."""
    return {"kind": "ResourceSlice", "spec": {"driver": "gpu.example.org", "devices": list(devices)}}


TAINTED = {"name": "igpu-1", "taints": [{"key": "unhealthy", "effect": "NoSchedule"}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[list[Data]]:
    """A server with claims: the slices of each request, of which the last stays."""
    looks: list[list[Data]] = [[]]
    monkeypatch.setattr(offered, "knows", lambda api: api == "resource.k8s.io/v1")
    monkeypatch.setattr(offered, "listed", lambda *_: looks.pop(0) if looks[1:] else looks[0])
    monkeypatch.setattr(offered, "wait_until", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return looks


def test_devices_that_a_claim_can_have_are_counted(server: list[list[Data]]) -> None:
    server[:] = [[a_slice({"name": "igpu-0"}, TAINTED), a_slice({"name": "igpu-2"})]]
    assert offered.devices("jetson-1") == {"gpu.example.org": 2}
    server[:] = [[a_slice({"name": "igpu-0", "taints": [{"key": "hot", "effect": "None"}]})]]
    assert offered.devices("jetson-1") == {"gpu.example.org": 1}
    server[:] = [[a_slice(TAINTED), a_slice()]]
    assert offered.devices("jetson-1") == {}


def test_devices_of_claims_are_waited_for(server: list[list[Data]]) -> None:
    well = [a_slice({"name": "igpu-0"})]
    server[:] = [[], [a_slice(TAINTED)], well]
    offered.wait_offered("jetson-1", {"gpu.example.org": 1}, 120)
    assert server == [well]
    server[:] = [[a_slice(TAINTED)]]
    with pytest.raises(offered.NotOfferedError, match=r"after 0 s 0 gpu\.example\.org instead of 1"):
        offered.wait_offered("jetson-1", {"gpu.example.org": 1}, 0)


def member(name: str, ready: bool = True, boot: str = "boot", **voter: bool) -> Data:
    """A node with etcd; `boot` is what its kubelet reports. Releases before 1.25.16 do not say who votes."""
    conditions = {"Ready": ready} | ({"EtcdIsVoter": voter["voter"]} if voter else {})
    told = [{"type": kind, "status": str(value)} for kind, value in conditions.items()]
    return {
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/etcd": "true"}},
        "status": {"conditions": told, "nodeInfo": {"bootID": boot}},
    }


WITHOUT_ETCD = {"metadata": {"name": "b"}, "status": {}}


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ([], ""),  # the only server is no majority of anything
        ([WITHOUT_ETCD], ""),
        ([member("b")], "etcd has 2 members and needs both. Let another server join first"),
        ([member("b"), member("c")], ""),
        ([member("b", voter=True), member("c", voter=True)], ""),
        ([member("b"), member("c", ready=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c", voter=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c"), member("d"), member("e", ready=False)], ""),
        (
            [member("b"), member("c"), member("d", ready=False), member("e", ready=False)],
            "etcd has 5 members and needs 3, and only a, b, c work: "
            "d is not Ready, or no voter yet; e is not",
        ),
        (
            [member("b"), *(member(name, ready=False) for name in "cde")],
            "etcd has 5 members and needs 3, and only a, b work.",
        ),
    ],
)
def test_last_server_of_a_majority_is_not_drained(others: list[Data], problem: str) -> None:
    nodes = [member("a"), *others]
    if problem:
        with pytest.raises(kubectl.KubectlError, match=problem):
            schedule.check_quorum("a", nodes, {})
    else:
        schedule.check_quorum("a", nodes, {})


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ({"b": "boot", "c": "boot"}, ""),
        ({}, ""),  # servers outside of the inventory go by their nodes alone
        ({"b": "boot", "c": ""}, "only a, b work: c does not answer over SSH[.] Repair the others first"),
        (
            {"b": "other", "c": "boot"},
            "only a, c work: b has started, and its kubelet has not reported since",
        ),
    ],
)
def test_server_that_went_down_this_minute_counts_as_down(servers: dict[str, str], problem: str) -> None:
    nodes = [member("a"), member("b"), member("c")]
    if problem:
        with pytest.raises(kubectl.KubectlError, match=problem):
            schedule.check_quorum("a", nodes, servers)
    else:
        schedule.check_quorum("a", nodes, servers)


def test_other_servers_are_known_by_their_nodes() -> None:
    locks = {"results": [{"item": "B.example", "boot_id": "1"}, {"item": "C", "unreachable": True}]}
    variables: Data = {"B.example": {"preflight_node": "b"}, "C": {}}
    assert k3s.servers(locks, variables, True) == {"b": "1", "c": ""}
    # Those of an earlier step, and of a single server.
    assert k3s.servers(locks, variables, "false") == k3s.servers({}, variables, True) == {}


@pytest.mark.parametrize(
    ("asked", "variables", "url"),
    [
        ("a", {}, "https://balancer:8443"),
        ("b", {"b": {"ansible_host": "10.0.0.2"}}, "https://10.0.0.2:6443"),
        ("b", {"b": {"ansible_host": "fd00::2"}}, "https://[fd00::2]:6443"),
        ("b", {"b": {}}, "https://b:6443"),
    ],
)
def test_server_for_kubectl_is_known_by_its_address(asked: str, variables: Data, url: str) -> None:
    assert k3s.asked_url(asked, "a", "https://balancer:8443", variables) == url


def test_kubelet_has_to_report_the_boot_of_its_board() -> None:
    there = node(gpu="1")
    there["status"]["nodeInfo"] = {"bootID": "before"}
    assert offered.lacking(there, {}, "after") == "its kubelet has not reported since the board started"
    assert offered.lacking(there, {"nvidia.com/gpu": 1}, "before") == ""


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
    annotations = {} if annotation is None else {kubectl.CORDONED: annotation}
    seen = node(gpu="1") | {"metadata": {"name": "a", "annotations": annotations}, "spec": {}}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(schedule, "get", lambda *_: seen)
    monkeypatch.setattr(schedule, "password", lambda _: None)
    monkeypatch.setattr(schedule, "listed", lambda *_: [])
    monkeypatch.setattr(offered, "knows", lambda _: False)
    monkeypatch.setattr(schedule, "run", lambda *argv: calls.append(argv))
    given: Data = {
        "name": "a",
        "board": "a",
        "boards": {"a": []},
        "state": "drained",
        "drain_arguments": [],
        "offers": {},
        "boot_id": None,
        "servers": {},
    }
    found = playing.outcome(monkeypatch, schedule, given | {"quorum": False, "timeout": 1})
    assert (found["offers"], found["cordoned"]) == (offers, True)
    recorded = calls[0][-1].partition("=")[2]
    assert schedule.recorded({"metadata": {"annotations": {kubectl.CORDONED: recorded}}}) == offers


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


OF_THE_OWNER = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:1 / /srv rw - ext4 /dev/sda1 rw
30 20 8:1 /large/kubelet /var/lib/kubelet rw - ext4 /dev/sda1 rw
"""
OF_THE_KUBELET = """\
20 1 0:50 / / rw - overlay overlay rw
21 20 8:2 /volumes/1 /var/lib rw - ext4 /dev/sdb1 rw
30 21 8:2 /volumes/1/kubelet /var/lib/kubelet rw shared:9 - ext4 /dev/sdb1 rw
31 30 0:40 / /var/lib/kubelet/pods/1 rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(("tree", "mountinfo"), [
    ("/var/lib/rancher", MOUNTINFO), ("/var/lib/kubelet", OF_THE_OWNER),
])  # fmt: skip
def test_a_tree_that_is_a_mount_is_its_owners(tree: str, mountinfo: str) -> None:
    assert reset.mounts_below([tree], mountinfo) == []


def test_the_kubelets_mount_of_its_directory_onto_itself_goes() -> None:
    expected = ["/var/lib/kubelet/pods/1", "/var/lib/kubelet"]
    assert reset.mounts_below(["/var/lib/kubelet"], OF_THE_KUBELET) == expected


def test_of_a_directory_that_its_owner_has_mounted_the_content_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = tmp_path / "kubelet"
    (tree / "pods").mkdir(parents=True)
    board = reset.Board(Mock())
    monkeypatch.setattr(reset, "TREES", (str(tree),))
    monkeypatch.setattr(reset, "DIRECTORIES_IF_EMPTY", ())
    monkeypatch.setattr(board, "mountinfo", lambda: OF_THE_OWNER.replace("/var/lib/kubelet", str(tree)))
    board.remove_files([str(tree)])
    assert list(tree.iterdir()) == []


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


PLUGIN, AGENT, SELECTOR = "tegra-device-plugin", "tegra-gpu-agent", "a=b"
BOARD, OTHER_BOARD = "jetson-1", "jetson-2"


def daemonset(name: str, seen: bool = True, **node_selector: str) -> Data:
    """A DaemonSet at its second template, which its controller may not have seen."""
    metadata = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "generation": 2}
    status = {"observedGeneration": 2 if seen else 1}
    spec = {"template": {"spec": {"nodeSelector": node_selector}}}
    return {"kind": "DaemonSet", "metadata": metadata, "spec": spec, "status": status}


def owned(kind: str, name: str, daemonset: str, new: bool, **more: Any) -> Data:
    labels = {"controller-revision-hash": "new" if new else "old"}
    metadata = {"name": name, "labels": labels, "ownerReferences": [{"uid": f"uid-{daemonset}"}]}
    return {"kind": kind, "metadata": metadata, **more}


def pod(name: str, node: str, new: bool, waits: str = "") -> Data:
    state = {"waiting": {"reason": waits, "message": "x"}} if waits else {"running": {}}
    status = {
        "phase": "Pending" if waits else "Running",
        "conditions": [{"type": "Ready", "status": str(not waits)}],
        "containerStatuses": [{"state": state}],
    }
    age = "new" if new else "old"
    return owned("Pod", f"{name}-{node}-{age}", name, new, spec={"nodeName": node}, status=status)


# Their order is not that of the revisions.
REVISIONS = [
    owned("ControllerRevision", "a", PLUGIN, new=True, revision=10),
    owned("ControllerRevision", "b", PLUGIN, new=False, revision=9),
]
OLD_PODS = [pod(PLUGIN, name, new=False) for name in (BOARD, OTHER_BOARD)]


def test_pod_of_an_older_template_is_replaced_once_the_controller_has_seen_the_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [
        [daemonset(PLUGIN, seen=False), REVISIONS[1], *OLD_PODS],
        [daemonset(PLUGIN), *REVISIONS, *OLD_PODS],
    ]
    called: list[tuple[str, ...]] = []
    watched: list[str] = []
    monkeypatch.setattr(node_module, "provider", lambda _: states.pop(0))
    monkeypatch.setattr(node_module, "run", lambda *argv: called.append(argv))
    monkeypatch.setattr(node_module, "wait_until", lambda _satisfied, what, *_: watched.append(what))
    assert node_module.renew(SELECTOR, BOARD, {}, 0) is True
    (deletion,) = called
    assert deletion[-1] == f"{PLUGIN}-{BOARD}-old"
    assert watched == [PLUGIN, "new"]


def test_pod_of_the_present_template_stays() -> None:
    items = [daemonset(PLUGIN), *REVISIONS, pod(PLUGIN, BOARD, new=True)]
    assert node_module.outdated(items, BOARD, {}) == []


def test_daemonset_of_another_configuration_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [daemonset(PLUGIN, seen=False, label="units"), *REVISIONS, *OLD_PODS]
    monkeypatch.setattr(node_module, "provider", lambda _: items)
    monkeypatch.setattr(node_module, "wait_until", lambda *_: pytest.fail("it waits"))
    assert node_module.renew(SELECTOR, BOARD, {"label": "true"}, 0) is False


def test_pods_of_the_former_configuration_end_before_those_of_the_next_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = daemonset(PLUGIN + "-units", label="units")
    there = [daemonset(PLUGIN, label="true"), other, *REVISIONS, *OLD_PODS]
    states = [there, there, [one for one in there if one is not OLD_PODS[0]]]
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(node_module, "provider", lambda _: states.pop(0))
    monkeypatch.setattr(node_module, "run", lambda *argv: called.append(argv))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    before, after = {"label": "true", "kept": "1"}, {"label": "units", "kept": "1"}
    node_module.leave(SELECTOR, BOARD, before, after, float("inf"))
    assert (called, states) == ([("label", "node", BOARD, "label-")], [])
    # The other DaemonSet, and one that the node does not leave, are none of its business.
    states += [there, there]
    node_module.leave(SELECTOR, BOARD, {}, after, 0)
    node_module.leave(SELECTOR, BOARD, before, before, 0)
    assert len(called) == 1
    states += [there, there]
    with pytest.raises(node_module.NotRenewedError, match=f"Pod {PLUGIN}-{BOARD}-old is Running"):
        node_module.leave(SELECTOR, BOARD, before, after, 0)


STUCK = pod(PLUGIN, BOARD, new=False)
STUCK["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([STUCK], f"Pod {PLUGIN}-{BOARD}-old is .* restart K3s on the board"),
        ([pod(PLUGIN, BOARD, True, "ErrImageNeverPull")], "ErrImageNeverPull: x.* run playbooks/site.yml"),
        (
            [pod(PLUGIN, BOARD, True, "CrashLoopBackOff")],
            f"CrashLoopBackOff: x.* describe daemonset {PLUGIN}",
        ),
        ([], f"It has no pod there.* describe daemonset {PLUGIN}"),
    ],
    ids=["old-pod-stays", "no-image", "crashes", "no-pod"],
)
def test_plugin_that_is_not_replaced_is_reported(pods: list[Data], words: str) -> None:
    assert re.search(words, node_module.why_not_renewed(daemonset(PLUGIN), pods), re.DOTALL)


def test_orphaned_pods_are_deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [daemonset(AGENT), *(pod(name, BOARD, new=True) for name in (PLUGIN, AGENT)), *OLD_PODS[1:]]
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(node_module, "provider", lambda _: items)
    monkeypatch.setattr(node_module, "run", lambda *argv: called.append(argv))
    node_module.remove_orphans(SELECTOR, BOARD, 5)
    waits = ("delete", "pods", "--namespace=kube-system", "--ignore-not-found", "--timeout=5s")
    assert called == [(*waits, f"{PLUGIN}-{BOARD}-new")]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is changed on a SIMULATED server, whose node has the plugin's pod of an older template."""
    called: list[tuple[str, ...]] = []
    there = node() | {"metadata": {"labels": {"kept": "1", "old": "1", "new": "0"}}}
    items = [daemonset(PLUGIN), *REVISIONS, *OLD_PODS]
    monkeypatch.setattr(kubectl, "K3S", "/bin/sh")  # there is a K3s
    monkeypatch.setattr(node_module, "node_and_password", lambda _: (there, None))
    monkeypatch.setattr(node_module, "wait_offered", lambda *_: there)
    monkeypatch.setattr(node_module, "wait_until", lambda *_: None)
    monkeypatch.setattr(node_module, "provider", lambda _: items)
    monkeypatch.setattr(node_module, "run", lambda *argv: called.append(argv))
    return called


def prepared(monkeypatch: pytest.MonkeyPatch, check_mode: bool = False, **changes: Any) -> Data:
    given = {"name": BOARD, "labels": {}, "offers": {}, "provider": SELECTOR, "renew": False, "timeout": 5}
    given |= {"board": BOARD, "boards": {BOARD: []}, "new": False, "absent_taints": []}
    return playing.outcome(monkeypatch, node_module, given | changes, check_mode)


def test_check_mode_shows_labels_and_pods_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]]
) -> None:
    labels = {"kept": 1, "old": None, "absent": None, "new": "1"}
    said = prepared(monkeypatch, check_mode=True, labels=labels, renew=True)
    shown = f"kubectl label node {BOARD} new=1 old-\nkubectl delete pods {PLUGIN}-{BOARD}-old\n"
    assert said == {"changed": True, "diff": {"prepared": shown}}
    monkeypatch.setattr(node_module, "provider", lambda _: [])
    assert prepared(monkeypatch, check_mode=True, renew=True)["changed"] is False
    assert commands == []


def test_labels_are_set_and_pods_stay_for_who_only_waits(
    monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]]
) -> None:
    assert prepared(monkeypatch)["changed"] is False
    assert prepared(monkeypatch, labels={"old": None, "new": "1"})["changed"] is True
    assert commands == [("label", "--overwrite", "node", BOARD, "new=1", "old-")]


TAINTS = [
    {"key": "example.com/slow", "effect": "NoSchedule"},
    {"key": "jetson-k3s.github.io/throttled", "effect": "PreferNoSchedule"},
]


@pytest.mark.parametrize(("now", "removed"), [(TAINTS, True), (TAINTS[:1], False)])
def test_left_over_taint_is_removed_unless_its_pod_has_done_so(
    monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]], now: list[Data], removed: bool
) -> None:
    def tainted(taints: list[Data]) -> Data:
        return node() | {"metadata": {"labels": {}}, "spec": {"taints": taints}}

    absent = ["jetson-k3s.github.io/throttled:PreferNoSchedule", "example.com/slow:PreferNoSchedule"]
    monkeypatch.setattr(node_module, "get", lambda *_: tainted(now))
    expected = [("taint", "node", BOARD, f"{absent[0]}-")] if removed else []
    shown = "".join(f"kubectl {' '.join(command)}\n" for command in expected)
    for check_mode, first in ((True, now), (False, TAINTS)):
        there = (tainted(first), None)
        monkeypatch.setattr(node_module, "node_and_password", lambda _, there=there: there)
        said = prepared(monkeypatch, check_mode, absent_taints=absent)
        assert (said["changed"], said["diff"]["prepared"]) == (removed, shown)
    assert commands == expected


def test_node_that_offers_its_gpu_is_read_once_more_only_after_a_change(
    monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]]
) -> None:
    there = node(gpu="1") | {"metadata": {"labels": {}}}
    waits: list[Data] = []

    def wait(_name: str, offers: Data, _timeout: int) -> Data:
        waits.append(offers)
        return there

    monkeypatch.setattr(node_module, "wait_offered", wait)
    monkeypatch.setattr(node_module, "node_and_password", lambda _: (there, None))
    offers = {"nvidia.com/gpu": 1}
    assert prepared(monkeypatch, offers=offers)["changed"] is False
    assert waits == []
    assert prepared(monkeypatch, offers=offers, labels={"new": "1"})["changed"] is True
    assert waits == [offers]
    prepared(monkeypatch, offers={"gpu.example.org": 1})  # devices of a DRA driver are counted apart
    assert waits == [offers, {"gpu.example.org": 1}]
    monkeypatch.setattr(node_module, "node_and_password", lambda _: (None, None))
    monkeypatch.setattr(node_module, "password", lambda _: None)
    prepared(monkeypatch)
    assert waits[2:] == [{}]


def test_pod_that_has_not_started_is_explained_by_its_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Data] = [
        {"reason": "FailedMount", "message": "no such directory", "lastTimestamp": "2026-01-02T00:00:00Z"},
        {
            "reason": "FailedCreate",
            "message": "first",
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        },
    ]
    pods: list[Data] = [
        {"metadata": {"name": "new"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "old"}, "status": {"phase": "Running"}},
    ]
    asked: list[tuple[str, ...]] = []

    def listed(*argv: str) -> list[Data]:
        asked.append(argv)
        return pods if argv[0] == "pods" else events

    monkeypatch.setattr(node_module, "listed", listed)
    monkeypatch.setattr(node_module, "run", lambda *argv: f"the log of {argv[-1]}")
    said = node_module.explained(SELECTOR, BOARD)
    assert said == (
        "Pod new is Pending; its events:\nFailedCreate: first\nFailedMount: no such directory\n"
        "Pod old is Running, restarted 0 times; its last output:\nthe log of old"
    )
    assert asked[1][2] == "--field-selector=type=Warning,involvedObject.name=new"


RECORD = "jetson-k3s.github.io/board"


# The record is None where the cluster had no such node before the run.
@pytest.mark.parametrize(
    ("board", "record", "said"),
    [
        (BOARD, "", "recorded"),
        (BOARD, BOARD, "kept"),
        # A board with another hostname than in the inventory, whose node has just joined, and later.
        ("camera", None, "recorded"),
        ("camera", "camera", "kept"),
        # The node of another board, which may be off.
        ("camera", "", "refused"),
        ("camera", "other", "refused"),
        ("camera", "of-another-inventory", "refused"),
    ],
)
def test_node_is_recorded_for_its_board_alone(
    monkeypatch: pytest.MonkeyPatch,
    commands: list[tuple[str, ...]],
    board: str,
    record: str | None,
    said: str,
) -> None:
    secret = {"metadata": {"annotations": {RECORD: record} if record else {}}}
    there = node() | {"metadata": {"labels": {}}}
    monkeypatch.setattr(node_module, "node_and_password", lambda _: (there, secret))
    boards: Data = {"camera": [], "other": []} | {board: []}
    given: Data = {"board": board, "boards": boards, "new": record is None, "labels": {"new": "1"}}
    for check_mode in (True, False):
        result = prepared(monkeypatch, check_mode, **given)
        assert result.get("failed", False) is (said == "refused")
    arguments = ("--namespace=kube-system", "secret", f"{BOARD}.node-password.k3s", f"{RECORD}={board}")
    labelled = ("label", "--overwrite", "node", BOARD, "new=1")
    assert (
        commands
        == {
            "recorded": [("annotate", "--overwrite", *arguments), labelled],
            "kept": [labelled],
            "refused": [],
        }[said]
    )


def test_records_are_read_in_one_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, tmp_path, f"printf 'a{PASSWORD}\\tcamera\\nb.c{PASSWORD}\\t\\nother\\t\\n'")
    assert owners.records() == {"a": "camera", "b.c": ""}


def test_pods_are_replaced_after_the_labels(
    monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]]
) -> None:
    assert prepared(monkeypatch, labels={"new": "1"}, renew=True)["changed"] is True
    assert [command[0] for command in commands] == ["label", "delete"]
    assert commands[1][-1] == f"{PLUGIN}-{BOARD}-old"


@pytest.mark.parametrize(
    ("state", "cordoned_by", "check", "cordoned"),
    [
        ("known", "run", False, True),
        ("known", "owner", False, False),
        ("drained", "", False, True),
        ("drained", "owner", False, False),
        ("drained", "", True, False),
        ("schedulable", "run", False, False),
        ("schedulable", "run", True, True),
    ],
)
def test_result_says_whether_a_run_has_the_node_cordoned_now(
    monkeypatch: pytest.MonkeyPatch, state: str, cordoned_by: str, check: bool, cordoned: bool
) -> None:
    annotations = {kubectl.CORDONED: "{}"} if cordoned_by == "run" else {}
    seen = node(gpu="1") | {"metadata": {"name": "a", "annotations": annotations}}
    seen["spec"] = {"unschedulable": True} if cordoned_by else {}
    monkeypatch.setattr(schedule, "get", lambda *_: seen)
    monkeypatch.setattr(schedule, "password", lambda _: None)
    monkeypatch.setattr(schedule, "listed", lambda *_: [])
    monkeypatch.setattr(schedule, "run", lambda *_: "")
    monkeypatch.setattr(offered, "knows", lambda _: False)
    given: Data = {"name": "a", "state": state, "drain_arguments": [], "offers": {}, "boot_id": None}
    given |= {"quorum": False, "servers": {}, "timeout": 1, "board": "a", "boards": {"a": []}}
    assert playing.outcome(monkeypatch, schedule, given, check)["cordoned"] is cordoned
