# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how long they take, which may run at the same time, whose the Docker engine is."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import PurePosixPath

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import recording
from tests.lab import lab
from tools import engine
from tools.suites import SUITES

# Seconds that a test with the marker may take, fixtures included; all others: `timeout` in pyproject.toml.
# The first waits for K3s where it is still compiled, and a playbook on an emulated board may take 50 minutes.
LIMITS = {"lab": 3600, "acceptance": 5400, "arm64": 7200}
# Folders whose files share no lab, images or service. Of all others the files run in one process.
BY_FILE = ("acceptance", "conformance", "fleet", "roles", "tools", "unit")
# The same examples at each run: what fails once can be seen again. A busy machine is no failure.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which make runs a suite."""
    parser.addoption("--suite", choices=[*SUITES], help="select the tests of a make target, and record them")


def pytest_configure(config: pytest.Config) -> None:
    """Set what all tests share. What a shell starts in the background ignores Ctrl-C, and passes that on."""
    recording.start(config)
    # Ansible's own output says more of a failure. tests/unit/test_progress.py has the checkout's.
    os.environ.setdefault("ANSIBLE_STDOUT_CALLBACK", "ansible.builtin.default")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each marked test its limit, the longest of its own."""
    for item in items:
        limits = [LIMITS[mark.name] for mark in item.iter_markers() if mark.name in LIMITS]
        if limits and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(limits)))


class LoadLabScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Keeps in one process what shares a lab, images or a service: a file of BY_FILE, any other folder."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return str(file if file.parent.name in BY_FILE else file.parent)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Hand out tests by what they share (`--dist loadscope`)."""
    return LoadLabScheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session", autouse=True)
def _engine_kept() -> Iterator[None]:
    """Nobody stops the engine while another process still tests with it."""
    with engine.kept():
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A plugin that runs in a test's process leaves its level and its handler to the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - handlers:
        root.removeHandler(handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the engine if the lab started it: in the process that ends last, and only where tests use it."""
    if hasattr(config, "workerinput") or "not lab" in config.getoption("markexpr"):
        return
    if engine.answers():
        lab.release_engine()
