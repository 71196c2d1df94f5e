# SPDX-License-Identifier: Apache-2.0
"""Tokens of K3s: their parts, the form in which they are written, and requests that reach only servers.

Runs on boards and on the controller: Python 3.6 compatible.
"""

import http.client
import re
import ssl
import urllib.request
from typing import Any, NamedTuple, Optional, Tuple

# K3s' pkg/clientaccess/token.go: "K10", the SHA-256 of the CA in hex, "::", and what the server knows it by.
SECURE = re.compile(r"^K10([0-9a-f]{64})::(?:([^:]+):)?(.+)$")

# A bootstrap token, which expires (Kubernetes' cluster-bootstrap/token/api).
BOOTSTRAP_TOKEN = re.compile(r"^[a-z0-9]{6}\.[a-z0-9]{16}$")
# Agents authenticate with a password as this user, whichever the token names (K3s pkg/agent/run.go).
USER = "node"


class Token(NamedTuple):
    """The CA's hash, the user and the secret in a token. Without a CA it is a secret alone."""

    ca_hash: Optional[str]
    user: Optional[str]
    secret: str


def parts(token: str) -> Token:
    """A token's parts."""
    match = SECURE.match(token.strip())
    return Token(*match.groups()) if match else Token(None, None, token.strip())


def secret(token: str) -> str:
    """The secret of a token in any form, which identifies the token."""
    return parts(token).secret


def is_usable(secret: str) -> bool:
    """Is this text valid as the secret of a token? A text that begins with K10 is an incomplete token."""
    return re.match(r"(?!K10)\S+$", secret) is not None


class TokenError(Exception):
    """The token cannot be used: (reason, text)."""

    def __init__(self, reason: str, text: str) -> None:
        super(TokenError, self).__init__(text)
        self.reason = reason


def parse_token(token: str) -> Tuple[Optional[str], str]:
    """(hash of the CA or None, credentials) of a join token; TokenError 'malformed'.

    Credentials are a bootstrap token or `node:<password>`.
    """
    ca_hash, user, password = parts(token)
    expires = user is None and is_bootstrap(password)
    if not is_usable(password) or (ca_hash and not user and not expires):
        raise TokenError(
            "malformed",
            "the join token is malformed: expected is a password, K10<64 hex digits>::<user>:<password>, or "
            "what `k3s token create` has printed",
        )
    return ca_hash, password if expires else "{}:{}".format(USER, password)


def is_bootstrap(credentials: str) -> bool:
    """Are these the user and password of a bootstrap token?"""
    return BOOTSTRAP_TOKEN.match(credentials) is not None


def complete(token: str, ca_hash: str, server: bool) -> str:
    """The token with the hash of the cluster's CA; TokenError 'other-ca' if it has another hash."""
    given, credentials = parse_token(token)
    if given is None:
        user = "" if is_bootstrap(credentials) else "server:" if server else "node:"
        return "{}::{}{}".format(ca_hash, user, secret(token))
    if "K10" + given != ca_hash:
        raise TokenError(
            "other-ca",
            "the join token is for another cluster: its CA hash is {}..., that of this cluster is "
            "{}.... Correct the token in the inventory".format(given[:12], ca_hash[3:15]),
        )
    return token


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would send the token to the address in it."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class ServerConnection(http.client.HTTPSConnection):
    """A connection to a K3s server, not to a node of its cluster.

    The CA of the servers signs the certificate of each kubelet as well, with the node's name and with the
    addresses that the node asks for. Those of servers have the organization `k3s` (pkg/cluster/https.go), and
    those of kubelets none (pkg/server/router.go).
    """

    def connect(self) -> None:
        """Connect. ssl.SSLError if the peer is no K3s server."""
        super(ServerConnection, self).connect()
        certificate = self.sock.getpeercert() or {}
        subject = [pair for names in certificate.get("subject", ()) for pair in names]
        if ("organizationName", "k3s") not in subject:
            self.close()
            raise ssl.SSLError("CERTIFICATE_VERIFY_FAILED: the certificate is none of a K3s server")


class ServerHandler(urllib.request.HTTPSHandler):
    """Opens addresses of K3s servers."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super(ServerHandler, self).__init__(context=context)
        self.trusted = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open it. URLError if no server answers."""
        return self.do_open(ServerConnection, req, context=self.trusted)


def opener(ca: str) -> urllib.request.OpenerDirector:
    """An opener that trusts certificates of the CA (PEM) alone, and uses no proxy. ssl.SSLError without a CA.

    The name in the certificate is not compared: a server has addresses that K3s does not know of.
    """
    if not ca:
        raise ssl.SSLError("the cluster's CA is not known")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # has no CA yet, unlike the default context
    context.check_hostname = False
    context.load_verify_locations(cadata=ca)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), ServerHandler(context), NoRedirect())
