# SPDX-License-Identifier: Apache-2.0
"""Ansible connection to a directory of this machine that stands for a board, and that a test can break.

A board has programs of its own, in its directory `bin`. `faults.json` there has the calls of modules that
fail, or in which the board is lost.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: breakable
short_description: A directory that stands for a board
description: Connection of a board that fails when a test says so.
author: The jetson-k3s authors
extends_documentation_fragment: [connection_pipelining]
options: {}
"""

SENT = re.compile(rb"module_fqn='[\w.]+[.](\w+)'")
UPLOADED = re.compile(r"python\S* \S*AnsiballZ_(\w+)[.]py")


class Connection(Local):  # type: ignore[misc] # ansible-core has no types
    """Runs modules as the local connection does, with the board's programs."""

    transport = "breakable"

    @property
    def _directory(self) -> Path:
        return Path(os.environ["FLEET"]) / str(self._play_context.remote_addr)

    def _fault(self, module: str) -> str | None:
        """How this call ends, None if it is to work. Calls are counted from 1."""
        counts = self._directory / "calls.json"
        calls = json.loads(counts.read_text()) if counts.exists() else {}
        calls[module] = calls.get(module, 0) + 1
        counts.write_text(json.dumps(calls))
        faults = json.loads((self._directory / "faults.json").read_text())
        how = faults.get(f"{module} {calls[module]}")
        return None if how is None else str(how)

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        if (self._directory / "lost").exists():
            raise AnsibleConnectionFailure("no route to host")
        os.environ["PATH"] = f"{self._directory}/bin:{os.environ['PATH']}"
        sent, uploaded = SENT.search(in_data or b""), UPLOADED.search(cmd)
        module = sent[1].decode() if sent else uploaded[1] if uploaded else ""
        how = self._fault(module) if module else None
        if how == "lost":
            (self._directory / "lost").touch()
            raise AnsibleConnectionFailure("no route to host")
        if how is not None:
            return 1, json.dumps({"failed": True, "msg": how}).encode(), b""
        result: tuple[int, bytes, bytes] = super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return result
