# SPDX-License-Identifier: Apache-2.0
"""Wheels become a directory for PYTHONPATH, whole or not at all. A jetson-stats of the owner stays."""

import stat
import zipfile
from pathlib import Path

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import play_text

module = load("jtop/library/wheel_directory.py")

CHECK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ given }}", cacheable: true}
    - ansible.builtin.set_fact: {preflight_bundle_info: "{{ bundle }}"}
    - ansible.builtin.import_role: {name: jtop, tasks_from: check.yml}
"""


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("role", ""),
        (None, ""),
        (
            "owner",
            "jetson-stats 4.2.9 without its service, and this role would overwrite /usr/local/bin/jtop",
        ),
    ],
)
def test_jetson_stats_of_pip_is_not_overwritten(tmp_path: Path, program: str | None, told: str) -> None:
    jtop = {"installed": False, "command": None, "version": "4.2.9", "program": program}
    variables = {
        "given": {"python": "3.10.12", "jtop": jtop},
        "bundle": {"versions": {"jtop": {"version": "7.0.0", "wheels": ["a.whl"]}}, "files": {}},
    }
    run = play_text(tmp_path, CHECK, variables=variables, fails=bool(told))
    assert told in run.said


def wheel(path: Path, **files: str) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return str(path)


def test_wheels_lie_beside_each_other_and_everybody_may_read_them(tmp_path: Path) -> None:
    wheels = [
        wheel(tmp_path / "a.whl", a__init_dot_py="A = 1"),
        wheel(tmp_path / "b.whl", b_dot_py="B = 2"),
    ]
    target = tmp_path / "made/here"
    module.make(wheels, str(target))
    assert (target / "a/init.py").read_text() == "A = 1"
    assert (target / "b.py").read_text() == "B = 2"
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "b.py").stat().st_mode) == 0o644


def test_what_an_interrupted_run_left_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "here.new").mkdir()
    (tmp_path / "here.new/half").touch()
    module.make([wheel(tmp_path / "a.whl", a_dot_py="")], str(tmp_path / "here"))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["a.py"]
    assert not (tmp_path / "here.new").exists()


def test_damaged_or_compiled_wheel_leaves_nothing(tmp_path: Path) -> None:
    whole, damaged = wheel(tmp_path / "a.whl", a_dot_py=""), tmp_path / "b.whl"
    damaged.write_text("no archive")
    compiled = wheel(tmp_path / "c.whl", c_dot_so="")
    for bad, words in ((str(damaged), "b.whl: cannot be unpacked"), (compiled, r"compiled code \(c\.so\)")):
        with pytest.raises(module.WheelError, match=words):
            module.make([whole, bad], str(tmp_path / "here"))
        assert not list(tmp_path.glob("here*"))
