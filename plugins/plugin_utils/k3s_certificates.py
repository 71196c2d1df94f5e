# SPDX-License-Identifier: Apache-2.0
"""What a restart of K3s would renew, certificates and CAs: pure functions behind the k3s role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DAY_SECONDS = 86400
# When it starts, K3s renews what ends within so many days (its pkg/daemons/config/types.go), newer releases
# within 120 days.
WINDOW_SECONDS = 90 * DAY_SECONDS

Certificate = dict[str, Any]


def expiring(k3s: dict[str, Any], valid_days: int, now: float) -> list[Certificate]:
    """The certificates of a K3s that runs which it would renew if it started now.

    `k3s` are the board's facts, `valid_days` for how long a new certificate is valid, `now` in seconds since
    1970. Not among them is one for which a start would be in vain. It would not, if a new certificate had at
    least twice as long to go, and if K3s had not left this one as it is when it started last.
    """
    certificates = k3s["certificates"]
    started = certificates["started"]
    return [
        one
        for one in certificates["files"]
        if started is not None
        and one["kind"] == "leaf"
        and one["ends"] - now < min(WINDOW_SECONDS, valid_days * DAY_SECONDS / 2)
        and not (one["written"] < started and started > one["ends"] - WINDOW_SECONDS)
    ]


def other_ca(k3s: dict[str, Any], server: dict[str, Any] | None) -> bool:
    """Does a K3s that runs go by other CAs than its cluster's first server has? Its next start gets them.

    `k3s` and `server` are the boards' facts; there are none of a server that is not in the run.
    """
    mine = _server_ca(k3s, "agent/server-ca.crt")
    theirs = _server_ca(server, "server/tls/server-ca.crt") if server else None
    return k3s["certificates"]["started"] is not None and None not in (mine, theirs) and mine != theirs


def _server_ca(k3s: dict[str, Any], path: str) -> str | None:
    """The digest of one file's CAs."""
    files = k3s["certificates"]["files"]
    return next((one["digest"] for one in files if one["path"].endswith("/" + path)), None)


def renewals(k3s: dict[str, Any], server: Mapping[str, Any], now: float) -> Iterator[str]:
    """Why K3s is to start again although its settings are the same, each in a sentence.

    `server` are the facts of the server for kubectl, {} where this run has none. It signs the agents'
    certificates and sets their duration.
    """
    theirs = server.get("k3s")
    certificates = expiring(k3s, int((theirs or k3s)["certificates"]["valid_days"]), now)
    if certificates:
        names = ", ".join(one["name"] for one in certificates)
        yield (
            "K3s renews certificates that end soon when it starts, so it is to start again: " + names + "."
        )
    if other_ca(k3s, theirs):
        yield "The cluster has other CAs. K3s gets them when it starts, so it is to start again."


FILTERS = {"k3s_renewals": lambda *given: [*renewals(*given)]}
