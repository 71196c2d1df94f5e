# SPDX-License-Identifier: Apache-2.0
"""Where the cluster's objects are kept: etcd, or SQLite behind kine, as K3s does it without `cluster-init`.

What is packed in decides. Snapshots and the reset are etcd's, with the words of K3s (pkg/etcd).
"""

import logging
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import etcd
from .config import Config
from .errors import StandinError
from .network import address_towards
from .processes import Children

log = logging.getLogger(__name__)

KINE_ADDRESS = "127.0.0.1:2379"
# The parameters that K3s gives to its SQLite (kine, pkg/drivers/sqlite).
SQLITE = "_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate"
SAVE_USAGE = "usage: k3s etcd-snapshot save [--name NAME] [--etcd-snapshot-dir DIRECTORY]"
RESET_SECONDS = 60.0
POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Store:
    """A datastore that runs: the API server's flags for it, and the member of etcd, if it is that."""

    flags: Mapping[str, str]
    member: etcd.Member | None = None


async def start(children: Children, config: Config, programs: Path, node_ip: str) -> Store:
    """Start the program that keeps the objects, as one of several where there are others."""
    directory = home(config.data_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A start without --cluster-reset is what the flag waits for.
    (directory / "reset-flag").unlink(missing_ok=True)
    if not keeps_in_etcd(programs):
        if config.clustered:
            raise StandinError("this K3s stand-in keeps its objects in SQLite: it knows one server only")
        endpoint = f"--endpoint=sqlite://{directory}/state.db?{SQLITE}"
        listen = f"--listen-address={KINE_ADDRESS}"
        await children.start("kine", [programs / "kine", endpoint, listen, "--metrics-bind-address=0"])
        return Store({"etcd-servers": f"http://{KINE_ADDRESS}"})
    member = etcd.member(config, programs, node_ip)
    await etcd.start(children, config, member)
    flags = {
        "etcd-servers": etcd.url(etcd.LOOPBACK),
        "etcd-cafile": str(member.server_ca.cert),
        "etcd-certfile": str(member.client.cert),
        "etcd-keyfile": str(member.client.key),
    }
    return Store(flags, member)


def home(data_dir: Path) -> Path:
    """Return the directory of the data, as in K3s."""
    return data_dir / "server" / "db"


def exists(config: Config) -> bool:
    """Say whether this server has data of a cluster."""
    return (home(config.data_dir) / "etcd" / "member").exists()


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
    _member(config, programs).ask("snapshot", "save", str(file))
    file.chmod(0o600)
    return file


def reset(config: Config, programs: Path) -> int:
    """Do what `k3s server --cluster-reset` does, and return the exit status. Raises StandinError.

    The cluster has this one member then, with the data that it has, or those of a snapshot.
    """
    if not keeps_in_etcd(programs):
        raise StandinError("etcd datastore disabled")
    directory = home(config.data_dir)
    flag = directory / "reset-flag"
    if flag.exists():
        raise StandinError(
            "cluster-reset was successfully performed, please remove the cluster-reset flag and start k3s "
            "normally, if you need to perform another cluster reset, you must first manually delete the "
            f"{flag} file"
        )
    snapshot = config.restore_path
    if not snapshot:
        _stay_alone(_member(config, programs))
    else:
        if not Path(snapshot).is_file():
            raise StandinError(f"etcd: snapshot path does not exist: {snapshot}")
        old = directory / "etcd"
        if old.exists():
            shutil.move(old, directory / f"etcd-old-{int(time.time())}")
        member = _member(config, programs)
        scratch = directory / "etcd-restored"
        shutil.rmtree(scratch, ignore_errors=True)
        member.ask(
            "snapshot", "restore", snapshot, f"--data-dir={scratch}", f"--name={member.name}",
            f"--initial-cluster={member.name}={member.peer_url}",
            f"--initial-advertise-peer-urls={member.peer_url}",
        )  # fmt: skip
        (scratch / "member").rename(member.directory / "member")
        scratch.rmdir()
    flag.touch(mode=0o600)
    log.info(
        "Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. "
        "Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes"
    )
    return 0


def _member(config: Config, programs: Path) -> etcd.Member:
    return etcd.member(config, programs, config.node_ip or address_towards())


def _stay_alone(member: etcd.Member) -> None:
    """Make a member the only one of its cluster. Raises StandinError."""
    with subprocess.Popen(list(map(str, member.command("", "--force-new-cluster")))) as process:
        try:
            until = time.monotonic() + RESET_SECONDS
            while not member.serves(etcd.LOOPBACK):
                if process.poll() is not None or time.monotonic() > until:
                    raise StandinError(f"etcd does not start alone: status {process.poll()}")
                time.sleep(POLL_SECONDS)
        finally:
            process.terminate()
