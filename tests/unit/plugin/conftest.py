# SPDX-License-Identifier: Apache-2.0
"""Simulated boards, with which most of these tests begin, and a kubelet that lists containers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boards import Fixture, build, load
from tests.conformance.pod_resources import Kubelet, running_kubelet


@pytest.fixture(params=load())
def board(request: pytest.FixtureRequest) -> Fixture:
    return load()[request.param]


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    build(load()["orinnano-jp6"], root)
    return root


@pytest.fixture
def host() -> Iterator[Path]:
    """The root of a host, with a path that is short enough for the relay's socket."""
    with tempfile.TemporaryDirectory(prefix="host-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with running_kubelet() as one:
        yield one
