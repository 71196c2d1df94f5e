# SPDX-License-Identifier: Apache-2.0
"""Ansible action: the module of this name in Ansible's own process.

The bundle is on this computer. A Python of its own for the module takes longer than most bundles.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import bundle

Data = dict[str, Any]


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Inspects the bundle."""

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Return the result of the task."""
        result: Data = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(bundle.ARGUMENTS)
        return {**result, **bundle.content(given), "changed": False}
