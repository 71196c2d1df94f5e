#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take images from the registry of role image_supply into Docker, if they are those that the bundle names.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
import socket
from typing import Callable, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_content import content_of_inspected

DOCUMENTATION = r"""
module: supplied_images
short_description: Images of a bundle from a registry on the site's network
description:
  - Pulls each image that Docker lacks, compares its id or its content, and gives it its name.
  - Without the registry, or without one of the images in it, the module does not fail. It says why.
options:
  registry: {required: true, description: The registry's address and port.}
  images: {type: dict, required: true, description: Name and id of the images.}
  contents:
    description: Name and identity (role image_content), for the containerd store.
    type: dict
    default: {}
  seconds:
    description: >-
      How long the pull of an image may take. The default is for the largest image of K3s, at 10 Mbit/s.
    type: int
    default: 900
"""

RETURN = r"""
supplied: {type: bool, description: 'Does Docker have them all now? In check mode it would.'}
reason: {type: str, description: Why not; empty if it has.}
wrong: {type: dict, description: 'C(name), C(expected) and C(found) id of a wrong image.'}
"""

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

# As role image_supply's registry_images writes them.
REPOSITORY = "jetson-k3s"
CONNECT_SECONDS = 5
PULL_SECONDS = 900
TIMED_OUT = 124  # timeout(1)


def unreachable(registry: str) -> str:
    """Why no connection can be made; empty if one can."""
    host, _, port = registry.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return "{} does not answer: {}".format(registry, error)
    return ""


def reference(registry: str, image: str) -> str:
    """The name of an image in the registry."""
    return "{}/{}:{}".format(registry, REPOSITORY, image.partition(":")[2])


class Docker:
    """The board's engine, spoken to by its command; `run` is AnsibleModule.run_command."""

    def __init__(self, run: Run, seconds: int = PULL_SECONDS) -> None:
        self.run, self.seconds = run, seconds

    def identities(self, name: str) -> List[str]:
        """The id and the content of an image, by its name or its id; nothing if there is none."""
        code, out, _ = self.run(["docker", "image", "inspect", name])
        return (
            [answer for image in json.loads(out) for answer in (image["Id"], content_of_inspected(image))]
            if code == 0
            else []
        )

    def pull(self, name: str) -> str:
        """Why an image could not be pulled; empty if it was."""
        code, out, err = self.run(["timeout", str(self.seconds), "docker", "pull", name])
        if code == TIMED_OUT:
            return "not within {} s".format(self.seconds)
        return (err.strip() or out.strip() or "exit status {}".format(code)) if code else ""


def supply(
    docker: Docker, registry: str, images: Dict[str, str], contents: Dict[str, str]
) -> Tuple[bool, str, Optional[Dict[str, str]]]:
    """Bring the images into Docker: (were any missing, why one is missing yet or '', a wrong one or None)."""
    changed = False
    for name, image in sorted(images.items()):
        wanted = {image, contents.get(name, image)}
        if wanted.intersection(docker.identities(name)):
            continue
        source = reference(registry, image)
        pulled = not docker.identities(image)
        if pulled:
            reason = docker.pull(source)
            if reason:
                return changed, reason, None
            found = docker.identities(source)
            if not wanted.intersection(found):
                docker.run(["docker", "image", "rm", source])
                return changed, "", {"name": name, "expected": image, "found": (found or ["no id"])[0]}
        docker.run(["docker", "tag", source if pulled else image, name], check_rc=True)
        if pulled:
            docker.run(["docker", "image", "rm", source], check_rc=True)
        changed = True
    return changed, "", None


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "registry": {"type": "str", "required": True},
            "images": {"type": "dict", "required": True},
            "contents": {"type": "dict", "default": {}},
            "seconds": {"type": "int", "default": PULL_SECONDS},
        },
        supports_check_mode=True,
    )
    registry, images = module.params["registry"], module.params["images"]
    if module.check_mode:
        module.exit_json(changed=True, supplied=True, reason="")
    reason = unreachable(registry)
    if reason:
        module.exit_json(changed=False, supplied=False, reason=reason)
    docker = Docker(module.run_command, module.params["seconds"])
    changed, reason, wrong = supply(docker, registry, images, module.params["contents"])
    found = {"wrong": wrong} if wrong else {}
    module.exit_json(changed=changed, supplied=not reason and not wrong, reason=reason, **found)


if __name__ == "__main__":
    main()
