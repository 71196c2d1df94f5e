# SPDX-License-Identifier: Apache-2.0
"""The chart changes the plain manifests as the overlays and the playbooks do."""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest
import yaml
from tegra_device_plugin.cli import find_command
from tegra_device_plugin.telemetry import jtop

from release import artifacts, version
from tests.chart.conftest import CHART, RELEASE, Helm, Object, Values
from tests.image.test_manifests import check
from tests.lab.k3s import k3s
from tools.cache import CHECKOUT
from tools.process import run

pytestmark = pytest.mark.lab

DEPLOY = CHART.parent
ROLE = CHECKOUT / "plugins/plugin_utils/gpu_device_plugin_manifests.py"
# The oldest and the newest whose schemas are at hand, and the first with resource.k8s.io/v1.
KUBERNETES = ("1.25", "1.37")
KUBERNETES_WITH_DRA = ("1.34", "1.37")
KUBERNETES_WITH_TAINT = ("1.30", "1.37")
CONFIG_HASH = "jetson-k3s.github.io/config-sha256"
KUSTOMIZE_HASH = re.compile("-[a-z0-9]{10}$")
IMAGE_ID = "jetson-k3s.github.io/image-id"
CONFIGURATION = "jetson-k3s.github.io/configuration"
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
# Every object of the chart has them, and the label with its program's name.
LABELS = {
    INSTANCE: RELEASE,
    "app.kubernetes.io/version": version.current(),
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"tegra-device-plugin-{version.current()}",
}

TIME_SLICING = yaml.safe_load((DEPLOY / "time-slicing/config.yaml").read_text())
UNITS = yaml.safe_load((DEPLOY / "units/config.yaml").read_text())
CONTAINERD = {"containerRuntime": "containerd"}
DRA = {**CONTAINERD, "api": "dra"}
# Values of the chart, by the directory that has the same as a manifest.
OVERLAYS: dict[str, Values] = {
    "base": {},
    "containerd": CONTAINERD,
    "configurations": {"configurations": {"slices": {"config": TIME_SLICING}, "units": {"config": UNITS}}},
    "time-slicing": {"config": TIME_SLICING},
    "units": {"config": UNITS},
    "agent": {**CONTAINERD, "agent": {"enabled": True}},
    "throttle-taint": {**CONTAINERD, "throttleTaint": {"enabled": True}},
    "dra": DRA,
    "dra-extended-resource": {**DRA, "dra": {"extendedResourceName": "nvidia.com/gpu"}},
}
SURGE = {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}


@dataclass(frozen=True)
class Choice:
    """What can be chosen in the playbooks' variables as well."""

    config: Values | None = None
    strict: bool = False
    agent: tuple[str, str] | None = None
    """Its mode and policy."""
    host_pid: bool = False
    unused_after: str = ""
    remove_after: str | None = None
    """Of the throttle taint; None: there is none."""
    metrics_on_host: bool = False
    container_runtime: str = "docker"
    api: str = "device-plugin"
    extended_resource: bool = False
    """With DRA: pods may ask for it as well."""

    @property
    def values(self) -> Values:
        mode, policy = self.agent or ("report", "best-effort")
        return {
            "api": self.api,
            "containerRuntime": self.container_runtime,
            "config": self.config or {},
            "deviceListStrategy": "volume-mounts" if self.strict else None,
            "agent": {
                "enabled": self.agent is not None,
                "mode": mode,
                "qosPolicy": policy,
                "hostPID": self.host_pid,
                "unusedAfter": self.unused_after or None,
            },
            "throttleTaint": {
                "enabled": self.remove_after is not None,
                "removeAfter": self.remove_after or None,
            },
            "metricsOnHost": self.metrics_on_host,
            "dra": {"extendedResourceName": "nvidia.com/gpu" if self.extended_resource else None},
        }


def units(**more: Any) -> Values:
    return {"version": "v1", "sharing": {"units": {"memoryTotal": "4Gi", **more}}}


OTHER_PLACE = {"flags": {"plugin": {"gpuLimitDir": "/srv/limit"}}}
UDEV = {"paths": [{"path": "/dev/video*", "udev": {"ID_VENDOR_ID": "046d"}}, {"path": "/dev/media0"}]}
DEVICES = {"version": "v1", "devices": [{"preset": "argus"}, {"name": "camera", "groups": [UDEV, UDEV]}]}
BOARD_METRICS = {"flags": {"plugin": {"boardMetrics": True}}}
CLAIMS = {"version": "v1", "sharing": {"dra": {"mode": "shares", "shares": 2}}}
with_dra = partial(Choice, container_runtime="containerd", api="dra")
CHOICES = {
    "docker": Choice(),
    "containerd": Choice(container_runtime="containerd"),
    "strict": Choice(strict=True),
    "thor": Choice(agent=("report", "best-effort"), host_pid=True),
    "unused": Choice(agent=("report", "best-effort"), unused_after="10m"),
    "taint": Choice(units(), remove_after="30m", metrics_on_host=True),
    "metrics": Choice(metrics_on_host=True, agent=("report", "best-effort")),
    "time-slicing": Choice(TIME_SLICING, agent=("evict", "best-effort")),
    "units": Choice(units(), strict=True, agent=("evict", "burst-share")),
    "per-pod": Choice(units(), agent=("report", "per-pod")),
    "elsewhere": Choice(units() | OTHER_PLACE, agent=("report", "burst-share")),
    "koordinator": Choice(units(preset="koordinator"), agent=("report", "best-effort")),
    "devices": Choice(DEVICES | BOARD_METRICS, agent=("report", "best-effort")),
    "dra": with_dra(),
    "dra-taint": with_dra(CLAIMS, remove_after=""),
    "dra-shares": with_dra(CLAIMS, extended_resource=True),
    "dra-elsewhere": with_dra(CLAIMS | OTHER_PLACE, metrics_on_host=True),
}


def key(document: Object) -> tuple[str, str]:
    """What a manifest is known by in its namespace."""
    return document["kind"], document["metadata"]["name"]


def kubernetes_with(values: Values) -> tuple[str, str]:
    """The oldest and the newest Kubernetes that has what the chart needs with these values."""
    tainted = values.get("throttleTaint", {}).get("enabled")
    versions = KUBERNETES_WITH_TAINT if tainted else KUBERNETES
    return KUBERNETES_WITH_DRA if values.get("api") == "dra" else versions


def checked(helm: Helm, values: Values) -> list[Object]:
    found = helm.template(values)
    check(found, kubernetes_with(values))
    return found


def pod(document: Object) -> Object:
    spec: Object = document["spec"]["template"]["spec"]
    return spec


def normal(documents: list[Object]) -> dict[tuple[str, str], Object]:
    """Return manifests without the settings' form and hash, and without the order of mounts.

    The hash is in the map's name with kubectl, and an annotation with Helm and the playbooks.
    """
    found = {}
    for document in copy.deepcopy(documents):
        if document["kind"] == "ConfigMap":
            document["metadata"]["name"] = KUSTOMIZE_HASH.sub("", document["metadata"]["name"])
            document["data"] = {name: yaml.safe_load(text) for name, text in document["data"].items()}
            if document["metadata"].get("labels", {}).pop(CONFIGURATION, None):
                document["metadata"] = {key: part for key, part in document["metadata"].items() if part}
        if document["kind"] == "DaemonSet":
            document["spec"]["template"]["metadata"]["annotations"].pop(CONFIG_HASH, None)
            for container in pod(document)["containers"]:
                container["volumeMounts"].sort(key=lambda mount: mount["name"])
            pod(document)["volumes"].sort(key=lambda volume: volume["name"])
            for volume in pod(document)["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = KUSTOMIZE_HASH.sub("", volume["configMap"]["name"])
        found[key(document)] = document
    assert len(found) == len(documents)
    return found


def without_release(documents: dict[tuple[str, str], Object]) -> dict[tuple[str, str], Object]:
    """Return manifests of the chart without the release's labels, which every object has.

    The plain ones have only a name, and none at all where kubectl or a playbook makes the object.
    """
    for document in documents.values():
        labels = document["metadata"]["labels"]
        assert {name: labels.pop(name) for name in LABELS} == LABELS
        if document["kind"] in ("ConfigMap", "RuntimeClass"):
            assert document["metadata"].pop("labels").keys() == {NAME}
        if document["kind"] == "DaemonSet":
            spec = document["spec"]
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            for labels in (spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]):
                assert labels.pop(INSTANCE) == RELEASE
    return documents


@cache
def overlay(name: str) -> str:
    return run([k3s(), "kubectl", "kustomize", DEPLOY / name]).stdout


@pytest.mark.parametrize("name", OVERLAYS)
def test_chart_renders_what_an_overlay_applies(helm: Helm, name: str) -> None:
    found = without_release(normal(checked(helm, OVERLAYS[name])))
    applied = normal([document for document in yaml.safe_load_all(overlay(name)) if document])
    if name in ("agent", "throttle-taint"):  # which are applied beside an overlay of the plugin
        applied |= normal(list(yaml.safe_load_all(overlay("containerd"))))
    assert found == applied


def test_every_overlay_is_a_choice_of_the_chart() -> None:
    assert {path.parent.name for path in DEPLOY.glob("*/kustomization.yaml")} == {*OVERLAYS, "verify"}


def deployed(choice: Choice) -> list[Object]:
    role: dict[str, Callable[..., list[Object]]] = runpy.run_path(str(ROLE))
    image = f"tegra-device-plugin:{version.current()}"
    return [*deployed_main(choice, role, image), *deployed_taint(choice, role, image)]


def sources(overlay: str) -> list[str]:
    """The texts of an overlay's manifests."""
    files = yaml.safe_load((DEPLOY / overlay / "kustomization.yaml").read_text())["resources"]
    return [(DEPLOY / overlay / name).read_text() for name in files]


def deployed_taint(choice: Choice, role: dict[str, Callable[..., list[Object]]], image: str) -> list[Object]:
    if choice.remove_after is None:
        return []
    return role["rendered_throttle_taint"](
        sources("throttle-taint"),
        image,
        "sha256:ab",
        remove_after=choice.remove_after,
        metrics_on_host=choice.metrics_on_host,
    )


def deployed_main(choice: Choice, role: dict[str, Callable[..., list[Object]]], image: str) -> list[Object]:
    if choice.api == "dra":
        return role["rendered_driver"](
            sources("dra"),
            image,
            "sha256:ab",
            extended_resource=choice.extended_resource,
            config=choice.config,
            metrics_on_host=choice.metrics_on_host,
        )
    agent = None
    if choice.agent:
        manifest = (DEPLOY / "agent/daemonset.yaml").read_text()
        rights = json.loads((DEPLOY / "agent/rights.json").read_text())
        mode, policy = choice.agent
        agent = {"manifest": manifest, "rights": rights, "mode": mode, "qos_policy": policy}
        agent |= {"host_pid": choice.host_pid, "unused_after": choice.unused_after}
    return role["rendered"](
        (DEPLOY / "base/daemonset.yaml").read_text(),
        image,
        "sha256:ab",
        choice.container_runtime,
        choice.strict,
        config=choice.config,
        agent=agent,
        metrics_on_host=choice.metrics_on_host,
    )


def without_ways(documents: dict[tuple[str, str], Object]) -> dict[tuple[str, str], Object]:
    """Return manifests without what the playbooks do on purpose: they load images, and renew pods themselves.

    The agent's options count by what they mean, as the playbooks write out the defaults, too.
    """
    for document in documents.values():
        if document["kind"] == "DaemonSet":
            del document["spec"]["updateStrategy"]
            document["spec"]["template"]["metadata"]["annotations"].pop(IMAGE_ID, None)
            for container in pod(document)["containers"]:
                del container["imagePullPolicy"]
                command, *arguments = container["args"]
                parser = argparse.ArgumentParser()
                find_command(command).add_arguments(parser)
                container["args"] = {"command": command, **vars(parser.parse_args(arguments))}
    return documents


@pytest.mark.parametrize("name", CHOICES)
def test_chart_renders_what_the_playbooks_deploy(helm: Helm, name: str) -> None:
    found = without_release(normal(checked(helm, CHOICES[name].values)))
    assert without_ways(found) == without_ways(normal(deployed(CHOICES[name])))


@pytest.mark.parametrize("api", ["device-plugin", "dra"])
def test_a_configuration_has_its_own_daemonset_label_and_choices(helm: Helm, api: str) -> None:
    label = f"jetson-k3s.github.io/{api}"
    own = {"nodeSelector": {"nvidia.com/device-plugin.config": "own"}, "config": {"version": "v1"}}
    values: Values = {
        **(DRA if api == "dra" else {"agent": {"enabled": True}, "deviceListStrategy": "volume-mounts"}),
        "nodeSelector": {"rack": "2"},
        "configurations": {
            "units": {"config": UNITS if api == "device-plugin" else CLAIMS, "agent": {"enabled": False}},
            "own": {**own, **({"deviceListStrategy": "envvar"} if api == "device-plugin" else {})},
        },
    }
    found = {key(one): one for one in checked(helm, values)}
    main = "tegra-dra-driver" if api == "dra" else "tegra-device-plugin"
    daemonsets = {name: one for (kind, name), one in found.items() if kind == "DaemonSet"}
    agents = {"tegra-gpu-agent", "tegra-gpu-agent-own"} if api == "device-plugin" else set()
    assert daemonsets.keys() == {main, f"{main}-units", f"{main}-own", *agents}
    rack = {"rack": "2"}
    assert pod(daemonsets[main])["nodeSelector"] == {label: "true", **rack}
    assert pod(daemonsets[f"{main}-units"])["nodeSelector"] == {label: "units", **rack}
    assert pod(daemonsets[f"{main}-own"])["nodeSelector"] == {**own["nodeSelector"], **rack}
    selectors = {name: one["spec"]["selector"]["matchLabels"] for name, one in daemonsets.items()}
    assert CONFIGURATION not in selectors[main]
    assert selectors[f"{main}-units"][CONFIGURATION] == "units"
    maps = {name for kind, name in found if kind == "ConfigMap"}
    assert maps == {f"{main}-units", f"{main}-own"}
    if api == "dra":
        assert {pod(one)["serviceAccountName"] for one in daemonsets.values()} == {main}
        return
    strategies = {
        name: [one for one in pod(daemonsets[name])["containers"][0]["args"] if "strategy" in one]
        for name in (main, f"{main}-own")
    }
    chosen = {main: "volume-mounts", f"{main}-own": "envvar"}
    assert strategies == {name: [f"--device-list-strategy={one}"] for name, one in chosen.items()}


@pytest.mark.parametrize("name", ["Big", "true", "a.b", "x" * 64])
def test_name_that_cannot_be_a_configurations_is_refused(helm: Helm, name: str) -> None:
    said = helm.refusal({"configurations": {name: {"config": {"version": "v1"}}}})
    assert f"invalid propertyName '{name}'" in said


@pytest.mark.parametrize("name", [*CHOICES, "default"])
def test_the_directory_of_jtops_relay_is_read_only_and_can_be_left_out(helm: Helm, name: str) -> None:
    values = CHOICES[name].values if name in CHOICES else {}
    with_it, without = (helm.template({**values, **more}) for more in ({}, {"jtop": False}))
    for before, after in zip(with_it, without, strict=True):
        if before["kind"] == "DaemonSet" and before["metadata"]["name"] == "tegra-device-plugin":
            (container,) = pod(before)["containers"]
            (mount,) = (one for one in container["volumeMounts"] if one["name"] == "jtop")
            (volume,) = (one for one in pod(before)["volumes"] if one["name"] == "jtop")
            assert mount == {"name": "jtop", "mountPath": f"/host{jtop.DIRECTORY}", "readOnly": True}
            assert volume["hostPath"]["path"] == jtop.DIRECTORY
            container["volumeMounts"].remove(mount)
            pod(before)["volumes"].remove(volume)
        assert before == after


def test_other_settings_make_the_pods_new(helm: Helm) -> None:
    hashes = set()
    for total in ("4Gi", "5Gi"):
        values = {"config": units(memoryTotal=total), "agent": {"enabled": True}}
        found = {key(document): document for document in helm.template(values)}
        text = found["ConfigMap", "tegra-device-plugin"]["data"]["config.yaml"]
        expected = hashlib.sha256(text.encode()).hexdigest()
        for name in ("tegra-device-plugin", "tegra-gpu-agent"):
            template = found["DaemonSet", name]["spec"]["template"]
            assert template["metadata"]["annotations"][CONFIG_HASH] == expected
        hashes.add(text)
    assert len(hashes) == 2


def test_numbers_of_the_settings_stay_as_they_were_written(helm: Helm) -> None:
    values = {"config": units(memoryTotal=4294967296)}
    (found,) = (document for document in helm.template(values) if document["kind"] == "ConfigMap")
    assert "memoryTotal: 4294967296\n" in found["data"]["config.yaml"]


def test_image_and_placement_are_the_users(helm: Helm) -> None:
    values = {
        "image": {"repository": "registry.example/gpu", "tag": "9.9.9-own", "pullPolicy": "Always"},
        "nodeSelector": {"rack": "2", "jetson-k3s.github.io/device-plugin": "no"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "edge",
        "resources": {"limits": {"memory": "200Mi"}},
        "agent": {"enabled": True},
    }
    for document in checked(helm, values):
        spec = pod(document)
        (container,) = spec["containers"]
        assert container["image"] == "registry.example/gpu:9.9.9-own"
        assert container["imagePullPolicy"] == "Always"
        assert container["resources"] == values["resources"]
        # Two programs must not serve one board: the label is not for choice.
        assert spec["nodeSelector"] == {"rack": "2", "jetson-k3s.github.io/device-plugin": "true"}
        assert spec["tolerations"] == values["tolerations"]
        assert spec["priorityClassName"] == "edge"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dra": {"extendedResourceName": "nvidia.com/gpu"}}, "dra.extendedResourceName is the DRA driver's"),
        ({**DRA, "containerRuntime": "docker"}, "api: dra needs containerd"),
        ({**DRA, "deviceListStrategy": "envvar"}, "deviceListStrategy is the device plugin's"),
        ({**DRA, "agent": {"enabled": True}}, "agent.enabled: "),
        ({**DRA, **SURGE}, "maxSurge is the device plugin's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_do_not_go_together_are_refused_with_the_way_out(
    helm: Helm, values: Values, message: str
) -> None:
    assert message in helm.refusal(values)


@pytest.mark.parametrize(
    ("kubernetes", "values", "message"),
    [
        ("1.19.16", {}, "1.20"),
        ("1.24.17", SURGE, "maxSurge needs Kubernetes 1.25, and this is v1.24.17"),
        (
            "1.29.9",
            OVERLAYS["throttle-taint"],
            "throttleTaint.enabled needs Kubernetes 1.30, and this is v1.29.9",
        ),
        ("1.33.9", DRA, "api: dra needs Kubernetes 1.34, and this is v1.33.9"),
        ("1.35.2", OVERLAYS["dra-extended-resource"], "needs Kubernetes 1.36, and this is v1.35.2"),
    ],
)
def test_kubernetes_that_is_too_old_is_refused(
    helm: Helm, kubernetes: str, values: Values, message: str
) -> None:
    assert message in replace(helm, kubernetes=kubernetes).refusal(values)


def test_surge_that_is_none_needs_no_newer_kubernetes(helm: Helm) -> None:
    assert replace(helm, kubernetes="1.24.17").template(
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}
    )


def test_packed_chart_is_the_same(helm: Helm, tmp_path: Any) -> None:
    packed = artifacts.chart(tmp_path)
    assert packed.name == f"tegra-device-plugin-{version.current()}.tgz"
    values = OVERLAYS["units"]
    assert replace(helm, chart=packed).template(values) == helm.template(values)
