# SPDX-License-Identifier: Apache-2.0
"""The mutation run: which faults it makes, and that a fault harms nothing outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.mutation import mutants
from tests.mutation.__main__ import CHECKOUT, Judge

SENSOR = Path("plugin/tegra_device_plugin/system/sensor.py")


def faults(*lines: str) -> set[str]:
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
