#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keep images in K3s' containerd that no registry has, and remove those that are not wanted any more.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
import os
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.containerd_images import CTR, Present, listed
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import full_name

DOCUMENTATION = r"""
module: containerd_kept_images
short_description: Images of containerd that garbage collection leaves alone
description:
  - Labels the images of O(images) that containerd has as pinned (C(io.cri-containerd.pinned)), so that the
    kubelet does not delete them from a full disk. containerd knows this label from 1.7.3 on.
  - An image that this module has labelled and that is not in O(images) loses the label. It is removed
    unless a container uses it.
options:
  images:
    type: list
    elements: dict
    required: true
    description: C(name) of the images that stay, and C(manifest) with its C(digest).
  marker:
    type: path
    default: /var/lib/jetson-k3s/containerd-images
    description: A file that is there as long as containerd keeps images.
"""

RETURN = r"""
missing: {type: list, elements: str, description: Names of those O(images) that containerd lacks.}
removed: {type: list, elements: str, description: Names of the images that are gone.}
"""

Run = Callable[..., Tuple[int, str, str]]

LABEL, PINNED = "io.github.jetson-k3s.keeps", "io.cri-containerd.pinned"
OURS = "bundle"
# Module jetson_facts reads it.
MARKER = "/var/lib/jetson-k3s/containerd-images"


class Plan(NamedTuple):
    """What has to change, by the names of images."""

    missing: List[str]
    pinned: List[str]
    released: List[str]


def plan(wanted: Dict[str, str], present: Dict[str, Present]) -> Plan:
    """`wanted` has the digest of each image's manifest, by its full name."""
    there = {name for name, digest in wanted.items() if name in present and present[name].digest == digest}
    unpinned = [
        name
        for name in there
        if present[name].labels.get(PINNED) is None or LABEL not in present[name].labels
    ]
    released = [name for name, one in present.items() if LABEL in one.labels and name not in wanted]
    return Plan(sorted(set(wanted) - there), sorted(unpinned), sorted(released))


def used(text: str) -> List[str]:
    """What containers say of their images, of `crictl ps --all --output json`."""
    found: List[str] = []
    containers: List[Dict[str, Any]] = json.loads(text).get("containers") or []
    for one in containers:
        found += [one.get("imageRef") or "", (one.get("image") or {}).get("image") or ""]
    return found


def identities(run: Run, name: str) -> List[str]:
    """An image's id and digests, as containers name them."""
    code, out, _ = run(["k3s", "crictl", "inspecti", "--output", "json", name])
    status = json.loads(out).get("status") or {} if code == 0 else {}
    return (
        [name, status.get("id") or name] + (status.get("repoDigests") or []) + (status.get("repoTags") or [])
    )


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "dict", "required": True},
            "marker": {"type": "path", "default": MARKER},
        },
        supports_check_mode=True,
    )

    def run(*argv: str) -> str:
        out: str = module.run_command(list(argv), check_rc=True)[1]
        return out

    wanted = {full_name(one["name"]): one["manifest"]["digest"] for one in module.params["images"]}
    due = plan(wanted, listed(run(*CTR, "ls")))
    removed: List[str] = []
    if not module.check_mode:
        for name in due.pinned:
            run(*CTR, "label", name, "{}=pinned".format(PINNED), "{}={}".format(LABEL, OURS))
        in_use = used(run("k3s", "crictl", "ps", "--all", "--output", "json")) if due.released else []
        for name in due.released:
            run(*CTR, "label", name, PINNED + "=", LABEL + "=")  # an empty value removes a label
            if not set(identities(module.run_command, name)) & set(in_use):
                run("k3s", "crictl", "rmi", name)
                removed.append(name)
        if wanted and not os.path.exists(module.params["marker"]):
            replace_file(module.params["marker"], "Images of bundle_images are pinned in containerd.\n")
        elif not wanted and os.path.exists(module.params["marker"]):
            os.unlink(module.params["marker"])
    module.exit_json(changed=bool(due.pinned or due.released), missing=due.missing, removed=removed)


if __name__ == "__main__":
    main()
