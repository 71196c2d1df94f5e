# SPDX-License-Identifier: Apache-2.0
"""The image at work, restricted as in the cluster: on simulated boards, and with wrong settings."""

import json
from pathlib import Path

import pytest
from tegra_device_plugin.board.detection import detect

from release import version
from tests import boards
from tests.image.conftest import Loaded

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

# One run per container costs seconds under emulation; one container looks at all boards.
DETECT_ALL = """
import contextlib, io, json, pathlib
from tegra_device_plugin.cli import main
answers = {}
for root in sorted(pathlib.Path("/boards").iterdir()):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(["detect", f"--host-root={root}", "--output=json"])
    answers[root.name] = [code, json.loads(said.getvalue())]
print(json.dumps(answers))
"""


def mounted(root: Path, place: str) -> tuple[str, ...]:
    """Return docker's option that shows a directory of this machine, read-only."""
    return (f"--volume={root}:{place}:ro",)


def test_it_says_the_version_and_the_revision_of_its_label(image: Loaded) -> None:
    said = image.run("--version")
    assert said.returncode == 0
    revision = image.label("revision")
    assert len(revision.removesuffix("-dirty")) == 40
    assert said.stdout == f"tegra-device-plugin {version.current()} (revision {revision})\n"


def test_it_knows_every_simulated_board_as_this_machine_does(image: Loaded, tmp_path: Path) -> None:
    for fixture in boards.load().values():
        boards.build(fixture, tmp_path / fixture.id)
    answers = json.loads(image.python(DETECT_ALL, *mounted(tmp_path, "/boards")))
    assert answers.keys() == boards.load().keys()
    for name, (code, facts) in answers.items():
        assert code == 0, name
        here = json.loads(json.dumps(detect(tmp_path / name).as_dict()))
        assert facts == here, name
        assert facts["soc"] == boards.load()[name].soc


def test_the_command_line_of_the_image_is_the_plugin(image: Loaded, tmp_path: Path) -> None:
    fixture = next(iter(boards.load().values()))
    boards.build(fixture, tmp_path)
    said = image.run("detect", "--host-root=/host", options=mounted(tmp_path, "/host"))
    assert said.returncode == 0, said.stderr
    assert fixture.soc in said.stdout


def test_a_metrics_address_that_cannot_be_had_is_named_not_traced(image: Loaded) -> None:
    said = image.run("run", "--metrics-address=203.0.113.1:9400")
    assert said.returncode == 1
    assert "203.0.113.1" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_traceback_on_a_board_would_show_the_plugins_lines(image: Loaded) -> None:
    program = (
        "import inspect; from tegra_device_plugin.sharing.resources import make_resources; "
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
