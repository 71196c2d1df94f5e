# SPDX-License-Identifier: Apache-2.0
"""The tables agree with each other and with the board facts, and look-ups degrade."""

import fnmatch

import pytest
from tegra_device_plugin.board import catalogue

from tests.boards import Fixture, load

TABLES = catalogue.load()


def test_every_soc_has_its_chip() -> None:
    assert {soc.chip for soc in TABLES.socs.values()} == set(TABLES.chips)
    assert len({soc.soc_id for soc in TABLES.socs.values()}) == len(TABLES.socs)


def test_required_nodes_are_among_those_given_to_containers() -> None:
    for driver in TABLES.drivers.values():
        patterns = (*driver.nodes, *driver.nodes_from_r36)
        for name in (name for names in driver.required for name in names):
            assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name


@pytest.mark.parametrize("fixture", load().values(), ids=load())
def test_tables_agree_with_the_boards(fixture: Fixture) -> None:
    chip = TABLES.chips[TABLES.socs[fixture.soc].chip]
    assert str(TABLES.socs[fixture.soc].soc_id) == fixture.data["soc0"]["soc_id"]
    assert chip.compute_capability == fixture.compute_capability
    assert chip.product == fixture.data["devicequery_name"]
    assert catalogue.jetpack(fixture.l4t) == (fixture.jetpack, fixture.l4t)
    key = catalogue.nearest(TABLES.cuda, fixture.l4t)
    assert key is not None
    assert TABLES.cuda[key] == fixture.cuda


@pytest.mark.parametrize("key", [*TABLES.jetpack, *TABLES.cuda])
def test_releases_are_written_in_full(key: str) -> None:
    assert ".".join(map(str, catalogue.version(key))) == key


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("36.4.3", ("6.2", "36.4.3")),
        ("36.4.5", ("6.2", "36.4.4")),
        ("36.4.99", ("6.2", "36.4.7")),
        ("36.6.0", ("6", "36.5.0")),
        ("39.2.1", ("7.2", "39.2.0")),
        ("32.2", ("4.2.1", "32.2.0")),
        ("38.1.9", None),
        ("40.0.0", None),
        ("28.1.0", None),
    ],
)
def test_jetpack_is_as_exact_as_it_is_certain(release: str, expected: tuple[str, str] | None) -> None:
    assert catalogue.jetpack(release) == expected
