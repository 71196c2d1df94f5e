# SPDX-License-Identifier: Apache-2.0
"""The index of a bundle is written from the archives, and read back by what installs from it."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.unit.roles.loading import load

module = load("bundle/library/bundle_index.py")


def archive(path: Path, *names: str) -> None:
    manifest = json.dumps(
        [{"Config": f"{number:064d}.json", "RepoTags": [name]} for number, name in enumerate(names)]
    )
    files = {"manifest.json": manifest} | {f"{number:064d}.json": "{}" for number in range(len(names))}
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "k3s-arm64").write_text("K3s")
    archive(tmp_path / "tegra-device-plugin-arm64.tar.gz", "tegra-device-plugin:1")
    archive(tmp_path / "device-query-arm64.tar.gz", "docker.io/library/device-query:r36")
    archive(
        tmp_path / "k3s-airgap-images-arm64.tar.gz",
        "docker.io/rancher/mirrored-pause:3.6",
        "rancher/coredns:1",
    )
    return tmp_path


def test_bundle_that_was_written_is_one_that_can_be_installed_from(directory: Path) -> None:
    versions = module.describe(str(directory), "arm64", "v1.33.5+k3s1")
    module.put(str(directory / "bundle.yml"), json.dumps(versions))
    module.put(str(directory / "SHA256SUMS"), module.sums(str(directory)))
    facts = load("preflight/library/bundle_info.py").inspect(str(directory))
    assert facts["errors"] == []
    assert {entry["error"] for entry in facts["files"].values()} == {None}
    assert (
        facts["versions"]
        == versions
        == {
            "version": 1,
            "k3s_version": "v1.33.5+k3s1",
            "plugin_image": "tegra-device-plugin:1",
            "pause_image": "rancher/mirrored-pause:3.6",
        }
    )


@pytest.mark.parametrize(
    ("names", "words"), [(("a:1", "b:1"), "2 images: a:1, b:1"), ((), "0 images: none has a name")]
)
def test_archive_with_another_number_of_images_is_refused(
    directory: Path, names: tuple[str, ...], words: str
) -> None:
    archive(directory / "device-query-arm64.tar.gz", *names)
    with pytest.raises(module.BundleError, match=words):
        module.describe(str(directory), "arm64", "v1")


def test_wheels_of_jetson_stats_are_told_with_their_version(directory: Path) -> None:
    wheels = ["distro-1.9.0-py3-none-any.whl", "jetson_stats-7.2.2-py3-none-any.whl"]
    for name in wheels:
        (directory / name).touch()
    assert module.describe(str(directory), "arm64", "v1")["jtop"] == {"version": "7.2.2", "wheels": wheels}


@pytest.mark.parametrize("versions", [[], ["7.2.2", "7.3.0"]])
def test_wheels_without_one_jetson_stats_are_refused(directory: Path, versions: list[str]) -> None:
    for name in ("distro-1.9.0", *(f"jetson_stats-{version}" for version in versions)):
        (directory / f"{name}-py3-none-any.whl").touch()
    with pytest.raises(module.BundleError, match=f"{len(versions)} wheels of jetson-stats"):
        module.describe(str(directory), "arm64", "v1")


def test_index_is_written_once(tmp_path: Path) -> None:
    assert module.put(str(tmp_path / "a"), "text") is True
    assert module.put(str(tmp_path / "a"), "text") is False
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
