# SPDX-License-Identifier: Apache-2.0
"""The image of a person's job: a name in a registry, or an archive on the controller."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_archive
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_plan
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.controller_paths import controller_path

Data = dict[str, Any]
GZIP = b"\x1f\x8b"
SUFFIXES = (".tar", ".tar.gz", ".tgz")


def archive_path(image: str) -> str:
    """The absolute path of an image that is a file, '' for a name."""
    path = str(controller_path(image)) if image else ""
    return path if image and (image.endswith(SUFFIXES) or Path(path).is_file()) else ""


def compressed(path: str) -> bool:
    """Whether an archive is compressed by gzip, which containerd does not read."""
    with open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP


def read(image: str) -> Data:
    """What an archive has, {} for the name of an image. JobError, BundleError, OSError."""
    path = archive_path(image)
    if not path:
        return {}
    if not Path(path).is_file():
        raise gpu_job_plan.JobError(f"--image {image}: there is no such file")
    name = Path(path).name
    try:
        documents = bundle_archive.documents(path)
        entries = json.loads(documents["manifest.json"])
        found = [(tag, one["Config"]) for one in entries for tag in one.get("RepoTags") or []]
        config = json.loads(documents[found[0][1]]) if len(entries) == 1 and found else {}
    except (KeyError, ValueError, TypeError, OSError, EOFError, tarfile.TarError) as error:
        raise gpu_job_plan.JobError(
            f"--image {image}: this is no archive of an image ({type(error).__name__}: {error}): "
            f"make it with `docker save NAME:TAG --output {name}`"
        ) from None
    if not config:
        raise gpu_job_plan.JobError(
            f"--image {image}: it has {len(entries)} images and {len(found)} names; save exactly one image "
            f"by its name: `docker save NAME:TAG --output {name}`"
        )
    return {
        "path": path,
        "name": name,
        "sha256": bundle_archive.sha256(path),
        "image": bundle_archive.familiar_name(found[0][0]),
        "architecture": str(config.get("architecture") or ""),
        "compressed": compressed(path),
    }


def refused(archive: Mapping[str, Any], reason: str, architecture: str) -> Data:
    """The result of a job whose image is for another architecture: it was not started."""
    return {
        "name": "",
        "images": [archive["image"]],
        "gpu": True,
        "status": "failed",
        "reason": reason,
        "fix": gpu_job_plan.build_for(architecture),
        "exit_code": None,
        "seconds": 0.0,
        "limit": 0,
        "output": "",
        "tail": [],
        "warnings": [],
        "events": [],
        "artifacts": None,
        "samples": 0,
        "figures": [],
        "throttled": [],
        "cleanup": "",
    }
