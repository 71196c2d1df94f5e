# SPDX-License-Identifier: Apache-2.0
"""When certificates of K3s and its tokens end, and what is to be known of reboots: from facts to tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import moment
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page

COLUMNS = ("BOARD", "ENDS", "DAYS", "CERTIFICATES OF K3S")
DAY_SECONDS = 86400
# Every K3s renews a certificate when it starts within so many days of its end.
SOON_DAYS = 90
NOT_KNOWN = "not known: the board did not answer, or is not part of the run"
NO_K3S = "K3s has no certificates there"
# What is to be done about one that ends soon, by its kind.
REMEDIES = {
    "leaf": "ends soon: K3s renews it when it starts. Run playbooks/site.yml, which restarts K3s in batches",
    # dynamiclistener, WrapExpiration in listener.go. The check at K3s' start may fail: the old one can
    # come back from its Secret (storage/kubernetes/controller.go, an event before `initialized`).
    "listener": "ends soon: K3s checks it every 6 hours while it runs, and renews it",
    "ca": "ends soon: K3s does not renew a CA by itself. Run playbooks/rotate_ca.yml, which sees to that",
}
SHARED = "The agents of this cluster have the token of its servers: " + page(
    "docs/troubleshooting.md#agent-token-shared"
)
ADVICE = "Run playbooks/reboot.yml -e board_reboot_only_if_required=true, which reboots them in turn."


def credentials(
    observed: dict[str, Any], boards: list[str], facts: dict[str, dict[str, Any]], now: float
) -> dict[str, Any]:
    """When certificates and tokens end, the soonest first.

    `boards` are the names of all, `facts` those of boards that have answered, `now` in seconds since 1970.
    """
    return {
        "boards": _sorted(_board(board, facts.get(board), now) for board in boards),
        "tokens": _sorted(_token(token, now) for token in observed["tokens"]),
        "agents_join_with": _agents_join_with(facts),
    }


def _agents_join_with(facts: dict[str, dict[str, Any]]) -> str | None:
    """'servers' if a board says so, else 'own'; None if no server has answered."""
    said = [one["k3s"]["agents_join_with"] for one in facts.values()]
    return next((token for token in ("servers", "own") if token in said), None)


def _sorted(items: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda one: (one["ends"] is None, one["ends"], one["name"]))


def _board(name: str, facts: dict[str, Any] | None, now: float) -> dict[str, Any]:
    certificates = [
        {key: one[key] for key in ("name", "path", "kind")} | _end(one["ends"], now)
        for one in (facts["k3s"]["certificates"]["files"] if facts else [])
    ]
    certificates.sort(key=lambda one: (one["ends"], one["path"]))
    return {
        "name": name,
        "problem": None if certificates else NO_K3S if facts else NOT_KNOWN,
        "reboot": _reboot(facts["reboot"]) if facts else None,
        "stand_by": facts["docker"]["stand_by"] if facts else None,
        "docker": facts["docker"]["running"] if facts else None,
        "ends": certificates[0]["ends"] if certificates else None,
        "certificates": certificates,
    }


def _reboot(reboot: dict[str, Any]) -> dict[str, Any]:
    """The same in plain containers: ansible-core 2.19 marks no lazy ones as unsafe."""
    return {key: reboot[key] for key in ("required", "kernel")} | {"packages": list(reboot["packages"])}


def _token(token: dict[str, Any], now: float) -> dict[str, Any]:
    end = moment(token["ends"]).timestamp() if token["ends"] else None
    return {"name": token["id"], "description": token["description"]} | _end(end, now)


def _end(seconds: float | None, now: float) -> dict[str, Any]:
    """The time in RFC 3339 format and the days until then, negative after that time."""
    if seconds is None:
        return {"ends": None, "days": None}
    when = datetime.fromtimestamp(seconds, timezone.utc)
    return {"ends": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "days": int((seconds - now) // DAY_SECONDS)}


def table(found: dict[str, Any]) -> str:
    """That for people: a line for the certificates of a board that end on the same day, and one per token."""
    rows = [
        (board["name"], day, list(certificates))
        for board in found["boards"]
        for day, certificates in groupby(board["certificates"], key=lambda one: str(one["ends"])[:10])
    ]
    rows.sort(key=lambda row: (row[1], row[0]))
    head, *lines = _aligned([COLUMNS, *(_row(*row) for row in rows)])
    text = [head]
    for line, (_, _, certificates) in zip(lines, rows, strict=True):
        text.append(line)
        soon = {one["kind"] for one in certificates if one["days"] < SOON_DAYS}
        text += [f"  {remedy}" for kind, remedy in REMEDIES.items() if kind in soon]
    text += [f"{board['name']}  {board['problem']}" for board in found["boards"] if board["problem"]]
    shared = [SHARED] if found["agents_join_with"] == "servers" else []
    return "\n".join([*text, *map(_token_line, found["tokens"]), *shared])


def _row(board: str, day: str, certificates: list[dict[str, Any]]) -> tuple[str, ...]:
    # An agent has copies of the CAs that its server has, too.
    names = sorted({one["name"] for one in certificates})
    return (board, day, str(certificates[0]["days"]), ", ".join(names))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _token_line(token: dict[str, Any]) -> str:
    about = f" ({token['description']})" if token["description"] else ""
    if token["ends"] is None:
        return f"token {token['name']}{about} does not end"
    return f"token {token['name']}{about} {'ended' if token['days'] < 0 else 'ends'} {token['ends']}"


def reboots_table(found: dict[str, Any]) -> str:
    """A line for each board that needs a reboot, with the reason, and what to do."""
    needed = [board for board in found["boards"] if board["reboot"] and board["reboot"]["required"]]
    lines = [f"{board['name']} needs a reboot{_reboot_reason(board['reboot'])}" for board in needed]
    lines = [*lines, ADVICE] if lines else ["No board that answered needs a reboot."]
    return "\n".join([*lines, *_refusing(found)])


def _refusing(found: dict[str, Any]) -> Iterator[str]:
    """A line for each board whose pods with a GPU are refused at its next boot, though it has Docker."""
    served = {node["name"] for node in found["nodes"] if node["device_plugin"]}
    for board in found["boards"]:
        stands_by = (board["stand_by"] or "").startswith("Up")
        if board["docker"] and board["name"].lower() in served and not stands_by:
            yield (
                f"{board['name']}: no instance of the device plugin stands by in Docker "
                f"({board['stand_by'] or 'there is none'}), so a boot refuses its pods with a GPU. "
                "Run playbooks/site.yml"
            )


def _reboot_reason(reboot: dict[str, Any]) -> str:
    kernel = [f"kernel {reboot['kernel']}"] if reboot["kernel"] else []
    reasons = ", ".join([*reboot["packages"], *kernel])
    return f" for {reasons}" if reasons else ""


# Marked here, because up to ansible-core 2.18 texts made of `hostvars` lose their mark as unsafe.
FILTERS = {
    "gpu_status_credentials": lambda *given: wrap_var(credentials(*given)),
    "gpu_status_credentials_table": lambda *given: wrap_var(table(*given)),
    "gpu_status_reboots_table": lambda found: wrap_var(reboots_table(found)),
}
