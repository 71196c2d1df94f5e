#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Which layers of images Docker needs to load them. Runs on the board, therefore Python 3.6 compatible."""

import json
from typing import Any, Dict, Iterable, List, Sequence, Set

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: docker_layers
short_description: Layers that Docker needs to load images
description:
  - Docker's own image store knows a layer together with all layers below it. So C(docker load) does not
    read the lowest layers of an image if another image has the same ones.
  - The containerd image store needs all layers.
options:
  images: {type: list, elements: dict, required: true, description: The images as in the index of a bundle.}
"""

RETURN = r"""
has: {type: list, elements: str, description: Digests of layers that C(docker load) does not read.}
"""

Data = Dict[str, Any]


def common(layers: Sequence[str], others: Sequence[str]) -> int:
    """How many of the lowest layers two images share."""
    pairs = map(lambda one, other: one == other, layers, others)
    return next((number for number, same in enumerate(pairs) if not same), min(len(layers), len(others)))


def unneeded(images: Iterable[Data], present: Sequence[Sequence[str]]) -> List[str]:
    """Digests of layers that no image needs; `present` has the layers of Docker's images, lowest first."""
    needed: Set[str] = set()
    has: Set[str] = set()
    for image in images:
        layers = image["layers"]
        diff_ids = [layer["diff_id"] for layer in layers]
        shared = max([common(diff_ids, others) for others in present], default=0)
        has.update(layer["digest"] for layer in layers[:shared])
        needed.update(layer["digest"] for layer in layers[shared:])
    return sorted(has - needed)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"images": {"type": "list", "elements": "dict", "required": True}},
        supports_check_mode=True,
    )

    def run(*argv: str) -> str:
        code, out, _ = module.run_command(["docker", *argv])
        return str(out) if code == 0 else ""  # all layers are sent then

    ids = sorted(set(run("image", "ls", "--quiet", "--no-trunc").split()))
    found: List[Data] = json.loads(run("image", "inspect", *ids) or "[]") if ids else []
    present = [(image.get("RootFS") or {}).get("Layers") or [] for image in found]
    module.exit_json(changed=False, has=unneeded(module.params["images"], present))


if __name__ == "__main__":
    main()
