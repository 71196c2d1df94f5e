# SPDX-License-Identifier: Apache-2.0
"""How long a test may take. One that hangs fails and shows where; one that cannot even fail ends the process.

pytest-timeout fails a test by SIGALRM, so its fixtures are still taken down and the other tests run. Where
that has no effect (a call into C that waits on, a swallowed exception), faulthandler writes the stacks of all
threads and ends the process: with xdist a worker, which is a failure as well.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

MINUTE = 60
# By marker, in seconds, fixtures included; the longest of a test's own counts. `timeout` in pyproject.toml is
# for all others. On a bare machine the first test builds Kubernetes (25 minutes on a slow one) while others
# wait for it; a command of the acceptance tests may take 30 minutes, a playbook on an emulated board 50.
LIMITS = {"lab": 60 * MINUTE, "fleet": 90 * MINUTE, "arm64": 120 * MINUTE}
GRACE_SECONDS = 60
"""From the failure to the end of the process, for fixtures that take something down."""
END_SECONDS = 2 * MINUTE
"""From the last test to the end of the process; stopping the lab's Docker engine is part of it."""

_SETTINGS = pytest.StashKey[Any]()
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error as it is before pytest captures it."""
    config.stash[_STDERR] = os.dup(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each marked test its limit."""
    for item in items:
        limit = max((LIMITS[mark.name] for mark in item.iter_markers() if mark.name in LIMITS), default=None)
        if limit and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Show the tasks as well when the time is up, and end the process if that changes nothing."""
    item.stash[_SETTINGS] = settings
    _end_after(settings.timeout + GRACE_SECONDS, item.config)
    done = yield
    fail = signal.getsignal(signal.SIGALRM)

    def show_and_fail(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        with suppress(RuntimeError):  # no event loop
            sys.stderr.write("".join(map(_waiting, asyncio.all_tasks())))
        if callable(fail):
            fail(number, frame)

    signal.signal(signal.SIGALRM, show_and_fail)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer() -> Generator[None, object, object]:
    """Let the process live."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit what follows a failure too, which stops the clock for the sake of debuggers."""
    if settings := item.stash.get(_SETTINGS, None):
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Limit the end: a server that was left open keeps a thread of gRPC's, and that the interpreter.

    A worker of xdist waits for the others now, for minutes. xdist ends it.
    """
    if not hasattr(session.config, "workerinput"):
        _end_after(END_SECONDS, session.config)


def _end_after(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_STDERR])


def _waiting(task: asyncio.Task[Any]) -> str:
    """Say where a task waits, the innermost call last; Task.print_stack shows the outermost only."""
    lines = [f"{task.get_name()} waits in\n"]
    at: Any = task.get_coro()
    while frame := getattr(at, "cr_frame", None):
        lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n")
        at = at.cr_await
    return "".join(lines)
