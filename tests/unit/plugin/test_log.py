# SPDX-License-Identifier: Apache-2.0
"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tegra_device_plugin.system.log import JsonFormatter, TextFormatter


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A computer whose clock shows local time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        yield
    time.tzset()


def record(text: str, *arguments: object) -> logging.LogRecord:
    """A warning of 22:14:01.799 UTC."""
    made = logging.LogRecord("some.logger", logging.WARNING, "file.py", 1, text, arguments, None)
    made.created, made.msecs = 1795212841.799, 799.0
    return made


def test_a_line_of_text_has_time_level_and_message() -> None:
    line = TextFormatter().format(record("%d of %s", 2, "three"))
    assert line == "2026-11-20T22:14:01.799Z WARNING 2 of three"


def test_a_line_of_json_has_time_level_logger_and_message() -> None:
    line = JsonFormatter().format(record("two\nlines: %s", "25 °C"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-20T22:14:01.799Z",
        "level": "warning",
        "logger": "some.logger",
        "message": "two\nlines: 25 °C",
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    failed = record("failed")
    try:
        int("why")
    except ValueError:
        failed.exc_info = sys.exc_info()
    line = formatter.format(failed)
    told = json.loads(line)["exception"] if isinstance(formatter, JsonFormatter) else line
    assert "Traceback" in told
    assert "ValueError: invalid literal" in told


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("text", "info"), r"\S+Z INFO one\n\S+Z WARNING two\n"),
        (("text", "warning"), r"\S+Z WARNING two\n"),
        (("json", "info"), r'\{"time": .*"level": "info".*\}\n\{"time": .*"message": "two"\}\n'),
    ],
)
def test_what_a_process_logs(settings: tuple[str, str], expected: str) -> None:
    program = f"""
import logging
from tegra_device_plugin.system import log
log.configure("text", "error")  # and then otherwise: each line once
log.configure{settings}
logging.getLogger("some").debug("none")
logging.getLogger("some").info("one")
logging.getLogger("some").warning("two")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(expected, ended.stderr), ended.stderr
    assert ended.stdout == ""
