# SPDX-License-Identifier: Apache-2.0
"""Which token each board of a cluster joins with. Pure functions for role k3s.

Servers have a token, and agents another one if K3s had it at its first start. Without it K3s gives both the
same token, and `agent-token` is a link to `token` (its pkg/server, printTokens).
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_token import (
    TokenError,
    complete,
    parts,
    secret,
)

# A hash of the CA, as a full token begins.
CA_HASH = re.compile(r"K10[0-9a-f]{64}")
# Does not outlive a change of the CAs: a token with the hash of one, and one of `k3s token create`.
OF_CA = re.compile(r"\s*(K10|[a-z0-9]{6}[.][a-z0-9]{16}\s*$)")
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
# Files with tokens. That of agents is in K3s' own, or first in the role's.
SECRETS = ("token", "agent-token", "jetson-k3s.agent-token")


class Cluster(TypedDict):
    """What a server says of its cluster; texts are empty where it has none."""

    answered: bool
    """Whether it has said anything."""
    ca: str
    """The certificate, in PEM."""
    ca_hash: str
    server: str
    """The token of servers, in full."""
    agent: str
    """The secret of the token of agents."""
    own: bool
    """Whether agents have a token of their own."""
    unread: list[str]
    """Names of files that exist and cannot be read: a missing answer is no missing token."""


def cluster(read: Mapping[str, Any]) -> Cluster:
    """The CA and the tokens of a cluster, by the result of module file_texts.

    Old releases of K3s write no `agent-token`, nor does a K3s that has not started yet. `read` is {} where
    the module has not run.
    """
    answered, texts, unread = not read.get("unreachable", False), read.get("texts"), read.get("unread", ())
    if not isinstance(texts, Mapping):
        unread = SECRETS if answered and read and not read.get("skipped") else ()  # the module has failed
        texts = {}
    server, *of_agents = (str(texts.get(name, "")).strip() for name in SECRETS)
    agent = next(filter(None, map(secret, of_agents)), "")
    hashed = CA_HASH.match(server)
    return {
        "answered": answered,
        "ca": str(texts.get("ca", "")),
        "ca_hash": hashed[0] if hashed else "",
        "server": server,
        "agent": agent,
        "own": bool(agent) and agent != secret(server),
        "unread": sorted(unread),
    }


def existing_cluster(answers: Iterable[Mapping[str, Any]], token: str) -> Cluster:
    """A cluster that exists already: its CA as its API says, by the results of module k3s_nodes.

    Its tokens are not read. `token` is the inventory's, which names a CA of several certificates.
    """
    known = next((str(one["ca"]) for one in answers if one.get("ca")), "")
    return {
        "answered": bool(known),
        "ca": known,
        "ca_hash": ca_hash(known, token),
        "server": "",
        "agent": "",
        "own": False,
        "unread": [],
    }


def certificates(ca: str) -> list[str]:
    """The certificates of a PEM text."""
    return [part[part.index(BEGIN) :] + END for part in ca.split(END) if BEGIN in part]


def ca_hash(ca: str, token: str) -> str:
    """`K10` and the hash by which a token names this CA; '' without a CA.

    K3s takes the hash of the file, or of several certificates that of the root (pkg/clientaccess/token.go).
    The certificate that the token names is that root; without such a one it is the last.
    """
    found = certificates(ca)
    if len(found) < 2:  # noqa: PLR2004 - one certificate, or none
        return "K10" + hashlib.sha256(ca.encode()).hexdigest() if found else ""
    hashes = [hashlib.sha256(ssl.PEM_cert_to_DER_cert(one)).hexdigest() for one in found]
    named = parts(token).ca_hash
    return "K10" + (named if named in hashes else hashes[-1])


def agents_token(cluster: Mapping[str, Any], given: str, servers: str) -> str:
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


class Paths(TypedDict):
    """The token files of a board."""

    token: str
    agent_token: str
    """Of servers, if agents have a token of their own."""


def token_files(cluster: Cluster, role: str, first: bool, paths: Paths) -> dict[str, str]:
    """The texts that a board of this cluster has in its token files, if the inventory gives no token.

    Empty if the cluster is not known. The first server joins no other one.
    """
    given = cluster["server"] if role == "server" else agents_token(cluster, "", "")
    if not given or not cluster["ca_hash"]:
        return {}
    texts = {}
    if role == "server" and cluster["own"]:
        texts[paths["agent_token"]] = cluster["agent"] + "\n"
    if not boolean(first):
        try:
            texts[paths["token"]] = complete(given, cluster["ca_hash"], role == "server") + "\n"
        except TokenError:
            return {}
    return texts


def names_ca(tokens: list[str]) -> bool:
    """Is one of the tokens of no use after a change of the CAs?"""
    return any(OF_CA.match(token) for token in tokens)


FILTERS = {
    "k3s_agents_token": agents_token,
    "k3s_cluster": cluster,
    "k3s_existing_cluster": existing_cluster,
    "k3s_has_agent_token": has_agent_token,
    "k3s_names_ca": names_ca,
    "k3s_token_files": token_files,
}
