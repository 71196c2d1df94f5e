# SPDX-License-Identifier: Apache-2.0
"""`k3s agent`: a node of somebody else's cluster."""

from pathlib import Path
from urllib import parse

from . import tokens
from .api import Api
from .balancer import Balancer
from .config import Config
from .network import API_URL
from .node import run_node
from .notify import notify
from .processes import Children


async def run_agent(children: Children, config: Config, programs: Path) -> None:
    """Join, run the kubelet, and stay."""
    balancer = Balancer(parse.urlsplit(config.server).hostname or "", config.data_dir / "agent")
    await balancer.listen()
    urls = [supervisor_url(config.server, server) for server in balancer.servers]
    member = await run_node(children, config, urls, tokens.parse(config.token), programs)
    notify("READY=1\nSTATUS=running")
    await balancer.follow(Api(API_URL, member.server_ca, member.proxy))


def supervisor_url(configured: str, server: str) -> str:
    """Return the URL in the configuration with another server's address."""
    host = f"[{server}]" if ":" in server else server
    return parse.urlunsplit(("https", f"{host}:{parse.urlsplit(configured).port or 443}", "", "", ""))
