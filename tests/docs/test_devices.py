# SPDX-License-Identifier: Apache-2.0
"""docs/devices.md has the schema of `devices` as the plugin reads it."""

from pathlib import Path

import pytest
import yaml
from tegra_device_plugin.config.devices import PRESETS
from tegra_device_plugin.config.file import read_file

from tests.docs import CHECKOUT, markdown

PAGE = markdown.read(CHECKOUT / "docs/devices.md")
SETTINGS = [yaml.safe_load(block.text) for block in PAGE.blocks if block.language == "yaml"]
TEXT = PAGE.path.read_text()


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_settings_of_the_page_are_accepted(number: int, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(SETTINGS[number]["gpu_device_plugin_config"]))
    assert read_file(file).devices


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_row_with_its_paths(name: str) -> None:
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
    assert all(f"`{match.path}`" in row for match in PRESETS[name].matches)


def test_every_key_is_in_the_table() -> None:
    keys = ("name", "preset", "count", "groups", "paths", "path", "udev", "mountPath", "permissions", "type")
    rows = "\n".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `"))
    assert [key for key in keys if f"{key}[" not in rows and f".{key}`" not in rows] == []
