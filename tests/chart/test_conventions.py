# SPDX-License-Identifier: Apache-2.0
"""The chart follows Helm's conventions: names, labels, selectors, namespaces; wrong values are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART, RELEASE, Helm, Kubeconform, Object, Values
from tests.chart.test_chart import (
    CHOICES,
    CONTAINERD,
    DRA,
    INSTANCE,
    LABELS,
    NAME,
    OVERLAYS,
    checked,
    key,
    kubernetes_with,
    pod,
    units,
)
from tools.cache import CHECKOUT

pytestmark = pytest.mark.lab

AGENT = {**CONTAINERD, "agent": {"enabled": True}, "config": units()}
# Beside the driver, for each program once in both.
TAINTED = {**DRA, "throttleTaint": {"enabled": True}}
MONITORED = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
DIGEST = "sha256:" + "0a" * 32
# Each value that changes labels, names or pods, at the same time.
ALL: Values = {
    **MONITORED,
    "image": {"digest": DIGEST},
    "imagePullSecrets": [{"name": "registry"}],
    "fullnameOverride": "gpu",
    "namespaceOverride": "gpus",
    "commonLabels": {"team": "edge"},
    "commonAnnotations": {"example.com/owner": "Somebody, everywhere"},
    "podLabels": {"example.com/tier": "node"},
    "podAnnotations": {"prometheus.io/scrape": "false", "example.com/note": ""},
    "nodeSelector": {"rack": "2"},
    "affinity": {"nodeAffinity": {}},
    "metricsOnHost": True,
}
EVERYTHING = {"plugin": {**AGENT, **ALL}, "driver": {**DRA, **ALL, "config": {"version": "v1"}}}
CHOSEN = {
    **{f"overlay-{name}": values for name, values in OVERLAYS.items()},
    **{f"choice-{name}": choice.values for name, choice in CHOICES.items()},
    **{f"everything-{name}": values for name, values in EVERYTHING.items()},
}


def rendered(helm: Helm, values: Values, namespace: str = "kube-system") -> dict[tuple[str, str], Object]:
    return {key(document): document for document in helm.template(values, namespace)}


def test_lint_has_no_complaint(helm: Helm) -> None:
    for values in CHOSEN.values():
        done = helm("lint", "--strict", CHART, values=values)
        assert done.returncode == 0, done.stdout
        assert not [word for word in ("[INFO]", "[WARNING]", "[ERROR]") if word in done.stdout], done.stdout


@pytest.mark.parametrize("name", CHOSEN)
def test_kubeconform_finds_every_object_valid(helm: Helm, kubeconform: Kubeconform, name: str) -> None:
    values = {**CHOSEN[name], **MONITORED}
    for kubernetes in kubernetes_with(values):
        kubeconform(helm.template(values), kubernetes)


def test_kubeconform_finds_what_is_wrong(helm: Helm, kubeconform: Kubeconform) -> None:
    for kind, place in (("DaemonSet", "template"), ("PodMonitor", "selector"), ("PrometheusRule", "groups")):
        documents = helm.template({**CONTAINERD, **MONITORED})
        (document,) = (document for document in documents if document["kind"] == kind)
        document["spec"][f"{place}s"] = document["spec"].pop(place)
        with pytest.raises(AssertionError, match="additional properties"):
            kubeconform(documents, "1.37")


CONFIGURATION = "jetson-k3s.github.io/configuration"
SELECTORS = {
    "tegra-device-plugin": {NAME: "tegra-device-plugin", INSTANCE: RELEASE},
    "tegra-gpu-agent": {NAME: "tegra-gpu-agent", INSTANCE: RELEASE},
    "tegra-dra-driver": {NAME: "tegra-dra-driver", INSTANCE: RELEASE},
    "tegra-throttle-taint": {NAME: "tegra-throttle-taint", INSTANCE: RELEASE},
}


@pytest.mark.parametrize("name", CHOSEN)
def test_selectors_are_the_same_with_each_choice(helm: Helm, later: Helm, name: str) -> None:
    # An installed DaemonSet's selector cannot be changed: with another one here, upgrades of all users fail.
    for chart in (helm, later):
        for document in chart.template(CHOSEN[name]):
            if document["kind"] == "DaemonSet":
                labels = document["metadata"]["labels"]
                # A named configuration's own pods: without its name it would also select the default's.
                own = {name: value for name, value in labels.items() if name == CONFIGURATION}
                selected = SELECTORS[labels[NAME]] | own
                assert document["spec"]["selector"] == {"matchLabels": selected}
                assert document["spec"]["template"]["metadata"]["labels"].items() >= selected.items()


def test_every_object_has_the_usual_labels(helm: Helm) -> None:
    for values in EVERYTHING.values():
        for document in helm.template(values):
            metadata = document["metadata"]
            name = metadata["labels"].pop(NAME)
            assert name in SELECTORS
            assert metadata["labels"] == LABELS | ALL["commonLabels"]
            assert metadata["annotations"] == ALL["commonAnnotations"]


@pytest.mark.parametrize(
    ("release", "values", "names", "selected"),
    [
        (RELEASE, {}, ("tegra-device-plugin", "tegra-gpu-agent", "tegra-dra-driver"), "tegra-device-plugin"),
        ("thor", {}, "thor-tegra-device-plugin", "tegra-device-plugin"),
        ("tegra-device-plugin-thor", {}, "tegra-device-plugin-thor", "tegra-device-plugin"),
        ("thor", {"fullnameOverride": "gpu"}, "gpu", "tegra-device-plugin"),
        (RELEASE, {"nameOverride": "gpu"}, "tegra-device-plugin-gpu", "gpu"),
        ("gpu", {"nameOverride": "gpu"}, "gpu", "gpu"),
        ("r" * 53, {}, "r" * 52, "tegra-device-plugin"),
    ],
)
def test_names_come_from_release_and_overrides(
    helm: Helm, release: str, values: Values, names: tuple[str, str, str] | str, selected: str
) -> None:
    plugin, agent, driver = (
        (names, f"{names}-agent", f"{names}-dra-driver") if isinstance(names, str) else names
    )
    found = rendered(replace(helm, release=release), {**AGENT, **MONITORED, **values})
    named = ("DaemonSet", "PodMonitor")
    assert found.keys() == {
        ("ConfigMap", plugin),
        *((kind, name) for kind in named for name in (plugin, agent)),
        ("PrometheusRule", plugin),
        ("RuntimeClass", "nvidia"),
    }
    for kind, name in found:
        if kind == "DaemonSet":
            (volume,) = (one for one in pod(found[kind, name])["volumes"] if one["name"] == "config")
            assert volume["configMap"] == {"name": plugin}
    labels = found["DaemonSet", plugin]["spec"]["selector"]["matchLabels"]
    assert labels == {NAME: selected, INSTANCE: release}
    found = rendered(replace(helm, release=release), {**DRA, **values})
    assert {name for kind, name in found if kind != "DeviceClass"} == {driver}
    assert {name for kind, name in found if kind == "DeviceClass"} == {
        "gpu.jetson-k3s.github.io",
        "shared.gpu.jetson-k3s.github.io",
    }


@pytest.mark.parametrize(
    ("namespace", "values", "expected"),
    [("gpus", {}, "gpus"), ("kube-system", {"namespaceOverride": "gpus"}, "gpus")],
)
def test_everything_is_in_the_namespace(helm: Helm, namespace: str, values: Values, expected: str) -> None:
    for more in (AGENT, {**DRA, "config": {"version": "v1"}}):
        found = rendered(helm, {**more, **MONITORED, **values}, namespace)
        namespaces = {kind: found[kind, name]["metadata"].get("namespace") for kind, name in found}
        assert (
            namespaces.items()
            >= {"DaemonSet": expected, "ConfigMap": expected, "PodMonitor": expected}.items()
        )
        assert {*namespaces.values()} <= {expected, None}
        assert "kube-system" not in yaml.safe_dump_all(found.values())


@pytest.mark.parametrize("values", [{}, {"fullnameOverride": "gpu"}])
def test_policy_and_rights_are_those_of_the_driver(helm: Helm, values: Values) -> None:
    found = rendered(helm, {**DRA, **values}, "gpus")
    (name,) = (name for kind, name in found if kind == "ServiceAccount")
    policy = found["ValidatingAdmissionPolicy", name]["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == 'system:serviceaccount:gpus:{name}'"
    assert found["ValidatingAdmissionPolicyBinding", name]["spec"]["policyName"] == name
    binding = found["ClusterRoleBinding", name]
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "gpus"}]
    assert pod(found["DaemonSet", name])["serviceAccountName"] == name


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({"tag": "9.9.9-own"}, "registry.example:5000/own/gpu:9.9.9-own"),
        ({"tag": f"9.9.9@{DIGEST}"}, f"registry.example:5000/own/gpu:9.9.9@{DIGEST}"),
        ({"digest": DIGEST}, f"registry.example:5000/own/gpu@{DIGEST}"),
        ({"tag": "9.9.9", "digest": DIGEST}, f"registry.example:5000/own/gpu@{DIGEST}"),
    ],
)
def test_every_container_has_the_image_by_tag_or_digest(helm: Helm, image: Values, expected: str) -> None:
    values = {"image": {"repository": "registry.example:5000/own/gpu", "pullPolicy": "Always", **image}}
    for more in (AGENT, DRA):
        for document in helm.template({**more, **values}):
            if document["kind"] == "DaemonSet":
                (container,) = pod(document)["containers"]
                assert (container["image"], container["imagePullPolicy"]) == (expected, "Always")


def test_pods_are_placed_and_labelled_as_the_user_wants(helm: Helm) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]
            }
        }
    }
    values = {
        **ALL,
        "nodeSelector": {"rack": "2", "jetson-k3s.github.io/device-plugin": "no"},
        "affinity": affinity,
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "edge",
        "resources": {"limits": {"memory": "200Mi"}},
        "agent": {"enabled": True},
    }
    documents = [document for document in checked_builtin(helm, values) if document["kind"] == "DaemonSet"]
    assert len(documents) == 2
    for document in documents:
        spec = pod(document)
        (container,) = spec["containers"]
        assert container["resources"] == values["resources"]
        # Two programs must not serve one board: the label is not for choice.
        assert spec["nodeSelector"] == {"rack": "2", "jetson-k3s.github.io/device-plugin": "true"}
        assert spec["affinity"] == affinity
        assert spec["tolerations"] == values["tolerations"]
        assert spec["priorityClassName"] == "edge"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        metadata = document["spec"]["template"]["metadata"]
        assert metadata["labels"].items() >= ALL["podLabels"].items()
        assert metadata["annotations"].items() >= ALL["podAnnotations"].items()


def checked_builtin(helm: Helm, values: Values) -> list[Object]:
    """Render objects, of which kubernetes-validate has the schemas."""
    return checked(helm, {**values, "podMonitor": {}, "prometheusRule": {}})


def test_monitors_scrape_as_the_jobs_of_the_handbook(helm: Helm) -> None:
    files = CHECKOUT / "roles/monitoring/files"
    jobs = yaml.safe_load((files / "prometheus.yml").read_text())["scrape_configs"]
    expected = {}
    for job in jobs:
        keep, *names = job["relabel_configs"]
        program, port = keep["regex"].split(";")
        assert job["job_name"] == program
        expected[program] = (port, {(tuple(one["source_labels"]), one["target_label"]) for one in names})
    assert expected.keys() == SELECTORS.keys()
    seen = set()
    for values in (AGENT, TAINTED, {**AGENT, "nameOverride": "gpu"}):
        monitors = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"}
        found = helm.template({**values, "podMonitor": monitors})
        sets = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "DaemonSet"}
        for monitor in (one for one in found if one["kind"] == "PodMonitor"):
            assert monitor["metadata"]["labels"]["release"] == "prometheus"
            served = sets.pop(monitor["metadata"]["name"])
            assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
            assert monitor["spec"]["selector"] == served["selector"]
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            assert (endpoint["honorLabels"], endpoint["interval"]) == (True, "30s")
            *names, job = endpoint["relabelings"]
            (container,) = served["template"]["spec"]["containers"]
            assert endpoint["port"] in {port["name"] for port in container["ports"]}
            # The alerts know the jobs by these names.
            assert job["targetLabel"] == "job"
            targets = {(tuple(one["sourceLabels"]), one["targetLabel"]) for one in names}
            assert (endpoint["port"], targets) == expected[job["replacement"]]
            seen.add(job["replacement"])
        assert sets == {}
    assert seen == expected.keys()


def test_rule_has_the_alerts_of_the_handbook(helm: Helm) -> None:
    groups = yaml.safe_load((CHECKOUT / "roles/monitoring/files/alerts.yml").read_text())["groups"]
    found = []
    for values in (AGENT, TAINTED):
        rule = {"enabled": True, "labels": {"release": "prometheus"}}
        documents = helm.template({**values, "prometheusRule": rule})
        (document,) = (one for one in documents if one["kind"] == "PrometheusRule")
        assert document["metadata"]["labels"]["release"] == "prometheus"
        found += document["spec"]["groups"]
    assert found == groups


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"api": "gpu"}, "api"),
        ({"containerRuntime": "crio"}, "containerRuntime"),
        ({"container_runtime": "docker"}, "container_runtime"),
        ({"image": {"tag": 1.0}}, "tag"),
        ({"image": {"tag": "0.1.0@sha256:ab"}}, "tag"),
        ({"image": {"tag": DIGEST}}, "tag"),
        ({"image": {"digest": "0a" * 32}}, "digest"),
        ({"image": {"digest": "sha256:" + "0A" * 32}}, "digest"),
        ({"image": {"repository": "registry.example/gpu:1.0"}}, "repository"),
        ({"image": {"repository": f"registry.example/gpu@{DIGEST}"}}, "repository"),
        ({"image": {"repository": ""}}, "repository"),
        ({"image": {"name": "x"}}, "name"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"imagePullSecrets": [{"secret": "registry"}]}, "imagePullSecrets"),
        ({"nameOverride": "GPU"}, "nameOverride"),
        ({"fullnameOverride": "g" * 53}, "fullnameOverride"),
        ({"namespaceOverride": "gpus/"}, "namespaceOverride"),
        ({"commonLabels": {"app.kubernetes.io/version": "1"}}, "commonLabels"),
        ({"podLabels": {NAME: "gpu"}}, "podLabels"),
        ({"podLabels": {"note": "two words"}}, "podLabels"),
        ({"podAnnotations": {"prometheus.io/scrape": False}}, "podAnnotations"),
        ({"config": {"flags": {"plugin": {"gpuLimitDir": "limit"}}}}, "gpuLimitDir"),
        ({"config": {"sharing": {"units": 4}}}, "units"),
        ({"dra": {"extendedResourceName": "gpu"}}, "extendedResourceName"),
        ({"deviceListStrategy": "cdi-cri"}, "deviceListStrategy"),
        ({"agent": {"enabled": True, "mode": "kill"}}, "mode"),
        ({"agent": {"enabled": True, "qosPolicy": "fixed-share"}}, "qosPolicy"),
        ({"agent": {"enabled": True, "unusedAfter": "10"}}, "unusedAfter"),
        ({"metricsOnHost": "yes"}, "metricsOnHost"),
        ({"jtop": "yes"}, "jtop"),
        ({"podMonitor": {"enabled": True, "interval": "30"}}, "interval"),
        ({"prometheusRule": {"rules": []}}, "rules"),
        ({"nodeSelector": {"gpu": True}}, "nodeSelector"),
        ({"affinity": {"nodeSelectorTerms": []}}, "nodeSelectorTerms"),
        ({"tolerations": [{"key": "gpu", "effects": "NoSchedule"}]}, "effects"),
        ({"updateStrategy": {"maxSurge": 1}}, "maxSurge"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "one"}}}, "maxUnavailable"),
        ({"resources": {"memory": "1Gi"}}, "memory"),
        ({"resources": {"limits": {"memory": "1 GB"}}}, "memory"),
    ],
    ids=str,
)
def test_wrong_value_is_refused_by_name(helm: Helm, values: Values, message: str) -> None:
    refusal = helm.refusal(values)
    assert "values don't meet the specifications of the schema" in refusal
    assert message in refusal


@pytest.mark.parametrize(
    "values",
    [
        {
            "image": {
                "repository": "registry.example:5000/a__b/c-d.e",
                "tag": None,
                "digest": "sha512:" + "0a" * 64,
            }
        },
        {"image": {"repository": "[fd00::1]:5000/gpu"}},
        {
            "nameOverride": None,
            "fullnameOverride": None,
            "namespaceOverride": None,
            "priorityClassName": None,
        },
        {"podMonitor": {"enabled": True, "interval": "1m30s"}, "commonAnnotations": {"a": ""}},
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": "10%"}}},
        {"resources": {"requests": {"cpu": 0.5, "memory": "64Mi"}, "limits": {"cpu": 1, "memory": "1e8"}}},
        {"tolerations": [], "affinity": {"nodeAffinity": {}}, "global": {"anything": ["goes"]}},
        {"config": {"version": "v1", "flags": {"plugin": {"gpuLimitDir": "/srv/limit"}}}},
    ],
    ids=str,
)
def test_right_value_is_taken(helm: Helm, kubeconform: Kubeconform, values: Any) -> None:
    kubeconform(helm.template(values), "1.37")
