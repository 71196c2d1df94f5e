# SPDX-License-Identifier: Apache-2.0
"""Snapshots: of every board, of boards that answer badly, and archives that nobody of us has made."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from tegra_device_plugin.board import catalogue
from tegra_device_plugin.cli import main
from tegra_device_plugin.snapshot import snapshot_archive, snapshot_capture, snapshot_list
from tegra_device_plugin.snapshot.snapshot_archive import ArchiveError, Snapshot

from images.arm64 import sources
from tests import boards
from tests.boards import __main__ as command
from tests.boards import captured

Data = dict[str, Any]

TOOL = {"name": "test", "version": "1"}
STATES = cast("tuple[boards.State, ...]", get_args(boards.State))
SERIAL = "1423000000000"
QUICK = snapshot_capture.LIMITS._replace(file=0.3, program=0.5)


def capture(root: Path, **settings: Any) -> Snapshot:
    return snapshot_archive.read(snapshot_capture.capture(str(root), TOOL, **settings))


def entries(snapshot: Snapshot) -> dict[str, Data]:
    return {entry["path"]: entry for entry in snapshot.manifest["tree"]}


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().out


@pytest.mark.parametrize("state", STATES)
def test_detect_and_labels_say_of_the_snapshot_what_they_say_on_the_board(
    board: boards.Fixture,
    state: boards.State,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A short path: that of a socket has at most 107 characters.
    directory = tmp_path_factory.mktemp("b")
    root, archive = directory / "host", directory / "board.tar.gz"
    boards.build(board, root, state=state)
    assert main(["capture", "--host-root", str(root), "--output", str(archive)]) == 0
    capsys.readouterr()
    for words in (["detect", "--output=json"], ["labels", "--qos-policy=burst-share"]):
        on_board = said(capsys, *words, "--host-root", str(root))
        assert on_board[1]
        assert said(capsys, *words, "--from", str(archive)) == on_board


def test_a_snapshot_is_for_its_owner_alone_and_replaces_no_file(
    orin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "board.tar.gz"
    arguments = ["capture", "--host-root", str(orin), "--output", str(archive)]
    assert main(arguments) == 0
    assert archive.stat().st_mode & 0o777 == 0o600
    assert main(arguments) == 1
    assert f"--output: [Errno 17] File exists: '{archive}'" in capsys.readouterr().err


def test_a_full_disk_is_named_and_leaves_no_file(
    orin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr("tegra_device_plugin.commands.snapshots.os.fdopen", lambda *_: full.open("wb"))
    assert main(["capture", "--host-root", str(orin), "--output", str(tmp_path / "a")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_an_archive_comes_out_of_a_pipe(orin: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tegra_device_plugin", "capture", "--host-root", str(orin)]
    ran = subprocess.run(command, capture_output=True, check=True)
    manifest = snapshot_archive.read(ran.stdout).manifest
    assert manifest["tool"]["name"] == "tegra-device-plugin"
    assert {one["error"] for one in manifest["programs"]} == {
        "not run: programs of the board cannot be run from here"
    }


def test_device_nodes_keep_owner_mode_and_number(orin: Path) -> None:
    os.mkfifo(orin / "dev/nvpipe")
    (orin / "dev/nvmap").chmod(0o640)
    found = entries(capture(orin))
    status = (orin / "dev/nvmap").stat()
    assert found["/dev/nvmap"] == {
        "path": "/dev/nvmap",
        "type": "file",  # of a simulated board
        "mode": "0640",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": 0,
    }
    assert found["/dev/nvpipe"]["type"] == "other"


def test_character_devices_are_recorded_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def read(_self: object, path: str, _limit: int) -> bytes:
        opened.append(path)
        return b""

    monkeypatch.setattr(snapshot_capture._Reader, "read", read)
    tree = snapshot_capture._Tree("/", snapshot_capture._Reader(1, time.monotonic() + 60), QUICK)
    tree._record("/dev/null", "data", 10)
    entry = tree.entries["/dev/null"]
    assert (entry["type"], entry["major"], entry["minor"], opened) == ("char", 1, 3, [])


def test_every_device_node_that_a_container_can_get_is_in_the_list(tmp_path: Path) -> None:
    names = [name for names in catalogue.load().nodes.values() for name in names]
    names = [name.replace("[01]", "1").replace("*", "0") for name in names]
    for name in names:
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert {f"/dev/{name}" for name in names} <= entries(capture(tmp_path)).keys()


WAKES = ("load", "config", "gpc_fs_mask", "fbp_fs_mask", "tpc_fs_mask")
SECRET_FILES = (
    "k3s.yaml",
    "token",
    "kubeconfig",
    ".env",
    "shadow",
    "id_rsa",
    "config.json",
    ".key",
    "authorized_keys",
)


def test_the_list_has_no_file_that_wakes_the_gpu_or_is_a_secret() -> None:
    patterns = [pattern for files in snapshot_list.FILES for pattern in files.patterns]
    assert [one for one in patterns if one.rpartition("/")[2] in WAKES or one.endswith(SECRET_FILES)] == []


# What a file of the board does, and its entry in the manifest.
SICK: dict[str, tuple[Callable[[str], bytes], Data]] = {
    "vanishes": (
        lambda path: raising(FileNotFoundError(2, "No such file or directory", path)),
        {"type": "absent"},
    ),
    "is refused": (
        lambda path: raising(PermissionError(13, "Permission denied", path)),
        {"error": "Permission denied"},
    ),
    "has no answer": (lambda path: raising(OSError(11, "no", path)), {"error": os.strerror(11)}),
    "blocks": (lambda _: late(), {"error": "no answer within 0.3 s"}),
    "ends the reader": (lambda _: os._exit(1), {"error": "the reader ended"}),
    "is endless": (lambda _: b"x" * 5000, {"truncated": True}),
}


def late() -> bytes:
    time.sleep(60)
    return b""


def raising(error: OSError) -> bytes:
    raise error


@pytest.mark.parametrize("what", SICK)
def test_a_sick_file_is_recorded_and_the_others_are_read(
    what: str, orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, expected = SICK[what]
    read = snapshot_capture.read_file

    def sick(path: str, limit: int) -> bytes:
        return answer(path)[:limit] if path.endswith("/proc/meminfo") else read(path, limit)

    monkeypatch.setattr(snapshot_capture, "read_file", sick)
    found = capture(orin, limits=QUICK)
    assert expected.items() <= entries(found)["/proc/meminfo"].items()
    healthy = entries(capture(orin)).keys() - {"/proc/meminfo"}
    assert healthy <= entries(found).keys()
    assert [path for path in healthy if "error" in entries(found)[path]] == []


def test_a_slow_board_ends_at_the_time_limit_with_the_rest_recorded(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_capture, "read_file", lambda *_: time.sleep(60))
    began = time.monotonic()
    found = entries(capture(orin, limits=QUICK._replace(total=1)))
    assert time.monotonic() - began < 5
    assert found["/proc/meminfo"]["error"] == "not read: the snapshot took too long"


PROGRAMS: dict[str, tuple[list[str], Data, str | None]] = {
    "dead": (["sh", "-c", "echo begun; sleep 60"], {"error": "did not end within 0.5 s"}, "begun\n"),
    "fails": (["sh", "-c", "echo it is down >&2; exit 3"], {"status": 3}, "it is down\n"),
    "absent": (["no-such-program"], {"error": "not found"}, None),
    "long": (["sh", "-c", 'yes "$(printf %01000d 7)" | head -n 1000'], {"truncated": True}, "7\n"),
    # A child that goes on with the output open delays nothing.
    "daemon": (["sh", "-c", "sleep 60 & echo done"], {"status": 0}, "done\n"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_sick_program_is_recorded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv, expected, text = PROGRAMS[what]
    monkeypatch.setattr(snapshot_capture, "FILES", ())
    program = snapshot_list.Program(what, tuple(argv), None)
    began = time.monotonic()
    found = capture(Path("/"), programs=[program], limits=QUICK)
    assert time.monotonic() - began < 30  # and not 60
    assert expected.items() <= found.manifest["programs"][0].items()
    content = found.contents.get(f"programs/{what}.txt")
    assert (content and content.decode()[-len(text or "") :]) == text
    assert len(content or b"") <= QUICK.output


def test_only_lines_about_the_gpu_come_from_the_kernels_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_capture, "FILES", ())
    (only,) = (program.only for program in snapshot_list.PROGRAMS if program.argv == ("dmesg",))
    argv = ("printf", "nvgpu: 17000000.ga10b railgate\\nusb 1-1: SerialNumber: 4711\\n")
    found = capture(Path("/"), programs=[snapshot_list.Program("log", argv, only)])
    assert found.contents["programs/log.txt"] == b"nvgpu: 17000000.ga10b railgate\n"


def test_packages_are_those_that_are_installed(orin: Path) -> None:
    status = orin / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    blocks = [
        ("nvidia-l4t-core", "install ok installed", "36.4.3.1-2"),
        ("gone", "deinstall ok config-files", "1"),
    ]
    status.write_text(
        "".join(
            f"Package: {name}\nStatus: {state}\nArchitecture: arm64\nHomepage: x\nVersion: {version}\n\n"
            for name, state, version in blocks
        )
    )
    assert capture(orin).contents["packages.txt"] == b"nvidia-l4t-core 36.4.3.1-2 arm64\n"


def test_no_serial_number_is_in_a_snapshot(orin: Path) -> None:
    (orin / "proc/cmdline").write_text(f"root=/dev/sda androidboot.serialno={SERIAL}\n")
    (orin / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (orin / "etc/hostname").write_text("secret-place\n")
    (orin / "sys/devices/soc0/family").write_text(f"Tegra {SERIAL}\n")
    (orin / "etc/docker").mkdir()
    (orin / "etc/docker/daemon.json").write_text(
        '{"registry-mirrors": ["http://user:planted@secret-place:5000"], "bip": "192.168.7.1/24"}'
    )
    found = capture(orin)
    everything = b"".join(found.contents.values()) + json.dumps(found.manifest).encode()
    for secret in (SERIAL, "0123456789abcdef0123456789abcdef", "secret-place", "planted", "192.168.7.1"):
        assert secret.encode() not in everything
    assert found.manifest["redacted"].keys() >= {"host", "ip", "serial"}


# Archives ----------------------------------------------------------------------------------------------


def packed(members: list[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name) if isinstance(name, str) else name
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def manifest(tree: list[Data] | None = None, files: Data | None = None, **changes: Any) -> bytes:
    made = {
        "format": "jetson-k3s-snapshot",
        "version": 1,
        "created": 1,
        "tool": TOOL,
        "root": "host",
        "tree": tree or [],
        "programs": [],
        "data": {},
        "packages": {},
        "redacted": {},
        "files": files or {},
    }
    return json.dumps(made | changes).encode()


def of_type(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def with_tree(*tree: Data) -> bytes:
    return packed([("manifest.json", manifest(list(tree)))])


def named(name: str) -> bytes:
    return packed([("manifest.json", manifest(files={name: 1})), (name, b"x")])


LINK = {"path": "/a", "type": "link", "target": "/etc"}
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no gzip": (lambda: b"#!/bin/sh", "it is no gzip file"),
    "empty": (lambda: b"", "it is no gzip file"),
    "cut off": (lambda: with_tree()[:-20], "it is cut off"),
    "no tar": (lambda: gzip.compress(b"x" * 2000), "it is damaged"),
    "nothing in it": (lambda: packed([]), "it is no snapshot"),
    "another first": (
        lambda: packed([("packages.txt", b""), ("manifest.json", manifest())]),
        "it is no snapshot",
    ),
    "parent": (lambda: named("tree/../../etc/passwd"), "a name that no snapshot has"),
    "absolute": (lambda: named("/etc/passwd"), "a name that no snapshot has"),
    "other name": (lambda: named("tree"), "a name that no snapshot has"),
    "newline": (lambda: named("tree/a\nb"), "a name that no snapshot has"),
    "link": (
        lambda: packed([(of_type("tree/a", tarfile.SYMTYPE, "/etc/passwd"), b"")]),
        "is no regular file",
    ),
    "hard link": (
        lambda: packed([(of_type("tree/a", tarfile.LNKTYPE, "/etc/passwd"), b"")]),
        "is no regular file",
    ),
    "device": (lambda: packed([(of_type("tree/a", tarfile.CHRTYPE), b"")]), "is no regular file"),
    "pipe": (lambda: packed([(of_type("tree/a", tarfile.FIFOTYPE), b"")]), "is no regular file"),
    "folder": (lambda: packed([(of_type("tree/a", tarfile.DIRTYPE), b"")]), "is no regular file"),
    "sparse": (lambda: sparse(1 << 40), "is no regular file"),
    "twice": (
        lambda: packed([("manifest.json", manifest()), ("tree/a", b"1"), ("tree/a", b"2")]),
        "it has 'tree/a' twice",
    ),
    "bomb": (
        lambda: gzip.compress(bytes(snapshot_archive.MOST_UNPACKED + 1)),
        "it is larger than 48 MiB when",
    ),
    "large": (lambda: bytes(snapshot_archive.MOST_COMPRESSED + 1), "it is larger than 16 MiB"),
    "not in the manifest": (
        lambda: packed([("manifest.json", manifest()), ("tree/a", b"x")]),
        "its files are not those of its manifest",
    ),
    "other format": (lambda: packed([("manifest.json", manifest(format="x"))]), "its format is 'x'"),
    "newer": (lambda: packed([("manifest.json", manifest(version=2))]), "use the release that made it"),
    "no JSON": (lambda: packed([("manifest.json", b"{")]), "its manifest cannot be read"),
    "deep JSON": (lambda: packed([("manifest.json", b"[" * 200000)]), "its manifest cannot be read"),
    "list": (lambda: packed([("manifest.json", b"[]")]), "its manifest cannot be read"),
    "types": (
        lambda: packed([("manifest.json", manifest(tree=[{"path": 1, "type": "dir"}]))]),
        "cannot be read",
    ),
    "path of the tree": (
        lambda: with_tree({"path": "/../x", "type": "dir"}),
        "its manifest has the path '/../x'",
    ),
    "type of the tree": (lambda: with_tree({"path": "/x", "type": "door"}), "of the type 'door'"),
    "path twice": (lambda: with_tree({"path": "/x", "type": "dir"}, {"path": "/x", "type": "char"}), "twice"),
    "link out": (lambda: with_tree(LINK | {"target": "../../etc/shadow"}), "leads out of the board"),
    "link without": (lambda: with_tree({"path": "/x", "type": "link"}), "its manifest cannot be read"),
    "through a link": (
        lambda: with_tree(LINK, {"path": "/a/passwd", "type": "char"}),
        "which is no directory",
    ),
    "content of a link": (
        lambda: packed([("manifest.json", manifest([LINK], {"tree/a": 1})), ("tree/a", b"x")]),
        "is no file of its manifest",
    ),
}


def sparse(size: int) -> bytes:
    """A file without content of this size, in the form of GNU tar 1.0."""
    member = tarfile.TarInfo("tree/a")
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(size),
        "GNU.sparse.name": "tree/a",
    }
    return packed_pax(member, b"1\n0\n0\n".ljust(512, b"\0"))


def packed_pax(member: tarfile.TarInfo, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_with_the_reason_and_writes_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words = HOSTILE[what]
    content = make()
    with pytest.raises(ArchiveError) as refused:
        snapshot_archive.read(content)
    assert words in str(refused.value)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert main(["detect", "--from", str(archive)]) == 2
    assert words in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


def test_links_of_an_archive_stay_below_its_directory(tmp_path: Path) -> None:
    tree = [
        {"path": "/absolute", "type": "link", "target": "/etc/passwd"},
        {"path": "/a/relative", "type": "link", "target": "../b/./c/../d"},
        {"path": "/dev/null", "type": "char"},
    ]
    snapshot_archive.unpack(snapshot_archive.read(with_tree(*tree)), str(tmp_path))
    assert (tmp_path / "absolute").readlink() == Path("etc/passwd")
    assert (tmp_path / "a/relative").readlink() == Path("../b/d")
    assert (tmp_path / "dev/null").is_file()


def test_an_absent_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", "--from", str(tmp_path / "none.tar.gz")]) == 1
    assert "none.tar.gz" in capsys.readouterr().err


# Boards of the tests -------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    copy = tmp_path / "boards.json"
    copy.write_bytes(boards.fixture.DATA.read_bytes())
    return copy


def snapshot_of(board: boards.Fixture, directory: Path) -> Path:
    boards.build(board, directory / "host")
    archive = directory / "board.tar.gz"
    archive.write_bytes(snapshot_capture.capture(str(directory / "host"), TOOL))
    return archive


def test_a_snapshot_becomes_a_board_of_the_tests(board: boards.Fixture, data: Path, tmp_path: Path) -> None:
    other = board.but(devicequery_mb=board.data["devicequery_mb"] - 3, thermal=["cpu-thermal", "GPU-therm"])
    captured.add(snapshot_of(other, tmp_path), "new-board", data=data)
    added = boards.load(data)["new-board"]
    boards.build(added, tmp_path / "again")
    found = entries(capture(tmp_path / "again"))
    expected = entries(capture(tmp_path / "host"))
    assert found.keys() == expected.keys()
    changed = {path for path in expected if expected[path].get("size") != found[path].get("size")}
    assert changed == set()
    assert boards.load(data).keys() - boards.load().keys() == {"new-board"}


@pytest.mark.parametrize(
    ("name", "like", "words"),
    [
        ("orinnano-jp6", "", "give it a new id"),
        ("../x", "", "give it a new id"),
        ("new-board", "none-jp1", "there is no board none-jp1"),
    ],
)
def test_a_wrong_id_is_refused(name: str, like: str, words: str, data: Path, tmp_path: Path) -> None:
    before = data.read_bytes()
    with pytest.raises(captured.UnfitError, match=words):
        captured.add(snapshot_of(boards.load()["orinnano-jp6"], tmp_path), name, like, data)
    assert data.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("proc/meminfo", "none\n", "cannot make this board yet: gpu: .*'memory_bytes': None"),
        ("etc/nv_tegra_release", "# R99 (release), REVISION: 1.0, X\n", "has nothing about 99"),
    ],
)
def test_a_board_that_the_tests_cannot_make_is_refused(
    path: str, text: str, words: str, data: Path, tmp_path: Path
) -> None:
    board = boards.load()["orinnano-jp6"]
    archive = snapshot_of(board, tmp_path)
    (tmp_path / "host" / path).write_text(text)
    archive.write_bytes(snapshot_capture.capture(str(tmp_path / "host"), TOOL))
    before = data.read_bytes()
    with pytest.raises(captured.UnfitError, match=words):
        captured.add(archive, "new-board", data=data)
    assert data.read_bytes() == before


def test_another_machine_is_no_board(data: Path, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    archive = tmp_path / "board.tar.gz"
    archive.write_bytes(snapshot_capture.capture(str(tmp_path / "host"), TOOL))
    with pytest.raises(captured.UnfitError, match="no Tegra GPU"):
        captured.add(archive, "new-board", data=data)


def test_the_command_of_the_tests_makes_a_board_of_an_archive(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = snapshot_of(boards.load()["orinnano-jp6"], tmp_path)
    monkeypatch.setattr(boards.fixture, "DATA", data)
    monkeypatch.setattr("sys.argv", ["boards", "add", str(archive), "orinnx8-jp6"])
    assert command.main() == 0
    assert '"id": "orinnx8-jp6"' in capsys.readouterr().out
    assert "orinnx8-jp6" in boards.load(data)
    archive.write_text("x")
    assert command.main() == 1
    assert "give it a new id" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["boards", "add", str(archive), "orinnx9-jp6"])
    assert command.main() == 1
    assert "it is no gzip file" in capsys.readouterr().err


def test_a_board_that_builds_the_image_gets_the_files_behind_the_links(tmp_path: Path) -> None:
    sources.write(tmp_path / "sources.tar")
    with tarfile.open(tmp_path / "sources.tar") as archive:
        members = archive.getmembers()
        assert [member.name for member in members if not member.isreg()] == []
        packed_list = archive.extractfile("plugin/tegra_device_plugin/snapshot/snapshot_list.py")
        assert packed_list is not None
        assert packed_list.read() == Path(snapshot_list.__file__).read_bytes()
