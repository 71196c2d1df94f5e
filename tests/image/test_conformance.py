# SPDX-License-Identifier: Apache-2.0
"""The conformance suite's core cases, with the image's container as the plugin and the kubelet outside.

For arm64 it runs under QEMU's user emulation: what it proves is that the image works, not how fast it is.
"""

import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from images.arm64.context import CHECKOUT
from tests.image.conftest import Loaded
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

CORE = (
    "test_registration.py::test_registers_with_a_name_a_version_and_options_the_kubelet_accepts",
    "test_registration.py::test_sigterm_removes_the_socket_and_ends_well[1.20]",
    "test_registration.py::test_registers_again_after_each_kubelet_restart",
    "test_registration.py::test_own_socket_deleted[1.37]",
    "test_allocation.py::test_a_container_gets_the_gpus_nodes_and_an_id_the_toolkit_knows",
    "test_allocation.py::test_one_answer_per_container_in_order_and_the_same_each_time",
    "test_allocation.py::test_what_cannot_be_given_is_refused_with_a_reason",
)
LABEL = "io.github.jetson-k3s.conformance"


@pytest.fixture
def label() -> Iterator[str]:
    """A label for one test's containers; they go when it ends, as the suite kills plugins only."""
    label = f"{LABEL}={uuid.uuid4().hex}"
    yield label
    left = docker("container", "ls", "--all", "--quiet", f"--filter=label={label}").split()
    if left:
        docker("container", "rm", "--force", *left)


def test_the_core_cases_pass_with_the_plugin_in_its_container(image: Loaded, label: str) -> None:
    # The host's tree and the sockets are seen at their own paths, as the suite names files by them.
    options = ("--volume={root}:{root}:ro", "--volume=/tmp:/tmp", f"--label={label}")
    arguments = ("run", "--host-root={root}", "--device-plugin-dir={dir}")
    command = shlex.join(image.command(*arguments, options=options))
    cases = [f"tests/conformance/{case}" for case in CORE]
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *cases]
    ran = subprocess.run(
        [*suite, f"--plugin-command={command}"],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
