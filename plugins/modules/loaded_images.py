#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Load images into Docker or containerd from their blobs in a directory, which is removed afterwards.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from typing import Any, Dict, List, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.containerd_images import CTR
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import (
    MANIFEST,
    full_name,
    hexadecimal,
)

DOCUMENTATION = r"""
module: loaded_images
short_description: Load images into the engine of the pods
description:
  - Writes an archive that Docker and containerd read (C(manifest.json) and OCI's C(index.json)) to the
    engine, without a file on the disk.
options:
  path: {type: path, required: true, description: The directory with the blobs.}
  images: {type: list, elements: dict, required: true, description: The images as in the index of a bundle.}
  engine: {choices: [docker, containerd], required: true, description: What runs the pods.}
"""

RETURN = r"""
loaded: {type: list, elements: str, description: Names of the images.}
"""

Data = Dict[str, Any]

COMMANDS = {
    "docker": ["docker", "load"],
    "containerd": [*CTR, "import", "-"],
}
TAIL = 2000


class LoadError(Exception):
    """The engine has not taken the images; the text is its own."""


def file_of(digest: str) -> str:
    """The name of a blob in the archive."""
    return "blobs/sha256/" + hexadecimal(digest)


def documents(images: Sequence[Data]) -> Dict[str, Any]:
    """{name: content} of the files beside the blobs. containerd takes the index, and Docker manifest.json."""
    entries = [
        {
            "Config": file_of(one["config"]["digest"]),
            "RepoTags": [one["name"]],
            "Layers": [file_of(layer["digest"]) for layer in one["layers"]],
        }
        for one in images
    ]
    index = [
        dict(
            one["manifest"],
            mediaType=MANIFEST,
            annotations={"io.containerd.image.name": full_name(one["name"])},
        )
        for one in images
    ]
    return {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": index},
        "manifest.json": entries,
    }


def write(stream: Any, path: str, images: Sequence[Data]) -> None:
    """Write the archive, each blob once. Docker has the layers that are not there (module docker_layers)."""
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, content in sorted(documents(images).items()):
            text = json.dumps(content, sort_keys=True).encode("utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
        digests = {
            blob["digest"] for one in images for blob in [one["manifest"], one["config"], *one["layers"]]
        }
        for digest in sorted(digests):
            if os.path.exists(os.path.join(path, hexadecimal(digest))):
                tar.add(os.path.join(path, hexadecimal(digest)), file_of(digest))


def load(command: List[str], path: str, images: Sequence[Data]) -> None:
    """Give the archive to the engine. LoadError, OSError."""
    engine = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    with engine:
        with contextlib.suppress(BrokenPipeError), engine.stdin or io.BytesIO() as stream:
            write(stream, path, images)  # if the engine ends early, it says why
        said = (engine.stderr or io.BytesIO()).read().decode("utf-8", "replace").strip()
    if engine.returncode:
        raise LoadError(said[-TAIL:] or "exit status {}".format(engine.returncode))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "images": {"type": "list", "elements": "dict", "required": True},
            "engine": {"type": "str", "choices": sorted(COMMANDS), "required": True},
        },
        supports_check_mode=True,
    )
    path, images, engine = (module.params[name] for name in ("path", "images", "engine"))
    if images and not module.check_mode:
        try:
            load(COMMANDS[engine], path, images)
            shutil.rmtree(path)
        except (LoadError, OSError, tarfile.TarError) as error:
            module.fail_json(
                msg="{} did not load {}: {}".format(engine, ", ".join(one["name"] for one in images), error)
            )
    module.exit_json(changed=bool(images), loaded=[one["name"] for one in images])


if __name__ == "__main__":
    main()
