# SPDX-License-Identifier: Apache-2.0
"""An agent's way to the servers: one port of its own, behind it whichever server answers.

As in K3s (pkg/agent/loadbalancer) the servers are the cluster's own endpoints, and are kept on disk: an agent
also starts while the one that it has joined is down.
"""

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path

from . import files
from .api import Api, ApiError
from .network import API_PORT

REFRESH_SECONDS = 5.0
CONNECT_SECONDS = 3.0
BLOCK = 1 << 16
# kube-proxy may list them, the kubelet may not.
ENDPOINTS = "/api/v1/namespaces/default/endpoints?fieldSelector=metadata.name%3Dkubernetes"


class Balancer:
    """The servers that are known: addresses, first the one that has answered last."""

    def __init__(self, configured: str, directory: Path) -> None:
        """`configured` is the host in the configuration's URL, `directory` the agent's."""
        self._configured = configured
        self._file = directory / "etc" / "k3s-agent-load-balancer.json"
        self.servers = [configured]
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.learn(json.loads(self._file.read_text())["ServerAddresses"])

    def learn(self, addresses: Sequence[str]) -> None:
        """Keep to these from now on, and to the configured one, and remember them."""
        known = dict.fromkeys([*addresses, self._configured])
        self.servers = list(dict.fromkeys([one for one in self.servers if one in known] + list(known)))
        files.write(self._file, json.dumps({"ServerAddresses": self.servers}))

    async def listen(self) -> None:
        """Take connections from now on."""
        await asyncio.start_server(self._serve, "127.0.0.1", API_PORT)

    async def follow(self, api: Api) -> None:
        """Learn which servers there are, for ever."""
        while True:
            with contextlib.suppress(OSError, ApiError):
                answer = json.loads(await asyncio.to_thread(api.call, "GET", ENDPOINTS))
                subsets = [subset for item in answer["items"] for subset in item.get("subsets", [])]
                if found := [one["ip"] for subset in subsets for one in subset.get("addresses", [])]:
                    self.learn(found)
            await asyncio.sleep(REFRESH_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            for server in tuple(self.servers):
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        answers, asks = await asyncio.open_connection(server, API_PORT)
                except OSError:
                    continue
                self.servers.sort(key=server.__ne__)
                with contextlib.closing(asks):
                    await _either_ends(_pass(reader, asks), _pass(answers, writer))
                return


async def _either_ends(*ways: Coroutine[None, None, None]) -> None:
    """Go both ways until one of them ends."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until it ends."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(BLOCK):
            writer.write(chunk)
            await writer.drain()
