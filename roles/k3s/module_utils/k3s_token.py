# SPDX-License-Identifier: Apache-2.0
"""What a token of K3s says. Pure; runs on the board: Python 3.6 compatible."""

import re

# K3s' pkg/clientaccess/token.go: "K10", the SHA-256 of the CA in hex, "::", and what the server knows it by.
SECURE = re.compile(r"^K10([0-9a-f]{64})::(?:([^:]+):)?(.+)$")


def parts(token):
    """The CA's hash, the user and the secret in a token. Without a CA it is a secret alone."""
    match = SECURE.match(token.strip())
    return match.groups() if match else (None, None, token.strip())


def secret(token):
    """What is secret in a token of any form: it tells one token from another."""
    return parts(token)[2]


def is_usable(secret):
    """Can that be what is secret in a token? One that begins with K10 is a token that was cut off."""
    return re.match(r"(?!K10)\S+$", secret) is not None
