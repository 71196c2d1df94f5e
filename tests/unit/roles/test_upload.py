# SPDX-License-Identifier: Apache-2.0
"""Uploads of root are out of reach of a board's other users; the wheels of jetson-stats are such uploads."""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import file_locks, uploads

from tests.unit.roles.places import COLLECTION, ROLES
from tests.unit.roles.playing import Run, play_text

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="runs processes of another user")


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory in which everybody may make files, as in /var/tmp."""
    path = Path(tempfile.mkdtemp(prefix="uploads-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def project(base: Path) -> Path:
    return base / "jetson-k3s"


@contextmanager
def of_nobody(work: Callable[[], object], *, again: bool = False) -> Iterator[None]:
    """A process of the user nobody does the work before the block, with `again` until the block ends."""
    done, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            os.write(told, b"1")
            while again:
                work()
        finally:
            os._exit(0)
    os.close(told)
    try:
        assert os.read(done, 1) == b"1", "the other user cannot do it"
        yield
    finally:
        os.close(done)
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_upload_is_in_a_directory_of_its_own_and_leaves_nothing(base: Path, project: Path) -> None:
    one, other = Path(uploads.make(str(base))), Path(uploads.make(str(base)))
    assert one.parent == other.parent == project / "uploads"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (project, one.parent, one)] == [0o755, 0o700, 0o700]
    (one / "a.tar").touch()
    uploads.remove(str(base), str(one))
    assert list(one.parent.iterdir()) == [other]
    uploads.remove(str(base), str(other))
    assert list(project.iterdir()) == []
    uploads.remove(str(base), str(other))


@needs_root
def test_local_user_cannot_stop_an_upload(base: Path, project: Path) -> None:
    """Everybody can open the directories on the way, and lock them."""
    one = uploads.make(str(base))

    def lock() -> None:
        for path in (base, project):
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        with suppress(PermissionError):
            fcntl.flock(os.open(project / "uploads", os.O_RDONLY), fcntl.LOCK_EX)

    with of_nobody(lock, again=True):  # it waits for itself, with the locks of the first time
        uploads.remove(str(base), uploads.make(str(base)))
        uploads.remove(str(base), one)


def test_upload_does_not_wait_without_end(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "WAIT_SECONDS", 0)
    place = Path(uploads.make(str(base))).parent
    directory = os.open(place, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with pytest.raises(TimeoutError, match=f"{place} has been locked by process {os.getpid()} for 0 s"):
        uploads.make(str(base))
    os.close(directory)


def test_directory_that_another_process_removes_meanwhile_is_made_again(
    base: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = uploads.make(str(base))
    locking = file_locks.lock

    def lock(descriptor: int, path: str) -> None:
        locking(descriptor, path)
        if Path(first).exists():  # the other one has had the lock before
            shutil.rmtree(project / "uploads")

    monkeypatch.setattr(uploads, "lock", lock)
    assert Path(uploads.make(str(base))).is_dir()


def test_uploads_of_interrupted_runs_go_together(base: Path, project: Path) -> None:
    uploads.remove_all(str(base))
    assert not project.exists()
    Path(uploads.make(str(base)), "a.tar").touch()
    Path(uploads.make(str(base))).joinpath("link").symlink_to(project.parent)
    uploads.remove_all(str(base))
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", "", "tmp/..", "../tmp"])
def test_only_an_upload_is_removed(base: Path, project: Path, name: str) -> None:
    kept = Path(uploads.make(str(base)))
    for path in (f"{kept.parent}/{name}", str(project), "/etc"):
        with pytest.raises(uploads.UploadError, match="Nothing was removed"):
            uploads.remove(str(base), path)
    assert kept.is_dir()


def test_file_that_is_not_the_bundles_is_named_with_both_digests(base: Path) -> None:
    there = Path(uploads.make(str(base)))
    (there / "a.tar").write_bytes(b"a")
    digest = uploads.sha256(str(there / "a.tar"))
    uploads.verify(str(there), {"a.tar": digest})
    with pytest.raises(uploads.UploadError, match=f"a.tar has the SHA-256 {digest} .* says {'0' * 64}"):
        uploads.verify(str(there), {"a.tar": "0" * 64})
    (there / "link").symlink_to("a.tar")
    with pytest.raises(OSError, match="link"):
        uploads.verify(str(there), {"link": digest})


# What another user may have prepared under a name, as a function of its path.
PREPARED: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(mode=0o777),
    "a link to a directory": lambda path: path.symlink_to("/var/lib"),
    "a link to nothing": lambda path: path.symlink_to("/nowhere"),
    "a file": lambda path: path.touch(),
    "a fifo": os.mkfifo,
}


@needs_root
@pytest.mark.parametrize("what", PREPARED)
def test_name_that_another_user_has_prepared_is_refused_and_stays(
    base: Path, project: Path, what: str
) -> None:
    with of_nobody(lambda: PREPARED[what](project)):
        before = project.lstat()
        for use in (uploads.make, uploads.remove_all):
            with pytest.raises(uploads.UploadError, match=f"{project} is a.* of user id {NOBODY} .*sudo rm"):
                use(str(base))
    after = project.lstat()
    assert (after.st_uid, after.st_mode, after.st_ino) == (before.st_uid, before.st_mode, before.st_ino)
    assert what != "a directory" or list(project.iterdir()) == []


@needs_root
@pytest.mark.parametrize(
    ("name", "mode"), [("uploads", 0o755), ("uploads", 0o1777), (".", 0o775), ("..", 0o777)]
)
def test_directory_that_others_may_change_is_refused(base: Path, project: Path, name: str, mode: int) -> None:
    uploads.make(str(base))
    (project / name).chmod(mode)
    words = "sudo rm -r" if name == "uploads" else "sudo chmod go-w"
    with pytest.raises(uploads.UploadError, match=words):
        uploads.make(str(base))


@needs_root
def test_directory_of_another_user_on_the_way_is_refused(base: Path) -> None:
    (base / "theirs/var-lib").mkdir(parents=True)
    os.chown(base / "theirs", NOBODY, NOBODY)
    (base / "link").symlink_to("theirs/var-lib")
    with pytest.raises(uploads.UploadError, match=f"{base}/theirs is a directory of user id {NOBODY}"):
        uploads.make(str(base / "link"))


@needs_root
def test_other_user_who_races_for_every_name_never_changes_an_upload(base: Path, project: Path) -> None:
    """Until both have won often, nobody makes, links and renames the names and writes into each file."""

    def attack() -> None:
        own = project.with_name("own")
        for step in (
            own.mkdir,
            lambda: (own / "uploads").mkdir(mode=0o777),
            lambda: project.mkdir(mode=0o777),
            lambda: project.rename(project.with_name("moved")),
            lambda: project.symlink_to(own),
            lambda: [path.write_text("evil") for path in project.glob("uploads/*/*")],
            (project / "uploads").mkdir,
            project.unlink,
            project.rmdir,
            project.with_name("moved").rmdir,
        ):
            with suppress(OSError):
                step()

    used, refused, ends = 0, 0, time.monotonic() + 60
    with of_nobody(attack, again=True):
        while used < 50 or refused < 50:
            assert time.monotonic() < ends, f"{used} uploads, {refused} refused"
            try:
                there = uploads.make(str(base))
            except (uploads.UploadError, OSError):
                refused += 1
                continue
            file = Path(there, "a.tar")
            file.write_text("good")
            uploads.verify(there, {"a.tar": uploads.sha256(str(file))})
            assert (file.read_text(), file.stat().st_uid) == ("good", 0)
            uploads.remove(str(base), there)
            project.rmdir()
            used += 1


def test_every_upload_is_removed_in_an_always_section() -> None:
    uploads = removals = 0
    for path in ROLES.glob("*/tasks/*.yml"):
        for block in (task for task in yaml.safe_load(path.read_text()) or [] if "block" in task):
            for inner in [block, *(task for task in block["block"] if "block" in task)]:
                direct = [task.get("ansible.builtin.import_role", {}) for task in inner["block"]]
                if {"name": f"{COLLECTION}.upload", "tasks_from": "copy"} in direct:
                    uploads += 1
                    last = [task.get("ansible.builtin.import_role", {}) for task in inner["always"]]
                    removals += {"name": f"{COLLECTION}.upload", "tasks_from": "remove"} in last
    everywhere = "".join(path.read_text() for path in ROLES.glob("*/tasks/*.yml"))
    assert uploads == removals == everywhere.count(f"name: {COLLECTION}.upload\n") // 2 > 0


WHEEL = "a-1-py3-none-any.whl"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.mkdir()
    with zipfile.ZipFile(path / WHEEL, "w") as archive:
        archive.writestr("a.py", "'of the bundle'\n")
    return path


PLAYBOOK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jtop, tasks_from: packages}
"""


def install(tmp_path: Path, base: Path, bundle: Path, digest: str, *arguments: str, fails: bool) -> Run:
    variables = {
        "__upload_base": str(base),
        "__jtop_root": str(tmp_path / "installed"),
        "__jtop_bundled": {"version": "1", "wheels": [WHEEL]},
        "preflight_bundle_info": {
            "path": str(bundle),
            "wheels": str(bundle),
            "files": {WHEEL: {"sha256": digest}},
        },
    }
    return play_text(tmp_path, PLAYBOOK, *arguments, variables=variables, fails=fails)


@needs_root
def test_upload_that_is_not_the_bundles_is_not_used_and_is_gone(
    tmp_path: Path, base: Path, bundle: Path
) -> None:
    run = install(tmp_path, base, bundle, "0" * 64, fails=True)
    assert f"{WHEEL} has the SHA-256 " in run.said
    assert not (tmp_path / "installed").exists()
    assert list((base / "jetson-k3s").iterdir()) == []


@needs_root
def test_check_mode_reports_the_change_only(tmp_path: Path, base: Path, bundle: Path) -> None:
    digest = hashlib.sha256((bundle / WHEEL).read_bytes()).hexdigest()
    run = install(tmp_path, base, bundle, digest, "--check", fails=False)
    assert re.search(r"changed=[1-9]", run.stdout), run.stdout
    assert list(base.iterdir()) == []


@needs_root
def test_wheels_are_unpacked_for_every_user_beside_no_remains(
    tmp_path: Path, base: Path, bundle: Path
) -> None:
    digest = hashlib.sha256((bundle / WHEEL).read_bytes()).hexdigest()
    (tmp_path / "installed/jtop-1.new/half").mkdir(parents=True)
    for changed in ("1", "0"):
        run = install(tmp_path, base, bundle, digest, fails=False)
        assert (f"changed={changed}" in run.stdout) or changed == "1", run.stdout
    (path,) = (tmp_path / "installed").iterdir()
    assert [one.name for one in path.iterdir()] == ["a.py"]
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path / "a.py")] == [0o755, 0o644]


CHECK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ given }}", cacheable: true}
    - ansible.builtin.set_fact: {preflight_bundle_info: "{{ bundle }}"}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jtop, tasks_from: check.yml}
"""


@pytest.mark.parametrize(
    ("program", "refused"),
    [
        ("role", ""),
        (None, ""),
        (
            "owner",
            "jetson-stats 4.2.9 without its service, and this role would overwrite /usr/local/bin/jtop",
        ),
    ],
)
def test_jetson_stats_of_pip_is_not_overwritten(tmp_path: Path, program: str | None, refused: str) -> None:
    jtop = {"installed": False, "command": None, "version": "4.2.9", "program": program}
    variables = {
        "given": {"python": "3.10.12", "jtop": jtop},
        "bundle": {"versions": {"jtop": {"version": "7.0.0", "wheels": ["a.whl"]}}, "files": {}},
    }
    run = play_text(tmp_path, CHECK, variables=variables, fails=bool(refused))
    assert refused in run.said
