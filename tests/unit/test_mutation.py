# SPDX-License-Identifier: Apache-2.0
"""The mutation run: a fault is noticed, and harms nothing outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.mutation.__main__ import CHECKOUT, Judge

SENSOR = Path("plugin/tegra_device_plugin/system/sensor.py")


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
