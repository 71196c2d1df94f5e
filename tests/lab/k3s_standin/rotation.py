# SPDX-License-Identifier: Apache-2.0
"""`k3s token rotate` and `k3s certificate rotate-ca`: what the server takes from its next start on.

Names, variables and texts are K3s' (pkg/cli/cmds/token.go, certs.go, pkg/cli/cert).
"""

import argparse
import base64
import json
import os
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib import error, request

from . import bootstrap, membership, tokens
from .config import read_secret
from .errors import StandinError
from .kubectl import DATA_DIR
from .network import SUPERVISOR_PORT, opener

TIMEOUT_SECONDS = 30.0


def arguments_of(command: str) -> argparse.ArgumentParser:
    """Return the options that both commands have."""
    parser = argparse.ArgumentParser(prog=f"k3s {command}", allow_abbrev=False)
    parser.set_defaults(token=os.environ.get("K3S_TOKEN", ""))
    parser.add_argument("--data-dir", "-d", type=Path, default=Path(DATA_DIR))
    url = os.environ.get("K3S_URL") or f"https://127.0.0.1:{SUPERVISOR_PORT}"
    parser.add_argument("--server", "-s", default=url)
    return parser


def rotate(arguments: Sequence[str]) -> int:
    """Run `k3s token rotate` and return its exit status. Raises StandinError when the server refuses."""
    parser = arguments_of("token rotate")
    parser.add_argument("--token", "-t")
    parser.add_argument("--new-token", default="")
    asked = parser.parse_args(arguments)
    sys.stdout.write(
        "WARNING: Recommended to keep a record of the old token. If restoring from a snapshot, you must use "
        "the token associated with that snapshot.\n"
    )
    send(asked, "token", {"newToken": asked.new_token})
    sys.stdout.write("Token rotated, restart k3s nodes with new token\n")
    return 0


def rotate_ca(arguments: Sequence[str]) -> int:
    """Run `k3s certificate rotate-ca` and return its exit status. Raises StandinError like `rotate`."""
    parser = arguments_of("certificate rotate-ca")
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--force", action="store_true")
    asked = parser.parse_args(arguments)
    found = {}
    for field, name in bootstrap.FILES.items():
        path = asked.path / "tls" / name
        if path.exists():
            found[field] = {"Content": base64.b64encode(path.read_bytes()).decode()}
        else:
            sys.stderr.write(f"level=WARNING failed to read {path}\n")
    send(asked, f"cert/cacerts?force={str(asked.force).lower()}", found)
    sys.stdout.write("certificates saved to datastore\n")
    return 0


def send(asked: argparse.Namespace, path: str, body: object) -> None:
    """Have the server do what is asked. Raises StandinError when it refuses."""
    token = tokens.parse(asked.token or read_secret(str(asked.data_dir / "server" / "token")))
    try:
        context = ssl.create_default_context(cadata=membership.trusted_ca(asked.server, token).decode())
    except membership.NotReady as state:
        raise StandinError(f"{asked.server}: {state}") from state
    put = request.Request(  # noqa: S310  (what is no https URL does not show that CA)
        f"{asked.server}/v1-k3s/{path}",
        json.dumps(body).encode(),
        {"Authorization": tokens.basic_auth("server", token.password)},
        method="PUT",
    )
    try:
        with opener(context).open(put, timeout=TIMEOUT_SECONDS):
            pass
    except error.HTTPError as refusal:
        said = refusal.read().decode(errors="replace").strip()
        raise StandinError(f"{put.full_url}: {refusal.code}: {said}") from refusal
    except OSError as failure:
        raise StandinError(f"{put.full_url}: {failure}") from failure
