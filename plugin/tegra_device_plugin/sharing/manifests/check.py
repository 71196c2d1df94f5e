# SPDX-License-Identifier: Apache-2.0
"""Gives a report for each object of a manifest, and rewrites the manifest by the reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tegra_device_plugin.sharing.manifests import claims, elastic, metadata
from tegra_device_plugin.sharing.manifests.findings import VERDICTS, Finding, Verdict
from tegra_device_plugin.sharing.manifests.pods import TEMPLATES, Pod
from tegra_device_plugin.sharing.manifests.text import Replacement, Section, objects, replace

if TYPE_CHECKING:
    from tegra_device_plugin.config.file import File

_CLAIMS: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec",),
    "ResourceClaimTemplate": ("spec", "spec"),
}


@dataclass(frozen=True)
class Report:
    """One object of the file, with the preset that its names need (empty: none)."""

    kind: str
    name: str
    line: int
    preset: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return max((one.verdict for one in self.findings), key=[*VERDICTS].index, default="runs")


def check(text: str, config: File | None = None) -> list[Report]:
    """Give reports on the objects that request a GPU, or that belong to another system.

    `config` is the configuration of the nodes; None: any preset. Raises ManifestError.
    """
    found = objects(text)
    requests = {
        one.text("metadata", "name"): one.section("spec", "resources", "requests")
        for one in found
        if one.text("kind") == "ElasticGPUClaim"
    }
    return [report for one in found if (report := _report(one, config, requests))]


def rewrite(text: str, reports: Iterable[Report]) -> str:
    """Give the text with the lines that the findings name. Raises ManifestError."""
    replacements = {
        one.field.start: Replacement(one.field, one.instead)
        for report in reports
        for one in report.findings
        if one.instead is not None
    }
    return replace(text, [*replacements.values()])


def _report(found: Section, config: File | None, requests: Mapping[str, Section]) -> Report | None:
    kind, pod = found.text("kind"), None
    if kind in TEMPLATES:
        path = TEMPLATES[kind]
        pod = Pod(found.section(*path) if path else found, config, requests)
    findings = [*metadata.labels(found.section("metadata", "labels"))]
    findings += pod.findings() if pod else _others(kind, found, config)
    if not findings and not (pod and pod.requests_gpu):
        return None
    names = (found.text("metadata", key) for key in ("namespace", "name"))
    return Report(
        kind,
        "/".join(name for name in names if name),
        found.line,
        pod.preset if pod else "",
        tuple(sorted(findings, key=lambda one: one.field.start)),
    )


def _others(kind: str, found: Section, config: File | None) -> Iterator[Finding]:
    if kind in _CLAIMS:
        yield from claims.judge(found.section(*_CLAIMS[kind]), config)
    elif kind == "DeviceClass":
        yield from claims.selectors(found.section("spec"))
    elif found.text("apiVersion").startswith(elastic.API_GROUP):
        yield from elastic.judge(found)
    elif kind == "ConfigMap" and found.text("metadata", "name") == "metax-device-config":
        yield Finding("refused", found.fields.get("data") or found.fields["kind"], metadata.METAX_MODES)
