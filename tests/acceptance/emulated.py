# SPDX-License-Identifier: Apache-2.0
"""An emulated board for as long as a test needs it, and what its kernel must know of itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import boards
from tests.lab import lab
from tests.lab.paths import lab_dir
from tests.lab.vm.machine import Machine

NAME = "jetson-1"


@contextmanager
def emulated(name: str, kind: str) -> Iterator[Machine]:
    """A fresh emulated board in a lab of its own, of which nothing is left in the end."""
    lab.down(name)
    try:
        (fresh,) = lab.up_graded(name, [kind], lab.ARM64)
        assert isinstance(fresh, Machine)
        interface = Path("/sys/class/net", fresh.interface)
        assert interface.exists()
        yield fresh
    finally:
        lab.down(name)
    assert not lab_dir(name).exists()
    assert not interface.exists(), "QEMU still runs: the interface lives as long"


def the_kernel_knows_the_board(board: Machine) -> None:
    fixture = boards.load()[board.type]
    assert board.exec("uname", "-m") == "aarch64"
    tree = "/proc/device-tree"
    assert board.exec("cat", f"{tree}/model").rstrip("\0") == fixture.data["dt_model"]
    listed = board.exec("cat", f"{tree}/compatible").rstrip("\0").split("\0")
    assert listed == fixture.data["dt_compatible"]
    # The simulated tree has no processors; the one that the kernel has read must.
    assert "arm,cortex-a76" in board.exec("cat", f"{tree}/cpus/cpu@0/compatible")
