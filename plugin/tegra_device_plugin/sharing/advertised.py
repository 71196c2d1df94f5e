# SPDX-License-Identifier: Apache-2.0
"""The offer that is in force, and how others hear of a new one."""

import asyncio
from collections.abc import Callable

from tegra_device_plugin.sharing.offer import Offer


class Advertised:
    """The current offer. Whoever follows it gets the latest one."""

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.next_look = asyncio.Event()
        self.on_publish: Callable[[], None] = lambda: None

    def publish(self, offer: Offer) -> None:
        """Make `offer` the current one."""
        if offer != self.offer:
            self.offer = offer
            self.wake()
            self.on_publish()

    def wake(self) -> None:
        """Let every follower look again."""
        # A fresh event each time: no follower has to clear it for the others.
        self.next_look.set()
        self.next_look = asyncio.Event()
