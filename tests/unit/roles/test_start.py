# SPDX-License-Identifier: Apache-2.0
"""What every playbook looks at before it speaks to a board: playbooks/start/checks.yml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.playing import play, write_inventory

PLAYBOOKS = CHECKOUT / "playbooks"
CHECKS = PLAYBOOKS / "start/checks.yml"
NONE = "No host of this run is in the group"


def plays(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for one in yaml.safe_load(path.read_text()):
        imported = one.get("ansible.builtin.import_playbook")
        if imported:
            yield from plays(path.parent / imported)
        else:
            yield path, one


@pytest.mark.parametrize("playbook", sorted({path.stem for path in PLAYBOOKS.glob("*.yml")} - {"bundle"}))
def test_every_playbook_begins_with_it(playbook: str) -> None:
    found = list(plays(PLAYBOOKS / f"{playbook}.yml"))
    before = found[: [path for path, _ in found].index(CHECKS)]
    assert [one["name"] for _, one in before if one.get("gather_facts", True)] == []  # no word to a board yet


def test_inventory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    run = play(tmp_path / "missing", "playbooks/preflight.yml")
    assert run.returncode == 2
    assert f"{NONE} [k3s_cluster], which this playbook needs" in run.said
    assert f"The inventory is {tmp_path}/missing; its groups with hosts are none." in run.said


@pytest.mark.parametrize(
    ("playbook", "limit", "missing"),
    [
        ("status", "jetson-2", "server"),
        ("monitoring", "all", "monitoring"),
        ("verify", "elsewhere", "k3s_cluster"),
    ],
)
def test_limit_that_leaves_no_host_of_the_group_is_an_error(
    tmp_path: Path, playbook: str, limit: str, missing: str
) -> None:
    groups = {"server": ["jetson-1"], "k3s_cluster": ["jetson-1", "jetson-2"], "servers": ["elsewhere"]}
    run = play(write_inventory(tmp_path, groups), f"playbooks/{playbook}.yml", f"--limit={limit}")
    assert run.returncode == 2
    assert f"{NONE} [{missing}]" in run.said
    assert (
        f"its groups with hosts are k3s_cluster, server, servers. The run is limited to {limit}." in run.said
    )
