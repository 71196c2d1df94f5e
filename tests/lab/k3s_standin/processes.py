# SPDX-License-Identifier: Apache-2.0
"""The child processes: started in order, the end of one is the end of all, stopped in the opposite order."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

from .notify import notify

log = logging.getLogger(__name__)

# Long enough for the API server to finish its requests; systemd's own limit is 90 s.
STOP_SECONDS = 10.0
# A line of a program's log that is longer than this is cut into pieces.
LINE_BYTES = 1 << 16


class Children:
    """The children of this process. `ended` gets the name and the status of the first one that ends."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._running: list[tuple[str, asyncio.subprocess.Process]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: set[asyncio.Task[None]] = set()

    async def start(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a child; its output goes to our stderr, each line after the child's name.

        The kernel kills it when this process dies (PR_SET_PDEATHSIG): after a SIGKILL nothing is left that
        holds a port or a lock.
        """
        log.info("Running %s", " ".join(map(str, argv)))
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", "--", *map(str, argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # They would take our readiness for theirs.
            env={key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"},
            limit=LINE_BYTES,
        )  # fmt: skip
        self._running.append((name, process))
        task = asyncio.create_task(self._watch(name, process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Go on with `work` beside the children. Its failure ends the whole, as theirs does."""

        async def watched() -> None:
            try:
                await work
            except Exception:
                log.exception("%s failed", name)
                self.ended.put_nowait((name, 1))

        self._kept.add(asyncio.create_task(watched()))

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        """Pass a child's output on until it ends, then say that it has."""
        assert process.stdout is not None
        while chunk := await next_line(process.stdout):
            sys.stderr.write(f"{name}: {chunk.decode(errors='replace').rstrip()}\n")
            sys.stderr.flush()
        self.ended.put_nowait((name, await process.wait()))

    async def stop(self) -> None:
        """Ask the children to end, the last started first, and make those end that do not."""
        for task in self._kept:
            task.cancel()
        for name, process in reversed(self._running):
            if process.returncode is None:
                log.info("Stopping %s", name)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(STOP_SECONDS):
                        await process.wait()
                except TimeoutError:
                    log.warning("%s did not stop within %.0f s, killing it", name, STOP_SECONDS)
                    process.kill()
                    await process.wait()
        # What they have said is passed on; a grandchild that lives on and holds the pipe is not waited for.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


async def next_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, or as much of it as the buffer holds; empty at the end."""
    try:
        return await stream.readuntil()
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as full:
        return await stream.read(full.consumed)


def run(body: Callable[[Children], Awaitable[None]]) -> int:
    """Run `body`, which starts children and never returns, until a signal, a child's end or its own failure.

    Returns the exit status: 0 after SIGTERM or SIGINT, 1 when a child ended. What `body` raises is raised.
    """
    return asyncio.run(_run(body))


async def _run(body: Callable[[Children], Awaitable[None]]) -> int:
    children = Children()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def work() -> None:
        await body(children)

    stopped = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(children.ended.get())
    working = asyncio.create_task(work())
    try:
        await asyncio.wait({stopped, ended, working}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            log.info("Asked to stop")
            return 0
        if ended.done():
            name, status = ended.result()
            log.error("%s ended with status %d, so does k3s", name, status)
            return 1
        working.result()
        raise AssertionError("the body of a supervised run does not return")
    finally:
        notify("STOPPING=1")
        for task in (stopped, ended, working):
            task.cancel()
        await children.stop()
