# SPDX-License-Identifier: Apache-2.0
"""Judges pods, and templates of pods, that request a GPU by the names of another system."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from tegra_device_plugin.config.units import PERCENT, PRESETS
from tegra_device_plugin.sharing.manifests import amounts, elastic, metadata
from tegra_device_plugin.sharing.manifests.findings import Finding
from tegra_device_plugin.sharing.manifests.text import Field, Section
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE

if TYPE_CHECKING:
    from tegra_device_plugin.config.file import File

TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where objects have their pod."""
# Names that no preset has, by the preset for the rest of such a pod.
_MORE_NAMES: Mapping[str, tuple[str, ...]] = {
    "hami": ("nvidia.com/priority",),
    "elastic": ("elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"),
    "qgpu": ("tke.cloud.tencent.com/qgpu-core-greedy",),
    "gpushare": ("aliyun.com/gpu-count",),
}
PREFIXES = (
    "aliyun.com/gpu",
    "cambricon.com/",
    "elasticgpu.com/",
    "elasticgpu.io/",
    "huawei.com/",
    "jetson-k3s.github.io/gpu-",
    "koordinator.sh/",
    "metax-tech.com/",
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/priority",
    "tencent.com/vcuda-",
    "tke.cloud.tencent.com/qgpu-",
)
"""How names begin that only components of GPU sharing advertise."""


class Pod:
    """A pod, with the preset that its names need (empty: none)."""

    def __init__(self, found: Section, config: File | None, claims: Mapping[str, Section]) -> None:
        self._metadata = found.section("metadata")
        self._spec = found.section("spec")
        self._config = config
        self._elastic_claims = claims
        self._containers = self._spec.sections("containers") + self._spec.sections("initContainers")
        own = {*config.counts} if config else set()
        self._names = {
            field.key
            for container in self._containers
            for field in _resources(container)
            if field.key.startswith(PREFIXES) or field.key in own
        }
        units = config.units if config else None
        if units and self._names & {*units.resources, *units.unserved, *_MORE_NAMES.get(units.preset, ())}:
            self.preset = units.preset
            self._offer: amounts.Offer | None = amounts.offer_of(units)
        else:
            self.preset = _preset_of(self._names)
            self._offer = amounts.default_offer(self.preset) if self.preset else None

    @property
    def requests_gpu(self) -> bool:
        return bool(self._names)

    def findings(self) -> Iterator[Finding]:
        yield from self._components()
        yield from metadata.node_selector(self._spec.section("nodeSelector"))
        for field in self._metadata.section("annotations"):
            if elastic.CLAIM_ANNOTATION.fullmatch(field.key):
                yield elastic.annotation(field, self._elastic_claims)
            elif found := metadata.judge(field, self._core_name()):
                yield found
        if problem := self._other_configuration():
            fields = (field for one in self._containers for field in _resources(one))
            first = min((one for one in fields if one.key in self._names), key=lambda field: field.start)
            yield Finding("refused", first, problem)
            return
        for container in self._containers:
            yield from self._container(container)

    def _components(self) -> Iterator[Finding]:
        """Give findings on components of the other system that the pod names."""
        scheduler = self._spec.find("schedulerName")
        if scheduler and scheduler.text != "default-scheduler":
            text = "the pod waits for this scheduler, and no event says so. kube-scheduler counts one GPU"
            yield Finding("refused", scheduler, text, ())
        priority = self._spec.find("priorityClassName")
        if priority and priority.text.startswith("koord-"):
            text = "only Koordinator has this PriorityClass: without it, the API server rejects the pod"
            yield Finding("refused", priority, text, ())

    def _core_name(self) -> str:
        core = self._offer.preset.core if self._offer else None
        return core.name if core and core.name in self._names else ""

    def _other_configuration(self) -> str:
        """Give the reason if the nodes' configuration has other names than the pod, or an empty text."""
        config = self._config
        if config is None or not self._names:
            return ""
        preset = config.units.preset if config.units else ""
        served = {*config.counts} if config.dra is None else {DEFAULT_RESOURCE}
        if self.preset == preset and (preset or self._names & served):
            return ""
        offered = ", ".join(config.counts) if config.dra is None else "claims (DRA)"
        needed = f"sharing.units with preset {self.preset}" if self.preset else "another configuration"
        return f"the configuration offers {offered}, and this pod needs {needed}"

    def _container(self, container: Section) -> Iterator[Finding]:
        limits, requests = (container.section("resources", key) for key in ("limits", "requests"))
        names = {field.key for field in _resources(container)}
        for block in (limits, requests):
            for field in (one for one in block if one.key in self._names):
                if found := self._amount(field) or self._without_memory(field, names):
                    yield found
                if block is requests and field.key not in limits.fields:
                    text = "the API server rejects it in requests alone: write the same line below limits"
                    yield Finding("refused", field, text)

    def _amount(self, field: Field) -> Finding | None:
        if self._offer:
            return amounts.judge(field, self._offer)
        config = self._config
        if config and field.key in config.counts:
            several = not config.sharing.fail_requests_greater_than_one
            return None if several else amounts.one_gpu(field)
        return amounts.whole_gpu(field)

    def _without_memory(self, field: Field, names: Collection[str]) -> Finding | None:
        """Give a finding on the GPU or percents in a container that names no memory."""
        if self._offer is None:
            return None
        preset = self._offer.preset
        if not amounts.SAME_MEMORY.union((preset.memory.name,)).isdisjoint(names):
            return None
        # One of them gets the finding: with the missing memory, the other one runs.
        present = [one for one in (preset.count, preset.core) if one and one.name in names]
        if not present or present[0].name != field.key or present[0].without_memory == "allowed":
            return None
        if present[0].without_memory == "whole" and field.text == str(PERCENT):
            return Finding("translated", field, "without memory: the memory of this container is not limited")
        ids = self._offer.memory_ids
        text = f"refused without {preset.memory.name}, which would mean all memory: name an amount"
        lines = (f"{field.key}: {field.text}", f"{preset.memory.name}: {ids}") if ids else None
        return Finding("refused", field, text, lines)


def _resources(container: Section) -> Iterator[Field]:
    for key in ("limits", "requests"):
        yield from container.section("resources", key)


def _preset_of(names: Collection[str]) -> str:
    """Give the preset that has most of the names; empty if none is needed."""
    if DEFAULT_RESOURCE in names and len(names) == 1:
        return ""
    scores = {
        name: len({*preset.names, *preset.unserved, *_MORE_NAMES.get(name, ())}.intersection(names))
        for name, preset in PRESETS.items()
    }
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] else ""
