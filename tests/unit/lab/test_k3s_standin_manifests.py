# SPDX-License-Identifier: Apache-2.0
"""The auto-deploy directory of the K3s stand-in."""

from pathlib import Path

import pytest

from tests.lab.k3s_standin.manifests import Deployer


class Recorder:
    """Stands for kubectl: records what it is given, and fails while told to."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.complaint: str | None = None

    def __call__(self, path: Path) -> str | None:
        self.applied.append(path.name)
        return self.complaint


@pytest.fixture
def kubectl() -> Recorder:
    """A kubectl that records."""
    return Recorder()


@pytest.fixture
def deployer(tmp_path: Path, kubectl: Recorder) -> Deployer:
    """A deployer of tmp_path."""
    return Deployer(tmp_path, kubectl)


def test_a_manifest_is_applied_once_per_content(
    tmp_path: Path, deployer: Deployer, kubectl: Recorder
) -> None:
    (tmp_path / "a.yaml").write_text("one")
    deployer.look()
    deployer.look()
    assert kubectl.applied == ["a.yaml"]
    (tmp_path / "a.yaml").write_text("two")
    deployer.look()
    assert kubectl.applied == ["a.yaml", "a.yaml"]


def test_skipped_and_foreign_files_are_left_alone(
    tmp_path: Path, deployer: Deployer, kubectl: Recorder
) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a.yaml", "a.yaml.skip", "notes.txt", "below/b.json"):
        (tmp_path / name).write_text("x")
    deployer.look()
    assert kubectl.applied == ["b.json"]
    (tmp_path / "a.yaml.skip").unlink()
    deployer.look()
    assert kubectl.applied == ["b.json", "a.yaml"]


def test_a_deleted_manifest_deletes_nothing(tmp_path: Path, deployer: Deployer, kubectl: Recorder) -> None:
    (tmp_path / "a.yaml").write_text("one")
    deployer.look()
    (tmp_path / "a.yaml").unlink()
    deployer.look()
    assert kubectl.applied == ["a.yaml"]


def test_a_failure_is_tried_again_and_told_once(
    tmp_path: Path, deployer: Deployer, kubectl: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yaml").write_text("one")
    kubectl.complaint = "no such kind"
    deployer.look()
    deployer.look()
    assert len(kubectl.applied) == 2
    assert caplog.text.count("no such kind") == 1
    kubectl.complaint = None
    deployer.look()
    deployer.look()
    assert len(kubectl.applied) == 3
