# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: control characters in a board's text are shown, and the terminal does not obey them.

Ansible prints what a module says as it is: a failure, a warning, an exception. With escape sequences a board
could change what is on the screen, or have the terminal do more than that. Every text goes through
`sys.stdout` or `sys.stderr`, so these are filtered.
"""

from __future__ import annotations

import sys
from typing import TextIO

from ansible.plugins.callback import CallbackBase
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.control_characters import shown

DOCUMENTATION = """
name: terminal
type: aggregate
short_description: Control characters are shown, and not obeyed
description: Replaces control characters in all that Ansible prints, but for its own colours.
"""


class Filtered:
    """A stream that writes no control character."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(shown(text))

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core has no types
    """Filters both streams from its start on. Ansible starts it before the first task."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "terminal"

    def __init__(self) -> None:
        super().__init__()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if not isinstance(stream, Filtered):
                setattr(sys, name, Filtered(stream))
