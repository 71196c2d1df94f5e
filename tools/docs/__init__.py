# SPDX-License-Identifier: Apache-2.0
"""Parts of documents, and a Python module, that are made from data; `python -m tools.docs` writes them."""

from pathlib import Path

from tegra_device_plugin.board import catalogue

from tools.cache import CHECKOUT
from tools.docs import changes, releases
from tools.docs.markdown import put_in


def generated() -> dict[Path, str]:
    """Every file with parts that are made from data, and its text with these parts as they must be."""
    roles = CHECKOUT / "roles"
    jetpack = catalogue.load().jetpack
    changed, compatibility = CHECKOUT / "docs/changes.md", CHECKOUT / "docs/compatibility.md"
    return {
        changed: put_in(changed.read_text(), "changes", changes.render(roles)),
        compatibility: put_in(compatibility.read_text(), "releases", releases.listed(jetpack)),
        roles / "jetson_facts/module_utils/jetson_releases.py": releases.module(jetpack),
    }
