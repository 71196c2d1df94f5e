# SPDX-License-Identifier: Apache-2.0
"""Bringing a lab up and down, also when it is interrupted: nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import board, bundle, lab, lab_dir
from tests.lab.workloads import PAUSE_IMAGE, pause_archive
from tools import engine
from tools.cache import CHECKOUT
from tools.engine import LABEL, docker
from tools.process import ToolError

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

NAME = "labtest"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Take the lab away, also after a test that failed. Only a running engine tells what is left."""
    with engine.kept():
        engine.ensure()
        yield
        lab.down(NAME)


def left(name: str) -> list[str]:
    of_lab = f"--filter=label={LABEL}={name}"
    found = docker("ps", "--all", "--quiet", of_lab).split()
    found += docker("volume", "ls", "--quiet", of_lab).split()
    found += docker("network", "ls", "--quiet", of_lab).split()
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    return found + [str(path) for path in (lab_dir(name),) if path.exists()]


def nested_cgroups(container: str) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/*{container}*/docker/*/cgroup.procs"))


def test_lab_leaves_nothing_and_down_is_idempotent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing here installs anything from it.
    monkeypatch.setattr(bundle, "write", lambda _directory, **_options: None)
    lab.up(NAME, ["nano-jp4"])
    (up,) = board.find(NAME)
    identity = docker("inspect", "--format={{.Id}}", up.container)
    docker("cp", pause_archive(), f"{up.container}:/var/tmp/image.tar.gz")
    up.exec("docker", "load", "--input", "/var/tmp/image.tar.gz")
    up.exec("docker", "run", "--detach", PAUSE_IMAGE)
    assert nested_cgroups(identity)
    assert lab.up(NAME, ["nano-jp4"])[0].address == up.address
    assert docker("inspect", "--format={{.Id}}", up.container) == identity
    with pytest.raises(ToolError, match=r"there already with other boards: jetson-1 \(nano-jp4, container\)"):
        lab.up(NAME, ["tx2-jp4"])
    lab.down(NAME)
    assert left(NAME) == []
    assert nested_cgroups(identity) == []
    lab.down(NAME)
    assert NAME not in lab.names()


@pytest.mark.parametrize("milestone", ["starting", "writing the bundle"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_up_leaves_nothing(milestone: str, how: signal.Signals) -> None:
    argv = [sys.executable, "-m", "tests.lab", "up", "--name", NAME, "--boards", "2"]
    with subprocess.Popen(
        argv, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        seen = next((line for line in process.stderr if milestone in line), None)
        assert seen is not None
        # To the process group, as a terminal does.
        os.killpg(process.pid, how)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 130, rest
    assert left(NAME) == []
