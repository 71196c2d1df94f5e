# SPDX-License-Identifier: Apache-2.0
"""One identity of a container image in every image store.

In Docker's own store an image's id is the digest of its configuration. In the containerd image store the id
is the digest of its manifest or its index. For the same image, `docker load` writes another manifest than a
registry has. The layers and the settings are the same everywhere.
Runs on boards and on the controller, therefore Python 3.6 compatible.
"""

import hashlib
import json
from typing import Any, Dict, Iterable, Sequence

# Settings that change how an image runs. Its configuration and `docker image inspect` name them alike.
SETTINGS = (
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)


def digest(platform: Sequence[str], layers: Sequence[str], settings: Dict[str, Any]) -> str:
    """SHA-256 over the platform, the digests of the unpacked layers, and the settings that are not empty."""
    kept = {key: settings[key] for key in SETTINGS if settings.get(key)}
    text = json.dumps([platform, layers, kept], sort_keys=True)
    return "content:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def content_of_config(config: Dict[str, Any]) -> str:
    """Identity of an image by its configuration, the file in an archive or a registry."""
    platform = [config.get("os") or "", config.get("architecture") or ""]
    layers = (config.get("rootfs") or {}).get("diff_ids") or []
    return digest(platform, layers, config.get("config") or {})


def content_of_inspected(image: Dict[str, Any]) -> str:
    """Identity of an image by an entry of `docker image inspect`."""
    platform = [image.get("Os") or "", image.get("Architecture") or ""]
    layers = (image.get("RootFS") or {}).get("Layers") or []
    return digest(platform, layers, image.get("Config") or {})


def contents_by_name(inspected: Iterable[Dict[str, Any]]) -> Dict[str, str]:
    """{name: identity} of the entries of `docker image inspect`."""
    return {name: content_of_inspected(image) for image in inspected for name in image.get("RepoTags") or []}
