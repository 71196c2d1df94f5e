# SPDX-License-Identifier: Apache-2.0
"""Ansible's connection `local`, but the host that runs kubectl of an existing cluster is a scripted one.

Without it the modules would run kubectl on the computer of the test.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.connection import local as builtin

from tests.hostile.connection_plugins import scripted

DOCUMENTATION = """
name: local
short_description: This computer, or a scripted host
description: This computer, or a scripted host.
author: The jetson-k3s authors
options: {}
"""
CONTROLLER = "existing-cluster"


class Connection(builtin.Connection):  # type: ignore[misc] # ansible-core has no types
    """Runs the modules of all hosts here, but those of one."""

    def __new__(cls, play_context: Any, *arguments: Any, **options: Any) -> Any:
        if play_context.remote_addr == CONTROLLER:
            return scripted.Connection(play_context, *arguments, **options)
        return super().__new__(cls)
