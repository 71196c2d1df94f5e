# SPDX-License-Identifier: Apache-2.0
"""What role k3s_backup decides: backups that are kept, and whether a K3s can read one."""

from __future__ import annotations

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_backup as planning

from tests.unit.roles.places import Data


def backup(day: int, end: str = ".tar.gz") -> Data:
    return {"path": f"/backups/k3s-jetson-1-202611{day:02}T010203Z{end}"}


def paths(*files: Data) -> list[str]:
    return [file["path"] for file in files]


ONE, TWO, THREE, PART = backup(1), backup(2, ".tar.gz.gpg"), backup(3), backup(9, ".tar.gz.partial")


@pytest.mark.parametrize(
    ("files", "keep", "expected"),
    [
        ([], 2, []),
        ([TWO, ONE], 2, []),
        ([TWO, THREE, ONE], "2", [ONE]),
        ([TWO, THREE, ONE], 1, [TWO, ONE]),
        ([PART, THREE], 7, [PART]),
    ],
)
def test_old_and_partial_backups_are_deleted(
    files: list[Data], keep: int | str, expected: list[Data]
) -> None:
    assert planning.outdated(files, keep) == paths(*expected)


@pytest.mark.parametrize(
    ("files", "newer"),
    [
        ([], ""),
        ([ONE, TWO], ""),
        ([ONE, THREE, TWO], "k3s-jetson-1-20261103T010203Z.tar.gz"),
        ([{"path": "/backups/other"}], ""),
    ],
)
def test_a_backup_from_the_future_is_found(files: list[Data], newer: str) -> None:
    assert planning.newer(files, "k3s-jetson-1-20261102T010203Z.tar.gz.gpg") == newer


@pytest.mark.parametrize(
    ("of", "by", "readable"),
    [
        ("v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("v1.33.5+k3s2", "v1.33.5+k3s1", True),
        ("v1.33.5+k3s1", "v1.33.10+k3s1", True),
        ("v1.33.5+k3s1", "v1.34.1+k3s1", True),
        ("v1.33.5+k3s1", "v1.35.1+k3s1", False),
        ("v1.33.10+k3s1", "v1.33.9+k3s1", False),
    ],
)
def test_a_newer_patch_or_the_next_minor_reads_a_backup(of: str, by: str, readable: bool) -> None:
    assert planning.readable(of, by) is readable


def test_states_are_those_of_all_servers() -> None:
    hostvars: dict[str, Data] = {"a": {"k3s_backup_restoring": {"stage": "checked"}}, "b": {}, "c": {}}
    assert planning.states(["a", "b"], hostvars) == {"a": {"stage": "checked"}, "b": {}}


def test_servers_that_failed_in_another_step_are_named() -> None:
    hostvars: dict[str, Data] = {
        "a": {"rollout_progress": {"stage": "failed", "reason": "no disk"}},
        "b": {"rollout_progress": {"stage": "done"}},
        "c": {},
    }
    assert planning.failures(["a", "b", "c"], hostvars) == {"a": "no disk"}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"stderr_lines": ["a", "b", "c", "d"], "msg": "m"}, "b c d"),
        ({"stderr_lines": [], "msg": "m"}, "m"),
        ({}, "no reason given"),
    ],
)
def test_a_failure_is_the_end_of_the_output(result: Data, reason: str) -> None:
    assert planning.failure(result, "Stop K3s") == f"Stop K3s: {reason}"


def test_the_result_names_the_backup_and_its_hash() -> None:
    made = {"datastore": "etcd", "bytes": 12_345_678, "sha256": "00ff"}
    said = planning.result(made, "jetson-1", "backups/x.tar.gz.gpg", "record", check=False)
    assert said.startswith("backups/x.tar.gz.gpg is a backup of jetson-1 (etcd, 12.3 MB).")
    assert "Its SHA-256 is 00ff." in said
    dry = planning.result(made, "jetson-1", "backups/x.tar.gz.gpg", "record", check=True)
    assert dry == "A backup would be made of jetson-1 (etcd)."
