# SPDX-License-Identifier: Apache-2.0
"""The real K3s of the lab, as far as it can be told without compiling."""

import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from tests.lab import gomodules, k3s
from tests.lab.process import LabError, run


@pytest.mark.parametrize("release", k3s.RELEASES.values(), ids=k3s.RELEASES)
def test_a_release_is_of_the_commit_that_it_names(release: k3s.Release) -> None:
    assert gomodules.versions(release.source)[k3s.PACKAGE].endswith(f"-{release.commit}")


@pytest.mark.parametrize("release", k3s.RELEASES.values(), ids=k3s.RELEASES)
def test_the_programs_know_their_version(release: k3s.Release) -> None:
    flags = k3s.version_flags(release)
    assert f"-X github.com/k3s-io/k3s/pkg/version.Version={release.version}" in flags
    assert f"-X k8s.io/component-base/version.gitVersion={release.version}" in flags


def test_the_archive_is_as_k3s_unpacks_and_verifies_it(tmp_path: Path) -> None:
    root, package = tmp_path / "root", tmp_path / "data"
    for directory in (root / "bin", root / "etc", package):
        directory.mkdir(parents=True)
    (root / "bin/k3s").write_text("program")
    (root / "bin/kubectl").symlink_to("k3s")
    k3s.embed(root, package)
    (archive,) = package.glob("*.tar.zst")
    assert archive.name == f"{hashlib.sha256(archive.read_bytes()).hexdigest()}.tar.zst"
    assert f"//go:embed {archive.name}\n" in (package / "zz_generated_bindata.go").read_text()
    run(["zstd", "--quiet", "--decompress", "--long=25", archive, "-o", tmp_path / "data.tar"])
    with tarfile.open(tmp_path / "data.tar") as unpacked:
        names = set(unpacked.getnames())
        sums, links = (unpacked.extractfile(f"bin/{name}") for name in (".sha256sums", ".links"))
        assert sums is not None
        assert links is not None
        assert sums.read().decode() == f"{hashlib.sha256(b'program').hexdigest()}  k3s\n"
        assert links.read().decode() == "kubectl k3s\n"
    assert {"bin/k3s", "bin/kubectl", "etc"} <= names


def test_what_is_no_k3s_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_K3S", str(tmp_path / "absent"))
    with pytest.raises(LabError, match=r"neither an executable file nor one of v1\.25\.2\+k3s-934d0136, v1"):
        k3s.chosen()
    monkeypatch.setenv("LAB_K3S", "")
    assert k3s.chosen() is None


def test_a_file_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "k3s"
    own.touch(mode=0o755)
    monkeypatch.setenv("LAB_K3S", os.fspath(own))
    assert k3s.chosen() == own
    with pytest.raises(LabError, match="is one file, and a second version is wanted"):
        k3s.chosen(suffix="2")


@pytest.mark.parametrize(
    ("suffix", "minors", "expected"),
    [("", 0, "v1.25.4+k3s1"), ("2", 0, "v1.25.4+k3s12"), ("", 2, "v1.27.4+k3s1")],
)
def test_another_version_is_named_for_upgrades(suffix: str, minors: int, expected: str) -> None:
    assert k3s.named_version(k3s.RELEASES["v1.25.4+k3s1"], suffix, minors) == expected
