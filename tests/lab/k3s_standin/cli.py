# SPDX-License-Identifier: Apache-2.0
"""The command line: `k3s server|agent|kubectl`, or `kubectl` when called by that name."""

import sys
from collections.abc import Sequence

from .errors import StandinError
from .kubectl import become_kubectl

USAGE = """\
k3s (stand-in for tests, not K3s): a small Kubernetes

usage: k3s server [flags]     run the control plane and a node
       k3s agent [flags]      join a node to a server
       k3s token rotate ...   have the server take another token
       k3s kubectl ...        run kubectl
       k3s etcd-snapshot save write a snapshot of etcd (where etcd keeps the objects)
       k3s ctr ...            run containerd's client (where containerd runs the pods)
       k3s --version
"""


def main() -> None:
    """Run the command that the arguments name, and exit."""
    name, *arguments = sys.argv
    if name.rpartition("/")[2] == "kubectl":
        arguments = ["kubectl", *arguments]
    try:
        sys.exit(run(arguments))
    except StandinError as error:
        sys.exit(f"level=CRITICAL {error}")


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status. Raises StandinError."""
    # Each command imports what it needs itself: kubectl needs none of it.
    match list(arguments):
        case ["kubectl", *rest]:
            become_kubectl(rest)
        case [("server" | "agent") as command, "--help" | "-h"]:
            from .config import usage  # noqa: PLC0415

            sys.stdout.write(usage("server" if command == "server" else "agent"))
            return 0
        case [("server" | "agent") as command, *flags]:
            from .daemon import run_daemon  # noqa: PLC0415

            return run_daemon("server" if command == "server" else "agent", flags)
        case ["etcd-snapshot", "save", *flags]:
            from .daemon import save_snapshot  # noqa: PLC0415

            sys.stdout.write(f"Snapshot {save_snapshot(flags)} saved.\n")
            return 0
        case ["token", "rotate", *flags]:
            from .rotation import rotate  # noqa: PLC0415

            return rotate(flags)
        case ["--version" | "-v"]:
            from .payload import version_text  # noqa: PLC0415

            sys.stdout.write(version_text() + "\n")
            return 0
        case ["help" | "--help" | "-h"]:
            sys.stdout.write(USAGE)
            return 0
        case ["ctr", *rest]:
            from .containerd import become_ctr  # noqa: PLC0415

            become_ctr(rest)
        case [command, *_]:
            raise StandinError(f"the stand-in has no command {command!r}\n{USAGE}")
    sys.stderr.write(USAGE)
    return 1
