# SPDX-License-Identifier: Apache-2.0
"""Small files, links and directories as a task describes them: what is there instead, and how it is written.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    make_directory,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

Data = Dict[str, Any]  # an entry of `files`
State = Tuple[str, Optional[int]]

# Far above what is written here, far below what a diff should show.
LARGEST = 1 << 20
DIRECTORY = "a directory\n"
# An entry has one of them.
KINDS = ("content", "secret", "link", "absent", "directory")
# The option `files` of a module. Documented in module file_set.
FILES = {
    "type": "list",
    "elements": "dict",
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
}


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


def changed_entries(files: List[Data], secrets: Dict[str, str]) -> List[Data]:
    """The entries that differ from what is at their paths, each with its `text`. `secrets`: texts by path."""
    entries = [
        dict(entry, text=secrets[entry["path"]] if entry["secret"] else entry["content"]) for entry in files
    ]
    return [entry for entry in entries if state(entry) != wanted_state(entry)]
