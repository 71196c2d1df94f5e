# SPDX-License-Identifier: Apache-2.0
"""Judges annotations and labels by which other systems choose a GPU, a policy or a priority."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tegra_device_plugin.sharing.manifests.findings import Finding, Verdict
from tegra_device_plugin.sharing.manifests.text import Field, Section

_READ = "the node agent reads it with qosPolicy per-pod"
_WEIGHTS = f"{_READ}: percents are a weight under contention"
_NO_CHOICE = "no effect: a board has one GPU"
_ANY_BOARD = "not read: the pod can get any board. Choose by nodeSelector, such as nvidia.com/gpu.product"
_NO_PRIORITY = "not read: no pod has priority. With the node agent's burst-share, percents are a weight"
_ANNOTATIONS: tuple[tuple[str, Verdict, str], ...] = (
    (r"hami\.io/(node|gpu)-scheduler-policy", "runs", _NO_CHOICE),
    (r"metax-tech\.com/sgpu-topology-aware", "runs", _NO_CHOICE),
    (r"scheduling\.koordinator\.sh/(device-allocate-hint|numa-topology-spec)", "runs", _NO_CHOICE),
    (r"(nvidia|metax-tech)\.com/(no)?use-gpu(type|uuid)", "translated", _ANY_BOARD),
    (r"metax-tech\.com/sgpu-app-class", "translated", _NO_PRIORITY),
    (r"tke\.cloud\.tencent\.com/app-class", "translated", _NO_PRIORITY),
    (
        r"nvidia\.com/vgpu-mode",
        "translated",
        "not read: all boards have one mode, that of their configuration",
    ),
    (r"tencent\.com/vcuda-core-limit", "translated", "not read: nothing limits the GPU's time"),
)
_QGPU_POLICY = "tke.cloud.tencent.com/qgpu-schedule-policy"
_FOREIGN_LABEL = re.compile(r"(tke\.cloud\.tencent\.com|metax-tech\.com|elasticgpu\.io)/.*|(mixed-)?qgpu-.*")
METAX_MODES = (
    "nothing here reads it. The mode of a board is its configuration: for sgpu write units with preset "
    "metax, for shared timeSlicing, for native neither; vgpu has no counterpart"
)


def judge(field: Field, core: str) -> Finding | None:
    """Give a finding on an annotation of a pod. `core` is the name of the percents that it requests."""
    if field.key == "metax-tech.com/sgpu-qos-policy":
        return _qos(field, core)
    for pattern, verdict, text in _ANNOTATIONS:
        if re.fullmatch(pattern, field.key):
            return Finding(verdict, field, text)
    return None


def _qos(field: Field, core: str) -> Finding:
    policy = field.text
    if policy == "best-effort" and not core:
        return Finding("runs", field, "a pod without percents has the driver's own turns")
    if policy == "best-effort":
        return Finding("translated", field, f"{_READ}: the driver's own turns, and {core} is only counted")
    if policy == "burst-share":
        return Finding("translated", field, _WEIGHTS)
    if policy == "fixed-share":
        return Finding(
            "translated", field, f"{_WEIGHTS}, and no limit, because nvgpu gives idle time to a busy pod"
        )
    return Finding("refused", field, "MetaX has best-effort, burst-share and fixed-share")


def labels(found: Section) -> Iterator[Finding]:
    """Give findings on the labels of an object."""
    if field := found.fields.get(_QGPU_POLICY):
        text = "not read: set the policy of boards in gpu_device_plugin_agent, key qosPolicy"
        yield Finding("translated", field, text)


def node_selector(found: Section) -> Iterator[Finding]:
    """Give findings on the labels by which a pod chooses nodes."""
    for field in found:
        if _FOREIGN_LABEL.fullmatch(field.key):
            yield Finding("refused", field, "no board has this label, so the pod stays Pending", ())
