# SPDX-License-Identifier: Apache-2.0
"""The offers of a GPU that is shared in units."""

from __future__ import annotations

from tegra_device_plugin.board.health import Verdict
from tegra_device_plugin.config.settings import Settings
from tegra_device_plugin.sharing.memorylimit import MemoryLimit
from tegra_device_plugin.sharing.offer import Companion, Grant, Offer, with_health
from tegra_device_plugin.sharing.presets import Alone
from tegra_device_plugin.sharing.units import CORE_IDS, COUNT_IDS, MEMORY_IDS, PERCENT, Numbered, Units


def unit_offers(
    settings: Settings, units: Units, grant: Grant, verdict: Verdict, limit_flaw: Verdict | None
) -> tuple[Offer, ...]:
    """Give an offer for each resource, in the order of `units.resources`.

    All have the same `grant`. Only memory is limited, and suffers from `limit_flaw`.
    """

    def companion(alone: Alone) -> Companion | None:
        return None if alone == "allowed" else Companion(units.memory.name, but_whole=alone == "whole")

    offers = []
    if core := units.core:
        ids = Numbered(CORE_IDS, PERCENT)
        offers.append(Offer(core.name, ids, True, "", grant, step=core.step, companion=companion(core.alone)))
    offers.append(
        Offer(
            units.memory.name,
            Numbered(MEMORY_IDS, units.memory_ids),
            True,
            "",
            grant,
            limit=MemoryLimit(settings.gpu_limit_dir, units),
        )
    )
    if count := units.count:
        why = f"this node has one GPU: ask for 1, and for the memory that it needs of {units.memory.name}"
        ids = Numbered(COUNT_IDS, count.ids)
        offers.append(
            Offer(
                count.name,
                ids,
                True,
                "",
                grant,
                one_per_container=why,
                companion=companion(count.alone),
            )
        )
    return tuple(
        with_health(offer, limit_flaw if verdict.healthy and offer.limit and limit_flaw else verdict)
        for offer in offers
    )
