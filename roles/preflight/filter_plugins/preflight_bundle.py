# SPDX-License-Identifier: Apache-2.0
"""The bundle, the board that supplies its images, and apt's holds on packages.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
# A registry has a dot or a port, or is localhost. Without one, Docker and containerd take different ones.
IMAGE = re.compile(
    r"(?=[^/]*[.:]|localhost/)[\w.:-]+(/[a-z0-9._-]+)+(:[\w.-]+)?@sha256:[0-9a-f]{64}", re.ASCII
)


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


def findings_of_plugin_image(image: str) -> list[Finding]:
    """Does gpu_device_plugin_image name a registry and a digest?"""
    if not image or IMAGE.fullmatch(image):
        return []
    return [
        {
            "id": "plugin-image",
            "found": f"gpu_device_plugin_image is {image!r}",
            "expected": "REGISTRY/NAME@sha256:DIGEST, with or without a tag: the digest pins the image",
            "fix": "Add the digest. `docker pull REGISTRY/NAME:TAG` and `docker push` print it.",
        }
    ]


def findings_of_update(update: Facts) -> list[Finding]:
    """Has the bundle what an update of NVIDIA's runtime asks for? `update` is role nvidia_docker's plan."""
    if not update["asked"] or update["version"]:
        return []
    return [
        {
            "id": "runtime-update",
            "found": f"jetson_k3s_confirm has update-runtime, and no {update['package']} in the bundle's "
            f"{update['archive']}",
            "expected": "the package, with what it depends on",
            "fix": "Put it there (docs/offline.md), or take update-runtime out of jetson_k3s_confirm in the "
            "inventory.",
        }
    ]


def findings_of_image_supply(facts: Facts, supply: str, boards: list[str]) -> list[Finding]:
    """Can a board supply images to the others? `boards` are those of the inventory's cluster."""
    if not supply:
        return []
    if supply not in boards:
        return [
            {
                "id": "image-supply-host",
                "found": f"image_supply_host is {supply!r}, and no board in [k3s_cluster] has that name",
                "expected": "the inventory's name of a board of this cluster",
                "fix": f"Correct image_supply_host, or take it out. There are {', '.join(boards)}.",
            }
        ]
    if facts["container_runtime"] == "docker":
        return []
    return [
        {
            "id": "image-supply-containerd",
            "found": "image_supply_host, and containerd runs the pods (k3s_container_runtime)",
            "expected": "no image_supply_host: K3s imports the bundle's archives at each start, so each "
            "board needs them",
            "fix": "Take image_supply_host out of the inventory, or run the pods by Docker. For other images "
            "than the bundle's give k3s_registries a mirror.",
        }
    ]


def findings_of_holds(plan: dict[str, Any], packages: dict[str, Any], runtime: str) -> list[Finding]:
    """Does the board's owner hold a package that this run installs or updates?

    `plan` is role nvidia_docker's, `packages` the facts about them, `runtime` that of the pods.
    """
    installs = sorted(plan["runtime_packages"] + (plan["engine_packages"] if runtime == "docker" else []))
    held = sorted(set(installs) & set(packages["held"]) - set(packages["ours"]))
    if not held:
        return []
    names = " ".join(held)
    return [
        {
            "id": "packages-held",
            "found": f"this run installs {', '.join(installs)}, and apt holds {', '.join(held)}",
            "expected": "no apt hold on a package that is to be installed or updated",
            "fix": f"`sudo apt-mark unhold {names}` on the board, and run the playbook again. It sets "
            "an apt hold for the packages that it installs. Or install them yourself first.",
        }
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {
            "preflight_bundle": findings_of_bundle,
            "preflight_holds": findings_of_holds,
            "preflight_image_supply": findings_of_image_supply,
            "preflight_plugin_image": findings_of_plugin_image,
            "preflight_update": findings_of_update,
        }
