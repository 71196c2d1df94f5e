# SPDX-License-Identifier: Apache-2.0
"""Ansible action: the module of this name in Ansible's own process.

The bundle is on this computer. A Python of its own for the module takes longer than most bundles.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.modules import bundle_info

Data = dict[str, Any]


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Inspects the bundle."""

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Return the result of the task. What a bundle says is no template."""
        result: Data = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(bundle_info.ARGUMENTS)
        said: Data = wrap_var(bundle_info.found(given))
        return {**result, **said, "changed": False}
