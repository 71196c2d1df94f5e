# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: loads the collection's filters before the first task.

Ansible starts a process for each task on each board, and there loads a filter when a template names it. With
the modules that it imports this took 80 ms a process. What is loaded before is in each of them.
"""

from __future__ import annotations

from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import filter_loader
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables

DOCUMENTATION = """
name: preload
type: aggregate
short_description: Loads the collection's filters once
description: Saves each process that Ansible starts for a task the time of loading them.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core has no types
    """Loads them when the playbook starts."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "preload"

    def v2_playbook_on_start(self, playbook: object) -> None:
        """Find any of them: they are in one file."""
        filter_loader.get(f"jetson_k3s.cluster.{next(iter(board_variables.FILTERS))}")
