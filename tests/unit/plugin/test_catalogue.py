# SPDX-License-Identifier: Apache-2.0
"""The tables agree with each other and with the board facts, and look-ups degrade."""

import fnmatch
import itertools

import pytest
from tegra_device_plugin.board import catalogue

TABLES = catalogue.load()


def test_every_soc_has_its_chip() -> None:
    assert {soc.chip for soc in TABLES.socs.values()} == set(TABLES.chips)
    assert len({soc.soc_id for soc in TABLES.socs.values()}) == len(TABLES.socs)


def test_required_nodes_are_among_those_given_to_containers() -> None:
    given = list(itertools.chain(*TABLES.nodes.values()))
    for name in itertools.chain(*itertools.chain(*TABLES.drivers.values())):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in given), name


def test_releases_stand_from_the_oldest_to_the_newest() -> None:
    assert list(TABLES.jetpack) == sorted(TABLES.jetpack, key=catalogue.version)


@pytest.mark.parametrize("key", [*TABLES.jetpack, *TABLES.cuda, *TABLES.gpu_memory_cgroup_charged])
def test_releases_are_written_in_full(key: str) -> None:
    assert ".".join(map(str, catalogue.version(key))) == key
