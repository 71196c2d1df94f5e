# SPDX-License-Identifier: Apache-2.0
"""`k3s agent`: a node of somebody else's cluster."""

import asyncio
from pathlib import Path

from . import tokens
from .config import Config
from .node import run_node
from .notify import notify
from .processes import Children


async def run_agent(children: Children, config: Config, programs: Path) -> None:
    """Join, run the kubelet, and stay."""
    await run_node(children, config, config.server, tokens.parse(config.token), programs)
    notify("READY=1\nSTATUS=running")
    await asyncio.Event().wait()
