# SPDX-License-Identifier: Apache-2.0
"""The checkpoint, and commits that are killed or fail at any instant."""

import errno
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.dra.checkpoint import CheckpointError, load, save
from tegra_device_plugin.dra.claims import ClaimReference, Device, Prepared
from tegra_device_plugin.dra.claimstore import ClaimStore
from tegra_device_plugin.sharing import ledger

from tests.unit.plugin.dra.objects import place

CLAIMS = {
    "u1": Prepared(ClaimReference("default", "a", "u1"), (Device("gpu", "igpu-0", "s1", 1 << 30),)),
    "u2": Prepared(
        ClaimReference("team", "b", "u2"), (Device("x", "igpu-0", admin=True), Device("y", "igpu-0"))
    ),
}
A = {"u1": CLAIMS["u1"]}
B = {"u3": Prepared(ClaimReference("default", "b", "u3"), (Device("gpu", "igpu-0", "s1", 1 << 20),))}


def test_a_saved_checkpoint_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    assert load(path) == {}
    save(path, CLAIMS)
    assert load(path) == CLAIMS
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it is damaged"),
        ('{"version": 1, "claims": {"u1": {"name"', "it is damaged"),
        ('{"version": 1, "claims": {"u1": {"name": "a"}}}', "it is damaged"),
        ('{"version": 1, "claims": []}', "it is damaged"),
        ('{"version": 1}', "it is damaged"),
        (
            '{"version": 1, "claims": {"u1": {"namespace": "n", "name": 7, "devices": []}}}',
            "name of the claim u1",
        ),
        (
            '{"version": 1, "claims": {"u1": {"namespace": "n", "name": "a", "devices": {}}}}',
            "devices of the claim",
        ),
        ('{"version": true, "claims": {}}', "it is of version True"),
        ("[]", "it is damaged"),
        ('{"version": 2, "claims": {}}', "it is of version 2, this driver reads 1"),
    ],
)
def test_an_unreadable_checkpoint_is_rejected_and_kept(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=says):
        load(path)
    assert path.read_text() == content


OF_0_1_0 = Path(__file__).with_name("checkpoint-0.1.0.json")  # written by that release


def test_the_checkpoint_of_0_1_0_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    """So that either release can follow the other."""
    claims = load(OF_0_1_0)
    assert [str(one.claim) for one in claims.values()] == [
        *("default/train-gpu-x7k2p", "team-a/monitor", "team-b/shares")
    ]
    assert [device for one in claims.values() for device in one.devices] == [
        Device("gpu", "igpu-0", "8f0e8c9a-4f0b-4b0a-9f63-2f7d1c0b9e44", 3 << 30),
        Device("watch", "igpu-0", admin=True, tolerates_unhealthy=True),
        Device("first", "igpu-0-share-0"),
        Device("second", "igpu-0-share-3"),
    ]
    save(tmp_path / "checkpoint.json", claims)
    assert (tmp_path / "checkpoint.json").read_bytes() == OF_0_1_0.read_bytes()


def test_keys_of_a_later_release_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    save(path, CLAIMS)
    document = json.loads(path.read_text())
    claims = document["claims"]
    for entry in (document, claims["u1"], claims["u1"]["devices"][0], claims["u2"]["devices"][1]):
        entry["colour"] = {"of": "a later release"}
    path.write_text(json.dumps(document))
    assert load(path) == CLAIMS
    save(path, CLAIMS | B)
    del document["claims"]["u2"]
    save(path, A | B)
    found = json.loads(path.read_text())
    assert found["claims"].pop("u3")["name"] == "b"
    assert found == document


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("request", 1), ("name", None), ("share", 7), ("memory", "3Gi"), ("memory", True), ("admin", 1)),
        ("tolerates_unhealthy", "no"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "checkpoint.json"
    save(path, CLAIMS)
    document = json.loads(path.read_text())
    document["claims"]["u2"]["devices"][1][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=rf"it is damaged: {key} of a device of the claim u2 is"):
        load(path)


def files(directory: Path) -> list[str]:
    return sorted(
        re.sub(r"\.[0-9a-f]{32}$", ".*", str(path.relative_to(directory)))
        for pattern in ("host/run/cdi/*claim*", "host/run/cdi/.*claim*", "limit/ledgers/*", ".checkpoint*")
        for path in directory.glob(pattern)
    )


def files_of(claims: Mapping[str, Prepared]) -> list[str]:
    return sorted(
        name
        for uid, one in claims.items()
        for name in (
            f"host/run/cdi/gpu.jetson-k3s.github.io-claim-{uid}.json",
            *(
                f"limit/ledgers/claim-{uid}-{device.key}{end}"
                for device in one.devices
                if device.share
                for end in ("", ".*")
            ),
        )
    )


def at_system_call(number: int, action: Callable[[], None]) -> Callable[..., None]:
    """Give a profile function that acts before this process' system call of that number."""
    numbers = itertools.count()

    def profile(_frame: object, event: str, function: Any) -> None:
        if event != "c_call":
            return
        of_file = type(getattr(function, "__self__", None)).__module__ == "_io"
        if (of_file or function.__module__ == "posix") and next(numbers) == number:
            sys.setprofile(None)
            action()

    return profile


def killed_at_each_system_call(prepare: Callable[[], Any], work: Callable[[], None]) -> Iterator[int]:
    """Kill `work` in a child process before each of its system calls; ends after the first that completes."""
    for number in itertools.count():
        prepare()
        child = os.fork()
        if child == 0:
            sys.setprofile(at_system_call(number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
            work()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        yield number
        if status == 0:
            return


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, A), (A, {}), (A, B), (A, A | B)],
    ids=["prepare", "unprepare", "replace", "prepare a second one"],
)
def test_a_commit_that_is_killed_is_completed_or_undone_by_the_next_start(
    tmp_path: Path, before: Mapping[str, Prepared], after: Mapping[str, Prepared]
) -> None:
    where, results = place(tmp_path), []

    def reset() -> None:
        ClaimStore(where).restore()
        ClaimStore(where).commit(before)
        assert files(tmp_path) == files_of(before)

    for _ in killed_at_each_system_call(reset, lambda: ClaimStore(where).commit(after)):
        started = ClaimStore(where)
        started.restore()
        assert started.claims in (before, after)
        assert load(where.checkpoint) == started.claims
        assert files(tmp_path) == files_of(started.claims)
        results.append(started.claims)
        check_ledgers(tmp_path, started.claims)
    assert results[0] == before and results[-1] == after
    assert len(results) > 20


def test_a_start_after_a_reboot_that_is_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    where = place(tmp_path)
    ClaimStore(where).commit(A)

    def reboot() -> None:
        for name in files(tmp_path):
            for path in tmp_path.glob(name):
                path.unlink()

    for _ in killed_at_each_system_call(reboot, lambda: ClaimStore(where).restore()):
        ClaimStore(where).restore()
        assert files(tmp_path) == files_of(A)
        check_ledgers(tmp_path, A)


@pytest.mark.parametrize(("before", "after"), [({}, A), (A, B)], ids=["prepare", "replace"])
def test_a_commit_changes_all_or_nothing_when_a_system_call_fails(
    tmp_path: Path, before: Mapping[str, Prepared], after: Mapping[str, Prepared]
) -> None:
    where = place(tmp_path)
    results = set()
    for number in itertools.count():
        store = ClaimStore(where)
        store.restore()
        store.commit(before)
        result = commit_fails_at(number, store, after)
        results.add(result)
        assert store.claims == (before if result == "failed" else after)
        assert load(where.checkpoint) == store.claims
        if result == "failed":
            assert files(tmp_path) == files_of(before)
        else:
            assert set(files(tmp_path)) >= set(files_of(after))
        store.restore()
        assert files(tmp_path) == files_of(store.claims)
        if result == "completed":
            break
    assert results >= {"failed", "completed"}


@pytest.mark.parametrize("after", [{}, B], ids=["last", "one of two"])
def test_a_claim_is_unprepared_and_later_saved_when_a_system_call_fails(
    tmp_path: Path, after: Mapping[str, Prepared]
) -> None:
    """With an error the kubelet tries again, and its pod stays in Terminating until the disk has space."""
    where = place(tmp_path)
    for number in itertools.count():
        store = ClaimStore(where)
        store.restore()
        store.commit({**A, **after})
        result = commit_fails_at(number, store, after)
        assert result != "failed"
        assert store.claims == after
        store.restore()
        assert load(where.checkpoint) == after
        assert files(tmp_path) == files_of(after)
        if result == "completed":
            break
    assert number > 10


def commit_fails_at(number: int, store: ClaimStore, after: Mapping[str, Prepared]) -> str:
    """Let one system call of a commit fail as on a full disk. Gives the result of the commit."""
    reached = False

    def fail() -> None:
        nonlocal reached
        reached = True
        raise OSError(errno.ENOSPC, "No space left on device")

    sys.setprofile(at_system_call(number, fail))
    try:
        store.commit(after)
    except OSError:
        return "failed"
    finally:
        sys.setprofile(None)
    return "tolerated" if reached else "completed"


def check_ledgers(tmp_path: Path, claims: Mapping[str, Prepared]) -> None:
    """Fail if a ledger is not the one of its claim's memory."""
    for uid, one in claims.items():
        for device in one.devices:
            if device.memory is not None:
                found = ledger.read(tmp_path / f"limit/ledgers/claim-{uid}-{device.key}")
                assert found.limit == device.memory
