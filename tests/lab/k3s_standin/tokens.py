# SPDX-License-Identifier: Apache-2.0
"""Join tokens in K3s' forms, and the node passwords that keep one host from taking another's name.

A full token is `K10<sha256 of the server's CA bundle>::<user>:<password>`; the short form is the password
alone (K3s pkg/clientaccess/token.go).
"""

import base64
import hashlib
import hmac
import re
import secrets
import ssl
from dataclasses import dataclass

from . import certs
from .errors import StandinError

FULL = re.compile(r"K10([0-9a-f]{64})::(.+)")
USERS = frozenset({"server", "node"})
# scrypt's parameters, and the text form, of K3s' node password hashes (pkg/authenticator/hash/scrypt.go).
SCRYPT_LOG_N, SCRYPT_R, SCRYPT_P, SCRYPT_BYTES = 15, 8, 1, 64
SCRYPT_MEMORY = 128 * SCRYPT_R * 2**SCRYPT_LOG_N * 2


@dataclass(frozen=True)
class Token:
    """A parsed token.

    `ca_hash` is empty in the short form, which cannot tell a false server from the true one.
    """

    password: str
    ca_hash: str = ""


def parse(text: str) -> Token:
    """Return the parts of a token. Raises StandinError when it begins like a full one and is not."""
    text = text.strip()
    if not text.startswith("K10"):
        return Token(text)
    match = FULL.fullmatch(text)
    if match is not None:
        user, colon, password = match[2].partition(":")
        if not colon:
            return Token(user, match[1])
        if user in USERS and password:
            return Token(password, match[1])
    raise StandinError("the token begins with K10 but is not K10<64 hex digits>::<server|node>:<password>")


def ca_hash(ca_pem: bytes) -> str:
    """Return the hash of the server's CA bundle as a token carries it: sha256 in hex.

    Of several certificates it is that of the root to which the first one leads, as DER.
    """
    first, *others = certs.split(ca_pem) or [ca_pem]
    for root in others:
        if certs.leads_to(first, root, ca_pem):
            return hashlib.sha256(ssl.PEM_cert_to_DER_cert(root.decode())).hexdigest()
    return hashlib.sha256(ca_pem).hexdigest()


def full(ca_pem: bytes, user: str, password: str) -> str:
    """Return the full form of a token, with the newline its file ends with."""
    return f"K10{ca_hash(ca_pem)}::{user}:{password}\n"


def new_password() -> str:
    """Return a random password: 16 bytes in hex, as K3s makes them."""
    return secrets.token_hex(16)


def basic_auth(user: str, password: str) -> str:
    """Return the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def same(one: str, other: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def hash_password(password: str) -> str:
    """Return a node password's hash in K3s' text form: `$1:<salt>:<log2 N>:<r>:<p>:<base64 of the hash>`."""
    salt = secrets.token_bytes(8)
    return f"$1:{salt.hex()}:{SCRYPT_LOG_N}:{SCRYPT_R}:{SCRYPT_P}:{scrypt(password, salt)}"


def verify_password(password: str, hashed: str) -> bool:
    """Say whether a node password is the one that was hashed; a hash in an unknown form matches nothing."""
    match = re.fullmatch(r"\$1:([0-9a-f]+):15:8:1:([A-Za-z0-9+/]+)", hashed)
    return match is not None and same(scrypt(password, bytes.fromhex(match[1])), match[2])


def scrypt(password: str, salt: bytes) -> str:
    """Return the scrypt hash of a password in unpadded base64."""
    digest = hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=2**SCRYPT_LOG_N,
        r=SCRYPT_R,
        p=SCRYPT_P,
        maxmem=SCRYPT_MEMORY,
        dklen=SCRYPT_BYTES,
    )
    return base64.b64encode(digest).decode().rstrip("=")
