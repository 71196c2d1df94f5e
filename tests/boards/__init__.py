# SPDX-License-Identifier: Apache-2.0
"""Simulated Jetson boards: facts about real ones (boards.json), built as host trees for tests and the lab."""

from tests.boards.fixture import Fixture, load
from tests.boards.tree import Nodes, State, build
from tests.boards.userland import write_run

__all__ = ["Fixture", "Nodes", "State", "build", "load", "write_run"]
