# SPDX-License-Identifier: Apache-2.0
"""What the lab writes (inventory, checksums, image archives, known_hosts) and what it refuses."""

import gzip
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager  # type: ignore[import-untyped]  # has no types
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]  # has no types

from tests.lab import archive, bundle, cli, inventory, lab, paths, ssh
from tests.lab.board import Board
from tests.lab.vm.machine import Machine
from tools.process import ToolError


def board(number: int) -> Board:
    """Return a board as `board.find` would."""
    return Board(
        "demo", f"jetson-{number}", f"demo-jetson-{number}", "nano-jp4", f"10.207.1.{10 + number}", True
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, with a blank in its path."""
    root = tmp_path / "a checkout"
    (root / ".lab/demo").mkdir(parents=True)
    monkeypatch.setattr(paths, "CHECKOUT", root)
    return root


def test_ansible_reads_the_inventory(checkout: Path) -> None:
    path = inventory.write("demo", [board(1), board(2), board(3)])
    manager = InventoryManager(loader=DataLoader(), sources=[str(path)])
    groups = manager.get_groups_dict()
    assert groups["server"] == ["jetson-1"]
    assert groups["agent"] == ["jetson-2", "jetson-3"]
    assert groups["k3s_cluster"] == ["jetson-1", "jetson-2", "jetson-3"]
    variables = manager.groups["k3s_cluster"].get_vars()
    assert variables["ansible_user"] == "jetson"
    assert variables["ansible_ssh_private_key_file"] == str(checkout / ".lab/demo/id_ed25519")
    assert variables["jetson_k3s_bundle"] == str(checkout / ".lab/demo/bundle")
    assert f'UserKnownHostsFile="{checkout}/.lab/demo/known_hosts"' in variables["ansible_ssh_common_args"]
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert manager.hosts["jetson-3"].vars["ansible_host"] == "10.207.1.13"


def test_an_emulated_board_is_waited_for_longer(checkout: Path) -> None:
    emulated = Machine("demo", "jetson-2", "orinnano-jp6", "10.207.1.12")
    path = inventory.write("demo", [board(1), emulated])
    hosts = InventoryManager(loader=DataLoader(), sources=[str(path)]).hosts
    assert hosts["jetson-2"].vars["k3s_timeout"] > 600
    assert "k3s_timeout" not in hosts["jetson-1"].vars


def test_a_boards_new_host_key_takes_the_place_of_its_old_one(checkout: Path) -> None:
    ssh.trust("demo", "10.207.1.11", "ssh-ed25519 OLD jetson-1")
    ssh.trust("demo", "10.207.1.12", "ssh-ed25519 OTHER jetson-2")
    ssh.trust("demo", "10.207.1.11", "ssh-ed25519 NEW jetson-1")
    assert (checkout / ".lab/demo/known_hosts").read_text().splitlines() == [
        "10.207.1.12 ssh-ed25519 OTHER",
        "10.207.1.11 ssh-ed25519 NEW",
    ]


def test_checksums_are_what_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "k3s-amd64").write_bytes(b"binary")
    (tmp_path / "bundle.yml").write_text("version: 1\n")
    (tmp_path / bundle.CHECKSUMS).write_text(bundle.checksums(tmp_path))
    check = ["sha256sum", "--check", "--strict", "--quiet", bundle.CHECKSUMS]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "k3s-amd64").write_bytes(b"damaged")
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 1


def test_k3s_version_is_read_from_what_k3s_says() -> None:
    assert bundle.k3s_version("k3s version v1.33.5+k3s1 (fab4a5c)\ngo version go1.24.6\n") == "v1.33.5+k3s1"
    with pytest.raises(ToolError, match="'hello', which does not begin with"):
        bundle.k3s_version("hello\n")


def test_an_image_archive_is_what_docker_load_reads(tmp_path: Path) -> None:
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    for out in (first, second):
        archive.write(
            out,
            ["sim:1"],
            "amd64",
            {"Cmd": ["tool"]},
            {"usr/bin/tool": b"\x7fELF", "bin/sh": "../usr/bin/tool"},
        )
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first.read_bytes()))) as tar:
        (manifest,) = json.loads(_read(tar, "manifest.json"))
        assert manifest["RepoTags"] == ["sim:1"]
        assert json.loads(_read(tar, manifest["Config"]))["config"] == {"Cmd": ["tool"]}
        with tarfile.open(fileobj=io.BytesIO(_read(tar, manifest["Layers"][0]))) as layer:
            assert layer.getnames() == ["bin", "usr", "usr/bin", "usr/bin/tool", "bin/sh"]
            assert layer.getmember("usr/bin/tool").mode == 0o755
            assert layer.getmember("bin/sh").linkname == "../usr/bin/tool"


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


@pytest.mark.parametrize("name", ["", "Lab", "-lab", "lab-", "a/b", "x" * 31])
def test_a_name_that_cannot_be_a_labs_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="no name for a lab"):
        lab.up(name, ["nano-jp4"])


def test_an_unknown_board_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match=r"no such board type: nano-jp99; boards\.json has .*nano-jp4"):
        lab.up("demo", ["nano-jp4", "nano-jp99"])


def test_an_unknown_grade_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match="no such grade of boards: silver; there are container, arm64"):
        lab.up_graded("demo", ["nano-jp4"], ["silver"])


@pytest.mark.parametrize(
    ("arguments", "types"),
    [
        ([], ["agxorin-jp6"]),
        (["--boards", "2"], ["agxorin-jp6", "agxorin-jp6"]),
        (["--board-type", "nano-jp4,thor5000-jp70"], ["nano-jp4", "thor5000-jp70"]),
        (["--board-type", "nano-jp4,tx2-jp4", "--boards", "3"], ["nano-jp4", "tx2-jp4", "tx2-jp4"]),
    ],
)
def test_board_types_are_repeated_to_the_number_of_boards(
    arguments: list[str], types: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def up(_name: str, wanted: list[str], grades: list[str], _which: str) -> list[Board]:
        assert grades == ["container"]
        asked.append(wanted)
        return []

    monkeypatch.setattr(lab, "names", list)
    monkeypatch.setattr(lab, "up_graded", up)
    assert cli.main(["up", *arguments]) == 0
    assert asked == [types]


def test_an_interrupted_up_takes_away_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[Board]:
        raise KeyboardInterrupt

    gone: list[str] = []
    monkeypatch.setattr(lab, "up_graded", interrupted)
    monkeypatch.setattr(lab, "down", gone.append)
    monkeypatch.setattr(lab, "names", list)
    assert cli.main(["up", "--name", "fresh"]) == 130
    assert gone == ["fresh"]
    monkeypatch.setattr(lab, "names", lambda: ["old"])
    assert cli.main(["up", "--name", "old"]) == 130
    assert gone == ["fresh"]


def test_an_error_is_one_line_and_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "names", list)
    assert cli.main(["up", "--name", "Bad_Name"]) == 1
    assert "error: 'Bad_Name' is no name for a lab" in capsys.readouterr().err
