# SPDX-License-Identifier: Apache-2.0
"""Log lines as text and as JSON, of a process on a computer whose clock shows local time."""

import json
import os
import re
import subprocess
import sys

import pytest

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
PROGRAM = """
import logging, time
from tegra_device_plugin.system import log
log.configure("text", "error")  # and then otherwise: each line once
log.configure("{0}", "{1}")
logging.getLogger("some").debug("none")
logging.getLogger("some").info("one")
try:
    int("why")
except ValueError:
    logging.getLogger("some").exception("two\\nlines: %s", "25 °C")
print(time.strftime("%Y-%m-%dT%H", time.gmtime()))
"""


def logged(form: str, level: str) -> list[str]:
    """Give the lines; each time is now, by UTC."""
    program = PROGRAM.format(form, level)
    command, environment = [sys.executable, "-c", program], os.environ | {"TZ": "EST5"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() in ended.stderr
    return ended.stderr.splitlines()


@pytest.mark.parametrize("level", ["info", "warning"])
def test_a_line_of_text_has_time_level_and_message(level: str) -> None:
    first, *others = logged("text", level)
    if level == "info":
        assert re.fullmatch(f"{TIME} INFO one", first)
        first, *others = others
    assert re.fullmatch(f"{TIME} ERROR two", first)
    assert others[0] == "lines: 25 °C"
    assert others[-1].startswith("ValueError: invalid literal")


def test_a_line_of_json_has_time_level_logger_message_and_exception() -> None:
    one, two = map(json.loads, logged("json", "info"))
    assert re.fullmatch(TIME, one.pop("time"))
    assert one == {"level": "info", "logger": "some", "message": "one"}
    assert two["message"] == "two\nlines: 25 °C"
    assert "ValueError: invalid literal" in two["exception"]
