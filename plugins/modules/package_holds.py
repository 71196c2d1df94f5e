#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keep apt from updating the packages that a role has installed, and no others.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
from typing import List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file

DOCUMENTATION = r"""
module: package_holds
short_description: Set package holds (apt-mark) for the packages that a role has installed
description:
  - Keeps a record of the packages that the role has installed, because only those are the role's to release.
  - Other packages stay as the board's owner has set them.
options:
  record: {type: path, required: true, description: File with one name a line.}
  installs:
    type: list
    elements: str
    default: []
    description: Packages that the role installs next. They join the record.
  state:
    choices: [present, released, absent]
    default: present
    description: >-
      C(present) runs C(apt-mark hold) for the record's installed packages, and removes others from the
      record. C(released) releases them, for an installation. C(absent) also removes the record.
"""

RETURN = r"""
packages:
  type: list
  elements: str
  description: Names of the packages whose state in apt-mark has changed, or would change outside check mode.
"""


def read_names(path: str) -> List[str]:
    """The names in a record; none if there is no record."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as stream:
        return stream.read().split()


def plan(
    state: str, recorded: List[str], installed: List[str], held: List[str]
) -> Tuple[List[str], List[str]]:
    """(Names of the new record, arguments for `apt-mark hold` or `unhold`)."""
    if state == "present":
        kept = sorted(set(recorded) & set(installed))
        return kept, [name for name in kept if name not in held]
    return ([] if state == "absent" else sorted(set(recorded))), sorted(set(recorded) & set(held))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "path", "required": True},
            "installs": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "released", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    record, state = module.params["record"], module.params["state"]
    before = read_names(record)
    recorded = before + module.params["installs"]
    if not recorded:
        module.exit_json(changed=False, packages=[])
    # dpkg-query fails for a name that it does not know, and tells of the others.
    _, shown, _ = module.run_command(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *recorded]
    )
    installed = [line.split()[1] for line in shown.splitlines() if line.startswith("installed ")]
    held = module.run_command(["apt-mark", "showhold"], check_rc=True)[1].split()
    kept, names = plan(state, recorded, installed, held)
    if not module.check_mode:
        # The record comes first: an interrupted run leaves no package hold that the record lacks.
        if kept and kept != before:
            replace_file(record, "".join(name + "\n" for name in kept))
        if names:
            verb = "hold" if state == "present" else "unhold"
            module.run_command(["apt-mark", verb, *names], check_rc=True)
        if not kept and os.path.exists(record):
            os.unlink(record)
    module.exit_json(changed=bool(names) or kept != before, packages=names)


if __name__ == "__main__":
    main()
