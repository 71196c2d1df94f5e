# SPDX-License-Identifier: Apache-2.0
"""The pods' network as flannel's host-gw makes it: a bridge on each node, routes to the other nodes."""

import asyncio
import json
import logging
import subprocess
from pathlib import Path
from typing import Any

from . import files
from .api import Api, ApiError
from .network import POD_CIDR

log = logging.getLogger(__name__)

SECONDS = 2.0


def conflist(subnet: str) -> str:
    """Return the CNI configuration of a node whose pods have a subnet."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "cbr0", "plugins": [bridge, portmap]}, indent=2) + "\n"


def routes(nodes: list[dict[str, Any]], own: str) -> dict[str, str]:
    """Return for the pods' subnet of every other node that node's address."""
    found = {}
    for node in nodes:
        addresses = {entry["type"]: entry["address"] for entry in node["status"].get("addresses", [])}
        subnet, address = node["spec"].get("podCIDR"), addresses.get("InternalIP")
        if node["metadata"]["name"] != own and subnet and address:
            found[subnet] = address
    return found


async def follow(api: Api, own: str, directory: Path) -> None:
    """Give this node's pods the subnet that the cluster has chosen, and follow the other nodes, for ever."""
    known: dict[str, str] = {}
    while True:
        try:
            nodes = (await asyncio.to_thread(api.get, "/api/v1/nodes"))["items"]
        except OSError:
            nodes = []  # a server that restarts
        except ApiError as refusal:
            nodes = []
            log.warning("looking for the nodes: %s", refusal)
        for node in nodes:
            if node["metadata"]["name"] == own and (subnet := node["spec"].get("podCIDR")):
                files.write(directory / "10-bridge.conflist", conflist(subnet), 0o644)
        if nodes and (wanted := routes(nodes, own)) != known:
            for subnet in known.keys() - wanted.keys():
                ip("route", "del", subnet)
            for subnet, address in wanted.items():
                ip("route", "replace", subnet, "via", address)
            # Docker on the same board forwards for its own containers alone.
            for side in ("--source", "--destination"):
                rule = ["FORWARD", side, POD_CIDR, "--jump", "ACCEPT"]
                if command("iptables", "--check", *rule, quiet=True):
                    command("iptables", "--insert", *rule)
            known = wanted
        await asyncio.sleep(SECONDS)


def ip(*arguments: str) -> None:
    """Change a route."""
    command("ip", *arguments)


def command(*argv: str, quiet: bool = False) -> int:
    """Run a command, log its complaint unless it is only a question, and return its status."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode and not quiet:
        log.warning("%s: %s", " ".join(argv), done.stderr.strip())
    return done.returncode
