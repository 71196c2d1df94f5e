# SPDX-License-Identifier: Apache-2.0
"""The command line: `k3s server|agent|kubectl`, or `kubectl` when called by that name."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import payload
from .errors import StandinError
from .kubeconfig import ADMIN_KUBECONFIG

USAGE = """\
k3s (stand-in for tests, not K3s): a small Kubernetes on Docker

usage: k3s server [flags]     run the control plane and a node
       k3s agent [flags]      join a node to a server
       k3s kubectl ...        run kubectl
       k3s --version
"""
DATA_DIR = Path("/var/lib/rancher/k3s")
USER_DATA_DIR = Path("~/.rancher/k3s")


def main() -> NoReturn:
    """Run the command that the arguments name, and exit."""
    logging.basicConfig(format="level=%(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    name, *arguments = sys.argv
    if Path(name).name == "kubectl":
        arguments = ["kubectl", *arguments]
    try:
        sys.exit(run(arguments))
    except StandinError as error:
        logging.getLogger(__name__).critical("%s", error)
        sys.exit(1)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status. Raises StandinError."""
    match list(arguments):
        case [("server" | "agent") as command, *flags]:
            # Half of the run time of `k3s kubectl`, which tests call often, would go into these imports.
            from .daemon import run_daemon  # noqa: PLC0415

            return run_daemon("server" if command == "server" else "agent", flags)
        case ["kubectl", *rest]:
            run_kubectl(rest)
        case ["--version" | "-v"]:
            sys.stdout.write(payload.version_text() + "\n")
            return 0
        case ["help" | "--help" | "-h"]:
            sys.stdout.write(USAGE)
            return 0
        case [("ctr" | "crictl") as command, *_]:
            raise StandinError(f"k3s {command} talks to containerd; this stand-in drives Docker: use docker")
        case [command, *_]:
            raise StandinError(f"the stand-in has no command {command!r}\n{USAGE}")
    sys.stderr.write(USAGE)
    return 1


def run_kubectl(arguments: Sequence[str]) -> NoReturn:
    """Become kubectl, with the server's kubeconfig unless KUBECONFIG names another."""
    environment = dict(os.environ)
    if "KUBECONFIG" not in environment and ADMIN_KUBECONFIG.exists():
        if not os.access(ADMIN_KUBECONFIG, os.R_OK):
            raise StandinError(
                f"Unable to read {ADMIN_KUBECONFIG}, please start server with --write-kubeconfig-mode "
                "to modify kube config permissions"
            )
        environment["KUBECONFIG"] = str(ADMIN_KUBECONFIG)
    data_dir = DATA_DIR if os.geteuid() == 0 else USER_DATA_DIR.expanduser()
    kubectl = payload.unpacked(data_dir) / "kubectl"
    os.execve(kubectl, ["kubectl", *arguments], environment)  # noqa: S606  (no shell is wanted)
