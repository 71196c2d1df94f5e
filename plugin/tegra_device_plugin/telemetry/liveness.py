# SPDX-License-Identifier: Apache-2.0
"""The page /healthz of every command that stays: do its loops still turn?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from tegra_device_plugin.telemetry.httpd import Page

# Three times the longest pause of the loops that look at the board and at sockets (health.POLL_SECONDS,
# Pace.look, Pace.register).
STUCK_SECONDS = 40.0


def page(since: float, turned: Mapping[str, float], limit: float = STUCK_SECONDS) -> Page:
    """Fail when a loop has stopped turning: only a new start helps then.

    `turned` is when each loop has last turned, by the event loop's clock. Before its first turn, its time
    counts from `since`.
    """
    now = asyncio.get_running_loop().time()
    ages = {name: now - max(since, at) for name, at in turned.items()}
    stuck = [f"{name} for {age:.0f} s" for name, age in ages.items() if age > limit]
    if stuck:
        return Page(f"stuck: {', '.join(stuck)}\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return Page("ok\n")
