# SPDX-License-Identifier: Apache-2.0
"""Join tokens and node passwords of the K3s stand-in."""

import hashlib

import pytest

from tests.lab.k3s_standin import tokens
from tests.lab.k3s_standin.errors import StandinError

HASH = hashlib.sha256(b"ca").hexdigest()


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("secret", tokens.Token("secret")),
        (f"K10{HASH}::server:secret\n", tokens.Token("secret", HASH)),
        (f"K10{HASH}::node:se:cret", tokens.Token("se:cret", HASH)),
        (f"K10{HASH}::secret", tokens.Token("secret", HASH)),
    ],
)
def test_every_form_of_a_token_is_understood(text: str, token: tokens.Token) -> None:
    assert tokens.parse(text) == token


@pytest.mark.parametrize("text", ["K10", "K10abc::node:secret", f"K10{HASH}::node:", f"K10{HASH}::root:x"])
def test_a_damaged_token_is_refused(text: str) -> None:
    with pytest.raises(StandinError, match="begins with K10 but is not"):
        tokens.parse(text)


def test_a_written_token_is_read_back() -> None:
    assert tokens.parse(tokens.full(b"ca", "node", "secret")) == tokens.Token("secret", HASH)


def test_a_node_password_is_known_again_and_no_other_is() -> None:
    hashed = tokens.hash_password("secret")
    assert tokens.verify_password("secret", hashed)
    assert not tokens.verify_password("Secret", hashed)
    assert not tokens.verify_password("secret", "plain")
    assert hashed != tokens.hash_password("secret"), "the salt must differ"
