# SPDX-License-Identifier: Apache-2.0
"""Parts of documents, and a Python module, that are made from data; `python -m tools.docs` writes them."""

from pathlib import Path

from tegra_device_plugin.board import catalogue

from tools.cache import CHECKOUT
from tools.docs import findings, releases
from tools.docs.markdown import put_in


def generated() -> dict[Path, str]:
    """Every file with parts that are made from data, and its text with these parts as they must be."""
    roles = CHECKOUT / "roles"
    jetpack = catalogue.load().jetpack
    compatibility, troubleshooting = (
        CHECKOUT / f"docs/{name}.md" for name in ("compatibility", "troubleshooting")
    )
    versions = put_in(compatibility.read_text(), "toolkits", findings.toolkits(roles))
    return {
        compatibility: put_in(versions, "releases", findings.releases(jetpack)),
        troubleshooting: findings.put_findings_in(troubleshooting.read_text(), findings.findings(roles)),
        roles / "jetson_facts/module_utils/jetson_releases.py": releases.render(jetpack),
    }
