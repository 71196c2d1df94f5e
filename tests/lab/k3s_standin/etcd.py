# SPDX-License-Identifier: Apache-2.0
"""The embedded etcd of a server, which is its only member. Names and files are those of K3s (pkg/etcd)."""

import logging
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import certs, files
from .api import until
from .config import Config
from .errors import StandinError
from .network import url
from .processes import Children

log = logging.getLogger(__name__)

CLIENT_PORT = 2379
PEER_PORT = 2380
LOOPBACK = "127.0.0.1"


def client_url(address: str) -> str:
    """Return where a member listens for clients."""
    return url(address, CLIENT_PORT)


@dataclass(frozen=True)
class Member:
    """One member: its data in `directory`, its certificates, and the programs that are run."""

    name: str
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
        """Where other members would reach it."""
        return url(self.address, PEER_PORT)

    def command(self) -> list[str | Path]:
        """Return etcd's command line."""
        return [
            self.programs / "etcd",
            f"--name={self.name}",
            f"--data-dir={self.directory}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self.name}={self.peer_url}",
            f"--listen-client-urls={','.join(map(client_url, certs.distinct(LOOPBACK, self.address)))}",
            f"--advertise-client-urls={client_url(self.address)}",
            f"--listen-peer-urls={self.peer_url}",
            *_tls("", self.server, self.server_ca),
            *_tls("peer-", self.peer, self.peer_ca),
            "--logger=zap",
            "--log-level=warn",
        ]

    def ask(self, *arguments: str) -> str:
        """Run etcd's client and return what it prints. Raises StandinError with what it complains of."""
        argv: list[str | Path] = [
            self.programs / "etcdctl",
            f"--endpoints={client_url(LOOPBACK)}",
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

    def serves(self) -> bool:
        """Say whether it answers."""
        try:
            self.ask("endpoint", "health")
        except StandinError as state:
            log.info("Waiting for etcd: %s", state)
            return False
        return True


def _tls(kind: str, pair: certs.Pair, ca: certs.Pair) -> tuple[str, ...]:
    return (
        f"--{kind}cert-file={pair.cert}",
        f"--{kind}key-file={pair.key}",
        f"--{kind}trusted-ca-file={ca.cert}",
        f"--{kind}client-cert-auth=true",
    )


def member(config: Config, programs: Path, node_ip: str) -> Member:
    """Return this server's member, with its certificates."""
    home = config.data_dir / "server"
    tls, directory = home / "tls" / "etcd", home / "db" / "etcd"
    server_ca, peer_ca = certs.authority(tls, "server-ca"), certs.authority(tls, "peer-ca")
    hosts = certs.distinct("localhost", LOOPBACK, node_ip)
    return Member(
        name=_name(directory, config.node_name),
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


async def start(children: Children, mine: Member) -> None:
    """Start the member, and wait until it answers."""
    await children.start("etcd", mine.command())
    await until(mine.serves)
