# SPDX-License-Identifier: Apache-2.0
"""Write each sample of the board's jtop service as a line of JSON to the standard output.

Usage: jtop_relay.py SOCKET-OF-JTOP

systemd starts one for each connection to the relay's socket (role jtop), as a user without rights but to ask
jtop. jtop's service runs what a client sends to it as a pickle, and is root. So pods get these lines, and
nothing that they write is read. The connection is standard input and output. When it is closed, this process
ends. It also ends when the service does; the last line has the reason, as {"error": text}.

It imports jetson-stats (AGPL-3.0), and runs on boards, with Python 3.7 and newer.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any

# In seconds. The service samples for its clients only, and reads the GPU's load to do so. The first client
# chooses for all.
INTERVAL = 5.0
_KIB = 1024


def main(socket: str) -> int:
    """Write the samples until the service ends."""
    threading.Thread(target=_end_with_the_connection, daemon=True).start()
    try:
        import jtop  # noqa: PLC0415 - its absence is said
        from jtop import service  # noqa: PLC0415

        service.JTOP_PIPE = socket
        with jtop.jtop(interval=INTERVAL) as client:
            while client.ok():
                _print(_telemetry(client))
    except Exception as error:  # ImportError, EOFError, pickle's, KeyError: all mean "no telemetry"
        return _fail("{}: {}".format(type(error).__name__, error))
    return _fail("the jtop service sends no more samples")


def _telemetry(client: Any) -> dict[str, Any]:
    """Give the facts that the plugin uses, without facts that this version or board does not report."""
    readings: dict[str, Callable[[], Any]] = {
        "gpu_load_percent": lambda: _gpu(client)["status"]["load"],
        "gpu_frequency_hz": lambda: _gpu(client)["freq"]["cur"] * 1000,
        "memory_total_bytes": lambda: client.memory["RAM"]["tot"] * _KIB,
        "memory_used_bytes": lambda: client.memory["RAM"]["used"] * _KIB,
        "gpu_memory_bytes": lambda: client.memory["RAM"]["shared"] * _KIB,
        "gpu_temperature_celsius": lambda: _gpu_temperature(client),
        "power_mode": lambda: client.nvpmodel.name,
        "module": lambda: client.board["hardware"]["Module"],
        "part_number": lambda: client.board["hardware"]["P-Number"],
        "jetpack": lambda: client.board["hardware"]["Jetpack"],
        "model": lambda: client.board["hardware"]["Model"],
        "l4t": lambda: client.board["hardware"]["L4T"],
        "gpu": lambda: next(iter(client.gpu)),
        "compute_capability": lambda: client.board["hardware"]["CUDA Arch BIN"],
    }
    telemetry = {}
    for key, read in readings.items():
        try:
            value = read()
        except Exception:  # noqa: S112 - jetson-stats raises many kinds
            continue
        if value not in (None, ""):
            telemetry[key] = value
    return telemetry


def _gpu(client: Any) -> dict[str, Any]:
    """Give the first GPU: its key is its name in the device tree, which differs between releases."""
    gpu: dict[str, Any] = next(iter(client.gpu.values()))
    return gpu


def _gpu_temperature(client: Any) -> float | None:
    """`GPU` up to JetPack 5, `gpu` since; a zone that is off has an invalid value and `online` false."""
    for name, zone in client.temperature.items():
        if name.lower() == "gpu" and zone.get("online", True):
            return float(zone["temp"])
    return None


def _print(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _fail(reason: str) -> int:
    _print({"error": " ".join(reason.split())})
    return 1


def _end_with_the_connection() -> None:
    """End the process when the other side has closed the connection. The client may wait for ever."""
    closed = select.poll()
    closed.register(sys.stdin.fileno(), select.POLLRDHUP)
    closed.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
