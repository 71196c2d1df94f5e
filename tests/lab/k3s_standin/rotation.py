# SPDX-License-Identifier: Apache-2.0
"""`k3s token rotate`: have the server take another token from its next start on (K3s pkg/cli/token)."""

import argparse
import json
import os
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib import error, request

from . import membership, tokens
from .config import read_secret
from .errors import StandinError
from .kubectl import DATA_DIR
from .network import SUPERVISOR_PORT, opener

TIMEOUT_SECONDS = 30.0


def rotate(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status. Raises StandinError when the server refuses."""
    # Names, variables and texts are K3s' (pkg/cli/cmds/token.go).
    parser = argparse.ArgumentParser(prog="k3s token rotate", allow_abbrev=False)
    parser.add_argument("--data-dir", "-d", type=Path, default=Path(DATA_DIR))
    parser.add_argument("--token", "-t", default=os.environ.get("K3S_TOKEN", ""))
    url = os.environ.get("K3S_URL") or f"https://127.0.0.1:{SUPERVISOR_PORT}"
    parser.add_argument("--server", "-s", default=url)
    parser.add_argument("--new-token", default="")
    asked = parser.parse_args(arguments)
    sys.stdout.write(
        "WARNING: Recommended to keep a record of the old token. If restoring from a snapshot, you must use "
        "the token associated with that snapshot.\n"
    )
    token = tokens.parse(asked.token or read_secret(str(asked.data_dir / "server" / "token")))
    try:
        context = ssl.create_default_context(cadata=membership.trusted_ca(asked.server, token).decode())
    except membership.NotReady as state:
        raise StandinError(f"{asked.server}: {state}") from state
    put = request.Request(  # noqa: S310  (what is no https URL does not show that CA)
        f"{asked.server}/v1-k3s/token",
        json.dumps({"newToken": asked.new_token}).encode(),
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
    sys.stdout.write("Token rotated, restart k3s nodes with new token\n")
    return 0
