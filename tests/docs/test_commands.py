# SPDX-License-Identifier: Apache-2.0
"""The commands of the documents, one after the other, on a server and an agent; `cases.yml` says how."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.acceptance.playbook import run_here
from tests.docs.commands import ON_BOARDS, PROMPT, Case
from tests.lab import bundle, inventory, lab, lab_dir, ssh
from tests.lab.board import Board, set_toolkit, simulate_power, switch_on_after_reboot
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "docs"
TYPES = ("agxorin-jp6", "orinnano-jp6")
# The versions that the documents make a bundle of; here it is the lab's K3s under these names.
RELEASES = (
    yaml.safe_load((CHECKOUT / "roles/bundle/defaults/main.yml").read_text())["__bundle_k3s_newest"],
    "v1.34.12+k3s1",
)
ARCHIVE = "device-query-arm64.tar.gz"


@dataclass(frozen=True)
class Site:
    """Where the commands are tried: two boards, and a directory for what the documents put into /srv."""

    boards: list[Board]
    directory: Path

    @property
    def places(self) -> dict[str, str]:
        """What stands for the names in the documents."""
        server = self.boards[0]
        given = lab_dir(LAB) / "inventory.ini"
        archive = inventory.bundle_path(LAB) / f"tegra-device-plugin-{ARCH}.tar.gz"
        return {
            "-i inventory ": f"-i {given} ",
            "./jetson-k3s COMMAND": "./jetson-k3s drift",
            **{
                f"./jetson-k3s {name}": f"./jetson-k3s {name} -i {given}"
                for name in ("status", "preflight", "site", "verify")
            },
            "inventory.example inventory": f"inventory.example {self.directory}/inventory",
            "playbooks/bundle.yml ": f"playbooks/bundle.yml -e @{self.directory}/here.yml ",
            # Relative, as the document has it.
            f'"{ARCHIVE}"': f'"{os.path.relpath(archive, CHECKOUT)}"',
            "/srv/jetson-k3s": str(self.directory),
            "config check FILE": "config check plugin/deploy/time-slicing/config.yaml",
            "ssh jetson@192.168.1.11": shlex.join(ssh.command(LAB, server.address)),
            "tests.lab shell ": f"tests.lab shell --name {LAB} ",
            "tests.lab down": f"tests.lab down --name {LAB}",
        }

    def here(self, command: str) -> list[str]:
        """The command as it is typed on this machine."""
        prompt = PROMPT.match(command)
        text = prompt["command"] if prompt else command
        for name, place in self.places.items():
            text = text.replace(name, place)
        if prompt is None:
            return ["bash", "-c", text]
        where = prompt["where"].replace("server", self.boards[0].name)
        address = next(board.address for board in self.boards if board.name == where)
        return ssh.command(LAB, address, text)


def release(directory: Path, version: str) -> None:
    given = inventory.bundle_path(LAB)
    bundle.write_release(given, directory / "releases", version)
    here = {
        "__bundle_arch": ARCH,
        "k3s_release_url": (directory / "releases").as_uri(),
    }
    (directory / "here.yml").write_text(yaml.safe_dump(here))


@contextmanager
def reports_kept(directory: Path) -> Iterator[None]:
    """The commands write to reports/ of this checkout; the reports of a person come back afterwards."""
    place, kept = CHECKOUT / "reports", directory / "kept"
    if place.exists():
        shutil.copytree(place, kept)
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, place)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("srv")
    with reports_kept(tmp_path_factory.mktemp("reports")), lab.fresh(LAB, TYPES) as boards:
        for board in boards:
            simulate_power(board)
            switch_on_after_reboot(board, always=True)
            set_toolkit(board, "1.18.0")  # the first with strict mode
        for version in RELEASES:
            release(directory, version)
        bundle.write(directory / "bundle-new", version_suffix="2")
        (directory / "known_hosts").write_text(f"192.168.1.12 {ssh.make_key(directory / 'key', 'gone')}")
        yield Site(boards, directory)


@pytest.mark.parametrize("case", ON_BOARDS, ids=lambda case: case.command)
def test_command_of_the_documents_works(site: Site, case: Case) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_here(*site.here(case.run or case.command), PATH=path)
    assert done.returncode == case.status, done.stdout
    if "playbooks/verify.yml" in case.command or case.command.endswith(" verify"):
        index = json.loads((CHECKOUT / "reports/index.json").read_text())
        assert (index["ok"], len(index["boards"])) == (True, len(site.boards))
