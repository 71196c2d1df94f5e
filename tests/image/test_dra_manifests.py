# SPDX-License-Identifier: Apache-2.0
"""plugin/deploy/dra: it fits Kubernetes' schemas, with the rights that the driver needs and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # has no stubs
import pytest
import yaml

from images.arm64 import build
from images.arm64.context import CHECKOUT
from tests.image.schemas import check
from tools.process import run

DEPLOY = CHECKOUT / "plugin" / "deploy"
DRIVER = "gpu.jetson-k3s.github.io"
# The first with resource.k8s.io/v1, and the newest whose schemas are at hand.
KUBERNETES = ("1.34", "1.37")
Documents = dict[tuple[str, str], dict[str, Any]]


def documents(text: str) -> Documents:
    """Return manifests by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


@pytest.fixture
def plain() -> Documents:
    """The manifests for people who use kubectl alone, which the role renders too."""
    listed = yaml.safe_load((DEPLOY / "dra" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        path.name for path in (DEPLOY / "dra").glob("*.yaml") if path.name != "kustomization.yaml"
    )
    return documents("".join((DEPLOY / "dra" / name).read_text() for name in listed))


def pod(found: Documents) -> dict[str, Any]:
    """Return the DaemonSet's pod specification."""
    spec: dict[str, Any] = found["DaemonSet", "tegra-dra-driver"]["spec"]["template"]["spec"]
    return spec


def test_the_manifests_fit_the_schemas(plain: Documents) -> None:
    check(plain.values(), KUBERNETES)


def test_the_schema_check_notices_a_mistake(plain: Documents) -> None:
    plain["DeviceClass", DRIVER]["spec"]["selectors"][0]["cell"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(plain.values(), KUBERNETES)


def test_the_driver_is_of_the_image_that_is_built(plain: Documents) -> None:
    assert [container["image"] for container in pod(plain)["containers"]] == [build.reference()]


def test_the_driver_writes_where_it_must_and_has_no_more_rights(plain: Documents) -> None:
    spec = pod(plain)
    (container,) = spec["containers"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["plugin", "plugins-registry", "cdi", "gpu-limit"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}


def test_the_api_server_lets_it_do_what_it_does_and_nothing_else(plain: Documents) -> None:
    rules = plain["ClusterRole", "tegra-dra-driver"]["rules"]
    allowed = {
        (group, kind): rule["verbs"]
        for rule in rules
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert allowed == {
        ("resource.k8s.io", "resourceslices"): ["get", "list", "watch", "create", "update", "delete"],
        ("resource.k8s.io", "resourceclaims"): ["get"],
        ("", "nodes"): ["get"],
    }
    (subject,) = plain["ClusterRoleBinding", "tegra-dra-driver"]["subjects"]
    assert subject["name"] == pod(plain)["serviceAccountName"] == "tegra-dra-driver"
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    policy = plain["ValidatingAdmissionPolicy", "tegra-dra-driver"]["spec"]
    assert account in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    assert plain["ValidatingAdmissionPolicyBinding", "tegra-dra-driver"]["spec"]["validationActions"] == [
        "Deny"
    ]


def test_two_drivers_are_never_on_one_node(plain: Documents) -> None:
    strategy = plain["DaemonSet", "tegra-dra-driver"]["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    (variable,) = pod(plain)["containers"][0]["env"]
    assert (variable["name"], variable["valueFrom"]["fieldRef"]["fieldPath"]) == (
        "NODE_NAME",
        "spec.nodeName",
    )


def test_the_device_plugin_sees_the_driver_that_serves_its_board(plain: Documents) -> None:
    text = (DEPLOY / "base" / "daemonset.yaml").read_text()
    plugin = documents(text)["DaemonSet", "tegra-device-plugin"]["spec"]["template"]["spec"]
    seen = {one["hostPath"]["path"] for one in plugin["volumes"]}
    (own,) = (one["hostPath"]["path"] for one in pod(plain)["volumes"] if one["name"] == "plugin")
    assert own in seen
    assert own == f"/var/lib/kubelet/plugins/{DRIVER}"


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's kubectl of the Kubernetes that has DRA."""
    from tests.lab.k3s import k3s  # noqa: PLC0415 - builds K3s when asked

    link = tmp_path_factory.mktemp("bin") / "kubectl"
    link.symlink_to(k3s())
    return link


@pytest.mark.lab
@pytest.mark.acceptance
def test_the_overlay_names_the_extended_resource_and_changes_nothing_else(
    kubectl: Path, plain: Documents
) -> None:
    assert documents(run([kubectl, "kustomize", DEPLOY / "dra"]).stdout) == plain
    bridged = documents(run([kubectl, "kustomize", DEPLOY / "dra-extended-resource"]).stdout)
    check(bridged.values(), KUBERNETES)
    assert bridged["DeviceClass", DRIVER]["spec"].pop("extendedResourceName") == "nvidia.com/gpu"
    assert bridged == plain
