#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take the blobs of images that a board lacks, in pieces.

Runs on the board, therefore Python 3.6 compatible.
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import Blob
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_store import (
    LAYOUTS,
    Blobs,
    StoreError,
    blobs_of,
)

DOCUMENTATION = r"""
module: image_blobs
short_description: Send the blobs of images that a board lacks
description:
  - The action plugin of this name sends each blob in pieces, and this module puts them together. After a
    cut, the next run goes on behind the last piece. A blob is used only if its SHA-256 is right.
  - The action renews the lock of this run on the way, and stops if another run has locked the board.
  - For tasks O(path), O(layout), O(blobs), O(source) and O(lock) are the arguments. The others are those of
    the action.
options:
  path: {type: path, required: true, description: The directory on the board.}
  layout: {choices: [registry, directory], required: true, description: Where the blobs are in it.}
  blobs: {type: list, elements: dict, description: C(digest) and C(size) of all blobs that the board has to
    have.}
  source: {type: path, description: The directory on the controller that has them.}
  lock: {type: path, description: 'The file of the lock of this run, as C(run_lock) has returned it.'}
  digest: {description: The blob that a piece belongs to.}
  size: {type: int, description: The bytes of that blob.}
  offset: {type: int, description: Where the piece begins.}
  piece: {type: path, description: The file with the piece.}
"""

RETURN = r"""
lacking: {type: dict, description: 'By digest, the bytes of the blobs that are not complete.'}
there: {type: int, description: The bytes of a blob after a piece.}
sent: {type: int, description: 'Bytes that were sent, of the action.'}
"""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "layout": {"type": "str", "choices": list(LAYOUTS), "required": True},
            "blobs": {"type": "list", "elements": "dict"},
            "source": {"type": "path"},
            "lock": {"type": "path"},
            "digest": {"type": "str"},
            "size": {"type": "int"},
            "offset": {"type": "int"},
            "piece": {"type": "path"},
        },
        required_one_of=[("blobs", "piece")],
        required_by={"piece": ("digest", "size", "offset")},
        supports_check_mode=True,
    )
    given = module.params
    store = Blobs(given["path"], given["layout"])
    os.umask(0o022)  # the registry reads as another user
    try:
        if given["piece"] is None:
            wanted = blobs_of(given["blobs"])
            if not module.check_mode:
                store.tidy(wanted)
            module.exit_json(changed=False, lacking=store.lacking(wanted))
        with open(given["piece"], "rb") as piece:
            there = store.append(Blob(given["digest"], given["size"]), given["offset"], piece)
        os.unlink(given["piece"])
    except (StoreError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, there=there)


if __name__ == "__main__":
    main()
