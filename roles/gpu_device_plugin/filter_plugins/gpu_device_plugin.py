# SPDX-License-Identifier: Apache-2.0
"""The device plugin's plain manifest, made fit for one bundle."""

from __future__ import annotations

import json
from typing import Any

import yaml

# Makes the pods new when an image was built again under the same name.
IMAGE_ID_ANNOTATION = "jetson-k3s.github.io/image-id"


# K3s finds NVIDIA's runtime by itself and calls it this; its own RuntimeClass may be disabled.
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def rendered(manifest: str, image: str, image_id: str, container_runtime: str, strict: bool) -> str:
    """The manifest as JSON documents, with this image in every DaemonSet and never from a registry.

    For containerd the RuntimeClass that GPU pods name is added; in strict mode the plugin hands the GPU out
    as a volume mount, which a pod cannot make up.
    """
    documents: list[dict[str, Any]] = [document for document in yaml.safe_load_all(manifest) if document]
    for document in documents:
        if document["kind"] != "DaemonSet":
            continue
        template = document["spec"]["template"]
        template.setdefault("metadata", {}).setdefault("annotations", {})[IMAGE_ID_ANNOTATION] = image_id
        for container in template["spec"]["containers"]:
            container["image"] = image
            container["imagePullPolicy"] = "Never"
            if strict:
                container["args"] = [*container["args"], "--device-list-strategy=volume-mounts"]
    if container_runtime == "containerd":
        documents.append(RUNTIME_CLASS)
    # It begins with "---": ansible-core 2.16 makes an object of a text that begins with "{".
    return "".join(f"---\n{json.dumps(document, indent=2)}\n" for document in documents)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"gpu_device_plugin_rendered": rendered}
