# SPDX-License-Identifier: Apache-2.0
"""Filters for the names of the bundle's files, by the board that gets them."""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by their subject."""
        return {
            "board_architecture": board_release.architecture,
            "board_packages_archive": board_release.packages_archive,
        }
