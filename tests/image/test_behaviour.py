# SPDX-License-Identifier: Apache-2.0
"""The image at work, restricted as in the cluster."""

import json

import pytest

from release import version
from tests.image.conftest import Loaded

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]


def test_it_says_the_version_and_the_revision_of_its_label(image: Loaded) -> None:
    said = image.run("--version")
    assert said.returncode == 0
    revision = image.label("revision")
    assert len(revision.removesuffix("-dirty")) == 40
    assert said.stdout == f"tegra-device-plugin {version.current()} (revision {revision})\n"


def test_a_traceback_on_a_board_would_show_the_plugins_lines(image: Loaded) -> None:
    program = (
        "import inspect; from tegra_device_plugin.sharing.allocation import make_resources; "
        "print(inspect.getsource(make_resources))"
    )
    assert "def make_resources(" in image.python(program)


# Its standard input stays open: it ends when that is closed.
JTOP_CLIENT = """
import subprocess, sys
command = [sys.executable, "-m", "tegra_device_plugin.telemetry.jtop_client", "/run/jtop.sock", "1"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
    print(client.stdout.readline().decode())
"""


def test_without_the_extra_jtop_its_client_says_so(image: Loaded) -> None:
    assert "not installed" in json.loads(image.python(JTOP_CLIENT))["error"]


def test_the_image_with_jtop_has_a_client_that_looks_for_the_service(jtop_image: Loaded) -> None:
    said = json.loads(jtop_image.python(JTOP_CLIENT))["error"]
    assert "JtopException" in said
    assert "not installed" not in said


def test_the_image_with_jtop_says_its_licence(jtop_image: Loaded) -> None:
    assert jtop_image.label("licenses") == "Apache-2.0 AND AGPL-3.0-or-later"
