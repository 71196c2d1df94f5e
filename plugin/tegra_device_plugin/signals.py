# SPDX-License-Identifier: Apache-2.0
"""Signals of the process: SIGTERM and SIGINT end the process, SIGHUP reloads the configuration.

The module imports nearly nothing, so that the handlers are installed before the long imports: the kernel
drops a signal without a handler in process 1 of a container.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable

# An end takes two seconds at most (kubelet/sockets.py). The manifest's terminationGracePeriodSeconds is 10.
END_SECONDS = 7

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """The signals received: `ended`, and `reload`, which the reader resets.

    A second SIGTERM or SIGINT ends the process immediately. If the process still runs END_SECONDS after the
    first one, the stacks of all threads are printed, and the process ends.
    """

    def __init__(self) -> None:
        self.ended = False
        self.reload = False
        self._on_signal: Callable[[], None] = lambda: None
        self._before = {number: signal.signal(number, self._handle) for number in _NUMBERS}

    def listen(self, on_signal: Callable[[], None]) -> None:
        """Call `on_signal` in the running event loop at each signal; now if there was a signal before."""
        import asyncio  # noqa: PLC0415 - see the module

        self._on_signal = on_signal
        loop = asyncio.get_running_loop()
        for number in _NUMBERS:
            loop.add_signal_handler(number, self._handle, number)
        if self.ended or self.reload:
            on_signal()

    def release(self) -> None:
        """Restore the earlier handlers; a signal that has arrived is sent again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.ended:
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, _frame: object = None) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        elif self.ended:
            os._exit(128 + number)  # a shell's status of a process that a signal ended
        else:
            self.ended = True
            faulthandler.dump_traceback_later(END_SECONDS, exit=True)
        self._on_signal()
