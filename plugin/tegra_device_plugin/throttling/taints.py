# SPDX-License-Identifier: Apache-2.0
"""The taint of a throttled board, in a Node as the API server has it. Pure functions.

The admission policy of plugin/deploy/throttle-taint allows this change of a Node and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY, EFFECT = "jetson-k3s.github.io/throttled", "PreferNoSchedule"

Object = Mapping[str, Any]


def is_wanted(throttled_at: float | None, now: float, remove_after: float) -> bool:
    """True from the first throttling until `remove_after` seconds after the last one, `throttled_at`."""
    return throttled_at is not None and now - throttled_at < remove_after


def has_taint(node: Object) -> bool:
    return any(map(_is_ours, _taints(node)))


def patch(node: Object, *, wanted: bool) -> dict[str, Any]:
    """Give the merge patch that sets or removes the taint.

    It replaces the list of taints, so it has the Node's version: the API server rejects it (409) if another
    client has changed the Node since.
    """
    others = [taint for taint in _taints(node) if not _is_ours(taint)]
    own = [{"key": KEY, "effect": EFFECT}] if wanted else []
    return {
        "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
        "spec": {"taints": [*others, *own]},
    }


def _taints(node: Object) -> list[Object]:
    return (node.get("spec") or {}).get("taints") or []


def _is_ours(taint: Object) -> bool:
    return (taint["key"], taint["effect"]) == (KEY, EFFECT)
