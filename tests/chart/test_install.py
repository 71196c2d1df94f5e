# SPDX-License-Identifier: Apache-2.0
"""A real API server takes the chart: Helm installs it, changes it and removes it.

The server is alone, without nodes. Whether the pods then serve a GPU is for tests on boards, which have the
same manifests.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest
import yaml

from tests.chart.conftest import (
    OTHER_RELEASE,
    RELEASE,
    Helm,
    Object,
    Values,
    apply,
    found,
    operator_definitions,
)
from tests.chart.test_chart import CHOICES, CONTAINERD, DRA, INSTANCE, OVERLAYS
from tests.docs import commands, markdown
from tests.lab.api_server import ApiServer
from tools.cache import CHECKOUT
from tools.process import run

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

# Within which a policy is in force that the server has accepted.
POLICY_SECONDS = 60
MONITORED = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "agent": {"enabled": True}}
# As K3s 1.29 and newer make it, with their own labels.
K3S_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia", "labels": {"objectset.rio.cattle.io/hash": "ab"}},
    "handler": "nvidia",
}


def test_command_and_values_of_the_handbook_install_it(installed: Helm, server: ApiServer) -> None:
    page = markdown.read(CHECKOUT / "docs/device-plugin.md")
    (command,) = (text for text in commands.of(page) if "plugin/deploy/chart" in text)
    (values,) = (block.text for block in page.blocks if block.text.startswith("containerRuntime:"))
    places = {
        "PATH": f"{installed.program.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(server.kubeconfig),
    }
    environment = {**os.environ, "HOME": str(installed.home), **places}
    for options in ("", " --values -"):
        run(["bash", "-c", command + options], stdin=values, env=environment, cwd=CHECKOUT)
    assert found(server, "daemonsets").keys() == {"tegra-device-plugin"}
    text = found(server, "configmaps")["tegra-device-plugin"]["data"]["config.yaml"]
    assert yaml.safe_load(text) == yaml.safe_load(values)["config"]


def test_every_choice_replaces_the_one_before(installed: Helm, server: ApiServer) -> None:
    for values in (*OVERLAYS.values(), *(choice.values for choice in CHOICES.values())):
        apply(installed, values)
        wanted = {"tegra-dra-driver" if values.get("api") == "dra" else "tegra-device-plugin"}
        if values.get("agent", {}).get("enabled"):
            wanted.add("tegra-gpu-agent")
        if values.get("throttleTaint", {}).get("enabled"):
            wanted.add("tegra-throttle-taint")
        assert found(server, "daemonsets").keys() == wanted
        maps = {"tegra-device-plugin", "tegra-dra-driver"} & wanted if values.get("config") else set()
        assert {name for name in found(server, "configmaps") if name.startswith("tegra-")} == maps
        assert bool(found(server, "deviceclasses")) == (values.get("api") == "dra")


def test_later_version_upgrades_every_choice(installed: Helm, later: Helm, server: ApiServer) -> None:
    for values in (*OVERLAYS.values(), *(choice.values for choice in CHOICES.values())):
        apply(installed, values)
        before = found(server, "daemonsets")
        apply(replace(installed, chart=later.chart), values)
        for name, one in found(server, "daemonsets").items():
            # The object is the same one, so its selector was accepted.
            assert one["metadata"]["uid"] == before[name]["metadata"]["uid"]
            assert one["metadata"]["labels"]["helm.sh/chart"] == "tegra-device-plugin-9.9.9"


def test_two_releases_select_their_own_pods(installed: Helm, server: ApiServer) -> None:
    apply(installed, {**CONTAINERD, "nodeSelector": {"rack": "1"}})
    other = {**CONTAINERD, "nodeSelector": {"rack": "2"}, "agent": {"enabled": True, "hostPID": True}}
    apply(replace(installed, release=OTHER_RELEASE), other)
    selected = {
        name: one["spec"]["selector"]["matchLabels"][INSTANCE]
        for name, one in found(server, "daemonsets").items()
    }
    assert selected == {
        "tegra-device-plugin": RELEASE,
        "thor-tegra-device-plugin": OTHER_RELEASE,
        "thor-tegra-device-plugin-agent": OTHER_RELEASE,
    }
    installed("uninstall", RELEASE, "--namespace=kube-system")
    assert found(server, "daemonsets").keys() == selected.keys() - {"tegra-device-plugin"}


def test_objects_are_in_another_namespace_than_the_release(installed: Helm, server: ApiServer) -> None:
    server.kubectl("create", "namespace", "gpus")
    apply(installed, {**DRA, "config": {"version": "v1"}, "namespaceOverride": "gpus"})
    assert found(server, "daemonsets") == {}
    for kind in ("daemonsets", "configmaps", "serviceaccounts"):
        assert "tegra-dra-driver" in found(server, kind, "gpus")


def test_monitoring_needs_the_operators_definitions(installed: Helm, server: ApiServer) -> None:
    options = ("--install", "--namespace=kube-system")
    refused = installed("upgrade", RELEASE, installed.chart, *options, values=MONITORED)
    assert refused.returncode != 0
    assert 'no matches for kind "PodMonitor" in version "monitoring.coreos.com/v1"' in refused.stderr
    files = [f"--filename={file}" for file in operator_definitions()]
    server.kubectl("create", *files)
    try:
        server.kubectl("wait", "--for=condition=Established", *files)
        apply(installed, MONITORED)
        assert found(server, "podmonitors").keys() == {"tegra-device-plugin", "tegra-gpu-agent"}
        assert found(server, "prometheusrules").keys() == {"tegra-device-plugin"}
        installed("uninstall", RELEASE, "--namespace=kube-system")
    finally:
        server.kubectl("delete", *files)


@pytest.mark.parametrize("k3s", [True, False])
def test_class_of_k3s_stays_as_it_is_and_the_own_one_as_long_as_the_release(
    installed: Helm, server: ApiServer, k3s: bool
) -> None:
    if k3s:
        server.kubectl("create", "--filename=-", stdin=json.dumps(K3S_CLASS))
    before = found(server, "runtimeclasses")
    for values in (CONTAINERD, {**CONTAINERD, "metricsOnHost": True}):
        apply(installed, values)
        assert found(server, "runtimeclasses")["nvidia"]["handler"] == "nvidia"
        assert not k3s or found(server, "runtimeclasses") == before
    installed("uninstall", RELEASE, "--namespace=kube-system")
    assert found(server, "runtimeclasses") == before


KEY, EFFECT = "jetson-k3s.github.io/throttled", "PreferNoSchedule"
ACCOUNT = "tegra-throttle-taint"
# Of a pod on node a: a patch of that node, the refusal.
REFUSED: list[tuple[str, Object, str]] = [
    ("b", {"spec": {"taints": [{"key": KEY, "effect": EFFECT}]}}, "on node a changes that node only, not b"),
    ("a", {"spec": {"taints": [{"key": KEY, "effect": "NoExecute"}]}}, f"changes the taint {KEY}"),
    ("a", {"spec": {"taints": [{"key": "other", "effect": EFFECT}]}}, f"changes the taint {KEY}"),
    ("a", {"spec": {"unschedulable": True}}, "nothing but taints in the spec"),
    ("a", {"spec": {"providerID": "k3s://a"}}, "nothing but taints in the spec"),
    ("a", {"metadata": {"labels": {"rack": "1"}}}, "does not change the metadata"),
    ("a", {"metadata": {"annotations": {"rack": "1"}}}, "does not change the metadata"),
    ("a", {"metadata": {"finalizers": ["example.com/stays"]}}, "does not change the metadata"),
]


def as_account(server: ApiServer, token: str, node: str, patch: Object) -> str:
    """Patch a node with the token of an account; return the output."""
    config = json.loads(server.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    file = server.kubeconfig.with_name("of-account")
    file.write_text(json.dumps(config))
    given = ("patch", "node", node, "--type=merge", f"--patch={json.dumps(patch)}")
    done = run([server.program, f"--kubeconfig={file}", *given], check=False)
    return done.stdout + done.stderr


def test_throttle_taint_changes_one_taint_of_its_own_node(installed: Helm, server: ApiServer) -> None:
    apply(installed, {"throttleTaint": {"enabled": True}})
    other = {"key": "example.com/slow", "effect": "NoSchedule"}
    system = ("--namespace=kube-system",)
    spec = {"nodeName": "a", "serviceAccountName": ACCOUNT, "containers": [{"name": "c", "image": "none"}]}
    objects: list[Object] = [
        {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"taints": [other]}}
        for name in ("a", "b")
    ]
    objects.append({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "on-a"}, "spec": spec})
    server.kubectl("create", *system, "--filename=-", stdin=yaml.safe_dump_all(objects))
    try:
        account = ("create", "token", *system, ACCOUNT)
        token = server.kubectl(*account, "--bound-object-kind=Pod", "--bound-object-name=on-a").strip()
        before = json.loads(server.kubectl("get", "node", "a", "--output=json"))["spec"]["taints"]
        ours = {"spec": {"taints": [*before, {"key": KEY, "effect": EFFECT}]}}
        nowhere = server.kubectl(*account).strip()
        deadline = time.monotonic() + POLICY_SECONDS
        while "names no node" not in (said := as_account(server, nowhere, "a", ours)):
            assert time.monotonic() < deadline, said
            server.kubectl("patch", "node", "a", "--type=merge", f"--patch={json.dumps(ours)}")
        for node, patch, refusal in REFUSED:
            assert refusal in as_account(server, token, node, patch), patch
        for patch in (ours, {"spec": {"taints": before}}, ours):
            assert "node/a patched" in as_account(server, token, "a", patch)
    finally:
        server.kubectl("delete", *system, "pod/on-a", "node/a", "node/b", "--grace-period=0", "--force")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "kubectl label node NAME jetson-k3s.github.io/device-plugin=true"),
        (CONTAINERD, "runtimeClassName: nvidia"),
        ({"nameOverride": "gpu"}, f"app.kubernetes.io/name=gpu,app.kubernetes.io/instance={RELEASE}"),
        (DRA, "kubectl label node NAME jetson-k3s.github.io/dra=true"),
        (
            {"throttleTaint": {"enabled": True}},
            "kubectl label node NAME jetson-k3s.github.io/throttle-taint=true",
        ),
        ({"agent": {"enabled": True, "mode": "evict"}}, "kill each process"),
    ],
)
def test_notes_name_the_label_and_the_risks(installed: Helm, values: Values, said: str) -> None:
    assert said in apply(installed, values)
