# SPDX-License-Identifier: Apache-2.0
"""Which token each board of a cluster joins with. Pure functions for role k3s.

Servers have a token, and agents another one if K3s had it at its first start. Without it K3s gives both the
same token, and `agent-token` is a link to `token` (its pkg/server, printTokens).
"""

from __future__ import annotations

import base64
import re
from typing import Any

# What comes before the secret in a full token. As in module_utils/k3s_token.py, which filters cannot import.
BEFORE_SECRET = re.compile(r"^K10[0-9a-f]{64}::([^:]+:)?")
# A hash of the CA, as a full token begins.
CA_HASH = re.compile(r"K10[0-9a-f]{64}")
# Does not outlive a change of the CAs: a token with the hash of one, and one of `k3s token create`.
OF_CA = re.compile(r"\s*(K10|[a-z0-9]{6}[.][a-z0-9]{16}\s*$)")
# What the module slurp says of a file that does not exist.
NO_FILE = re.compile("file not found:", re.IGNORECASE)


def secret(token: str) -> str:
    """What is secret in a token of any form. A password may have colons."""
    return BEFORE_SECRET.sub("", token.strip())


def cluster_tokens(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The tokens of a cluster: `server` in full, the secret of `agent`, and whether agents have their `own`.

    `results` are of slurp for K3s' `token`, its `agent-token` and the role's file of the token of agents. Old
    releases of K3s write no `agent-token`, nor does a K3s that has not started yet. `unread` are the names
    of files that exist and cannot be read: a missing answer is no missing token.
    """
    texts = [base64.b64decode(one.get("content") or "").decode("utf-8", "replace") for one in results]
    server, agent, kept = (text.strip() for text in texts or ("", "", ""))
    agent = secret(agent) or secret(kept)
    return {
        "server": server,
        "agent": agent,
        "own": bool(agent) and agent != secret(server),
        "unread": [
            str(one["item"]).rpartition("/")[2]
            for one in results
            if "content" not in one and not NO_FILE.search(str(one.get("msg", "")))
        ],
    }


def agents_token(cluster: dict[str, Any], given: str, servers: str) -> str:
    """What an agent joins with; empty if nothing is known.

    `given` is the inventory's token for agents, `servers` the inventory's token of the cluster. If it is that
    of the servers, an agent gets the token of agents instead. Any other one the server judges.
    """
    if given:
        return given
    if cluster["own"] and secret(servers) in ("", secret(cluster["server"])):
        return str(cluster["agent"])
    return str(servers or cluster["agent"] or cluster["server"])


def has_agent_token(cluster: dict[str, Any], given: bool, first: dict[str, Any]) -> bool:
    """Does the cluster have a token of agents, or does it start with one now?

    `given`: the inventory has one. `first` is of module k3s_agent_token, {} where it has not run.
    """
    return bool(given or cluster["own"] or first.get("own"))


def names_ca(tokens: list[str]) -> bool:
    """Is one of the tokens of no use after a change of the CAs?"""
    return any(OF_CA.match(token) for token in tokens)


def ca_hash(text: str) -> str:
    """The hash of the CA, as read from a server's token; '' for another text."""
    return text if CA_HASH.fullmatch(text) else ""


FILTERS = {
    "k3s_agents_token": agents_token,
    "k3s_ca_hash": ca_hash,
    "k3s_cluster_tokens": cluster_tokens,
    "k3s_has_agent_token": has_agent_token,
    "k3s_names_ca": names_ca,
}
