# SPDX-License-Identifier: Apache-2.0
"""The process' signals, from its first moment to its last: SIGTERM and SIGINT end it, SIGHUP reloads.

Imports nearly nothing, so that the handlers are there before the long imports: the kernel drops a signal that
process 1 of a container has no handler for.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable

# An end takes two seconds at most (kubelet/server.py). The manifest's terminationGracePeriodSeconds is 10.
END_SECONDS = 7

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """What was asked of this process: `ended`, and `reload`, which whoever acts on it resets.

    A second SIGTERM or SIGINT ends the process at once. So does the end of END_SECONDS after the first one,
    after the stacks of all threads have been printed: whatever hangs, the process ends when told.
    """

    def __init__(self) -> None:
        self.ended = False
        self.reload = False
        self._heard: Callable[[], None] = lambda: None
        self._before = {number: signal.signal(number, self._take) for number in _NUMBERS}

    def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` in the running event loop at each signal; at once if there was one already."""
        import asyncio  # noqa: PLC0415 - see the module

        self._heard = heard
        loop = asyncio.get_running_loop()
        for number in _NUMBERS:
            loop.add_signal_handler(number, self._take, number)
        if self.ended or self.reload:
            heard()

    def release(self) -> None:
        """Give the signals back to whom they belonged; one that has come meanwhile is sent again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.ended:
            os.kill(os.getpid(), signal.SIGTERM)

    def _take(self, number: int, _frame: object = None) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        elif self.ended:
            os._exit(128 + number)  # a shell's status of a process that a signal ended
        else:
            self.ended = True
            faulthandler.dump_traceback_later(END_SECONDS, exit=True)
        self._heard()
