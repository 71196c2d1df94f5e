# SPDX-License-Identifier: Apache-2.0
"""status.yml: allocations of each node's GPU, and the dates on which K3s' certificates and tokens expire."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    jetson_certificates as board_certificates,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_kubectl, k3s_quantities
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_observe as observe
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_status as filters
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_status_credentials as status
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_certificates as certificates
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.sharing.manifests import pods as manifests
from tegra_device_plugin.telemetry.shares import Row, as_dict, rows

from tests.unit.roles import certs
from tests.unit.roles.places import Data

GPU = "nvidia.com/gpu"
LABELS = {f"jetson-k3s.github.io/{key}": key.upper() for key in ("module", "l4t", "jetpack", "chip")}


NODE = {
    "name": "a", "ready": True, "message": "", "labels": LABELS,
    "capacity": {GPU: 4}, "allocatable": {GPU: 4},
}  # fmt: skip


KINDS = {"a": "board"}
NOTHING: Data = {"devices": [], "claims": [], "gpu_plugins": []}


def pod(name: str, phase: str = "Running", on: str = "a") -> Data:
    used = {"requests": {GPU: 1}, "allocated": {GPU: 1}, "unseen_by": None}
    return {"namespace": "n", "name": name, "node": on, "phase": phase, **used}


def status_with(answer: str, *pods: Data) -> Any:
    """The status of a cluster with one node, whose plugin gives this answer."""
    answers = {"a": {"stdout": answer}}
    return filters.status({"nodes": [NODE], "pods": pods, "answers": answers, **NOTHING}, KINDS)


def test_shares_have_limit_use_and_weight() -> None:
    core = ContainerAllocation("n", "p", "c", "a.b/gpu-core", "c3", 30)
    memory = ContainerAllocation("n", "p", "c", "a.b/gpu-memory", "m7", 12)
    mib = 1 << 20
    shares = [
        Row("n", "p", "c", (core, memory), percent=30, limit=3072 * mib, used=0, resident=200 * mib),
        Row("n", "p", "d", (core,), percent=30),
    ]
    lines = filters.table(status_with(json.dumps(as_dict(shares, {})), pod("p"))).splitlines()
    assert [line for line in lines if "container" in line] == [
        "  n/p container c: 30 a.b/gpu-core, 12 a.b/gpu-memory, weight 30 %, limit 3072 MiB, used 0 MiB, "
        "resident 200 MiB",
        "  n/p container d: 30 a.b/gpu-core, weight 30 %",
    ]


def test_container_that_does_not_use_its_gpu_has_a_line() -> None:
    gpu = ContainerAllocation("n", "p", "c", GPU, "igpu0")
    held = [Row("n", "p", "c", (gpu,), unused=725), Row("n", "q", "c", (gpu,))]
    answer = as_dict(held, {})
    since = answer["containers"][0]["unused_since"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", since)
    lines = filters.table(status_with(json.dumps(answer), pod("p"), pod("q"))).splitlines()
    (line,) = (one.strip() for one in lines if "not used" in one)
    assert line.startswith(f"n/p on a has the GPU and has not used it since {since} (725 s). Probable cause:")
    assert "does not fit L4T L4T" in line and "./jetson-k3s check-image IMAGE a." in line
    for row in answer["containers"]:  # of a plugin of the last release
        del row["unused_since"], row["unused_seconds"]
    assert "not used" not in filters.table(status_with(json.dumps(answer), pod("p"), pod("q")))


def test_kubelet_and_requests_that_do_not_agree_are_reported() -> None:
    def table(*held: tuple[str, str]) -> list[str]:
        pods = (pod("p"), pod("q"), pod("ended", "Failed"), pod("elsewhere", on="b"))
        allocations = [ContainerAllocation("n", name, "c", GPU, device) for name, device in held]
        found = status_with(json.dumps(as_dict(rows(allocations, None, Path()), {})), *pods)
        (resource,) = found["nodes"][0]["resources"]
        assert (resource["allocatable"], resource["free"]) == (4, 2)
        return [line for line in filters.table(found).splitlines() if "allocated" in line]

    whole = [("p", "igpu0::0"), ("q", "igpu0::1")]
    assert table(*whole) == table(*whole, ("ended", "igpu0::2")) == []
    for held, count in ((whole[1:], 1), ([*whole, whole[0]], 3)):
        (line,) = table(*held)
        assert f"its kubelet has allocated {count} of {GPU}, and its pods request 2" in line


DRIVER = "gpu.jetson-k3s.github.io"


def resource_slice(**device: Any) -> Data:
    attributes = {"sharing": {"string": "capacity"}, "multiprocessors": {"int": 16}}
    capacity = {"memory": {"value": "6Gi", "requestPolicy": {}}}
    devices = [{"name": "igpu-0", "attributes": attributes, "capacity": capacity, **device}]
    return {"spec": {"nodeName": "a", "driver": DRIVER, "pool": {"name": "a"}, "devices": devices}}


def resource_claim(name: str, **result: Any) -> Data:
    given = {"driver": DRIVER, "pool": "a", "device": "igpu-0", "request": "gpu", **result}
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {"allocation": {"devices": {"results": [given]}}, "reservedFor": [{"name": f"{name}-pod"}]},
    }


def test_claims_are_shown_with_their_device() -> None:
    taint = {"key": f"{DRIVER}/unhealthy", "value": "hung", "effect": "NoSchedule"}
    given = [
        resource_claim("left", consumedCapacity={"memory": "3Gi", "cores": "0"}),
        resource_claim("elsewhere", pool="b"),
        resource_claim("of-another", driver="gpu.example.com"),
    ]
    observed = {
        "nodes": [
            NODE
            | {
                "capacity": {GPU: 0},
                "allocatable": {GPU: 0},
                "labels": {**LABELS, "jetson-k3s.github.io/dra": "claims"},
            }
        ],
        "pods": [],
        "gpu_plugins": [],
        "devices": observe.device_facts(resource_slice(taints=[taint])),
        "claims": [observe.claim_facts(claim) for claim in given],
        "answers": {"a": {"problem": "no pod of the device plugin runs there"}},
    }
    found = filters.status(observed, KINDS)
    (device,) = found["nodes"][0]["devices"]
    assert (device["name"], device["sharing"]) == ("igpu-0", "capacity")
    assert device["capacity"] == {"memory": "6Gi"}
    assert [(claim["name"], claim["pods"]) for claim in device["claims"]] == [("left", ["left-pod"])]
    _, line, *below = filters.table(found).splitlines()
    assert line.endswith(f"{DRIVER}: 1 of 1 claimed (configuration claims)")
    assert below == [
        f"  igpu-0 is given to nobody: {DRIVER}/unhealthy=hung:NoSchedule",
        "  n/left claims igpu-0, cores 0, memory 3Gi: left-pod",
    ]
    assert observe.claim_facts({"metadata": {"namespace": "n", "name": "new"}}) is None


@pytest.mark.parametrize("known", [True, False])
def test_server_without_claims_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    items = [
        {"kind": "ResourceSlice", **resource_slice()},
        {"kind": "ResourceClaim", **resource_claim("one")},
    ]
    monkeypatch.setattr(observe, "knows", lambda _: known)
    monkeypatch.setattr(observe, "listed", lambda *_argv: items)
    devices, claims = observe.allocation()
    assert (len(devices), len(claims)) == ((1, 1) if known else (0, 0))


@pytest.mark.parametrize(
    ("spec", "status", "scheduler"),
    [
        ({"schedulerName": "gpushare-scheduler"}, {"phase": "Pending"}, "gpushare-scheduler"),
        ({}, {"phase": "Pending"}, None),
        ({"schedulerName": "koord-scheduler", "nodeName": "a"}, {"phase": "Pending"}, None),
        ({"schedulerName": "koord-scheduler"}, {"phase": "Failed"}, None),
        # One that works says why it finds no node.
        (
            {"schedulerName": "volcano"},
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
            None,
        ),
    ],
)
def test_pod_without_its_scheduler_is_found(spec: Data, status: Data, scheduler: str | None) -> None:
    assert observe.unseen_by({"spec": {"containers": [], **spec}, "status": status}) == scheduler


# Of a prefix that check-manifest has, the prefixes that the status reads. Another device plugin in a cluster
# may serve the other names on its own nodes, so a Pending pod that requests them is not about the boards.
NARROWER: dict[str, set[str]] = {
    "nvidia.com/gpu": {"nvidia.com/gpucores", "nvidia.com/gpumem"},
    "nvidia.com/mig-": set(),
    "cambricon.com/": set(),
    "huawei.com/": set(),
    "koordinator.sh/": {"koordinator.sh/gpu"},
    "jetson-k3s.github.io/gpu-": set(),  # ours
}


def test_status_and_check_manifest_know_the_same_systems() -> None:
    assert NARROWER.keys() <= {*manifests.PREFIXES}
    expected = set().union(*(NARROWER.get(prefix, {prefix}) for prefix in manifests.PREFIXES))
    assert {*filters.SHARING} == expected
    assert all(name.startswith(prefix) for prefix, names in NARROWER.items() for name in names)


def test_pending_pods_that_request_what_no_node_advertises_are_named() -> None:
    foreign = {"requests": {GPU: 1, "koordinator.sh/gpu-memory": 1 << 30, "metax-tech.com/sgpu": 1}}
    cameras = {"requests": {"example.com/camera": 1}}
    pods = (
        pod("metax", "Pending", on="") | foreign,
        pod("placed", "Pending") | foreign,
        pod("ended", "Failed", on="") | foreign,
        pod("camera", "Pending", on="") | cameras,
    )
    found = status_with(json.dumps(as_dict([], {})), *pods)
    names = ["koordinator.sh/gpu-memory", "metax-tech.com/sgpu"]
    assert found["not_advertised"] == [{"namespace": "n", "pod": "metax", "resources": names}]
    assert (
        "n/metax requests koordinator.sh/gpu-memory, metax-tech.com/sgpu, which no node advertises: check "
        "its manifest: ./jetson-k3s check-manifest FILE" in filters.table(found)
    )


def test_shared_gpu_lists_pending_and_ended_pods() -> None:
    pods = (pod("p"), pod("q"), pod("waits", "Pending", on=""), pod("ended", "Succeeded"))
    held = {"p": "igpu0::0", "q": "igpu0::1", "ended": "igpu0::2", "other": "igpu0::3"}
    allocations = [ContainerAllocation("n", name, "c", GPU, device) for name, device in held.items()]
    found = status_with(json.dumps(as_dict(rows(allocations, None, Path()), {})), *pods)
    (one,) = found["nodes"]
    assert one["resources"][0]["used"] == 2
    assert one["resources"][0]["sharing"] == "time-slicing"
    assert [holder["phase"] for holder in one["holders"]] == ["Succeeded", "gone", "Running", "Running"]
    text = filters.table(found)
    assert "2 of 4 used, one GPU shared" in text
    ends = [line.partition("gpu")[2] for line in text.splitlines()[2:6]]
    assert ends == [" (Succeeded)", " (gone)", "", ""]
    assert "allocated 3 of nvidia.com/gpu, and its pods request 2" in text


@pytest.mark.parametrize("text", ["", "usage: ...", "[]"])
def test_answer_of_an_older_plugin_is_a_problem_of_its_node(text: str) -> None:
    (one,) = status_with(text)["nodes"]
    assert one["holders"] is None
    assert "said something else" in one["problem"]


def test_node_without_gpu_and_labels_has_a_row() -> None:
    bare = {"name": "x", "ready": True, "message": "", "labels": {}, "capacity": {GPU: 0}, "allocatable": {}}
    answers = {"x": {"problem": "no pod"}}
    found = filters.status({"nodes": [bare], "pods": [], "answers": answers, **NOTHING}, KINDS)
    assert filters.table(found).splitlines()[1].split() == ["x", "Ready", "-", "-", "-", "none"]


def test_node_objects_become_facts() -> None:
    facts = observe.node_facts(
        {
            "metadata": {"name": "a"},
            "status": {
                "capacity": {"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "0", GPU: "4"},
                "allocatable": {"cpu": "3500m", GPU: "0"},
                "conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped posting"}],
            },
        }
    )
    assert facts["capacity"] == {GPU: 4}
    assert facts["allocatable"] == {GPU: 0}
    assert (facts["ready"], facts["message"], facts["labels"]) == (False, "stopped posting", {})


def test_init_containers_count_as_in_kubernetes() -> None:
    def asks(count: int) -> Data:
        return {"resources": {"limits": {GPU: str(count), "cpu": "1"}}}

    spec: Data = {"containers": [asks(1), asks(2), {}]}
    assert observe.requests({"spec": spec}) == {GPU: 3}
    assert observe.requests({"spec": spec | {"initContainers": [asks(4), asks(1)]}}) == {GPU: 4}
    assert observe.requests({"spec": {"containers": [{}]}}) == {}
    stays = asks(2) | {"restartPolicy": "Always"}
    assert observe.requests({"spec": spec | {"initContainers": [asks(4), stays, asks(1)]}}) == {GPU: 5}
    assert observe.requests({"spec": spec | {"initContainers": [stays, asks(4)]}}) == {GPU: 6}
    assert observe.allocated({"spec": spec | {"initContainers": [stays, asks(4)]}}) == {GPU: 5}


def test_resources_of_kubernetes_domain_are_not_extended() -> None:
    # Such as Koordinator's; only the quantities of extended resources must be integers.
    resources = {"kubernetes.io/batch-cpu": "500m", "cpu": "1500m", GPU: "1"}
    assert k3s_quantities.extended(resources) == {GPU: 1}


def test_only_pods_that_run_are_asked() -> None:
    def plugin(name: str, phase: str = "Running", **metadata: str) -> Data:
        return {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "a"}, "status": {"phase": phase}}

    pods = [plugin("new", "Pending"), plugin("old", deletionTimestamp="now"), plugin("runs")]
    assert observe.running_pods(pods) == {"a": "runs"}
    assert "not Ready" in observe.answer(NODE | {"ready": False}, ["runs"], ["true"], 1)["problem"]
    assert "no pod" in observe.answer(NODE, [], ["true"], 1)["problem"]


Pretend = Callable[[str], None]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    def pretend(script: str) -> None:
        program = tmp_path / "k3s"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(k3s_kubectl, "K3S", str(program))

    return pretend


def test_second_pod_answers_for_the_first(kubectl: Pretend) -> None:
    kubectl('[ "$4" != agent ] || exit 1\necho "$4 says"')
    assert observe.answer(NODE, ["agent", "plugin"], ["true"], 5) == {"stdout": "plugin says\n"}
    assert observe.answer(NODE, ["plugin2", "plugin"], ["true"], 5) == {"stdout": "plugin2 says\n"}


def test_kubectl_without_objects_prints_nothing(kubectl: Pretend) -> None:
    kubectl("")
    assert k3s_kubectl.listed("pods", "--selector=nobody") == []


def test_hanging_kubectl_is_ended(kubectl: Pretend) -> None:
    kubectl("exec sleep 60")
    assert "no answer within 0.1 s" in observe.answer(NODE, ["pod"], ["true"], 0.1)["problem"]


DAY = 86400
NOW = 1_800_000_000.0


def data_directory(root: Path) -> Path:
    """A server's, as K3s leaves it; what is signed is valid for 30 days."""
    home = root / "var/lib/rancher/k3s"
    tls = home / "server/tls"
    ca = certs.authority("server-ca")
    ca.write(tls, "server-ca")
    signed = certs.certificate("client", ca, days=30)
    # The last is left by a release that called it so.
    for name in ("client-admin", "etcd/client", "client-cloud-controller"):
        signed.write(tls / Path(name).parent, Path(name).name, ca.pem)
    listener = certs.certificate("a", ca, days=30)
    listener.write(home / "agent", "serving-kubelet", ca.pem)
    pem = base64.b64encode(listener.pem + ca.pem).decode()
    (tls / "dynamic-cert.json").write_text(json.dumps({"data": {"tls.crt": pem}}))
    (home / "agent/client-kubelet.crt").write_text("damaged")
    return home


def test_certificates_of_a_server_are_read(tmp_path: Path) -> None:
    home = data_directory(tmp_path)
    found = board_certificates.files(str(home), is_server=True)
    kinds = {one["name"]: one["kind"] for one in found}
    assert kinds == {
        "client-admin": "leaf",
        "etcd-client": "leaf",
        "serving-kubelet": "leaf",
        "dynamic-cert": "listener",
        "server-ca": "ca",
    }
    days = {one["name"]: round((one["ends"] - time.time()) / DAY) for one in found}
    assert (days["client-admin"], days["dynamic-cert"], days["server-ca"]) == (30, 30, 3650)
    assert found[-1]["name"] == "server-ca", "the soonest end first"
    # A former server keeps its files as an agent.
    agents = board_certificates.files(str(home), is_server=False)
    assert [one["name"] for one in agents] == ["serving-kubelet"]


def test_data_directory_and_days_are_the_nodes_own(tmp_path: Path) -> None:
    home = data_directory(tmp_path)
    (tmp_path / "mnt").mkdir()
    home.rename(tmp_path / "mnt/k3s")
    unit = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "1"}
    variables = {board_certificates.VALID_DAYS_VARIABLE: "30"}
    assert board_certificates.certificate_facts(str(tmp_path), {}, unit, variables, True)["files"] == []
    found = board_certificates.certificate_facts(
        str(tmp_path), {"data-dir": "/mnt/k3s"}, unit, variables, True
    )
    assert len(found["files"]) == 5
    assert found["valid_days"] == 30
    assert found["started"] == pytest.approx(time.time() - time.monotonic(), abs=5)


def certificate(left: float, written: float = 300, kind: str = "leaf") -> Data:
    return {
        "name": "client-kubelet", "path": "/client-kubelet.crt", "kind": kind,
        "ends": NOW + left * DAY, "written": NOW - written * DAY,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "started", "valid_days", "due"),
    [
        (certificate(89), 300, 365, True),
        (certificate(-3), 300, 365, True),
        (certificate(91), 300, 365, False),
        (certificate(89, kind="ca"), 300, 365, False),
        (certificate(89, kind="listener"), 300, 365, False),
        # It has started within the window and has not renewed it.
        (certificate(80), 5, 365, False),
        # Its start has made it: the next one makes it longer if the settings of K3s say so by then.
        (certificate(29, written=1), 1.1, 365, True),
        # But not each run is to restart where certificates are to be short.
        (certificate(29, written=1), 1.1, 30, False),
        (certificate(14, written=16), 16.1, 30, True),
        # A K3s that does not run renews it when it is started.
        (certificate(1), None, 365, False),
    ],
)
def test_restart_is_due_if_it_renews(one: Data, started: float | None, valid_days: int, due: bool) -> None:
    since = None if started is None else NOW - started * DAY
    k3s = {"certificates": {"files": [one], "started": since}}
    assert certificates.expiring(k3s, valid_days, NOW) == ([one] if due else [])


def facts(*found: tuple[str, float, str]) -> Data:
    files = [
        {"name": name, "path": f"/{kind}/{name}.crt", "kind": kind, "ends": NOW + left * DAY, "written": NOW}
        for name, left, kind in found
    ]
    return {
        "k3s": {"certificates": {"files": files}, "agents_join_with": None},
        "reboot": {"required": False, "packages": [], "kernel": None},
        "docker": {"running": True, "stand_by": None},
    }


@pytest.mark.parametrize(("left", "soon"), [(91, False), (89, True), (-1, True)])
def test_expiry_within_90_days_is_a_warning(left: int, soon: bool) -> None:
    found = status.credentials({"tokens": []}, ["a"], {"a": facts(("server-ca", left, "ca"))}, NOW)
    assert ("K3s does not renew a CA by itself" in status.table(found)) is soon


@pytest.mark.parametrize("token", ["own", "servers"])
def test_agents_with_the_token_of_servers_are_named(token: str) -> None:
    boards = {"agent": facts(), "a": facts()}
    boards["a"]["k3s"]["agents_join_with"] = token
    found = status.credentials({"tokens": []}, list(boards), boards, NOW)
    assert found["agents_join_with"] == token
    assert ("agents of this cluster have the token of its servers" in status.table(found)) is (
        token == "servers"
    )


@pytest.mark.parametrize(
    ("docker", "label", "says"),
    [
        ({"running": True, "stand_by": None}, "true", "there is none"),
        ({"running": True, "stand_by": None}, "units", "there is none"),
        ({"running": True, "stand_by": "Exited (1) 2 hours ago"}, "true", "Exited (1) 2 hours ago"),
        ({"running": True, "stand_by": "Up 2 days"}, "true", ""),
        ({"running": False, "stand_by": None}, "true", ""),  # preflight says what is missing
        ({"running": True, "stand_by": None}, "false", ""),
    ],
)
def test_board_whose_boot_refuses_pods_has_a_line(docker: Data, label: str, says: str) -> None:
    node = NODE | {"labels": LABELS | {"jetson-k3s.github.io/device-plugin": label}}
    answers = {"a": {"stdout": '{"containers": []}'}}
    observed = {"nodes": [node], "pods": [], "answers": answers, "tokens": [], **NOTHING}
    boards = {"A": facts(("server-ca", 91, "ca")) | {"docker": docker}}
    whole = filters.status(observed, KINDS) | status.credentials(observed, ["A"], boards, NOW)
    text = status.reboots_table(whole)
    assert ("no instance of the device plugin stands by" in text) is bool(says)
    assert says in text


def test_facts_of_a_token_have_no_secret() -> None:
    data = {"token-id": "q4bjus", "token-secret": "7k1x6b1fz0d72prp", "expiration": "2027-01-15T09:00:00Z"}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    facts_of_token = {"id": "q4bjus", "ends": "2027-01-15T09:00:00Z", "description": ""}
    assert observe.token_facts({"data": encoded}) == facts_of_token


def test_unit_that_does_not_run_has_no_start(tmp_path: Path) -> None:
    unit = {"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "1"}
    assert board_certificates.certificate_facts(str(tmp_path), {}, unit, {}, True)["started"] is None


def test_a_ca_has_the_same_digest_with_other_line_ends(tmp_path: Path) -> None:
    ca = certs.authority("server-ca")
    ca.write(tmp_path, "unix")
    (tmp_path / "dos.crt").write_bytes((tmp_path / "unix.crt").read_bytes().replace(b"\n", b"\r\n"))
    certs.authority("server-ca").write(tmp_path, "other")
    unix, dos, other = (
        board_certificates.digest(str(tmp_path / f"{name}.crt")) for name in ("unix", "dos", "other")
    )
    assert unix == dos != other


def ca(path: str, digest: str, started: float | None = NOW) -> Data:
    file = {"path": f"/var/lib/rancher/k3s/{path}/server-ca.crt", "digest": digest}
    return {"certificates": {"files": [file], "started": started}}


@pytest.mark.parametrize(
    ("mine", "server", "other"),
    [
        (ca("agent", "new"), ca("server/tls", "new"), False),
        (ca("agent", "old"), ca("server/tls", "new"), True),
        (ca("agent", "old", started=None), ca("server/tls", "new"), False),
        (ca("agent", "old"), None, False),
        (ca("agent", "old"), ca("agent", "new"), False),
        (ca("server/tls", "old"), ca("server/tls", "new"), False),
    ],
)
def test_restart_is_due_after_a_change_of_cas(mine: Data, server: Data | None, other: bool) -> None:
    assert certificates.other_ca(mine, server) is other


@pytest.mark.parametrize(
    ("mine", "server", "reasons"),
    [
        ([certificate(200)], {}, []),
        ([certificate(89)], {}, ["K3s renews certificates that end soon when it starts"]),
        # The server decides how long a new one is valid.
        ([certificate(89)], {"valid_days": 30}, []),
        (
            [certificate(89), *ca("agent", "old")["certificates"]["files"]],
            ca("server/tls", "new")["certificates"],
            ["K3s renews certificates that end soon when it starts", "The cluster has other CAs."],
        ),
    ],
)
def test_reasons_of_a_restart_are_named(mine: list[Data], server: Data, reasons: list[str]) -> None:
    started = {"started": NOW - 300 * DAY, "valid_days": 365}
    theirs = {"k3s": {"certificates": {"files": [], **started, **server}}} if server else {}
    files = [{"kind": "ca", "ends": NOW + 3650 * DAY, "path": "/x", **one} for one in mine]
    found = [*certificates.renewals({"certificates": {"files": files, **started}}, theirs, NOW)]
    assert [one[: len(reason)] for one, reason in zip(found, reasons, strict=True)] == reasons
