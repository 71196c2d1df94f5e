# SPDX-License-Identifier: Apache-2.0
"""docs/sharing.md has every preset of the plugin, with its names, its units and its environment."""

import pytest
from tegra_device_plugin.config.units import PRESETS, Preset
from tegra_device_plugin.system.kubernetes import render_quantity

from tests.docs import CHECKOUT

PAGE = (CHECKOUT / "docs/sharing.md").read_text()


def in_words(preset: Preset) -> list[str]:
    """What the preset's row has to say."""
    memory = preset.memory
    size = " or ".join(map(render_quantity, memory.units)) or "1 %"
    env = [name for name, _ in memory.env]
    known = f"{env[0].rpartition('_')[0]}_*" if len(env) > 1 else "".join(env)
    core, count = (f"`{one.name}`" if one else "" for one in (preset.core, preset.count))
    return [core, f"`{memory.name}`, {size}", count, f"`{known}`" if known else ""]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_row(name: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == in_words(PRESETS[name])


def test_what_no_preset_offers_is_named() -> None:
    for preset in PRESETS.values():
        assert all(f"`{name}`" in PAGE for name in preset.unserved)
