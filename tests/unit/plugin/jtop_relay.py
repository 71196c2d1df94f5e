# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: the relay of role jtop, below the root of a host."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tegra_device_plugin.telemetry.jtop import SOCKET


class Relay:
    """SIMULATED: accepts connections below a host root, says some bytes in each, and keeps or closes it."""

    def __init__(self, host: Path, sent: bytes, *, closes: bool = False) -> None:
        self.accepted: list[socket.socket] = []
        path = host / SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sent, self._closes = sent, closes
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(connection)
            with suppress(OSError):  # the plugin has enough
                connection.sendall(self._sent)
            if self._closes:
                connection.close()

    def heard(self) -> bytes:
        """All that came by the first connection, until the plugin has closed it."""
        first = self.accepted[0]
        first.settimeout(10)
        return b"".join(iter(lambda: first.recv(4096), b""))

    def close_accepted(self) -> None:
        """Close what is accepted until now. The thread may accept one more, which the plugin had left."""
        for connection in self.accepted:
            connection.close()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.close_accepted()


@contextmanager
def relay(host: Path, sent: bytes, *, closes: bool = False) -> Iterator[Relay]:
    made = Relay(host, sent, closes=closes)
    try:
        yield made
    finally:
        made.end()
