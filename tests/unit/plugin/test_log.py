# SPDX-License-Identifier: Apache-2.0
"""Log lines as text and as JSON."""

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tegra_device_plugin.system.log import (
    LINES_PER_MINUTE,
    LINES_PER_SOURCE,
    JsonFormatter,
    LineLimit,
    TextFormatter,
)


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
    text = json.loads(line)["exception"] if isinstance(formatter, JsonFormatter) else line
    assert "Traceback" in text
    assert "ValueError: invalid literal" in text


@pytest.fixture
def limited(caplog: pytest.LogCaptureFixture) -> Iterator[list[float]]:
    """A clock for the limit of the log's lines, which is in force."""
    clock = [0.0]
    limit = LineLimit(lambda: clock[0])
    caplog.handler.addFilter(limit)
    yield clock
    caplog.handler.removeFilter(limit)


def test_a_flood_from_one_place_leaves_room_for_others_and_its_dropped_lines_are_counted(
    limited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    flood = logging.getLogger("flood")
    for number in range(2000):
        flood.error("accept failed: %d", number)
    logging.getLogger("other").warning("the GPU is unhealthy")
    *lines, last_of_flood, other = [one.message for one in caplog.records]
    assert len(lines) == LINES_PER_SOURCE
    assert last_of_flood == f"accept failed: {LINES_PER_SOURCE} (more lines like this are dropped for 60 s)"
    assert other == "the GPU is unhealthy"
    caplog.clear()
    limited[0] = 60.0
    flood.error("again")
    assert [one.message for one in caplog.records] == [
        f"{2000 - LINES_PER_SOURCE} log lines were dropped",
        "again",
    ]


def test_all_places_together_have_a_limit(limited: list[float], caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        line = logging.LogRecord("x", logging.ERROR, "file.py", number, "text", (), None)
        logging.getLogger("x").handle(line)
    assert len(caplog.records) == LINES_PER_MINUTE + 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("text", "info"), r"\S+Z INFO one\n\S+Z WARNING two\n"),
        (("text", "warning"), r"\S+Z WARNING two\n"),
        (("json", "info"), r'\{"time": .*"level": "info".*\}\n\{"time": .*"message": "two"\}\n'),
    ],
)
def test_log_lines_of_a_process(settings: tuple[str, str], expected: str) -> None:
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
