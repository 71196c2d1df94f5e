# SPDX-License-Identifier: Apache-2.0
"""`k3s kubectl`: become kubectl.

Tests and roles call it at every turn, so it imports next to nothing: the imports of a server take an emulated
board longer than kubectl itself.
"""

# pathlib is one of these imports.
# ruff: noqa: PTH110, PTH111, PLC0415

import os
from collections.abc import Sequence

from .errors import StandinError
from .packed import DIGEST

ADMIN_KUBECONFIG = "/etc/rancher/k3s/k3s.yaml"
"""The cluster administrator's, where K3s has it."""
DATA_DIR = "/var/lib/rancher/k3s"
USER_DATA_DIR = "~/.rancher/k3s"


def become_kubectl(arguments: Sequence[str]) -> None:
    """Become kubectl, with the server's kubeconfig unless KUBECONFIG names another. Raises StandinError."""
    environment = dict(os.environ)
    # What it allocates while it starts is not worth collecting.
    environment.setdefault("GOGC", "400")
    if "KUBECONFIG" not in environment and os.path.exists(ADMIN_KUBECONFIG):
        if not os.access(ADMIN_KUBECONFIG, os.R_OK):
            raise StandinError(
                f"Unable to read {ADMIN_KUBECONFIG}, please start server with --write-kubeconfig-mode "
                "to modify kube config permissions"
            )
        environment["KUBECONFIG"] = ADMIN_KUBECONFIG
    data_dir = DATA_DIR if os.geteuid() == 0 else os.path.expanduser(USER_DATA_DIR)
    kubectl = f"{data_dir}/data/{DIGEST}/bin/kubectl"
    if not os.path.exists(kubectl):
        from pathlib import Path

        from .payload import unpacked

        kubectl = str(unpacked(Path(data_dir)) / "kubectl")
    os.execve(kubectl, ["kubectl", *arguments], environment)  # noqa: S606  (no shell is wanted)
