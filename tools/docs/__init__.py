# SPDX-License-Identifier: Apache-2.0
"""What is made from data and cannot say anything else, documents mostly; `python -m tools.docs` writes it."""

from pathlib import Path

from tegra_device_plugin.board import catalogue

from tools.cache import CHECKOUT
from tools.docs import changes, compatibility, releases


def generated() -> dict[Path, str]:
    """Every file that is made from data, and what must stand in it."""
    roles = CHECKOUT / "roles"
    jetpack = catalogue.load().jetpack
    return {
        CHECKOUT / "docs/changes.md": changes.render(roles),
        CHECKOUT / "docs/compatibility.md": compatibility.render(roles, jetpack),
        roles / "jetson_facts/module_utils/jetson_releases.py": releases.render(jetpack),
    }
