# SPDX-License-Identifier: Apache-2.0
"""The files that boards get of the bundle, or of the checkout.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


def bundle_files(arch: str, source: str, image: str, listed: Iterable[str]) -> list[str]:
    """Names of the files that a board of this architecture (`uname -m`) takes from the bundle.

    `source` is where K3s comes from: with 'download' it is not in the bundle. Neither is the plugin's `image`
    if that names one of a registry. `listed` are the files of SHA256SUMS, of which images with NVIDIA's
    deviceQuery are the owner's own.
    """
    suffix = ARCHITECTURES.get(arch, arch)
    k3s = [f"k3s-{suffix}", f"k3s-airgap-images-{suffix}.tar.gz"] if source == "bundle" else []
    return [
        "bundle.yml",
        *k3s,
        *([] if image else [f"tegra-device-plugin-{suffix}.tar.gz"]),
        *(name for name in listed if name.startswith("device-query-") and name.endswith(f"-{suffix}.tar.gz")),
    ]


def findings_of_bundle(bundle: Facts, arch: str, source: str = "bundle", image: str = "") -> list[Finding]:
    """What is wrong with the files that this board would get."""
    if not bundle["indexed"]:
        return findings_without_bundle(bundle, arch, source, image)
    fix = f"Copy or build the bundle {bundle['path']} again; `sha256sum -c SHA256SUMS` inside it must pass."
    findings = [
        {
            "id": "bundle-unusable",
            "found": text,
            "expected": "a complete bundle",
            "fix": fix,
        }
        for text in bundle["errors"]
    ]
    if findings:
        return findings
    for name in bundle_files(arch, source, image, bundle["files"]):
        problem = bundle["files"].get(name, {"error": "not listed in SHA256SUMS"})["error"]
        if problem is not None:
            findings.append(
                {
                    "id": "bundle-file",
                    "found": f"{name}: {problem}",
                    "expected": "every file as SHA256SUMS says",
                    "fix": fix,
                }
            )
    return findings


def findings_without_bundle(built: Facts, arch: str, source: str, image: str) -> list[Finding]:
    """What is wrong where K3s is downloaded. A plugin's image that is missing is built by site.yml."""
    if source == "bundle":
        return [
            {
                "id": "bundle-unusable",
                "found": "jetson_k3s_bundle is set for this board, and not for all boards of this run",
                "expected": "the same bundle for all boards, or none",
                "fix": "Set jetson_k3s_bundle for the group k3s_cluster, or for no board.",
            }
        ]
    name = f"tegra-device-plugin-{ARCHITECTURES.get(arch, arch)}.tar.gz"
    problem = None if image else built["files"].get(name, {"error": None})["error"]
    if problem is None:
        return []
    return [
        {
            "id": "bundle-file",
            "found": f"{built['path']}/{name}: {problem}",
            "expected": "an image as `make image` writes it",
            "fix": "Remove this file. site.yml then builds the image again.",
        }
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {
            "preflight_bundle": findings_of_bundle,
        }
