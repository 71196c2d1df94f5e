# SPDX-License-Identifier: Apache-2.0
"""docs/elastic-gpu.md: manifests that Kubernetes takes, with the names that the driver has."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.devices import published
from tegra_device_plugin.system.kubernetes import DRIVER, parse_quantity

from tests.docs import CHECKOUT, markdown
from tests.image.schemas import check
from tests.unit.plugin.dra.objects import gpu

Object = dict[str, Any]

PAGE = markdown.read(CHECKOUT / "docs/elastic-gpu.md")
MANIFESTS: list[Object] = [yaml.safe_load(block.text) for block in PAGE.blocks if block.language == "yaml"]
# The first with resource.k8s.io/v1, and the newest whose schemas are at hand.
KUBERNETES = ("1.34", "1.37")


def is_elastic(manifest: Object) -> bool:
    return str(manifest["apiVersion"]) == "elasticgpu.io/v1alpha1"


def ours(kind: str) -> list[Object]:
    """The manifests of a kind that Kubernetes takes."""
    return [one for one in MANIFESTS if one["kind"] == kind and not is_elastic(one)]


@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize(
    "manifest", [one for one in MANIFESTS if not is_elastic(one)], ids=lambda one: str(one["kind"])
)
def test_kubernetes_takes_the_manifest(manifest: Object, release: str) -> None:
    check([manifest], [release])


def test_class_is_the_one_that_comes_with_the_driver() -> None:
    (described,) = ours("DeviceClass")
    text = (CHECKOUT / "plugin/deploy/dra/deviceclasses.yaml").read_text()
    deployed = {one["metadata"]["name"]: one for one in yaml.safe_load_all(text)}
    assert described == deployed[described["metadata"]["name"]]
    named = {code for code in PAGE.code if code in deployed}
    assert named | {described["metadata"]["name"]} == deployed.keys()


def test_slice_is_what_the_driver_publishes(tmp_path: Path) -> None:
    (described,) = ours("ResourceSlice")
    dra = Dra("capacity", memory_total=parse_quantity("4Gi"))
    devices = published(gpu(tmp_path, "orinnano-jp6"), dra, taints=True)
    assert described["spec"] == slices.spec("jetson-1", devices, 1)
    assert described["metadata"]["name"].startswith(f"jetson-1-{DRIVER}-")
