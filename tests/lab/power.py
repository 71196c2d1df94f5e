# SPDX-License-Identifier: Apache-2.0
"""SIMULATED power modes: stand-ins for L4T's nvpmodel and jetson_clocks, for boards that want them."""

from pathlib import Path

from tests.lab.board import Board
from tools.engine import docker

FILES = Path(__file__).parent / "simulated_power"


def simulate(board: Board) -> None:
    """Give a board power modes, of which 0 is in force; 3 differs in clocks, 2 in a mask as well."""
    for name, place in (("nvpmodel", "/usr/sbin"), ("jetson_clocks", "/usr/bin"), ("nvpmodel.conf", "/etc")):
        docker("cp", str(FILES / name), f"{board.container}:{place}/{name}")
    board.exec("sh", "-c", "mkdir -p /var/lib/nvpmodel; echo 0 > /var/lib/nvpmodel/simulated")
