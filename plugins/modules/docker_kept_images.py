#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keep images that no registry has, by one container for each that is never started.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: docker_kept_images
short_description: Images that garbage collection leaves alone
description:
  - On a disk that is nearly full the kubelet deletes every image that no container uses (from
    C(imageGCHighThresholdPercent) on, 85 by default). Offline such an image is lost.
  - Docker deletes no image of a container, also of one that was never started.
  - Containers for other images of the same O(name) are removed.
options:
  name: {required: true, description: 'What the images are for, as the name of their archive.'}
  images:
    type: list
    elements: str
    required: true
    description: Names of the images that stay. None takes the containers away.
  remove:
    type: bool
    default: false
    description: >-
      Also remove the images of containers that are removed, unless another container or name needs them.
"""

RETURN = r"""
kept:
  type: list
  elements: str
  description: Names of the images that have a new container, or would get one outside check mode.
"""

LABEL = "io.github.jetson-k3s.keeps"
# Never run: an image without a command of its own needs one.
COMMAND = "kept"


def plan(images: Dict[str, Optional[str]], holders: List[Tuple[str, str]]) -> Tuple[List[str], List[str]]:
    """What has to change: (names of images without a container, ids of containers to remove).

    `images`: name to id, as the engine knows it; None for a name that it does not have yet.
    `holders`: (id of the container, id of its image).
    """
    held = {image for _, image in holders}
    missing = sorted(name for name, image in images.items() if image not in held)
    return missing, [container for container, image in holders if image not in images.values()]


def removable(image: Dict[str, Any], name: str) -> Optional[str]:
    """What `docker image rm` is told of an image whose container was made for this name; None to leave it."""
    tags = image.get("RepoTags") or []
    if name in tags:
        return name
    return None if tags else str(image["Id"])


def create_command(name: str, image: str) -> List[str]:
    """The command that makes the container of an image."""
    return ["docker", "create", "--label={}={}".format(LABEL, name), "--network=none", image, COMMAND]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "images": {"type": "list", "elements": "str", "required": True},
            "remove": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )

    def run(*argv: str) -> str:
        out: str = module.run_command(list(argv), check_rc=True)[1]
        return out

    def image_id(name: str) -> Optional[str]:
        # The id is that of the engine's store: the digest of a configuration, of a manifest or of an index.
        code, out, _ = module.run_command(["docker", "image", "inspect", "--format={{.Id}}", name])
        return out.strip() if code == 0 else None

    name = module.params["name"]
    images = {image: image_id(image) for image in module.params["images"]}
    ids = run("docker", "ps", "--all", "--quiet", "--filter=label={}={}".format(LABEL, name)).split()
    found = json.loads(run("docker", "inspect", *ids)) if ids else []
    missing, outdated = plan(images, [(one["Id"], one["Image"]) for one in found])
    if not module.check_mode:
        for image in missing:
            run(*create_command(name, image))
        if outdated:
            run("docker", "rm", *outdated)
        for one in found if module.params["remove"] else []:
            code, out, _ = module.run_command(["docker", "image", "inspect", one["Image"]])
            if one["Id"] in outdated and code == 0:
                unused = removable(json.loads(out)[0], one["Config"]["Image"])
                if unused:  # Docker refuses it while a container uses the image
                    module.run_command(["docker", "image", "rm", unused])
    module.exit_json(changed=bool(missing or outdated), kept=missing)


if __name__ == "__main__":
    main()
