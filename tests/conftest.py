# SPDX-License-Identifier: Apache-2.0
"""What all tests share: which of them may run at the same time, and whose the Docker engine is."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab import engine, lab

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Keep together what shares a lab, images or a service: a file of acceptance, any other folder."""
    for item in items:
        if item.get_closest_marker("lab"):
            folder, *rest = item.path.relative_to(TESTS).parts
            group = "/".join((folder, *rest)) if folder == "acceptance" else folder
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def _engine_kept() -> Iterator[None]:
    """Nobody stops the engine while another process still tests with it."""
    with engine.kept():
        yield


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the engine if the lab started it: in the process that ends last, when several test."""
    if not hasattr(config, "workerinput") and engine.answers():
        lab.release_engine()
