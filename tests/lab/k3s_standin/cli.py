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
       k3s certificate rotate-ca ...  have the server take other CAs
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
        case ["ctr", *rest]:
            from .containerd import become_ctr  # noqa: PLC0415

            become_ctr(rest)
        case [("server" | "agent") as command, *flags] if not {"--help", "-h"} & set(flags):
            from .daemon import run_daemon  # noqa: PLC0415

            return run_daemon("server" if command == "server" else "agent", flags)
        case ["token", "rotate", *flags]:
            from .rotation import rotate  # noqa: PLC0415

            return rotate(flags)
        case ["certificate", "rotate-ca", *flags]:
            from .rotation import rotate_ca  # noqa: PLC0415

            return rotate_ca(flags)
        case []:
            sys.stderr.write(USAGE)
            return 1
        case words:
            sys.stdout.write(answer(words))
    return 0


def answer(words: Sequence[str]) -> str:
    """Return what a command says that has nothing else to do. Raises StandinError for one that is none."""
    match list(words):
        case [("server" | "agent") as command, *_]:
            from .config import usage  # noqa: PLC0415

            return usage("server" if command == "server" else "agent")
        case ["etcd-snapshot", "save", *flags]:
            from .daemon import save_snapshot  # noqa: PLC0415

            return f"Snapshot {save_snapshot(flags)} saved.\n"
        case ["--version" | "-v"]:
            from .payload import version_text  # noqa: PLC0415

            return version_text() + "\n"
        case ["help" | "--help" | "-h"]:
            return USAGE
    raise StandinError(f"the stand-in has no command {words[0]!r}\n{USAGE}")
