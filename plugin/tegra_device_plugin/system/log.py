# SPDX-License-Identifier: Apache-2.0
"""Log lines as text or JSON on standard error, limited to protect a board's disk."""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tegra_device_plugin.system.hosttree import is_own_shortage

# From one place in the code: a reboot logs a line for each of 110 pods.
LINES_PER_MINUTE = 120
TRACEBACK_LINES = 20
_FEW = 4  # names in a line

logger = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """`2026-11-20T22:14:01.799Z INFO message`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


class JsonFormatter(TextFormatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class LineLimit(logging.Filter):
    """Drops the lines of a minute beyond the limit. asyncio repeats a failed accept 8 times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: Counter[tuple[str, int]] = Counter()
        self._minute = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        source, minute = (record.pathname, record.lineno), record.created // 60
        if minute != self._minute:
            self._lines.clear()
            self._minute = minute
        self._lines[source] += TRACEBACK_LINES if record.exc_info else 1
        return self._lines[source] <= LINES_PER_MINUTE


_LIMIT = LineLimit()  # for the process: its handlers change with the settings


def configure(log_format: str, level: str) -> None:
    """Configure logging; may be called again."""
    handler = logging.StreamHandler()
    handler.addFilter(_LIMIT)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def describe_error(error: Exception, without_text: str) -> str:
    """Give the error's text, or `without_text` for an error that has none, such as TimeoutError."""
    if isinstance(error, OSError) and is_own_shortage(error):
        return f"{error}: the process is out of file descriptors or memory"
    return str(error) or without_text


class ProblemLog:
    """Logs a lasting problem twice: at its start and at its end."""

    def __init__(self) -> None:
        self._logged: str | None = None

    def warn(self, text: str) -> None:
        """Log a problem, unless the last line was the same."""
        if text != self._logged:
            logger.warning("%s", text)
            self._logged = text

    def resolved(self, text: str) -> None:
        """Log that the problem is over, if there was one."""
        if self._logged is not None:
            logger.info("%s", text)
            self._logged = None


def brief(names: Sequence[str]) -> str:
    """Give the names as text, of many names the first and the number of the others."""
    if len(names) <= _FEW:
        return ", ".join(names)
    return f"{', '.join(names[:_FEW])} and {len(names) - _FEW} more"


def leaves(error: Exception) -> Iterator[Exception]:
    """Yield the exceptions of nested groups."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error
