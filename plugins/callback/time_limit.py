# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: says why a task ran past its time limit, and what to do.

Ansible's own message has the seconds alone. The most frequent cause is a board that takes a connection and
then answers nothing, such as one whose disk has failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: time_limit
type: aggregate
short_description: Says why a task ran past its time limit
description: Adds cause and fix to the failure of a task that ran past its time limit.
"""

# Ansible's message since 2.19, and before.
LATE = re.compile(
    r"Timed out after (\d+) second\(s\)\.?$|in the expected time frame \((\d+)\) and was terminated$"
)
BOARD = (
    "{name} took the connection and did not finish the task within {seconds} s. If it does not answer to "
    "ansible.builtin.ping either, read its serial console, and switch it off and on. If it only needs more "
    "time, increase jetson_k3s_timeout for K3s, or task_timeout in ansible.cfg. Then run the same command "
    "again."
)
CONTROLLER = (
    "This computer did not finish the task within {seconds} s. Check its network and its disk, and run the "
    "same command again."
)


def seconds(result: Mapping[str, Any]) -> str:
    """The limit that a task or one item of its loop ran past, '' for every other failure."""
    items = result.get("results")
    for one in (result, *(items if isinstance(items, list) else ())):
        found = LATE.search(str(one.get("msg", ""))) if isinstance(one, Mapping) else None
        if found:
            return found[1] or found[2]
    return ""


def explanation(host: str, delegate_to: str | None, result: Mapping[str, Any]) -> str:
    """Cause and fix for a task that ran past its limit, '' for every other failure."""
    name = delegate_to or host
    text = CONTROLLER if name == "localhost" else BOARD
    # In a loop over boards Ansible does not say which one it was. Its own line above does.
    limit = seconds(result)
    return text.format(name="The board" if "{{" in name else name, seconds=limit) if limit else ""


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core has no types
    """Shows the explanation below the failure."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "time_limit"

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Show it, unless the playbook ignores the failure."""
        # The public names came with ansible-core 2.19.
        delegate_to = result._task_fields.get("delegate_to")
        text = explanation(result._host.get_name(), delegate_to, result._result)
        if text and not ignore_errors:
            self._display.display(text, color="red")
