# SPDX-License-Identifier: Apache-2.0
"""The resources that are advertised now, and the totals of what was done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from tegra_device_plugin.sharing.allocation import Resource


class AdvertisedResources:
    """The current resources by name, none before the first. Each follower gets the latest ones."""

    def __init__(self) -> None:
        self.resources: Mapping[str, Resource] = {}
        self.changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None

    def advertise(self, resources: Iterable[Resource]) -> None:
        """Make `resources` the current ones."""
        new = {resource.name: resource for resource in resources}
        if new != self.resources:
            self.resources = new
            self.wake()
            self.on_change()

    def wake(self) -> None:
        """Let every follower compare again."""
        # A fresh event each time: no follower has to clear it for the others.
        self.changed.set()
        self.changed = asyncio.Event()


class Counters:
    """Totals since the start of the process."""

    def __init__(self) -> None:
        self.allocations = self.rejected_allocations = 0
        self.registrations = self.failed_registrations = 0
        self.config_reloads = self.rejected_config_reloads = 0
