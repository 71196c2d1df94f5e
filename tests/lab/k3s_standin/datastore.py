# SPDX-License-Identifier: Apache-2.0
"""Where the cluster's objects are kept: etcd, or SQLite behind kine, as K3s does it without `cluster-init`.

What is packed in decides. Snapshots and the reset are etcd's, with the words of K3s (pkg/etcd).
"""

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .config import Config
from .errors import StandinError

log = logging.getLogger(__name__)

URL = "http://127.0.0.1:2379"
PEER_URL = "http://127.0.0.1:2380"
MEMBER = (
    "--name=default",
    f"--initial-advertise-peer-urls={PEER_URL}",
    f"--initial-cluster=default={PEER_URL}",
)
# The parameters that K3s gives to its SQLite (kine, pkg/drivers/sqlite).
SQLITE = "_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate"
SAVE_USAGE = "usage: k3s etcd-snapshot save [--name NAME] [--etcd-snapshot-dir DIRECTORY]"


def command(config: Config, programs: Path) -> tuple[str, list[str | Path]]:
    """Return the name and the command line of the program that keeps the objects; it listens on loopback."""
    directory = home(config.data_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A start without --cluster-reset is what the flag waits for.
    (directory / "reset-flag").unlink(missing_ok=True)
    if not keeps_in_etcd(programs):
        return "kine", [
            programs / "kine",
            f"--endpoint=sqlite://{directory}/state.db?{SQLITE}",
            f"--listen-address={URL.partition('://')[2]}",
            "--metrics-bind-address=0",
        ]
    return "etcd", [
        programs / "etcd",
        *MEMBER,
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls={URL}",
        f"--advertise-client-urls={URL}",
        f"--listen-peer-urls={PEER_URL}",
        "--logger=zap",
        "--log-level=warn",
    ]


def home(data_dir: Path) -> Path:
    """Return the directory of the data, as in K3s."""
    return data_dir / "server" / "db"


def keeps_in_etcd(programs: Path) -> bool:
    """Say whether the programs bring etcd."""
    return (programs / "etcd").exists()


def etcdctl(programs: Path, *arguments: str | Path) -> None:
    """Run etcd's client. Raises StandinError with what it says."""
    argv = [programs / "etcdctl", f"--endpoints={URL}", *arguments]
    environment = {**os.environ, "ETCDCTL_API": "3"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StandinError(
            f"etcd {arguments[0]} {arguments[1]}: {done.stderr.strip() or done.stdout.strip()}"
        )


def save(flags: Sequence[str], node: str, data_dir: Path, programs: Path) -> Path:
    """Do what `k3s etcd-snapshot save` does, and return the file. Raises StandinError."""
    name, directory = "on-demand", home(data_dir) / "snapshots"
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
    file = directory / f"{name}-{node}-{int(time.time())}"
    etcdctl(programs, "snapshot", "save", file)
    file.chmod(0o600)
    return file


def reset(config: Config, programs: Path) -> int:
    """Do what `k3s server --cluster-reset` does, and return the exit status. Raises StandinError."""
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
    if snapshot:
        if not Path(snapshot).is_file():
            raise StandinError(f"etcd: snapshot path does not exist: {snapshot}")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = directory / "etcd"
        if old.exists():
            shutil.move(old, directory / f"etcd-old-{int(time.time())}")
        etcdctl(programs, "snapshot", "restore", snapshot, *MEMBER, f"--data-dir={old}")
    flag.touch(mode=0o600)
    log.info(
        "Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. "
        "Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes"
    )
    return 0
