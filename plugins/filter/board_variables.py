# SPDX-License-Identifier: Apache-2.0
"""Filters for the variables and the facts of several boards."""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by their subject."""
        return {"board_facts": board_variables.facts_of, "board_values": board_variables.values_of}
