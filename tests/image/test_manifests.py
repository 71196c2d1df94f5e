# SPDX-License-Identifier: Apache-2.0
"""plugin/deploy: manifests fit Kubernetes' schemas, and an overlay is the plain manifest with its change."""

from __future__ import annotations

import copy
import os
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
PLAIN = DEPLOY / "base" / "daemonset.yaml"
# The oldest and the newest whose schemas are at hand; the lab's acceptance tests apply them to 1.20.
KUBERNETES = ("1.25", "1.37")
# Those of the DRA driver need a newer Kubernetes: test_dra_manifests.py.
OVERLAYS = sorted(
    path.parent.name for path in DEPLOY.glob("*/kustomization.yaml") if not path.parent.name.startswith("dra")
)
Documents = dict[str, dict[str, Any]]


def documents(text: str) -> Documents:
    """Return manifests by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text) if document}


def pod(found: Documents) -> dict[str, Any]:
    """Return the DaemonSet's pod specification."""
    spec: dict[str, Any] = found["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def plain() -> Documents:
    """The manifest for people who use kubectl alone, which the role renders too."""
    return documents(PLAIN.read_text())


def test_the_plain_manifest_fits_the_schemas(plain: Documents) -> None:
    check(plain.values(), KUBERNETES)


def test_the_schema_check_notices_a_mistake(plain: Documents) -> None:
    pod(plain)["containers"][0]["imagePullPolice"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(plain.values(), KUBERNETES)


def test_the_plain_manifest_names_the_image_that_is_built(plain: Documents) -> None:
    assert [container["image"] for container in pod(plain)["containers"]] == [build.reference()]


def test_the_pod_has_no_more_rights_than_it_needs(plain: Documents) -> None:
    spec = pod(plain)
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["device-plugins"]


@pytest.fixture
def agent() -> Documents:
    """The node agent's manifest."""
    return documents((DEPLOY / "agent" / "daemonset.yaml").read_text())


def test_the_agents_manifest_fits_the_schemas_and_names_the_image(agent: Documents) -> None:
    check(agent.values(), KUBERNETES)
    assert [container["image"] for container in pod(agent)["containers"]] == [build.reference()]


def test_the_agent_only_looks_as_it_stands(agent: Documents) -> None:
    spec = pod(agent)
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert not {"--mode=evict", "--qos-policy=burst-share"} & set(container["args"])


def test_the_agent_is_no_part_of_what_the_plugins_overlays_apply(plain: Documents) -> None:
    overlays = [path for path in DEPLOY.glob("*/kustomization.yaml") if path.parent.name != "agent"]
    assert overlays and not [path for path in overlays if "agent" in path.read_text()]
    assert "agent" not in plain["DaemonSet"]["metadata"]["name"]


def test_the_pod_starts_before_those_that_need_it_and_stays(plain: Documents) -> None:
    spec = pod(plain)
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists"} in spec["tolerations"]
    (container,) = spec["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's kubectl, whose kustomize is the oldest that the overlays are for."""
    from tests.lab.k3s import k3s  # noqa: PLC0415 - builds K3s when asked

    link = tmp_path_factory.mktemp("bin") / "kubectl"
    link.symlink_to(k3s())
    return link


def rendered(kubectl: Path, overlay: str) -> Documents:
    """Return what `kubectl apply -k` would apply."""
    return documents(run([kubectl, "kustomize", DEPLOY / overlay]).stdout)


@pytest.mark.lab
@pytest.mark.acceptance
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_fits_the_schemas(kubectl: Path, overlay: str) -> None:
    found = rendered(kubectl, overlay)
    assert {"DaemonSet", "Job"} & set(found)
    check(found.values(), KUBERNETES)


@pytest.mark.lab
@pytest.mark.acceptance
def test_each_overlay_changes_what_it_says_and_nothing_else(kubectl: Path, plain: Documents) -> None:
    assert rendered(kubectl, "base") == plain

    docker = copy.deepcopy(plain)
    pod(docker)["containers"][0]["imagePullPolicy"] = "Never"
    assert rendered(kubectl, "docker") == docker

    containerd = rendered(kubectl, "containerd")
    assert containerd.pop("RuntimeClass")["handler"] == "nvidia"
    assert containerd == plain

    surge = copy.deepcopy(docker)
    surge["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"] = {"maxSurge": 1, "maxUnavailable": 0}
    assert rendered(kubectl, "surge") == surge


@pytest.mark.lab
@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("overlay", "offered"),
    [
        ("time-slicing", ("nvidia.com/gpu",)),
        ("units", ("jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory")),
    ],
)
def test_sharing_gives_the_plugin_a_configuration_that_it_accepts(
    overlay: str, offered: tuple[str, ...], kubectl: Path, tmp_path: Path
) -> None:
    from tegra_device_plugin.config import settings as config  # noqa: PLC0415 - here alone

    found = rendered(kubectl, overlay)
    spec = pod(found)
    (container,) = spec["containers"]
    (variable,) = container["env"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "config")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "config")
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert os.path.dirname(variable["value"]) == mount["mountPath"]  # noqa: PTH120 - a path in the pod
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"][os.path.basename(variable["value"])])  # noqa: PTH119 - the same
    content = config.read_file(file)
    assert tuple(content.counts) == offered
    assert content.sharing.replicas == (4 if overlay == "time-slicing" else 1)
