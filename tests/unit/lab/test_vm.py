# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: what their kernel is told, and how QEMU and its agent are spoken to."""

import json
from pathlib import Path

import pytest

from tests import boards
from tests.lab.vm import devicetree, machine


@pytest.mark.parametrize("fixture", boards.load().values(), ids=lambda fixture: str(fixture.id))
def test_the_device_tree_names_the_jetson(fixture: boards.Fixture) -> None:
    source = devicetree.source(fixture)
    assert f'model = "{fixture.data["dt_model"]}";' in source
    assert f'"{fixture.soc}"' in source or f'"nvidia,{fixture.soc}"' in source
    assert source.count("{") == source.count("}")


def test_a_machine_without_a_process_is_found_as_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.paths.CHECKOUT", tmp_path)
    place = machine.machines("lab") / "jetson-1"
    place.mkdir(parents=True)
    record = {
        "lab": "lab",
        "name": "jetson-1",
        "type": "orinnano-jp6",
        "address": "10.207.1.11",
    }
    (place / machine.RECORD).write_text(json.dumps(record))
    (place / "pid").write_text("1\n")  # not QEMU's
    (found,) = machine.find("lab")
    assert (found.name, found.address, found.running) == ("jetson-1", "10.207.1.11", False)
