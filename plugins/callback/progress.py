# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: the screen has a line for each step, and a file has all that Ansible says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from ansible import context
from ansible.playbook.role_include import IncludeRole
from ansible.plugins.callback.default import CallbackModule as DefaultCallback
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import progress
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.control_characters import shown
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.controller_paths import displayed_path

DOCUMENTATION = """
name: progress
type: stdout
short_description: A line for each step on the screen, and Ansible's own output in a file
description:
  - The screen shows each play that has done something, with its changes, messages and failures.
  - A file has what Ansible's own callback would show. The first line of a run names it.
  - A warning of Ansible is one line, as long as the terminal. The file has all of it.
  - The message of a task whose name begins with C(Log) is in the file only.
  - With C(-v) Ansible's own output is on the screen, and there is no file.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  log_directory:
    description: Directory of the files, on this computer. It keeps those of the last 50 runs.
    type: path
    default: logs
    ini:
      - {section: callback_progress, key: log_directory}
    env:
      - {name: JETSON_K3S_LOG_DIRECTORY}
"""

KEPT = 50
REFRESH_SECONDS = 1.0
AFTER_FORK_SECONDS = 0.05
DEFAULT_COLUMNS = 80
CLEAR = "\r\x1b[K"
# What Ansible says at Ctrl-C. A program that runs it, and sets this variable, says it in a line of its own.
INTERRUPTED, CALLER = "User interrupted execution", "JETSON_K3S_SAYS_INTERRUPTED"


class Log:
    """Stands in for Ansible's display: what is displayed goes to a file, and warnings to the screen, too."""

    def __init__(self, display: Any, file: TextIO, warn: Callable[[str], None]) -> None:
        self._display = display
        self._file = file
        self._warn = warn
        self._warnings: set[str] = set()

    def display(self, msg: str, *_ignored: Any, screen_only: bool = False, **_more: Any) -> None:
        """Write a message."""
        if not screen_only:
            self._file.write(f"{shown(msg)}\n")
            self._file.flush()

    def banner(self, msg: str, *_ignored: Any, **_more: Any) -> None:
        """Write the name of a play or task, with the time."""
        self.display(f"\n{msg} {datetime.now():%H:%M:%S}")

    def warning(self, msg: str, *_ignored: Any, **_more: Any) -> None:
        """Write a warning once, in one line."""
        text = f"[WARNING]: {' '.join(str(msg).split())}"
        if text not in self._warnings:
            self._warnings.add(text)
            self.display(text)
            self._warn(text)

    def _warning(self, warning: Any) -> None:
        """The same for a warning of a module, from ansible-core 2.19 on."""
        self.warning(warning.event.msg)

    def _error(self, *_ignored: Any, **_more: Any) -> None:
        """Leave out a second description of a failure, with the place in the playbook."""

    error = _error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._display, name)


class StatusLine:
    """The last line of a terminal, which shows what runs now. Anything else that is written replaces it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._text = ""
        self._began = 0.0
        self._shown = False
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._refresh, daemon=True).start()

    def show(self, text: str, began: float) -> None:
        """Show a text with the time since its step began, until something else is written; '' shows none."""
        with self._lock:
            self._text, self._began = text, began
            self._draw()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Take the line away while something is written."""
        with self._lock:
            if self._shown:
                self._write(CLEAR)
                self._shown = False
            yield

    def _refresh(self) -> None:
        while True:
            time.sleep(REFRESH_SECONDS)
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._text:
            line = f"{progress.clock(time.monotonic() - self._began)}  {self._text}"
            self._write(CLEAR + line[: columns(self._descriptor) - 1])
            self._shown = True
        elif self._shown:
            self._write(CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        # Not by Python's stream: a worker of Ansible's that is forked meanwhile would inherit its lock.
        try:
            os.write(self._descriptor, text.encode(errors="replace"))
        except OSError:  # the terminal is gone
            self._text = ""

    def _forget(self) -> None:
        self._lock, self._text, self._shown = threading.RLock(), "", False


class Above:
    """A stream of the same terminal, which writes above the status line."""

    def __init__(self, stream: TextIO, status: StatusLine) -> None:
        self._stream = stream
        self._status = status
        self._caller_says_it = CALLER in os.environ

    def write(self, text: str) -> int:
        if self._caller_says_it and INTERRUPTED in text:
            self._status.show("", 0.0)
            return len(text)
        with self._status.away():
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Interruption:
    """Keeps Ctrl-C out of each fork, in which it would have a traceback on the screen."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._came = False
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._end)

    def _hold(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._note)

    def _note(self, *_ignored: object) -> None:
        self._came = True

    def _release(self) -> None:
        if self._handler is not None:  # the default action is a handler, and false
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None
        if self._came:
            self._came = False
            # Python's own hooks of the fork are still to run.
            threading.Timer(AFTER_FORK_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()

    def _end(self) -> None:
        """In a worker, before Ansible has its own handler there."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def columns(descriptor: int) -> int:
    """Columns of a terminal."""
    try:
        return os.get_terminal_size(descriptor).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS


def task_name(task: Any) -> str:
    """The name of a task, with its role. That of a task that includes a role has no role in front."""
    return str(task.name if isinstance(task, IncludeRole) else task.get_name(include_role_fqcn=False))


def rescued(task: Any) -> bool:
    """Whether a failure of the task is handled in the playbook: a block around it has a `rescue`."""
    child, parent = task, task._parent
    while parent is not None:
        others = [one._uuid for part in ("rescue", "always") for one in getattr(parent, part, None) or ()]
        if getattr(parent, "rescue", None) and child._uuid not in others:
            return True
        child, parent = parent, parent._parent
    return False


def new_log(directory: Path, playbook: str) -> Path:
    """The path of a run's log. The directory keeps the newest ones. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = sorted(directory.glob("*-[0-9]*-[0-9]*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[: 1 - KEPT]:
        path.unlink(missing_ok=True)
    return directory / f"{playbook}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"


class CallbackModule(DefaultCallback):  # type: ignore[misc] # ansible-core has no types
    """Ansible's own callback writes to the file; this one writes to the screen."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "jetson_k3s.cluster.progress"
    _display: Any

    def __init__(self) -> None:
        super().__init__()
        self._screen = self._display
        self._quiet = self._screen.verbosity == 0
        self._status: StatusLine | None = None
        self._terminal = self._quiet and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._began = time.monotonic()
        self._step: progress.Step | None = None
        self._waiting: list[str] = []
        Interruption()
        if self._terminal:
            status = self._status = StatusLine(sys.stdout.fileno())
            sys.stdout = Above(sys.stdout, status)
            sys.stderr = Above(sys.stderr, status)

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Open the file, and say where it is."""
        if self._quiet:
            name = Path(playbook._file_name).stem
            try:
                path = new_log(Path(self.get_option("log_directory")).expanduser(), name)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                file = os.fdopen(descriptor, "w")
                where = f"Ansible's own output is in {displayed_path(str(path))}"
            except OSError as error:
                file = open(os.devnull, "w")  # noqa: PTH123,SIM115 - until the end of the run
                where = f"Ansible's own output is in no file: {error}"
            self._display = Log(self._screen, file, self._warn)
            self._say(f"{name}.yml. {where}")
        super().v2_playbook_on_start(playbook)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a step."""
        self._end_step()
        self._step = progress.Step(play.get_name().strip(), time.monotonic())
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Show what runs."""
        self._task(task)
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Show what runs."""
        self._task(task)
        super().v2_playbook_on_handler_task_start(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Show on which boards it runs."""
        self._waiting.append(host.get_name())
        self._show(task)
        super().v2_runner_on_start(host, task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Count a change, show a message."""
        host, task = self._finished(result)
        if self._step and self._quiet:
            changes = self._step.changes.setdefault(host, [])
            name = progress.action_name(task.action)
            if result._result.get("changed", False):
                changes.append(task_name(task))
                self._step.visible = True
            self._step.visible |= name not in progress.PREPARING
            if name == "debug" and not task.name.startswith(progress.LOGGED):
                self._step.messages.append(progress.plain(result._result.get("msg", "")))
        super().v2_runner_on_ok(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Leave it out."""
        self._finished(result)
        super().v2_runner_on_skipped(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Show the reason, unless the playbook handles the failure."""
        host, task = self._finished(result)
        if not ignore_errors and not rescued(task):
            self._failed(host, task_name(task), progress.message(result._result))
        super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Show SSH's reason."""
        host, task = self._finished(result)
        if not task.ignore_unreachable:
            self._failed(host, "it does not answer", progress.message(result._result))
        super().v2_runner_on_unreachable(result)

    def v2_on_file_diff(self, result: Any) -> None:
        """Show differences with --diff."""
        if self._quiet and context.CLIARGS.get("diff"):
            results = result._result.get("results", [result._result])
            texts = [self._get_diff(one["diff"]) for one in results if one.get("diff") and one.get("changed")]
            for text in filter(None, texts):
                task = task_name(result._task)
                self._say(progress.block(f"{result._host.get_name()}: {task}", None))
                self._say(text.rstrip())
        super().v2_on_file_diff(result)

    def v2_playbook_on_vars_prompt(self, *_arguments: Any, **_more: Any) -> None:
        """Leave the terminal to the question."""
        self._show(None)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End with a line for each board, and what the run means."""
        self._end_step()
        self._show(None)
        super().v2_playbook_on_stats(stats)
        counts = {host: stats.summarize(host) for host in stats.processed}
        boards = {host: one for host, one in counts.items() if host != "localhost"} or counts
        if self._quiet and boards:
            check = bool(context.CLIARGS.get("check"))
            for line in progress.recap(boards):
                self._say(line)
            self._say(progress.verdict(boards, time.monotonic() - self._began, check=check))

    def _finished(self, result: Any) -> tuple[str, Any]:
        host = str(result._host.get_name())
        if host in self._waiting:
            self._waiting.remove(host)
        self._show(result._task)
        return host, result._task

    def _task(self, task: Any) -> None:
        self._waiting = []
        self._show(task)

    def _show(self, task: Any) -> None:
        if self._status and task and self._step:
            boards = f" ({progress.names(self._waiting)})" if self._waiting else ""
            name = task_name(task)
            self._status.show(shown(f"{self._step.name}: {name}{boards}"), self._step.began)
        elif self._status:
            self._status.show("", 0.0)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        messages = list(dict.fromkeys(filter(None, step.messages))) if step else []
        if not (step and self._quiet and (step.visible or step.failed or messages)):
            return
        color = "red" if step.failed else "yellow" if any(step.changes.values()) else "green"
        self._say(step.line(time.monotonic(), self._width), color)
        if context.CLIARGS.get("check"):
            messages += [f"{host} would change: {'; '.join(tasks)}" for host, tasks in step.done() if tasks]
        for text in messages:
            self._say(self._block(text))

    def _failed(self, host: str, what: str, why: str) -> None:
        if self._step and self._quiet:
            self._step.failed.add(host)
            self._say(self._block(f"FAILED {host}: {what} ({self._step.name})"), "red")
            self._say(self._block(why, progress.INDENT + 2), "red")

    def _say(self, text: str, color: str | None = None) -> None:
        self._screen.display(text, color=color)

    def _warn(self, text: str) -> None:
        if self._terminal:
            text = progress.cut(text, self._width)
        self._screen.display(text, color="bright purple", stderr=True)

    def _block(self, text: str, indent: int = progress.INDENT) -> str:
        return progress.block(text, self._width if self._terminal else None, indent)

    @property
    def _width(self) -> int:
        return columns(sys.stdout.fileno()) if self._terminal else DEFAULT_COLUMNS
