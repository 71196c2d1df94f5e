# SPDX-License-Identifier: Apache-2.0
"""A restore: what is exchanged, kept and brought back on a server, and what begins and is said on several."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_archive as archive
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_restore as restore
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_backup as plans

from tests.unit.roles.places import Data
from tests.unit.roles.playing import answer

STAMP, EARLIER = "20260102T030405Z", "20260101T000000Z"
FACTS = {
    "server": "of-no-board", "k3s_version": "v1.33.5+k3s1", "datastore": "etcd",
    "created": "2026-01-02T03:04:05Z", "ca": "c" * 64,
}  # fmt: skip
Restore = Callable[..., Data]


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    for name, text in {"server/token": "K10secret", "server/db/snapshot": "restored"}.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    stream = io.BytesIO()
    archive.write(stream, str(tmp_path / "files"), FACTS)
    (tmp_path / "backup").write_bytes(stream.getvalue())
    return tmp_path / "backup"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data of a server whose store says `mine`."""
    path = tmp_path / "k3s/server"
    (path / "db").mkdir(parents=True)
    (path / "db/state").write_text("mine")
    return path


@pytest.fixture
def run(data: Path, backup: Path) -> Restore:
    """The module with this state; `first` is the first server."""

    def module(state: str, *, first: bool = False, **changes: Any) -> Data:
        given: Data = {"data": str(data), "state": state, "stamp": STAMP} | changes
        if first:
            digest = hashlib.sha256(backup.read_bytes()).hexdigest()
            given = {"archive": str(backup), "sha256": digest} | given
        return answer("k3s_restore", given)

    return module


def found(data: Path) -> list[str]:
    """Names of what lies beside and in the data, and the store's text."""
    texts = [path.read_text() for path in data.glob("db/*")]
    return sorted(
        [*(path.name for path in data.parent.iterdir()), *(path.name for path in data.iterdir()), *texts]
    )


@pytest.mark.parametrize("first", [True, False])
def test_check_changes_nothing_and_says_where_the_data_will_be(data: Path, run: Restore, first: bool) -> None:
    before = found(data)
    said = run("checked", first=first, bytes=1000)
    place = data if first else data / "db"
    assert (said["place"], said["kept"]) == (str(place), f"{place}.before-{STAMP}")
    assert (found(data), said["changed"]) == (before, False)


def test_board_without_data_has_nothing_to_keep(tmp_path: Path, run: Restore) -> None:
    other = tmp_path / "none/server"
    for first in (True, False):
        assert run("checked", first=first, data=str(other))["kept"] is None
    assert list(other.parent.iterdir() if other.parent.exists() else []) == []


@pytest.mark.parametrize(
    ("first", "changes", "words"),
    [
        (False, {"bytes": 1 << 60}, "are needed, and"),
        (True, {"token": "another"}, "k3s_token is not the token that this cluster had"),
        (True, {"sha256": "0" * 64}, "is not the backup that was read on the controller"),
        (True, {"session_key": "9:00", "sha256": "0" * 64}, "is not the backup"),
        (True, {}, "clock of the computer that runs the playbook may be wrong"),
        (False, {}, "clock of the computer that runs the playbook may be wrong"),
    ],
)
def test_what_is_in_the_way_is_found_before_anything_changes(
    data: Path, run: Restore, first: bool, changes: Data, words: str
) -> None:
    if not changes:
        Path(f"{data if first else data / 'db'}.before-{STAMP}").mkdir()
    before = found(data)
    said = run("checked", first=first, **changes)
    assert (said["failed"], words in said["msg"], found(data)) == (True, True, before)


def test_disk_has_room_for_the_snapshot_and_for_etcds_data(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    for module in (restore, archive):
        monkeypatch.setattr(module, "check_space", lambda _, size: needed.append(size))
    new = tmp_path / "new"
    new.mkdir()
    digest = hashlib.sha256(backup.read_bytes()).hexdigest()
    restore.unpack(
        {"archive": str(backup), "sha256": digest, "token": None, "session_key": ""}, str(new), None
    )
    assert needed == [len("K10secret") + len("restored"), len("restored")]


def test_data_are_exchanged_brought_back_or_stay_kept(data: Path, run: Restore) -> None:
    kept = Path(f"{data}.before-{STAMP}")
    for end in ("taken_back", "finished"):
        said = run("placed", first=True)
        assert (said["kept"], said["snapshot"]) == (str(kept), str(data / "db/snapshot"))
        assert [path.read_text() for path in data.glob("db/*")] == ["restored"]
        assert [path.read_text() for path in kept.glob("db/*")] == ["mine"]
        assert run(end)["changed"] is (end == "taken_back")
        assert not (data.parent / "restore.json").exists()
    assert kept.is_dir()


def test_store_of_a_further_server_is_moved_and_brought_back(data: Path, run: Restore) -> None:
    before = found(data)
    assert run("aside")["kept"] == f"{data}/db.before-{STAMP}"
    assert not (data / "db").exists()
    (data / "db").mkdir()  # as K3s makes it that tries to join
    assert run("taken_back")["changed"]
    assert found(data) == before
    assert not run("taken_back")["changed"]


def test_board_without_data_is_empty_again(tmp_path: Path, run: Restore) -> None:
    other = tmp_path / "fresh/server"
    assert run("placed", first=True, data=str(other))["kept"] is None
    assert (other / "db/snapshot").exists()
    run("taken_back", data=str(other))
    assert not other.exists()


def test_record_of_another_run_brings_nothing_back(data: Path, run: Restore) -> None:
    """K3s has run since, with data of its own."""
    run("aside", stamp=EARLIER)
    (data / "db").mkdir()
    (data / "db/state").write_text("newer")
    assert not run("taken_back")["changed"]
    assert (data / "db/state").read_text() == "newer"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_run_after_an_interrupted_one_knows_which_data_are_from_before(
    data: Path, run: Restore, first: bool, running: bool
) -> None:
    """Those that the interrupted run has kept, unless K3s was started with others since."""
    state = "placed" if first else "aside"
    run(state, first=first, stamp=EARLIER)
    (data / "db").mkdir(exist_ok=True)
    (data / "db/state").write_text("since")
    place = data if first else data / "db"
    kept = f"{place}.before-{STAMP if running else EARLIER}"
    assert run("checked", first=first, running=running)["kept"] == kept
    assert run(state, first=first, running=running)["kept"] == kept
    assert run("taken_back")["changed"]
    assert (data / "db/state").read_text() == ("since" if running else "mine")


def test_cut_between_record_and_move_loses_nothing(data: Path, run: Restore) -> None:
    kept = f"{data}/db.before-{STAMP}"
    record = {"place": str(data / "db"), "kept": kept, "stamp": STAMP}
    (data.parent / "restore.json").write_text(json.dumps(record))
    assert not run("taken_back")["changed"]
    assert (data / "db/state").read_text() == "mine"
    assert run("checked", running=False)["kept"] == kept


def test_exchange_that_fails_brings_the_data_back(
    data: Path, run: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    new.mkdir()  # without server: the disk fails
    params = {"data": str(data), "stamp": STAMP, "running": True}
    with pytest.raises(OSError, match="No such file"):
        restore.place_backup(params, str(new), {"files": {}, "server": "x"})
    assert (data / "db/state").read_text() == "mine"


FIRST, SECOND, THIRD = SERVERS = ("jetson-1", "jetson-2", "jetson-3")
RECORD = "/var/lib/rancher/k3s/restore.json"


def state(name: str, stage: str, reason: str = "", kept: bool = True, active: bool = True) -> Data:
    place = "/var/lib/rancher/k3s/server" + ("" if name == FIRST else "/db")
    made: Data = {"stage": stage, "place": place, "active": active}
    made["kept"] = f"{place}.before-{STAMP}" if kept else None
    return made | ({"reason": reason} if reason else {})


def states(*stages: str, failing: str = "") -> dict[str, Data]:
    return {
        name: state(name, stage, "it broke" if name == failing else "") if stage else {}
        for name, stage in zip(SERVERS, stages, strict=True)
    }


@pytest.mark.parametrize(
    ("stages", "failing", "wanted", "first", "begins"),
    [
        (("checked", "checked", "checked"), "", "checked", "", True),
        (("checked", "", "checked"), "", "checked", "", False),
        (("", "checked", "checked"), "", "checked", "", False),
        (("prepared", "prepared", "prepared"), "", "prepared", "", True),
        (("prepared", "prepared", "checked"), "", "prepared", "", False),
        (("prepared", "aside", "aside"), "", "aside", FIRST, True),
        (("prepared", "aside", "stopping"), THIRD, "aside", FIRST, False),
        (("prepared", "aside", "aside"), THIRD, "aside", FIRST, False),
        (("checked", "aside", "aside"), "", "aside", FIRST, False),
    ],
)
def test_step_begins_if_each_server_has_come_so_far(
    stages: tuple[str, ...], failing: str, wanted: str, first: str, begins: bool
) -> None:
    assert plans.all_at(states(*stages, failing=failing), wanted, first) is begins


STAGES = ("", "checked", "prepared", "placing", "placed", "started", "back")


@pytest.mark.parametrize("first", STAGES)
@pytest.mark.parametrize("further", ["prepared", "stopping", "aside", "back"])
def test_data_go_back_only_if_the_first_server_has_its_own(first: str, further: str) -> None:
    goes = further in ("stopping", "aside") and first not in ("placing", "placed", "started")
    assert plans.goes_back(states(first, further, "prepared"), SECOND) is goes


KEPT = f"/var/lib/rancher/k3s/server/db.before-{STAMP}"
PLACE = "/var/lib/rancher/k3s/server/db"
WAY = f"mv {KEPT} {PLACE}; fi; rm -f {RECORD}; systemctl start k3s'"
OF_FIRST = f"/var/lib/rancher/k3s/server.before-{STAMP}"
UNTOUCHED = "K3s was not stopped, and its data were not touched."
IN_PLACE = "its data from before are in place again."
JOINS = "it has no data yet and joins jetson-1 in site.yml."
SILENT = "it does not answer any more."
TWO = "there would be two clusters with the same CA."


class Case(NamedTuple):
    """`why` is the server of `stages` with a reason, `failures` are those of checks."""

    stages: tuple[str, str, str]
    words: list[str]
    why: str = ""
    lost: tuple[str, ...] = ()
    failures: Mapping[str, str] = MappingProxyType({})
    succeeds: bool = False


CASES = {
    "success": Case(
        ("started", "aside", "aside"),
        [
            "jetson-1 runs with the data of the backup.",
            f"jetson-1: K3s runs with the data of the backup. Its data from before are in {OF_FIRST}.",
            f"jetson-2: {JOINS} Its data from before are in {KEPT}.",
        ],
        succeeds=True,
    ),
    "another server is lost then, and joins when it answers": Case(
        ("started", "aside", "aside"), [f"jetson-3: {SILENT}"], lost=(THIRD,), succeeds=True
    ),
    "node is not Ready": Case(
        ("started", "aside", "aside"),
        ["and the run ended: jetson-1: it broke", "Repair the cause, then run site.yml", JOINS, WAY],
        why=FIRST,
    ),
    "check fails": Case(
        ("checked", "", "checked"),
        [
            "Not restored. No server was stopped: jetson-2: the disk is full",
            f"jetson-1: {UNTOUCHED}",
            f"jetson-2: {UNTOUCHED}",
            "run the same command again",
        ],
        failures={SECOND: "the disk is full"},
    ),
    "server is lost in its checks": Case(
        ("checked", "", "checked"), ["No server was stopped: jetson-2 does not answer"], lost=(SECOND,)
    ),
    "another server cannot stop": Case(
        ("prepared", "back", "back"),
        ["Not restored: jetson-3: it broke", f"jetson-2: {IN_PLACE} K3s runs with them."],
        failures={THIRD: "it broke"},
    ),
    "first server cannot restore": Case(
        ("back", "back", "back"),
        [f"jetson-1: {IN_PLACE} it broke", f"jetson-3: {IN_PLACE} K3s runs"],
        why=FIRST,
    ),
    "another server is lost while it stops": Case(
        ("prepared", "back", "stopping"),
        [
            f"jetson-3: {SILENT} K3s may be stopped. Its data from before are in {KEPT} or, if that is not "
            "there, in /var/lib/rancher/k3s/server/db. To bring them back: ",
            WAY,
        ],
        lost=(THIRD,),
    ),
    "first server is lost while its data are exchanged": Case(
        ("placing", "aside", "aside"),
        [
            "Not restored: jetson-1 does not answer any more",
            f"jetson-2: K3s is stopped. Its data from before are in {KEPT}. To bring them back: ",
            WAY,
            TWO,
        ],
        lost=(FIRST,),
    ),
    "data of the first server do not go back": Case(
        ("placed", "aside", "aside"),
        ["jetson-1: it has the data of the backup, and K3s does not run.", TWO, WAY],
        why=FIRST,
    ),
    "data of another server do not go back": Case(
        ("prepared", "back", "aside"), ["jetson-3: K3s is stopped.", WAY, "it broke"], why=THIRD
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_report_names_the_data_of_each_server_and_how_to_roll_back(name: str) -> None:
    case = CASES[name]
    made = states(*case.stages, failing=case.why)
    there = [name for name in SERVERS if name not in case.lost]
    text = plans.report(made, there, case.failures, RECORD)
    assert [words for words in case.words if words not in text] == [], text
    assert [line.partition(":")[0] for line in text.splitlines()[1:4]] == list(SERVERS)
    assert plans.restored(made, there, case.failures) is case.succeeds
    assert ("Not restored" in text or "the run ended" in text) is not case.succeeds
    assert not (case.succeeds and "sudo" in text)


def test_report_of_servers_without_data_has_no_rollback() -> None:
    made = {FIRST: state(FIRST, "back", "it broke", kept=False, active=False)}
    text = plans.report(made, [FIRST], {}, RECORD)
    assert "jetson-1: it has no data, as before." in text
    assert "sudo mv" not in text
    made = {FIRST: state(FIRST, "back", kept=True, active=False)}
    assert "K3s did not run before, and was not started." in plans.report(made, [FIRST], {FIRST: "x"}, RECORD)


@pytest.mark.parametrize("moved", [True, False])
def test_printed_command_brings_the_data_back_or_leaves_them(tmp_path: Path, data: Path, moved: bool) -> None:
    """Before the move the data are in place, and the same command is right."""
    place, kept = data / "db", Path(f"{data}/db.before-{STAMP}")
    if moved:
        place.rename(kept)
        place.mkdir()
    record = tmp_path / "k3s/restore.json"
    record.touch()
    for name in ("sudo", "systemctl"):
        (tmp_path / name).write_text('#!/bin/sh\ncase "$0" in *sudo) exec "$@";; esac\n')
        (tmp_path / name).chmod(0o755)
    text = plans.command({"place": str(place), "kept": str(kept)}, str(record))
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["/bin/sh", "-ec", text], env={"PATH": path}, check=True)
    assert ((place / "state").read_text(), kept.exists(), record.exists()) == ("mine", False, False)
