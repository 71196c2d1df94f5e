# SPDX-License-Identifier: Apache-2.0
"""The roles use no directory of all users, and upload by the role upload."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.loading import ROLES
from tests.unit.roles.playing import play
from tests.unit.roles.test_uploads import NOBODY, base, needs_root

__all__ = ["base"]

SHARED = re.compile(r"(?<![\w.-])/(?:var/)?tmp\b|/dev/shm\b")
# mkdtemp's names, for what is encrypted: the user who logs in fetches it.
EXCUSED = {"roles/k3s_backup/library/k3s_backup.py"}
WHEEL = "a-1-py3-none-any.whl"
EARLIER = Path("/var/tmp/jetson-k3s-jtop")


def test_nothing_that_runs_on_boards_has_a_name_in_a_directory_of_all_users() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for place in ("roles", "playbooks", "collection", "plugin/deploy")
        for path in (CHECKOUT / place).rglob("*")
        if path.suffix in {".py", ".yml", ".yaml", ".j2", ".sh"} and SHARED.search(path.read_text())
    }
    assert found - EXCUSED == set()


def test_every_upload_is_removed_in_an_always_section() -> None:
    uploads = removals = 0
    for path in ROLES.glob("*/tasks/*.yml"):
        for block in (task for task in yaml.safe_load(path.read_text()) or [] if "block" in task):
            for inner in [block, *(task for task in block["block"] if "block" in task)]:
                direct = [task.get("ansible.builtin.import_role", {}) for task in inner["block"]]
                if {"name": "upload", "tasks_from": "copy.yml"} in direct:
                    uploads += 1
                    last = [task.get("ansible.builtin.import_role", {}) for task in inner["always"]]
                    removals += {"name": "upload", "tasks_from": "remove.yml"} in last
    everywhere = "".join(path.read_text() for path in ROLES.glob("*/tasks/*.yml"))
    assert uploads == removals == everywhere.count("name: upload\n") // 2 > 0


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with one wheel."""
    path = tmp_path / "bundle"
    path.mkdir()
    with zipfile.ZipFile(path / WHEEL, "w") as archive:
        archive.writestr("a.py", "'of the bundle'\n")
    return path


def settings(tmp_path: Path, base: Path, bundle: Path, **different: str) -> dict[str, object]:
    """Variables with which the role jtop installs the wheel on this machine, below tmp_path."""
    digest = hashlib.sha256((bundle / WHEEL).read_bytes()).hexdigest()
    (tmp_path / "inventory").write_text(
        f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    tasks = [{"ansible.builtin.import_role": {"name": "jtop", "tasks_from": "packages.yml"}}]
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}])
    )
    return {
        "__upload_base": str(base),
        "__jtop_root": str(tmp_path / "installed"),
        "__jtop_bundled": {"version": "1", "wheels": [WHEEL]},
        "preflight_bundle_info": {"path": str(bundle), "files": {WHEEL: {"sha256": digest} | different}},
    }


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A process of the user nobody, who has made the directory of earlier versions before the run.

    At each byte that it gets it replaces every file there; it answers with one.
    """
    with zipfile.ZipFile(tmp_path / "evil.whl", "w") as archive:
        archive.writestr("a.py", "'of nobody'\n")
    evil = (tmp_path / "evil.whl").read_bytes()
    go, tell = os.pipe()
    done, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(tell)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            EARLIER.mkdir(mode=0o777)
            os.write(answer, b"1")
            while os.read(go, 1):
                for path in EARLIER.glob("*"):
                    with suppress(OSError):
                        path.rename(path.with_name("kept"))
                        path.write_bytes(evil)
                os.write(answer, b"1")
        finally:
            os._exit(0)
    os.close(go)
    os.close(answer)
    try:
        assert os.read(done, 1) == b"1", f"{EARLIER} is there"
        yield tell, done
    finally:
        os.close(tell)
        os.waitpid(pid, 0)
        os.close(done)
        shutil.rmtree(EARLIER, ignore_errors=True)


@needs_root
def test_other_user_cannot_replace_a_wheel_between_check_and_use(
    tmp_path: Path, base: Path, bundle: Path, nobody: tuple[int, int]
) -> None:
    variables = settings(tmp_path, base, bundle)
    tell, done = nobody
    with subprocess.Popen(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            f"--inventory={tmp_path}/inventory",
            f"--extra-vars={json.dumps(variables)}",
            tmp_path / "play.yml",
        ],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": str(ROLES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout
        said = []
        for line in run.stdout:
            said.append(line)
            if re.match(r"TASK \[.*unpack", line, re.IGNORECASE):
                os.write(tell, b"1")
                assert os.read(done, 1) == b"1"
    assert run.returncode == 0, "".join(said)
    assert (tmp_path / "installed/jtop-1/a.py").read_text() == "'of the bundle'\n"
    assert list((base / "jetson-k3s").iterdir()) == [], "the upload is gone"


@needs_root
def test_upload_that_is_not_the_bundles_is_not_used_and_is_gone(
    tmp_path: Path, base: Path, bundle: Path
) -> None:
    variables = settings(tmp_path, base, bundle, sha256="0" * 64)
    run = play(tmp_path / "inventory", tmp_path / "play.yml", f"--extra-vars={json.dumps(variables)}")
    assert run.returncode != 0
    assert f"{WHEEL} has the SHA-256 " in " ".join(run.stdout.split())
    assert not (tmp_path / "installed").exists()
    assert list((base / "jetson-k3s").iterdir()) == []


@needs_root
def test_check_mode_tells_the_change_and_makes_nothing(tmp_path: Path, base: Path, bundle: Path) -> None:
    variables = settings(tmp_path, base, bundle)
    run = play(
        tmp_path / "inventory", tmp_path / "play.yml", "--check", f"--extra-vars={json.dumps(variables)}"
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"changed=[1-9]", run.stdout), run.stdout
    assert list(base.iterdir()) == []
