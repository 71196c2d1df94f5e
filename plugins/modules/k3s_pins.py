#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pin the SHA-256 of K3s' released files on first use. Runs on the controller."""

import os
from typing import Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import DIGEST, sha256

DOCUMENTATION = r"""
module: k3s_pins
short_description: SHA-256 of K3s' released files, pinned on first use
description:
  - Returns the pins of a release. With O(files) it first pins those without a pin. A pin never changes.
options:
  path: {type: path, required: true, description: 'File of the pins, in the format of C(sha256sum).'}
  release: {required: true, description: 'The release, such as C(v1.33.5+k3s1).'}
  files: {type: dict, default: {}, description: 'Path of each downloaded file, by its name in the release.'}
"""

RETURN = r"""
pins: {type: dict, description: 'The release''s pins, as a SHA-256 by the file''s name.'}
added: {type: list, elements: str, description: Names of the files that were pinned now.}
"""


class PinError(Exception):
    """The file of the pins cannot be used; the text says why."""


def read(path: str) -> Dict[str, str]:
    """{RELEASE/FILE: digest} of the file of the pins; empty without one. PinError, OSError."""
    pins: Dict[str, str] = {}
    try:
        with open(path, encoding="utf-8") as handle:
            lines = handle.read().splitlines()
    except FileNotFoundError:
        return pins
    for number, line in enumerate(lines, 1):
        digest, _, name = line.partition("  ")
        if not DIGEST.match(digest) or name.count("/") != 1 or pins.get(name, digest) != digest:
            raise PinError(
                "{} line {}: expected is one line `<SHA-256>  RELEASE/FILE` for each file, found {!r}. "
                "Correct the line or remove it. Nothing was downloaded.".format(path, number, line)
            )
        pins[name] = digest
    return pins


def pin(path: str, release: str, files: Dict[str, str], write: bool) -> Tuple[Dict[str, str], List[str]]:
    """(pins of the release, names that were added); writes the file if `write` says so. PinError, OSError."""
    pins = read(path)
    added = sorted(name for name in files if "{}/{}".format(release, name) not in pins)
    for name in added:
        pins["{}/{}".format(release, name)] = sha256(files[name])
    if added and write:
        replace_file(path, "".join("{}  {}\n".format(digest, name) for name, digest in sorted(pins.items())))
    own = [name for name in pins if name.split("/")[0] == release]
    return {name.split("/")[1]: pins[name] for name in own}, added


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "release": {"type": "str", "required": True},
            "files": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    path, release, files = (module.params[name] for name in ("path", "release", "files"))
    try:
        pins, added = pin(os.path.abspath(path), release, files, not module.check_mode)
    except (PinError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(added), pins=pins, added=added)


if __name__ == "__main__":
    main()
