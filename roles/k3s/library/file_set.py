#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ensure a set of small files and links in one round trip, and remember that their reader must restart.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import tempfile

from ansible.module_utils.atomic_files import leave_marker, make_directory, replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hidden_secrets import without_secrets

DOCUMENTATION = r"""
module: file_set
short_description: A set of small files and links in one round trip
description:
  - Writes each file atomically and only when it differs. Directories that are missing are made.
  - Before the first change the marker is made; it stays until the role removes it after the restart. So a run
    that was cut off between the change and the restart is completed by the next one.
author: The jetson-k3s authors
options:
  files:
    description:
      - Each with C(path) and C(content) and C(mode) or with C(link).
      - The diff is without secrets that stood in a file. A task that writes one needs C(no_log).
    type: list
    elements: dict
    required: true
  due:
    description: Is a restart due for another reason? Then the marker is made also where nothing differs.
    type: bool
    default: false
  hold:
    description: Leave them all alone. C(held) says whether one differs.
    type: bool
    default: false
  marker:
    description: File that says that a restart is due. In /run, because a reboot restarts as well.
    type: path
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

RETURN = r"""
held:
  description: Whether something differs that was left alone.
  returned: success
  type: bool
restart_due:
  description: Whether the marker stands, or would stand outside check mode.
  returned: success
  type: bool
"""


# Far above what is written here, far below what a diff should show.
LARGEST = 1 << 20


def state(path):
    """What stands at path: its link's target or its text, and its mode; ('', None) when there is nothing."""
    if os.path.islink(path):
        return "-> " + os.readlink(path) + "\n", None
    try:
        # Anything may stand where a link is wanted, such as the binary of another installation.
        with open(path, encoding="utf-8", errors="replace") as stream:
            if os.fstat(stream.fileno()).st_size > LARGEST:
                return "a file of {} bytes\n".format(os.fstat(stream.fileno()).st_size), None
            return stream.read(), os.fstat(stream.fileno()).st_mode & 0o7777
    except IOError:
        return "", None


def wanted_state(entry):
    """The same for an entry of `files`."""
    if entry["link"] is not None:
        return "-> " + entry["link"] + "\n", None
    return entry["content"], int(entry["mode"], 8)


def put(entry):
    """Make path what the entry says, in one atomic step."""
    path = entry["path"]
    if entry["link"] is None:
        replace_file(path, entry["content"], int(entry["mode"], 8))
        return
    make_directory(path)
    directory = os.path.dirname(path)
    temporary = tempfile.mktemp(prefix=".link.", dir=directory)  # noqa: S306 - symlink() refuses a name that exists
    os.symlink(entry["link"], temporary)
    os.rename(temporary, path)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "mode": {"type": "str"},
                    "link": {"type": "path"},
                },
                "required_one_of": [("content", "link")],
                "mutually_exclusive": [("content", "link")],
                "required_together": [("content", "mode")],
            },
            "due": {"type": "bool", "default": False},
            "hold": {"type": "bool", "default": False},
            "marker": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    marker, due = module.params["marker"], module.params["due"]
    changes = [entry for entry in module.params["files"] if state(entry["path"]) != wanted_state(entry)]
    if module.params["hold"]:
        module.exit_json(
            changed=False, held=bool(changes), paths=[], restart_due=due or os.path.exists(marker)
        )
    diff = [
        {
            "before_header": "{} (mode {})".format(
                entry["path"], "none" if before[1] is None else oct(before[1])
            ),
            "after_header": "{} (mode {})".format(entry["path"], entry["mode"] or "none"),
            "before": without_secrets(before[0]),
            "after": without_secrets(after[0]),
        }
        for entry, before, after in ((entry, state(entry["path"]), wanted_state(entry)) for entry in changes)
    ]
    if (changes or due) and not module.check_mode:
        leave_marker(marker)
        for entry in changes:
            put(entry)
    module.exit_json(
        changed=bool(changes),
        held=False,
        paths=[entry["path"] for entry in changes],
        restart_due=bool(changes) or due or os.path.exists(marker),
        diff=diff,
    )


if __name__ == "__main__":
    main()
