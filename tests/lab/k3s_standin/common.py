# SPDX-License-Identifier: Apache-2.0
"""What servers of one cluster have in common: authorities and the key of tokens.

A further server gets them from one that runs, for the server token (K3s pkg/server/handlers, pkg/bootstrap).
"""

import asyncio
import base64
import binascii
import json
import logging
import ssl
from pathlib import Path

from . import files, membership, tokens
from .errors import StandinError

log = logging.getLogger(__name__)

PATH = "/v1-k3s/server-bootstrap"
# K3s' keys (pkg/daemons/config/types.go, ControlRuntimeBootstrap), and the files below server/tls.
FILES = {
    "ServerCA": "server-ca.crt",
    "ServerCAKey": "server-ca.key",
    "ClientCA": "client-ca.crt",
    "ClientCAKey": "client-ca.key",
    "ETCDServerCA": "etcd/server-ca.crt",
    "ETCDServerCAKey": "etcd/server-ca.key",
    "ETCDPeerCA": "etcd/peer-ca.crt",
    "ETCDPeerCAKey": "etcd/peer-ca.key",
    "ServiceKey": "service.key",
}


def content(tls: Path) -> bytes:
    """Return what another server is given."""
    return json.dumps(
        {
            key: {"Content": base64.b64encode((tls / name).read_bytes()).decode()}
            for key, name in FILES.items()
            if (tls / name).exists()
        }
    ).encode()


async def fetch(url: str, token: tokens.Token, tls: Path) -> None:
    """Write what the server at `url` gives. Waits for one that is not ready; raises StandinError."""
    while True:
        try:
            await asyncio.to_thread(_fetch_once, url, token, tls)
        except membership.NotReady as state:
            log.info("Waiting for the cluster's bootstrap data: %s: %s", url, state)
            await asyncio.sleep(membership.RETRY_SECONDS)
        else:
            return


def _fetch_once(url: str, token: tokens.Token, tls: Path) -> None:
    context = ssl.create_default_context(cadata=membership.trusted_ca(url, token).decode())
    headers = {"Authorization": tokens.basic_auth("server", token.password)}
    answer = membership.fetch(f"{url}{PATH}", context, headers)
    try:
        given = {FILES[key]: base64.b64decode(entry["Content"]) for key, entry in json.loads(answer).items()}
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise StandinError(f"{url} has no bootstrap data that can be read: {error!r}") from error
    # Keys first: a certificate that exists has its key beside it.
    for name in sorted(given, reverse=True):
        files.write(tls / name, given[name], 0o600 if name.endswith(".key") else 0o644)
