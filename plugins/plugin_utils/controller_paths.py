# SPDX-License-Identifier: Apache-2.0
"""One rule for paths on the controller: where a person types them, and where their defaults are.

Ansible evaluates filters in its own process, whose current directory is that of the command. Modules that run
on the controller have the directory of the playbook.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()  # past the link by which the checkout is the collection
ROOT_DEPTH = 2  # plugins/plugin_utils/
ONLY_IN_CHECKOUT = "ansible.cfg"


def controller_path(path: Any) -> Any:
    """An absolute path for one that a person gave, relative to the directory of the command; '' for ''.

    Of a list, each of its paths.
    """
    if isinstance(path, list):
        return [controller_path(one) for one in path]
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path))) if path else ""


def displayed_path(path: str) -> str:
    """A path as the screen shows it: relative below the directory of the command, else as it is."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def checkout_path(name: str, code: Path = HERE) -> str:
    """An absolute path below the checkout of this `code`, or below the current directory of a collection."""
    root = code.parents[ROOT_DEPTH]
    return str((root if (root / ONLY_IN_CHECKOUT).is_file() else Path.cwd()) / name)


# Texts of a board never come here.
FILTERS = {"controller_path": controller_path, "checkout_path": checkout_path}
