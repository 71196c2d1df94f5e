# SPDX-License-Identifier: Apache-2.0
"""The publisher goes by the newest word on the slice, whichever way it comes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from tegra_device_plugin.config.dra import Dra
from tegra_device_plugin.dra.api import Server
from tegra_device_plugin.dra.publisher import Publisher, Written

from tests.unit.plugin.dra.objects import NODE, gpu


class LateAnswer:
    """A server whose watch tells of a person's change before the answer to the creation is there."""

    node = NODE

    def __init__(self) -> None:
        self.replaced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def slices(self) -> tuple[list[dict[str, Any]], str]:
        return [], "1"

    async def node_uid(self) -> str:
        return "1111"

    async def changes(self, _version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        while True:
            yield await self._events.get()
            self._events.task_done()

    async def create(self, content: dict[str, Any]) -> dict[str, Any]:
        answer = copy.deepcopy(content)
        answer["metadata"] |= {"name": "slice", "resourceVersion": "2"}
        altered = copy.deepcopy(answer)
        altered["metadata"]["resourceVersion"] = "3"
        altered["spec"]["devices"][0]["attributes"]["soc"] = {"string": "toaster"}
        self._events.put_nowait(("MODIFIED", altered))
        await self._events.join()
        return answer

    async def replace(self, content: dict[str, Any]) -> dict[str, Any]:
        self.replaced.set_result(content)
        return content | {"metadata": content["metadata"] | {"resourceVersion": "4"}}


async def test_a_change_that_is_told_of_before_the_answer_is_set_right(tmp_path: Path) -> None:
    server = LateAnswer()
    publisher = Publisher(cast(Server, server), Dra(), Written())
    publisher.offer(gpu(tmp_path))
    running = asyncio.ensure_future(publisher.run())
    try:
        async with asyncio.timeout(20):
            content = await server.replaced
    finally:
        running.cancel()
        await asyncio.wait((running,))
    assert content["metadata"]["resourceVersion"] == "3"
    assert content["spec"]["devices"][0]["attributes"]["soc"] == {"string": "tegra234"}
    assert content["spec"]["pool"]["generation"] == 2
