# SPDX-License-Identifier: Apache-2.0
"""Where the roles and the plugins of the collection are."""

from pathlib import Path
from typing import Any

import yaml

from tests.docs import CHECKOUT

Data = dict[str, Any]
"""Facts, findings, variables, or an object of Kubernetes."""
COLLECTION = "jetson_k3s.cluster"
ROLES = CHECKOUT / "roles"
PLUGINS = CHECKOUT / "plugins"


def k3s_paths(there: Path, **names: str) -> dict[str, str]:
    """The variable of role k3s that has its files on a board, with all of them in one directory.

    `names` are others than the real ones.
    """
    real = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())["__k3s_paths"]
    return {kind: f"{there}/{names.get(kind, path.rpartition('/')[2])}" for kind, path in real.items()}


def stub_collection(root: Path) -> Path:
    """Make a collection below `root`/collections with the real plugins; return its directory.

    A test may add actions of its own.
    """
    collection = root / "collections/ansible_collections" / COLLECTION.replace(".", "/")
    for name in ("roles", "plugins/action"):
        (collection / name).mkdir(parents=True)
    for kind in (path for path in PLUGINS.iterdir() if path.is_dir() and path.name != "action"):
        (collection / "plugins" / kind.name).symlink_to(kind)
    for action in (PLUGINS / "action").glob("*.py"):
        (collection / "plugins/action" / action.name).symlink_to(action)
    return collection
