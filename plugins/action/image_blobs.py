# SPDX-License-Identifier: Apache-2.0
"""Send the blobs of images that a board lacks, in pieces, so that the next run goes on after a cut."""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import run_lock

Data = dict[str, Any]

MODULE = "jetson_k3s.cluster.image_blobs"
LOCK = "jetson_k3s.cluster.run_lock"
MB = 1_000_000
SMALLEST, LARGEST = 4 * MB, 128 * MB
PIECE_SECONDS = 15.0
"""What a cut costs at most, about. A piece has a cost of its own, so it is no smaller."""
SHOWN_SECONDS = 60.0
RENEWED_SECONDS = 600.0
"""How often the lock of this run is renewed on the way. It lasts an hour."""


class Piece(NamedTuple):
    """A part of a blob."""

    digest: str
    size: int
    offset: int


def next_size(size: int, seconds: float) -> int:
    """The bytes of the next piece, after one of this size took so long."""
    return max(SMALLEST, min(LARGEST, int(size * PIECE_SECONDS / max(seconds, 0.1))))


def order(blobs: Sequence[Mapping[str, Any]], lacking: Mapping[str, int]) -> Iterator[Piece]:
    """Where each blob goes on: the one that was cut first, then in their order."""
    missing = {one["digest"]: int(one["size"]) for one in blobs if one["digest"] in lacking}
    for digest in sorted(missing, key=lambda one: lacking[one] == 0):
        yield Piece(digest, missing[digest], lacking[digest])


class Lock:
    """The lock of this run on the board, if the task names it."""

    def __init__(self, path: str, execute: Callable[..., Data]) -> None:
        self.path, self.execute, self.renewed = path, execute, float("-inf")

    def renew(self) -> Data:
        """Renew the lock when that is due. The failure of the module, if another run has locked the board."""
        if not self.path or time.monotonic() - self.renewed < RENEWED_SECONDS:
            return {}
        self.renewed = time.monotonic()
        run = run_lock.run(datetime.datetime.now(datetime.timezone.utc))
        answer = self.execute(path=self.path, state="renewed", run=run)
        return answer if answer.get("failed") else {}


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Asks the board what it lacks, and sends that."""

    def run(self, tmp: object = None, task_vars: Data | None = None) -> Data:
        """Ansible's entry point."""
        result: Data = super().run(tmp, task_vars)
        given, variables = self._task.args, task_vars or {}
        place = {"path": given["path"], "layout": given["layout"]}
        blobs, source = given["blobs"], Path(given["source"])
        lock = Lock(given.get("lock") or "", functools.partial(self._module, variables, LOCK))
        asked = self._module(variables, MODULE, **place, blobs=blobs)
        if asked.get("failed"):
            return result | asked
        lacking: dict[str, int] = asked["lacking"]
        left = sum(one["size"] - lacking[one["digest"]] for one in blobs if one["digest"] in lacking)
        if self._task.check_mode or not lacking:
            return result | {"changed": bool(lacking), "sent": 0}
        directory = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(directory, "piece")
        sent, piece_size, shown = 0, SMALLEST, time.monotonic()
        for digest, size, begin in order(blobs, lacking):
            offset = begin
            with (source / digest.partition(":")[2]).open("rb") as file:
                file.seek(offset)
                while offset < size:
                    content = file.read(piece_size)
                    if not content:
                        raise AnsibleActionFail(
                            f"{file.name} has changed during the run: make the bundle again"
                        )
                    began = time.monotonic()
                    self._transfer_data(remote, content)
                    answer = lock.renew() or self._module(
                        variables, MODULE, **place, digest=digest, size=size, offset=offset, piece=remote
                    )
                    if answer.get("failed"):
                        return result | answer
                    offset, sent = offset + len(content), sent + len(content)
                    piece_size = next_size(len(content), time.monotonic() - began)
                    if time.monotonic() - shown > SHOWN_SECONDS:
                        shown = time.monotonic()
                        self._show(variables, sent, left)
        return result | {"changed": True, "sent": sent}

    def _module(self, variables: Data, name: str, /, **arguments: Any) -> Data:
        """The answer of a module on the board."""
        found: Data = self._execute_module(module_name=name, module_args=arguments, task_vars=variables)
        return found

    def _show(self, variables: Data, sent: int, left: int) -> None:
        """Show how much of the images was sent."""
        host = variables.get("inventory_hostname", "")
        Display().display(f"{host}: {sent // MB} of {left // MB} MB of images were sent")
