#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pull images from the registry of role image_supply, if they are those that the bundle names.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
import socket
from typing import Callable, Dict, List, Optional, Tuple, Union

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.containerd_images import CTR, listed
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_content import content_of_inspected
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import full_name, hexadecimal

DOCUMENTATION = r"""
module: supplied_images
short_description: Images of a bundle from a registry on the site's network
description:
  - Pulls each image that the engine lacks, compares its id or its content, and gives it its name.
  - Without the registry, or without one of the images in it, the module does not fail. It says why.
options:
  registry: {required: true, description: The registry's address and port.}
  engine: {choices: [docker, containerd], default: docker, description: What runs the pods.}
  images:
    type: dict
    required: true
    description: Name and id of the images. With containerd, the digest of the manifest is the id.
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
supplied: {type: bool, description: 'Does the engine have them all now? In check mode it would.'}
reason: {type: str, description: Why not; empty if it has.}
wrong: {type: dict, description: 'C(name), C(expected) and C(found) id of a wrong image.'}
"""

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

# As role image_supply's registry_images writes them.
REPOSITORY = "jetson-k3s"
# Docker reads the registry's certificate there, and `ctr` if it is told to.
CERTIFICATES = "/etc/docker/certs.d"
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


def failure(code: int, said: str, seconds: int) -> str:
    """Why a pull under timeout(1) has failed; empty if it has not."""
    if code == TIMED_OUT:
        return "not within {} s".format(seconds)
    return (said or "exit status {}".format(code)) if code else ""


class Docker:
    """Docker on the board, by its command; `run` is AnsibleModule.run_command."""

    def __init__(self, run: Run, seconds: int = PULL_SECONDS) -> None:
        self.run, self.seconds = run, seconds

    def reference(self, registry: str, image: str) -> str:
        """The name of an image in the registry."""
        return "{}/{}:{}".format(registry, REPOSITORY, hexadecimal(image))

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
        return failure(code, err.strip() or out.strip(), self.seconds)

    def tag(self, source: str, name: str) -> None:
        """Give an image a name, which another image may have had."""
        self.run(["docker", "tag", source, name], check_rc=True)

    def remove(self, name: str, check_rc: bool = True) -> None:
        """Remove a name, and the image with its last name."""
        self.run(["docker", "image", "rm", name], check_rc=check_rc)


class Containerd:
    """K3s' containerd, by `ctr`. An image is known by the digest of its manifest, also in the registry.

    A pull by digest brings that manifest and its blobs, or fails: containerd compares the SHA-256 of each.
    """

    def __init__(self, run: Run, seconds: int = PULL_SECONDS) -> None:
        self.run, self.seconds = run, seconds

    def reference(self, registry: str, image: str) -> str:
        """The name of an image in the registry."""
        return "{}/{}@{}".format(registry, REPOSITORY, image)

    def identities(self, name: str) -> List[str]:
        """The digest of an image's manifest, by its name; nothing if there is none."""
        _, out, _ = self.run([*CTR, "ls"], check_rc=True)
        found = listed(out).get(full_name(name))
        return [found.digest] if found else []

    def pull(self, name: str) -> str:
        """Why an image could not be pulled; empty if it was. Only layers that are missing are sent."""
        _, known, _ = self.run([*CTR, "pull", "--help"])
        # Without this flag, the daemon of containerd 2 pulls, by the proxy of K3s. 1.6 has no such flag.
        flags = ["--local"] if "--local" in known else []
        argv = ["timeout", str(self.seconds), *CTR, "pull", *flags, "--hosts-dir=" + CERTIFICATES, name]
        host = name.partition("/")[0].rpartition(":")[0]
        # It prints its progress ten times a second.
        code, _, err = self.run(
            ["sh", "-c", 'exec "$@" > /dev/null', "sh", *argv],
            environ_update={"NO_PROXY": host, "no_proxy": host},
        )
        return failure(code, "".join(err.strip().splitlines()[-1:]), self.seconds)

    def tag(self, source: str, name: str) -> None:
        """Give an image a name, which another image may have had."""
        self.run([*CTR, "tag", "--force", source, full_name(name)], check_rc=True)

    def remove(self, name: str, check_rc: bool = True) -> None:
        """Remove a name, and the image with its last name."""
        self.run([*CTR, "rm", name], check_rc=check_rc)


Engine = Union[Docker, Containerd]
ENGINES: Dict[str, Callable[[Run, int], Engine]] = {"docker": Docker, "containerd": Containerd}


def supply(
    engine: Engine, registry: str, images: Dict[str, str], contents: Dict[str, str]
) -> Tuple[bool, str, Optional[Dict[str, str]]]:
    """Bring the images there: (were any missing, why one is missing yet or '', a wrong one or None)."""
    changed = False
    for name, image in sorted(images.items()):
        wanted = {image, contents.get(name, image)}
        if wanted.intersection(engine.identities(name)):
            continue
        source = engine.reference(registry, image)
        pulled = not engine.identities(image)
        if pulled:
            reason = engine.pull(source)
            if reason:
                return changed, reason, None
            found = engine.identities(source)
            if not wanted.intersection(found):
                engine.remove(source, check_rc=False)
                return changed, "", {"name": name, "expected": image, "found": (found or ["no id"])[0]}
        engine.tag(source if pulled else image, name)
        if pulled:
            engine.remove(source)
        changed = True
    return changed, "", None


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "registry": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": sorted(ENGINES), "default": "docker"},
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
    engine = ENGINES[module.params["engine"]](module.run_command, module.params["seconds"])
    changed, reason, wrong = supply(engine, registry, images, module.params["contents"])
    found = {"wrong": wrong} if wrong else {}
    module.exit_json(changed=changed, supplied=not reason and not wrong, reason=reason, **found)


if __name__ == "__main__":
    main()
