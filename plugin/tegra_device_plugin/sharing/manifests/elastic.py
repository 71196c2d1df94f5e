# SPDX-License-Identifier: Apache-2.0
"""Judges the objects of Elastic GPU, and pods that name one of its claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tegra_device_plugin.sharing.manifests import amounts
from tegra_device_plugin.sharing.manifests.claims import SHARED_CLASS
from tegra_device_plugin.sharing.manifests.findings import Finding, Verdict
from tegra_device_plugin.sharing.manifests.text import Field, Section
from tegra_device_plugin.system.kubernetes import DRIVER, GIB, MIB, render_quantity

API_GROUP = "elasticgpu.io/"
CLAIM_ANNOTATION = re.compile(r"egpuc\.elasticgpu\.io/.+|elasticgpu\.io/egpuc-.+")
_WRITE = {
    "ElasticGPUClass": f"name the class {DRIVER} or {SHARED_CLASS} in a ResourceClaim",
    "ElasticGPUClaim": "write a ResourceClaim, or a preset's names into the limits of the pod",
}
_WAITS = "a claim gets its device when its first pod is scheduled"
_FIELDS: Mapping[tuple[str, str], tuple[Verdict, str]] = {
    ("bindingmode", "immediate"): ("refused", f"no counterpart: {_WAITS}"),
    ("bindingmode", "waitforfirstconsumer"): ("translated", f"the same as in DRA: {_WAITS}"),
    ("reclaimpolicy", "retain"): (
        "refused",
        "no counterpart: if no pod uses a ResourceClaim any more, its device is free",
    ),
    ("reclaimpolicy", "delete"): (
        "translated",
        "the same as in DRA: the claim of a ResourceClaimTemplate is deleted with its pod",
    ),
}
# By the end of a name in a claim: the name in a pod's limits, and the bytes of one (0: percents).
_NAMES = {
    "gpu-core": ("elasticgpu.io/gpu-core", 0),
    "gpu-memory": ("elasticgpu.io/gpu-memory", MIB),
    "qgpu-core": ("tke.cloud.tencent.com/qgpu-core", 0),
    "qgpu-memory": ("tke.cloud.tencent.com/qgpu-memory", GIB),
}


def judge(found: Section) -> Iterator[Finding]:
    """Give findings on an ElasticGPU, ElasticGPUClaim, ElasticGPUClass or GPU."""
    kind = found.fields["kind"]
    instead = _WRITE.get(kind.text, "the DRA driver writes the GPUs into ResourceSlices")
    yield Finding("refused", kind, f"nothing here reads it: {instead} (docs/dra.md)")
    for field in found:
        key = field.key.lower()
        key = "bindingmode" if key.endswith("bindingmode") else key
        if known := _FIELDS.get((key, field.text.lower())):
            yield Finding(known[0], field, known[1])
    for key in ("storageClassName", "egpuClassName"):
        if named := found.find("spec", key):
            yield Finding(
                "refused", named, "the CRD has elasticGPUClassName; in a ResourceClaim, deviceClassName"
            )
    for field in found.section("spec", "resources", "requests"):
        if line := _as_capacity(field):
            problem = "" if amounts.number(field.text) else f"{amounts.reading(field.text)}. "
            text = f"{problem}In a ResourceClaim, write {line} below capacity.requests"
            yield Finding("refused", field, text)


def annotation(field: Field, claims: Mapping[str, Section]) -> Finding:
    """Give the finding on the annotation by which a pod names a claim. `claims`: their requests, by name."""
    requests = claims.get(field.text)
    limits = ", ".join(_as_limits(requests)) if requests else "the amounts of the claim"
    text = f"nothing here makes limits of it: the pod gets no GPU. Write resources.limits: {limits}"
    return Finding("refused", field, text)


def _as_capacity(field: Field) -> str:
    """Give the line of a ResourceClaim for an amount of an ElasticGPUClaim, empty for another name."""
    _, unit = _NAMES.get(field.key.rpartition("/")[2], ("", -1))
    number = amounts.number(field.text)
    if unit > 0:
        size = number * unit if number is not None else amounts.size(field.text)
        return f"memory: {render_quantity(size)}" if size else ""
    return f'cores: "{number}"' if unit == 0 and number else ""


def _as_limits(requests: Section) -> Iterator[str]:
    for field in requests:
        name, unit = _NAMES.get(field.key.rpartition("/")[2], (field.key, 0))
        size = amounts.size(field.text)
        if amounts.number(field.text) is None and unit and size:
            yield f"{name}: {-(-size // unit)}"
        else:
            yield f"{name}: {field.text}"
