# SPDX-License-Identifier: Apache-2.0
"""Ansible connection to a light board: it has no process, and answers as a board that site.yml left."""

from __future__ import annotations

import json

from tests.benchmarks import light
from tests.hostile.connection_plugins import scripted

DOCUMENTATION = """
name: light
short_description: A light board
description: Answers of a board on which nothing has changed, for measurements.
author: The jetson-k3s authors
options: {}
"""


class Connection(scripted.Connection):
    """Answers without delay, and records nothing."""

    transport = "light"

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Answer the module that is sent."""
        if in_data is None:
            return super().exec_command(cmd, in_data, sudoable)
        module, arguments = scripted.module_call(in_data.decode())
        return 0, json.dumps(light.answer(self._board, module, arguments)).encode(), b""

    def _record(self, kind: str, sent: bytes | str) -> None:
        """Nothing reads it."""
