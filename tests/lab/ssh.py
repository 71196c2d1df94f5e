# SPDX-License-Identifier: Apache-2.0
"""SSH to the boards: one key per lab, the boards' own host keys, strict checking."""

import shutil
import socket
from pathlib import Path

from tests.lab import lab_dir
from tests.lab.images import USER
from tools.debian import ensure_packages
from tools.process import run


def make_key(path: Path, comment: str) -> str:
    """Make an ed25519 key pair at `path` unless it is there; return the public key."""
    if not path.exists():
        if shutil.which("ssh-keygen") is None:
            ensure_packages("openssh-client")
        path.parent.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])
    return path.with_suffix(".pub").read_text()


def key_path(lab: str) -> Path:
    return lab_dir(lab) / "id_ed25519"


def known_hosts_path(lab: str) -> Path:
    return lab_dir(lab) / "known_hosts"


def trust(lab: str, address: str, public_key: str) -> None:
    """Record a board's host key, in place of an older one of the same address."""
    path = known_hosts_path(lab)
    kept = (
        [line for line in path.read_text().splitlines() if line.split()[0] != address]
        if path.exists()
        else []
    )
    kind, key = public_key.split()[:2]
    path.write_text("".join(f"{line}\n" for line in [*kept, f"{address} {kind} {key}"]))


def options(lab: str) -> list[str]:
    return [
        f'UserKnownHostsFile="{known_hosts_path(lab)}"',
        "GlobalKnownHostsFile=none",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
    ]


def common_args(lab: str) -> str:
    return " ".join(f"-o {option}" for option in options(lab))


def command(lab: str, address: str, *words: str) -> list[str]:
    """Return the command line that runs words in a shell on a board, or a login shell without them.

    ssh uses this lab's key, and this lab's settings alone.
    """
    settings = [word for option in [*options(lab), "LogLevel=ERROR"] for word in ("-o", option)]
    return ["ssh", "-F", "none", *settings, "-i", str(key_path(lab)), f"{USER}@{address}", *words]


def close_connections(sockets: Path) -> None:
    """End the ssh processes that keep the connections of a control socket directory open."""
    for path in sockets.glob("*") if sockets.is_dir() else ():
        run(["ssh", "-F", "none", "-o", f"ControlPath={path}", "-O", "exit", "board"], check=False)


def answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
