# SPDX-License-Identifier: Apache-2.0
"""Where the cluster's objects are kept: etcd, or SQLite behind kine, as K3s does it without `cluster-init`.

What is packed in decides. Snapshots are etcd's, with the words of K3s (pkg/etcd).
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import etcd
from .config import Config
from .errors import StandinError
from .network import address_towards
from .processes import Children

KINE_ADDRESS = "127.0.0.1:2379"
# The parameters that K3s gives to its SQLite (kine, pkg/drivers/sqlite).
SQLITE = "_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate"
SAVE_USAGE = "usage: k3s etcd-snapshot save [--name NAME] [--etcd-snapshot-dir DIRECTORY]"


async def start(children: Children, config: Config, programs: Path, node_ip: str) -> Mapping[str, str]:
    """Start the program that keeps the objects, and return the API server's flags for it."""
    directory = home(config.data_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not keeps_in_etcd(programs):
        endpoint = f"--endpoint=sqlite://{directory}/state.db?{SQLITE}"
        listen = f"--listen-address={KINE_ADDRESS}"
        await children.start("kine", [programs / "kine", endpoint, listen, "--metrics-bind-address=0"])
        return {"etcd-servers": f"http://{KINE_ADDRESS}"}
    member = etcd.member(config, programs, node_ip)
    await etcd.start(children, member)
    return {
        "etcd-servers": etcd.client_url(etcd.LOOPBACK),
        "etcd-cafile": str(member.server_ca.cert),
        "etcd-certfile": str(member.client.cert),
        "etcd-keyfile": str(member.client.key),
    }


def home(data_dir: Path) -> Path:
    """Return the directory of the data, as in K3s."""
    return data_dir / "server" / "db"


def keeps_in_etcd(programs: Path) -> bool:
    """Say whether the programs bring etcd."""
    return (programs / "etcd").exists()


def save(flags: Sequence[str], config: Config, programs: Path) -> Path:
    """Do what `k3s etcd-snapshot save` does, and return the file. Raises StandinError."""
    name, directory = "on-demand", home(config.data_dir) / "snapshots"
    for flag in flags:
        key, _, value = flag.partition("=")
        if key == "--name" and value:
            name = value
        elif key in ("--etcd-snapshot-dir", "--dir") and value:
            directory = Path(value)
        else:
            raise StandinError(f"the stand-in does not know {flag}\n{SAVE_USAGE}")
    if not keeps_in_etcd(programs):
        raise StandinError("etcd datastore disabled")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / f"{name}-{config.node_name}-{int(time.time())}"
    member = etcd.member(config, programs, config.node_ip or address_towards())
    member.ask("snapshot", "save", str(file))
    file.chmod(0o600)
    return file
