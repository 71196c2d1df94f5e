# SPDX-License-Identifier: Apache-2.0
"""The relay of role jtop, without jetson-stats and with a client of it that hangs.

The real one is tested apart.
"""

import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tegra_device_plugin.telemetry import jtop

from tests.unit.roles.places import ROLES

RELAY = ROLES / "jtop/files/jtop_relay.py"
relay = SimpleNamespace(**runpy.run_path(str(RELAY)))

# In the place of jetson-stats' client: tells its interval as a module's name, and hangs.
HANGS = """
import threading
from types import SimpleNamespace
from . import service
class jtop:
    def __init__(self, interval):
        self.board = {"hardware": {"Module": f"{interval} s of {service.JTOP_PIPE}"}}
        self.asked = 0
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def ok(self):
        self.asked += 1
        return self.asked == 1 or threading.Event().wait()
"""


@contextmanager
def running(packages: Path) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """The relay as systemd starts it: the connection is its standard input and output."""
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-S", str(RELAY), "/x.sock")
    with ours:
        with theirs:
            environment = os.environ | {"PYTHONPATH": str(packages)}
            end = theirs.fileno()
            process = subprocess.Popen(command, stdin=end, stdout=end, env=environment)
        try:
            yield ours, process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A directory with a client that gives one sample, and hangs."""
    (tmp_path / "jtop").mkdir()
    (tmp_path / "jtop/__init__.py").write_text(HANGS)
    (tmp_path / "jtop/service.py").write_text("JTOP_PIPE = '/run/jtop.sock'\n")
    return tmp_path


def test_without_jetson_stats_it_says_so_and_ends(tmp_path: Path) -> None:
    with running(tmp_path) as (connection, process):
        with connection.makefile() as lines:
            assert json.loads(lines.readline()) == {"error": "ModuleNotFoundError: No module named 'jtop'"}
            assert lines.readline() == ""
        assert process.wait(10) == 1


@pytest.mark.parametrize("read", [True, False], ids=["all read", "unread lines"])
def test_it_ends_with_the_connection_while_jetson_stats_hangs(read: bool, hanging: Path) -> None:
    with running(hanging) as (connection, process):
        line = connection.recv(4096, 0 if read else socket.MSG_PEEK)
        # The plugin counts a sample as old by the same interval.
        assert json.loads(line) == {"module": f"{jtop._INTERVAL_SECONDS} s of /x.sock"}
        connection.close()
        assert process.wait(10) == 0


def test_what_is_sent_to_it_is_not_read(hanging: Path) -> None:
    with running(hanging) as (connection, process):
        assert connection.recv(4096)
        connection.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while True:
                sent += connection.send(bytes(4096))
        assert sent > 0
        assert process.poll() is None


def test_the_facts_of_jetson_stats_are_converted_to_base_units() -> None:
    """Of its dictionaries, in KiB, kHz, percent and degrees Celsius."""
    facts = SimpleNamespace(
        gpu={"gpu": {"status": {"load": 12.5}, "freq": {"cur": 306000}}},
        memory={"RAM": {"tot": 8, "used": 4, "shared": 2}},
        temperature={"cpu": {"temp": 50.0}, "gpu": {"temp": 41.5, "online": True}},
        nvpmodel=SimpleNamespace(name="15W"),
        board={
            "hardware": {
                **{"Module": "Orin Nano", "P-Number": "p3767-0005", "Jetpack": "6.2", "L4T": "36.4.3"},
                **{"Model": "NVIDIA Orin", "CUDA Arch BIN": "8.7", "Serial Number": "1423000000000"},
            }
        },
    )
    assert relay._telemetry(facts) == {
        "gpu_load_percent": 12.5,
        "gpu_frequency_hz": 306_000_000,
        "gpu_temperature_celsius": 41.5,
        "memory_total_bytes": 8192,
        "memory_used_bytes": 4096,
        "gpu_memory_bytes": 2048,
        "power_mode": "15W",
        "module": "Orin Nano",
        "part_number": "p3767-0005",
        "jetpack": "6.2",
        "model": "NVIDIA Orin",
        "l4t": "36.4.3",
        "gpu": "gpu",
        "compute_capability": "8.7",
    }


def test_facts_that_a_version_or_a_board_lacks_are_left_out() -> None:
    off = {"GPU": {"temp": -256.0, "online": False}}
    facts = SimpleNamespace(board={}, gpu={}, memory=None, nvpmodel=None, temperature=off)
    assert relay._telemetry(facts) == {}
