# SPDX-License-Identifier: Apache-2.0
"""Where the roles and the plugins of the collection are."""

from pathlib import Path
from typing import Any

from tests.docs import CHECKOUT

Data = dict[str, Any]
"""Facts, findings, variables, or an object of Kubernetes."""
COLLECTION = "jetson_k3s.cluster"
ROLES = CHECKOUT / "roles"
PLUGINS = CHECKOUT / "plugins"


def stub_collection(root: Path) -> Path:
    """Make a collection below `root`/collections with the real plugins; return its directory."""
    collection = root / "collections/ansible_collections" / COLLECTION.replace(".", "/")
    for name in ("roles", "plugins/action"):
        (collection / name).mkdir(parents=True)
    for kind in (path for path in PLUGINS.iterdir() if path.is_dir()):
        (collection / "plugins" / kind.name).symlink_to(kind)
    return collection
