# SPDX-License-Identifier: Apache-2.0
"""Ansible connection to a board that does not exist: answers.py answers, and all that is sent is recorded.

The connection is all that a board has: it cannot tell the controller anything in another way.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

from tests.hostile import answers

DOCUMENTATION = """
name: scripted
short_description: A scripted board
description: Answers of a board by a script, for tests.
author: The jetson-k3s authors
options: {}
"""

MODULE = re.compile(r"module_fqn='[\w.]+[.](\w+)'")
PARAMETERS = re.compile(r"""=\s*('(?:[^'\\]|\\.)*ANSIBLE_MODULE_ARGS(?:[^'\\]|\\.)*')""")
# `echo NAME="` in the command that makes a directory for files.
DIRECTORY = re.compile(r"echo (ansible-tmp-[\d.-]+)=")
# How Ansible's module reboot finds out that a board has started again.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
UPLOADED = re.compile(r"/root/\S*AnsiballZ_(\w+)[.]py")


def module_call(source: str) -> tuple[str, dict[str, Any]]:
    name, parameters = MODULE.search(source), PARAMETERS.search(source)
    assert name is not None, source[:500]
    assert parameters is not None, source[:500]
    return name[1], json.loads(ast.literal_eval(parameters[1]))["ANSIBLE_MODULE_ARGS"]


def wait_until_given_up() -> NoReturn:
    """As ssh does for a board that keeps the connection and answers nothing."""
    while True:
        signal.pause()


class Connection(ConnectionBase):  # type: ignore[misc] # ansible-core has no types
    """Records what is sent, and answers as the board does."""

    transport = "scripted"
    has_pipelining = True

    def _connect(self) -> Connection:
        return self

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def _board(self) -> str:
        return str(self._play_context.remote_addr)

    @property
    def _silent(self) -> Path:
        """Is there once the board has stopped answering."""
        return Path(os.environ["SCRIPTED_BOARDS"]) / f"{self._board}-silent"

    def _record(self, kind: str, sent: bytes | str) -> None:
        directory = Path(os.environ["SCRIPTED_BOARDS"]) / self._board
        directory.mkdir(exist_ok=True)
        name = f"{time.time_ns()}-{os.getpid()}-{kind}"
        (directory / name).write_bytes(sent if isinstance(sent, bytes) else sent.encode())

    def _file(self, path: str) -> Path:
        """Where an uploaded module lies until it is run by another process."""
        return Path(os.environ["SCRIPTED_BOARDS"]) / "uploads" / path.replace("/", "_")[-200:]

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if "silent" in answers.attacks().get(self._board, []) or self._silent.exists():
            wait_until_given_up()
        if in_data is None:
            self._record("shell", cmd)
            made, uploaded = DIRECTORY.search(cmd), list(UPLOADED.finditer(cmd))
            if BOOT_ID in cmd:  # another one at each look, as after a reboot
                return 0, str(uuid.uuid4()).encode(), b""
            if made:
                return 0, f"{made[1]}=/root/.ansible/tmp/{made[1]}\n".encode(), b""
            if not uploaded or "chmod" in cmd:
                return 0, b"/root\n", b""
            in_data = self._file(uploaded[-1][0]).read_bytes()
        module, arguments = module_call(in_data.decode())
        changes = answers.changes(self._board, module, arguments)
        if any("unreachable" in one for one in changes):
            raise AnsibleConnectionFailure("no route to host")
        self._record(module, json.dumps(arguments))
        starts_job = "async_wrapper" in cmd
        if any("silent" in one for one in changes):  # for all that follows, too
            self._silent.touch()
            if not starts_job:
                wait_until_given_up()
        if starts_job:  # the board begins with the module, and tells its result later
            return 0, answers.answer(self._board, "async_wrapper", {}), b""
        return 0, answers.answer(self._board, module, arguments), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        content = Path(in_path).read_bytes()
        self._file(out_path).write_bytes(content)
        self._record("upload", content)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        Path(out_path).write_bytes(answers.content(in_path))
