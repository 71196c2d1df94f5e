#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ensure a set of small files, links and directories in one round trip, and remember a restart that is due.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import tempfile
from typing import Any, Dict, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    make_directory,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: file_set
short_description: A set of small files, links and directories in one round trip
description:
  - Writes each file atomically and only when it differs. Directories that are missing are made.
  - Before the first change the marker is made, if one is given. It stays until the role deletes it after the
    restart. So the next run completes a run that was interrupted between the change and the restart.
options:
  files:
    description:
      - Each with C(path), and with C(content) and C(mode), or with C(directory) and C(mode), or with C(link),
        or with C(absent).
      - With C(secret) instead of C(content) it comes from C(secrets) and is not shown at all.
      - The diff is without a file's old secrets. A task that writes one by C(content) needs C(no_log).
    type: list
    elements: dict
    required: true
  secrets: {type: dict, default: {}, description: Contents by path. They are in no message and no log.}
  due: {type: bool, default: false, description: Whether a restart is due for another reason.}
  postpone: {type: bool, default: false, description: Change nothing and report C(postponed).}
  marker: {type: path, description: 'Marker of the restart that is due, in /run. Without it none is due.'}
"""

RETURN = r"""
postponed: {type: bool, description: Whether a change was postponed.}
restart_due: {type: bool, description: 'Whether the marker exists, or would exist outside check mode.'}
"""

Data = Dict[str, Any]  # an entry of `files`
State = Tuple[str, Optional[int]]

# Far above what is written here, far below what a diff should show.
LARGEST = 1 << 20
DIRECTORY = "a directory\n"
# An entry has one of them.
KINDS = ("content", "secret", "link", "absent", "directory")


def state(entry: Data) -> State:
    """A link's target, a file's text or a directory, and the mode; ('', None) if nothing is at the path."""
    path = entry["path"]
    if entry["directory"] and os.path.isdir(path):  # also by a link to another disk
        return DIRECTORY, os.stat(path).st_mode & 0o7777
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


def wanted_state(entry: Data) -> State:
    """The same for an entry of `files`."""
    if entry["absent"]:
        return "", None
    if entry["link"] is not None:
        return "-> " + entry["link"] + "\n", None
    return DIRECTORY if entry["directory"] else entry["text"], int(entry["mode"], 8)


def shown(before: str, after: str, plain: bool) -> Tuple[str, str]:
    """Two texts as a diff may show them; of those that are not plain only whether they differ."""
    if plain:
        return redact(before), redact(after)
    hidden, other = "(a text that is not shown)\n", "(another text that is not shown)\n"
    return before and hidden, after and (other if before not in ("", after) else hidden)


def difference(entry: Data) -> Dict[str, str]:
    """An entry's diff."""
    (before, mode), (after, _) = state(entry), wanted_state(entry)
    before, after = shown(before, after, not entry["secret"] and not entry["absent"])
    return {
        "before_header": "{} (mode {})".format(entry["path"], "none" if mode is None else oct(mode)),
        "after_header": "{} (mode {})".format(entry["path"], entry["mode"] or "none"),
        "before": before,
        "after": after,
    }


def put(entry: Data) -> None:
    """Make path what the entry says, in one atomic step."""
    path = entry["path"]
    if entry["absent"]:
        os.unlink(path)
        return
    if entry["directory"]:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, int(entry["mode"], 8))
        return
    if entry["link"] is None:
        replace_file(path, entry["text"], int(entry["mode"], 8))
        return
    make_directory(path)
    directory = os.path.dirname(path)
    temporary = tempfile.mktemp(prefix=".link.", dir=directory)  # noqa: S306 - symlink() refuses a name that exists
    os.symlink(entry["link"], temporary)
    os.rename(temporary, path)


def left(marker: Optional[str]) -> bool:
    """Whether an earlier change has left the marker."""
    return marker is not None and os.path.exists(marker)


def main() -> None:
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
                    "secret": {"type": "bool", "no_log": False},
                    "mode": {"type": "str"},
                    "link": {"type": "path"},
                    "absent": {"type": "bool"},
                    "directory": {"type": "bool"},
                },
                "required_one_of": [KINDS],
                "mutually_exclusive": [KINDS],
                "required_by": {"content": ["mode"], "secret": ["mode"], "directory": ["mode"]},
            },
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "due": {"type": "bool", "default": False},
            "postpone": {"type": "bool", "default": False},
            "marker": {"type": "path"},
        },
        supports_check_mode=True,
    )
    marker, due, secrets = module.params["marker"], module.params["due"], module.params["secrets"]
    files = [
        dict(entry, text=secrets[entry["path"]] if entry["secret"] else entry["content"])
        for entry in module.params["files"]
    ]
    changes = [entry for entry in files if state(entry) != wanted_state(entry)]
    if module.params["postpone"]:
        module.exit_json(changed=False, postponed=bool(changes), paths=[], restart_due=due or left(marker))
    diff = [difference(entry) for entry in changes]
    if (changes or due) and not module.check_mode:
        if marker:
            leave_marker(marker)
        for entry in changes:
            put(entry)
    module.exit_json(
        changed=bool(changes),
        postponed=False,
        paths=[entry["path"] for entry in changes],
        restart_due=bool(changes and marker) or due or left(marker),
        diff=diff,
    )


if __name__ == "__main__":
    main()
