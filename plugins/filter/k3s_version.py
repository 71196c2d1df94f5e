# SPDX-License-Identifier: Apache-2.0
"""Filters for the K3s that boards get, which several roles ask for."""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_version


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by their subject."""
        return {"k3s_wanted_version": k3s_version.wanted_version}
