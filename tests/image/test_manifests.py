# SPDX-License-Identifier: Apache-2.0
"""plugin/deploy: manifests fit Kubernetes' schemas and have few rights."""

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tegra_device_plugin.throttling import node_taint, taints

from images.arm64 import build
from images.arm64.context import CHECKOUT

DEPLOY = CHECKOUT / "plugin" / "deploy"
DRIVER = "gpu.jetson-k3s.github.io"
# The oldest and the newest whose schemas are at hand.
KUBERNETES = ("1.25", "1.37")
# For people who use kubectl alone, and the roles render it, too: the mounts that its pod may write to.
PLAIN = {
    "base": ["device-plugins"],
    "agent": [],
    "dra": ["plugin", "plugins-registry", "cdi", "gpu-limit"],
    "throttle-taint": [],
}
PROGRAMS = {
    "base": "tegra-device-plugin",
    "agent": "tegra-gpu-agent",
    "dra": "tegra-dra-driver",
    "throttle-taint": "tegra-throttle-taint",
}
# The only ones with API credentials, and the first Kubernetes that can limit these.
WITH_CREDENTIALS = {"dra": ("1.34", "1.37"), "throttle-taint": ("1.30", "1.37")}
Documents = dict[tuple[str, str], dict[str, Any]]


def check(manifests: Iterable[dict[str, Any]], versions: Sequence[str]) -> None:
    """Compare manifests with Kubernetes' own schemas, strictly: a key that is not in them is an error."""
    for manifest in manifests:
        for version in versions:
            # The validation writes into what it is given.
            kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)


def documents(text: str) -> Documents:
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def plain(name: str) -> Documents:
    listed = yaml.safe_load((DEPLOY / name / "kustomization.yaml").read_text())["resources"]
    assert {"kustomization.yaml", *listed} == {path.name for path in (DEPLOY / name).glob("*.yaml")}
    return documents("---\n".join((DEPLOY / name / file).read_text() for file in listed))


def daemon_set(found: Documents) -> dict[str, Any]:
    (spec,) = (document["spec"] for (kind, _), document in found.items() if kind == "DaemonSet")
    return dict(spec)


def pod(found: Documents) -> dict[str, Any]:
    spec: dict[str, Any] = daemon_set(found)["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_manifest_fits_the_schemas_and_names_the_image_that_is_built(name: str) -> None:
    found = plain(name)
    check(found.values(), WITH_CREDENTIALS.get(name, KUBERNETES))
    assert [container["image"] for container in pod(found)["containers"]] == [build.reference()]


@pytest.mark.parametrize("name", PLAIN)
def test_selectors_are_the_same_for_ever(name: str) -> None:
    # An installed DaemonSet's selector is immutable: with another one here, no cluster takes the manifest.
    program = PROGRAMS[name]
    labels = {"app.kubernetes.io/name": program}
    found = plain(name)
    assert {document["metadata"]["name"] for key, document in found.items() if key[0] == "DaemonSet"} == {
        program
    }
    assert daemon_set(found)["selector"] == {"matchLabels": labels}
    assert daemon_set(found)["template"]["metadata"]["labels"] == labels


@pytest.mark.parametrize("name", PLAIN)
def test_a_pod_has_no_more_rights_than_it_needs(name: str) -> None:
    spec = pod(plain(name))
    (container,) = spec["containers"]
    assert spec.get("automountServiceAccountToken") == (None if name in WITH_CREDENTIALS else False)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == PLAIN[name]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}


def test_agent_only_reports_and_is_no_part_of_an_overlay() -> None:
    (container,) = pod(plain("agent"))["containers"]
    assert not {"--mode=evict", "--qos-policy=burst-share"} & set(container["args"])
    overlays = [path for path in DEPLOY.glob("*/kustomization.yaml") if path.parent.name != "agent"]
    assert overlays and not [path for path in overlays if "agent" in path.read_text()]


def test_the_pod_starts_before_those_that_need_it_and_stays() -> None:
    spec = pod(plain("base"))
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists"} in spec["tolerations"]
    (container,) = spec["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


RIGHTS = {
    "dra": {
        ("resource.k8s.io", "resourceslices"): ["get", "list", "watch", "create", "update", "delete"],
        ("resource.k8s.io", "resourceclaims"): ["get"],
        ("", "nodes"): ["get"],
    },
    "throttle-taint": {("", "nodes"): ["get", "patch"]},
}


@pytest.mark.parametrize("name", WITH_CREDENTIALS)
def test_the_api_server_lets_a_program_do_what_it_does_and_nothing_else(name: str) -> None:
    found, program = plain(name), PROGRAMS[name]
    assert {
        (group, kind): rule["verbs"]
        for rule in found["ClusterRole", program]["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    } == RIGHTS[name]
    (subject,) = found["ClusterRoleBinding", program]["subjects"]
    assert subject["name"] == pod(found)["serviceAccountName"] == program
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    policy = found["ValidatingAdmissionPolicy", program]["spec"]
    assert account in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    binding = found["ValidatingAdmissionPolicyBinding", program]["spec"]
    assert binding["validationActions"] == ["Deny"]


def test_policy_names_the_taint_that_the_program_sets() -> None:
    policy = plain("throttle-taint")["ValidatingAdmissionPolicy", "tegra-throttle-taint"]["spec"]
    others = [one["expression"] for one in policy["variables"] if one["name"].startswith("others")]
    assert len(others) == 2
    for expression in others:
        assert f"taint.key != '{taints.KEY}' || taint.effect != '{taints.EFFECT}'" in expression
    # The kubelet kills the container then: before that, the last request has to have its answer.
    assert pod(plain("throttle-taint"))["terminationGracePeriodSeconds"] > node_taint.STOP_SECONDS


def test_two_drivers_are_never_on_one_node_and_the_device_plugin_sees_the_one_that_is() -> None:
    driver = plain("dra")
    rolling = daemon_set(driver)["updateStrategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    (variable,) = pod(driver)["containers"][0]["env"]
    assert variable == {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    (own,) = (one["hostPath"]["path"] for one in pod(driver)["volumes"] if one["name"] == "plugin")
    assert own == f"/var/lib/kubelet/plugins/{DRIVER}"
    assert own in {one["hostPath"]["path"] for one in pod(plain("base"))["volumes"]}


SCHEMA = json.loads((DEPLOY / "chart/values.schema.json").read_text())
DEFAULTS = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text())


def test_schema_accepts_the_defaults() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)


def test_every_value_has_a_default_to_be_found_by() -> None:
    # A parent chart's globals reach every chart.
    assert SCHEMA["properties"].keys() - DEFAULTS.keys() == {"global"}
