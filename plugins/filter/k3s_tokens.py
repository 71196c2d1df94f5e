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


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {"k3s_agents_token": agents_token, "k3s_cluster_tokens": cluster_tokens}
