# SPDX-License-Identifier: Apache-2.0
"""Joining a cluster: from a server's URL and a token to the credentials of this node's kubelet."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib import error, request

from . import files, kubeconfig, tokens
from .certs import Pair
from .errors import StandinError
from .network import api_url, opener

log = logging.getLogger(__name__)

NODE_PASSWORD_FILE = Path("/etc/rancher/node/password")
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class Membership:
    """A node's credentials, on disk."""

    server_ca: Path
    client_ca: Path
    client: Pair
    serving: Pair
    kubeconfig: Path
    proxy: Pair
    proxy_kubeconfig: Path


class NotReady(Exception):  # noqa: N818  (a state to wait out, not an error)
    """The server cannot answer yet; it is asked again."""


def fetch(url: str, context: ssl.SSLContext, headers: Mapping[str, str]) -> bytes:
    """Return what a server has at a URL.

    Raises NotReady when it cannot be reached or says so itself, StandinError when it refuses for good.
    """
    try:
        asked = request.Request(url, headers=dict(headers))  # noqa: S310  (config.py lets https through only)
        with opener(context).open(asked, timeout=TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read()
            return content
    except error.HTTPError as refusal:
        said = refusal.read().decode(errors="replace").strip()
        if refusal.code == 401:
            raise StandinError(
                f"the server refused the token ({url}: 401 Unauthorized); it has the right one in "
                "/var/lib/rancher/k3s/server/node-token"
            ) from refusal
        if refusal.code == 503:
            raise NotReady(said) from refusal
        raise StandinError(f"{url}: {refusal.code}: {said}") from refusal
    except error.URLError as failure:
        if isinstance(failure.reason, ssl.SSLCertVerificationError):
            raise StandinError(
                f"{url}: the server's certificate does not fit its address, add that to its tls-san: "
                f"{failure.reason.verify_message}"
            ) from failure
        raise NotReady(str(failure.reason)) from failure
    except OSError as failure:
        raise NotReady(str(failure)) from failure


def trusted_ca(url: str, token: tokens.Token) -> bytes:
    """Return the server's CA bundle.

    Raises StandinError when it is not the one that the token was made for.
    """
    # Not verified: the token's hash does that, for this bundle and by it for everything else.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    ca_pem = fetch(f"{url}/cacerts", context, {})
    found = tokens.ca_hash(ca_pem)
    if not token.ca_hash:
        log.warning(
            "Cluster CA certificate is not trusted by the host CA bundle, but the token does not include a "
            "CA hash. Use the full token from the server's node-token file to enable Cluster CA validation"
        )
    elif found != token.ca_hash:
        raise StandinError(
            f"token CA hash does not match the Cluster CA certificate hash: {token.ca_hash} != {found}; "
            f"{url} is another cluster, or its CA is new: take the token from its node-token file"
        )
    return ca_pem


def node_password() -> str:
    """Return the secret by which the server knows this host again, made at the first start."""
    if not NODE_PASSWORD_FILE.exists():
        files.write(NODE_PASSWORD_FILE, tokens.new_password() + "\n")
    return NODE_PASSWORD_FILE.read_text().strip()


async def join(url: str, token: tokens.Token, node: str, node_ip: str, directory: Path) -> Membership:
    """Return this node's credentials, asked for anew of the server, in `directory`.

    Waits while it cannot be reached or is not ready. Raises StandinError when it refuses, at once: K3s goes
    on asking in some of these cases.
    """
    while True:
        try:
            return await asyncio.to_thread(join_once, url, token, node, node_ip, directory)
        except NotReady as state:
            log.info("Waiting to retrieve agent configuration; server is not ready: %s: %s", url, state)
        await asyncio.sleep(RETRY_SECONDS)


def join_once(url: str, token: tokens.Token, node: str, node_ip: str, directory: Path) -> Membership:
    """Do what `join` says, once. Raises NotReady when it must be tried again."""
    ca_pem = trusted_ca(url, token)
    context = ssl.create_default_context(cadata=ca_pem.decode())
    headers = {
        "Authorization": tokens.basic_auth("node", token.password),
        "K3s-Node-Name": node,
        "K3s-Node-Password": node_password(),
        "K3s-Node-IP": node_ip,
    }

    def get(name: str) -> bytes:
        return fetch(f"{url}/v1-k3s/{name}", context, headers)

    server_ca, client_ca = directory / "server-ca.crt", directory / "client-ca.crt"
    files.write(server_ca, ca_pem, 0o644)
    files.write(client_ca, get("client-ca.crt"), 0o644)
    client = write_pair(directory, "client-kubelet", get("client-kubelet.crt"))
    serving = write_pair(directory, "serving-kubelet", get("serving-kubelet.crt"))
    config = kubeconfig.write(directory / "kubelet.kubeconfig", api_url(url), server_ca, client)
    proxy = write_pair(directory, "client-kube-proxy", get("client-kube-proxy.crt"))
    proxy_config = kubeconfig.write(directory / "kubeproxy.kubeconfig", api_url(url), server_ca, proxy)
    return Membership(server_ca, client_ca, client, serving, config, proxy, proxy_config)


def write_pair(directory: Path, name: str, pem: bytes) -> Pair:
    """Write certificates and the private key that follows them into two files."""
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    end = b"-----END CERTIFICATE-----\n"
    cert, found, key = pem.rpartition(end)
    if not found or b"PRIVATE KEY" not in key:
        raise StandinError(f"the server's answer for {name} is not a certificate and a key")
    files.write(pair.key, key)
    files.write(pair.cert, cert + end, 0o644)
    return pair
