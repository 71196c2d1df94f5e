# SPDX-License-Identifier: Apache-2.0
"""The offers that are in force, and how others hear of new ones."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.health import Verdict
from tegra_device_plugin.config.settings import Settings
from tegra_device_plugin.sharing.offer import Offer, make_offers


class Advertised:
    """The current offers by resource, none before the first. Whoever follows them gets the latest ones."""

    def __init__(self) -> None:
        self.offers: Mapping[str, Offer] = {}
        self.next_look = asyncio.Event()
        self.on_publish: Callable[[], None] = lambda: None

    def take(
        self, settings: Settings, found: Detection, verdict: Verdict, limit_flaw: Verdict | None
    ) -> None:
        """Publish what a GPU has to offer."""
        self.publish(make_offers(settings, found.gpu.device_nodes, verdict, limit_flaw))

    def take_nothing(self) -> None:
        """Publish nothing: a node without a GPU has no such resource."""

    def publish(self, offers: Iterable[Offer]) -> None:
        """Make `offers` the current ones."""
        new = {offer.resource: offer for offer in offers}
        if new != self.offers:
            self.offers = new
            self.wake()
            self.on_publish()

    def wake(self) -> None:
        """Let every follower look again."""
        # A fresh event each time: no follower has to clear it for the others.
        self.next_look.set()
        self.next_look = asyncio.Event()
