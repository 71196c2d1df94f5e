# SPDX-License-Identifier: Apache-2.0
"""A server's member of the embedded etcd: how it joins the others, and how it leaves with its node.

Names, files and refusals are those of K3s (pkg/etcd). Members talk to each other over TLS of their own.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import parse

from . import certs, files
from .api import POLL_SECONDS, Api, ApiError, until
from .config import Config
from .errors import StandinError
from .processes import Children

log = logging.getLogger(__name__)

CLIENT_PORT = 2379
PEER_PORT = 2380
LOOPBACK = "127.0.0.1"
LABEL = "node-role.kubernetes.io/etcd"
# While a node has it, the API server keeps the node until its member is gone.
FINALIZER = "wrangler.cattle.io/managed-etcd-controller"
NODES = "/api/v1/nodes"
DUPLICATE = "etcd cluster join failed: duplicate node name found, please use a unique name for this node"


def url(address: str, port: int = CLIENT_PORT) -> str:
    """Return where a member listens."""
    return f"https://{f'[{address}]' if ':' in address else address}:{port}"


@dataclass(frozen=True)
class Member:
    """One member: its data in `directory`, its certificates, and the programs that are run."""

    name: str
    node: str
    address: str
    directory: Path
    programs: Path
    server_ca: certs.Pair
    peer_ca: certs.Pair
    server: certs.Pair
    peer: certs.Pair
    client: certs.Pair

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return url(self.address, PEER_PORT)

    @property
    def exists(self) -> bool:
        """Say whether it is a member already."""
        return (self.directory / "member").exists()

    def command(self, initial_cluster: str, *more: str) -> list[str | Path]:
        """Return etcd's command line; the cluster is that of a first start, empty where there is none."""
        return [
            self.programs / "etcd",
            f"--name={self.name}",
            f"--data-dir={self.directory}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={initial_cluster or f'{self.name}={self.peer_url}'}",
            f"--initial-cluster-state={'existing' if initial_cluster else 'new'}",
            f"--listen-client-urls={','.join(map(url, certs.distinct(LOOPBACK, self.address)))}",
            f"--advertise-client-urls={url(self.address)}",
            f"--listen-peer-urls={self.peer_url}",
            *_tls("", self.server, self.server_ca),
            *_tls("peer-", self.peer, self.peer_ca),
            "--logger=zap",
            "--log-level=warn",
            *more,
        ]

    def ask(self, *arguments: str, endpoint: str = LOOPBACK) -> str:
        """Run etcd's client and return what it prints. Raises StandinError with what it complains of."""
        argv: list[str | Path] = [
            self.programs / "etcdctl",
            f"--endpoints={url(endpoint)}",
            f"--cacert={self.server_ca.cert}",
            f"--cert={self.client.cert}",
            f"--key={self.client.key}",
            *arguments,
        ]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise StandinError(f"etcd {' '.join(arguments[:2])}: {said}")
        return done.stdout

    def members(self, endpoint: str = LOOPBACK) -> list[dict[str, Any]]:
        """Return what a member knows of all. Ids are decimal; one that has not started yet has no name."""
        found: list[dict[str, Any]] = json.loads(
            self.ask("member", "list", "--write-out=json", endpoint=endpoint)
        )["members"]
        return found

    def join(self, endpoint: str) -> str:
        """Become a learner of the cluster of `endpoint`, and return its members as etcd's flag has them.

        Raises StandinError where another board has had this node's name.
        """
        cluster, known = [], False
        for other in self.members(endpoint):
            name = other.get("name", "")
            if not name and other["peerURLs"] == [self.peer_url]:
                name = self.name  # added before this server was stopped
            if name == self.name and other["peerURLs"] == [self.peer_url]:
                known = True
            elif node_of(name) == self.node:
                raise StandinError(DUPLICATE)
            cluster.append(f"{name}={other['peerURLs'][0]}")
        if not known:
            log.info("Adding member %s=%s to etcd cluster %s", self.name, self.peer_url, cluster)
            self.ask(
                "member", "add", self.name, "--learner", f"--peer-urls={self.peer_url}", endpoint=endpoint
            )
            cluster.append(f"{self.name}={self.peer_url}")
        return ",".join(cluster)

    def serves(self, endpoint: str) -> bool:
        """Say whether it is a voting member; a learner that has caught up is made one, by `endpoint`."""
        try:
            status = json.loads(self.ask("endpoint", "status", "--write-out=json"))[0]["Status"]
            if not status.get("isLearner"):
                return True
            self.ask("member", "promote", f"{status['header']['member_id']:x}", endpoint=endpoint)
        except StandinError as state:
            log.info("Waiting for etcd: %s", state)
        return False

    def forget(self, node: str) -> None:
        """Remove the members of a node, but not the last one. Raises StandinError."""
        there = self.members()
        for member in there:
            if node_of(member.get("name", "")) == node and len(there) > 1:
                log.info("Removing member %s from etcd cluster", member["name"])
                self.ask("member", "remove", f"{member['ID']:x}")


def _tls(kind: str, pair: certs.Pair, ca: certs.Pair) -> tuple[str, ...]:
    return (
        f"--{kind}cert-file={pair.cert}",
        f"--{kind}key-file={pair.key}",
        f"--{kind}trusted-ca-file={ca.cert}",
        f"--{kind}client-cert-auth=true",
    )


def node_of(member: str) -> str:
    """Return the node of a member's name."""
    return member.rpartition("-")[0] or member


def member(config: Config, programs: Path, node_ip: str) -> Member:
    """Return this server's member, with its certificates."""
    home = config.data_dir / "server"
    tls, directory = home / "tls" / "etcd", home / "db" / "etcd"
    server_ca, peer_ca = certs.authority(tls, "server-ca"), certs.authority(tls, "peer-ca")
    hosts = certs.distinct("localhost", LOOPBACK, node_ip)
    return Member(
        name=_name(directory, config.node_name),
        node=config.node_name,
        address=node_ip,
        directory=directory,
        programs=programs,
        server_ca=server_ca,
        peer_ca=peer_ca,
        server=certs.certificate(
            tls, "server-client", server_ca, certs.Subject("etcd-server", "", hosts, True)
        ),
        peer=certs.certificate(
            tls, "peer-server-client", peer_ca, certs.Subject("etcd-peer", "", hosts, True)
        ),
        client=certs.certificate(tls, "client", server_ca, certs.Subject("etcd-client")),
    )


def _name(directory: Path, node: str) -> str:
    """Return the member's name: the node's and some digits, for as long as the data live."""
    file = directory / "name"
    if not file.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(file, f"{node}-{secrets.token_hex(4)}")
    return file.read_text()


async def start(children: Children, config: Config, mine: Member) -> None:
    """Start the member, and wait until it votes."""
    endpoint = parse.urlsplit(config.server).hostname or LOOPBACK
    cluster = ""
    if config.server and not mine.exists:
        cluster = await asyncio.to_thread(mine.join, endpoint)
    await children.start("etcd", mine.command(cluster))
    await until(lambda: mine.serves(endpoint))


async def follow(api: Api, mine: Member) -> None:
    """Remove the members of nodes that are deleted, for ever."""
    while True:
        with contextlib.suppress(OSError, ApiError, StandinError):
            await asyncio.to_thread(release, api, mine)
        await asyncio.sleep(POLL_SECONDS)


def release(api: Api, mine: Member) -> None:
    """Remove the members of nodes that wait for it, and let these go."""
    for node in api.get(f"{NODES}?labelSelector={parse.quote(LABEL)}")["items"]:
        meta = node["metadata"]
        if "deletionTimestamp" in meta and FINALIZER in meta.get("finalizers", []):
            mine.forget(meta["name"])
            hold(api, meta["name"], [])


def hold(api: Api, node: str, finalizers: list[str]) -> None:
    """Give a node these finalizers."""
    patch = {"metadata": {"finalizers": finalizers}}
    api.call("PATCH", f"{NODES}/{node}", patch, "application/merge-patch+json")
