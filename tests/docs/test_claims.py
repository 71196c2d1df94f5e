# SPDX-License-Identifier: Apache-2.0
"""Kubernetes takes the manifests of docs/dra.md and docs/other-systems.md, and the driver's slice.

docs/dra.md names the driver's classes.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.devices import published
from tegra_device_plugin.system.kubernetes import parse_quantity

from tests.docs import CHECKOUT, markdown
from tests.image.test_manifests import check
from tests.unit.plugin.dra.objects import gpu

Object = dict[str, Any]

PAGE = markdown.read(CHECKOUT / "docs/dra.md")
OTHER_SYSTEMS = markdown.read(CHECKOUT / "docs/other-systems.md")
MANIFESTS: list[Object] = [
    manifest
    for block in (*PAGE.blocks, *OTHER_SYSTEMS.blocks)
    if block.text.startswith("apiVersion:")
    for manifest in yaml.safe_load_all(block.text)
]
# The first with resource.k8s.io/v1, and the newest whose schemas are at hand.
KUBERNETES = ("1.34", "1.37")


@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: str(one["kind"]))
def test_kubernetes_takes_the_manifest(manifest: Object, release: str) -> None:
    check([manifest], [release])


def test_classes_of_the_driver_are_named() -> None:
    objects = yaml.safe_load_all((CHECKOUT / "plugin/deploy/dra/cluster.yaml").read_text())
    names = {one["metadata"]["name"] for one in objects if one["kind"] == "DeviceClass"}
    assert names and names <= set(PAGE.code)


@pytest.mark.parametrize("release", KUBERNETES)
def test_kubernetes_takes_the_slice_of_the_driver(tmp_path: Path, release: str) -> None:
    dra = Dra("capacity", memory_total=parse_quantity("4Gi"))
    devices = published(gpu(tmp_path, "orinnano-jp6"), dra, taints=True)
    described = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "jetson-1"},
        "spec": slices.spec("jetson-1", devices, 1),
    }
    check([described], [release])


def test_claims_request_what_the_slice_of_the_driver_has(tmp_path: Path) -> None:
    dra = Dra("capacity", memory_total=parse_quantity("4Gi"))
    (device,) = published(gpu(tmp_path, "orinnano-jp6"), dra, taints=True)
    specs = [
        one["spec"]["spec"] if one["kind"] == "ResourceClaimTemplate" else one["spec"]
        for path in (CHECKOUT / "docs/examples").glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one and one["kind"].startswith("ResourceClaim")
    ]
    requests = [request["exactly"] for spec in specs for request in spec["devices"]["requests"]]
    shares = [request["capacity"]["requests"] for request in requests if "capacity" in request]
    assert shares
    for share in shares:
        for name, requested in share.items():
            allowed = device["capacity"][name]["requestPolicy"]["validRange"]
            least, most, step, size = (
                parse_quantity(str(text))
                for text in (allowed["min"], allowed["max"], allowed["step"], requested)
            )
            assert least <= size <= most
            assert (size - least) % step == 0
