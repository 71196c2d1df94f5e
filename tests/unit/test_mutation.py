# SPDX-License-Identifier: Apache-2.0
"""The mutation run: which faults it makes, which tests it asks, and that a fault harms nothing outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.mutation import mutants
from tests.mutation.__main__ import CHECKOUT, Judge, choose, related_tests, report
from tests.mutation.related import distances

SENSOR = Path("plugin/tegra_device_plugin/system/sensor.py")


def faults(*lines: str) -> set[str]:
    """Faulty lines of a function with these lines, stripped."""
    source = "def f(a, b):\n" + "".join(f"    {line}\n" for line in lines)
    found = mutants.of_module(Path("m.py"), source)
    return {line[1:].strip() for one in found for line in one.diff().splitlines() if line.startswith("+")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < 3", {"x = a <= 3", "x = a < 4"}),
        ("return a and b", {"return a or b"}),
        ("return a", {"return None"}),
        ("a.stop(b)", {"pass"}),
        ("await a.stop()", {"pass"}),
        ("x = a(b, deadline=b)", {"x = a(b, )"}),
        ("x = 'rw'", {"x = 'XXrwXX'", "x = 'RW'"}),
        ("x = r'# R(d) '", {"x = r'XX# R(d) XX'", "x = r'# r(d) '", "x = r'# R(D) '"}),
    ],
)
def test_small_faults(line: str, expected: set[str]) -> None:
    assert faults(line) == expected


def test_a_condition_is_turned_and_a_decorated_function_is_no_exception() -> None:
    source = "@cache\ndef f(a):\n    if a:\n        b = 1\n"
    found = mutants.of_module(Path("m.py"), source)
    assert [mutant.line for mutant in found] == [3, 4]
    assert "+    if not (a):" in found[0].diff()


@pytest.mark.parametrize(
    "line",
    [
        '"""Say `a < 3`."""',
        "logger.warning('no %s', a < 3)",
        "raise ValueError('no', 3)",
        "assert a < 3",
        "import a.b",
        "x: Literal['rw']",
        "x = 'no such device'",
        "x = f'no {a} device'",
        "x = a.open(encoding='utf-8')",
        "x = p.add(help='h')",
        "x = len('rw')",
    ],
)
def test_what_no_test_should_pin_is_left_alone(line: str) -> None:
    assert faults(line) == set()


def test_what_stands_outside_of_functions_is_a_fact() -> None:
    assert mutants.of_module(Path("m.py"), "A = 3\n@dataclass\nclass B:\n    c: int = 3\n") == []


def test_a_sample_has_one_fault_a_line_and_stays_when_other_lines_change() -> None:
    lines = [f"    x{number} = {number} < a\n" for number in range(30)]
    before = mutants.sample(mutants.of_module(Path("m.py"), "def f(a):\n" + "".join(lines)), 8, "seed")
    inserted = ["    y = 1\n", *lines[:20], "    y = 2\n", *lines[20:]]
    after = mutants.sample(mutants.of_module(Path("m.py"), "def f(a):\n" + "".join(inserted)), 8, "seed")
    assert len({mutant.line for mutant in before}) == 8
    assert len({mutant.diff() for mutant in before} & {mutant.diff() for mutant in after}) >= 6


def test_a_sample_of_the_plugin_has_each_module_and_is_the_same_each_time() -> None:
    only = ("kubelet/", "sharing/allocation.py")
    chosen = choose(30, only)
    assert [mutant.diff() for mutant in chosen] == [mutant.diff() for mutant in choose(30, only)]
    assert {mutant.path.name for mutant in chosen} == {
        *("advertised.py", "allocation.py", "driver_conflict.py", "pod_resources.py", "registrar.py"),
        *("registration.py", "server.py", "sockets.py"),
    }


def test_the_tests_asked_first_are_the_nearest() -> None:
    (tests,) = related_tests({SENSOR}).values()
    assert tests[0] == "tests/unit/plugin/test_sensor.py"
    assert "tests/unit/plugin/test_cli.py" in tests
    assert "tests/unit/plugin/test_allocations.py" in tests  # by way of cli.py, by name
    assert "tests/unit/plugin/test_labels.py" not in tests


def test_a_module_that_is_started_by_name_is_reached(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("COMMAND = ('-m', 'tegra_device_plugin.system.sensor')\n")
    assert distances(file, CHECKOUT) == {CHECKOUT / SENSOR: 0}


def test_a_roles_module_is_reached_by_its_path_and_by_who_imports_it(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text('MODULE = "k3s/library/k3s_ca_rotation.py"\n')
    found = distances(file, CHECKOUT)
    assert found[CHECKOUT / "roles/k3s/library/k3s_ca_rotation.py"] == 0
    assert found[CHECKOUT / "roles/k3s/module_utils/k3s_releases.py"] == 1
    assert {mutant.path.parts[0] for mutant in choose(20, ("",), roles=True)} == {"roles"}


def test_too_few_faults_noticed_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = mutants.of_module(Path("plugin/tegra_device_plugin/m.py"), "def f(a):\n    return a < 3\n")
    assert report(chosen * 10, [True] * 20) == 0
    assert report(chosen * 10, [True] * 16 + [False] * 4) == 1
    assert "m.py:2\n-    return a < 3\n+    return a <= 3\n" in capsys.readouterr().out


def test_a_fault_is_seen_and_can_write_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original = (CHECKOUT / SENSOR).read_text()
    elsewhere = (CHECKOUT / "written-by-a-fault", Path("/var/run/written-by-a-fault"))
    writes = "\n".join(f"open({str(path)!r}, 'w')" for path in elsewhere)
    guarded = "\n".join(f"try: open({str(path)!r}, 'w')\nexcept OSError: pass" for path in elsewhere)
    judge = Judge(tmp_path)
    tests = ["tests/unit/plugin/test_sensor.py"]

    def notices(code: str) -> bool:
        fault = SimpleNamespace(path=SENSOR, original=original, code=code)
        return judge.notices(cast(Any, fault), tests)

    judge.check(tests)
    assert notices(original + writes)
    assert not notices(original + guarded)
    assert notices(original.replace("self._deadline", "None"))
    assert not notices(original)
    assert not [path for path in elsewhere if path.exists()]
    with pytest.raises(SystemExit, match="without any fault"):
        judge.check(["tests/unit/plugin/no_such_file.py"])
