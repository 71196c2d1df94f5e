# SPDX-License-Identifier: Apache-2.0
"""Kubeconfig files, in JSON, which is YAML too."""

import base64
import json
from pathlib import Path

from . import files
from .certs import Pair


def write(path: Path, server: str, ca: Path, client: Pair, mode: int = 0o600) -> Path:
    """Write a kubeconfig for one client, certificates inside as K3s does, and return its path."""

    def embedded(pem: Path) -> str:
        return base64.b64encode(pem.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": embedded(ca)}
    user = {
        "client-certificate-data": embedded(client.cert),
        "client-key-data": embedded(client.key),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": cluster}],
        "users": [{"name": "default", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
    }
    files.write(path, json.dumps(content, indent=2) + "\n", mode)
    return path
