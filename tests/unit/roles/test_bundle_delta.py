# SPDX-License-Identifier: Apache-2.0
"""What a bundle has and the one before has not: laid over a copy of that one it is the bundle."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.conftest import Load
from tests.unit.roles.playing import play
from tests.unit.roles.test_bundle_index import archive

OLD = {"k3s-arm64": "K3s", "tegra-device-plugin-arm64.tar.gz": "one", "gone.whl": "jtop"}
NEW = {"k3s-arm64": "K3s", "tegra-device-plugin-arm64.tar.gz": "two", "debs-jetpack6-arm64.tar": "debs"}
CHANGED = ["SHA256SUMS", "bundle.yml", "debs-jetpack6-arm64.tar", "tegra-device-plugin-arm64.tar.gz"]


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("bundle/library/bundle_delta.py")


def digest(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bundle(directory: Path, files: Mapping[str, str], plugin: str) -> Path:
    """Write a bundle whose files have these texts."""
    directory.mkdir()
    images = {"device_query_image": "query:1", "pause_image": "pause:1", "plugin_image": plugin}
    index = yaml.safe_dump({"version": 1, "k3s_version": "v1", **images})
    for name, text in {**files, "bundle.yml": index}.items():
        (directory / name).write_text(text)
    sums = [f"{digest(path)}  {path.name}\n" for path in sorted(directory.iterdir())]
    (directory / "SHA256SUMS").write_text("".join(sums))
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The bundle before, the new one, and where the delta goes."""
    old, new = bundle(tmp_path / "old", OLD, "plugin:1"), bundle(tmp_path / "new", NEW, "plugin:2")
    return old, new, tmp_path / "delta"


def write(module: ModuleType, bundles: tuple[Path, Path, Path]) -> bool:
    """Write the delta as the module does: was anything written?"""
    old, new, delta = bundles
    sums = [module.parse_sums((path / "SHA256SUMS").read_text()) for path in (new, old)]
    written: bool = module.write(
        str(new), module.changed_files(*sums), module.description(str(old)), str(delta)
    )
    return written


def test_delta_has_what_differs_and_says_from_what(
    module: ModuleType, bundles: tuple[Path, Path, Path]
) -> None:
    old, new, delta = bundles
    before = contents(old), contents(new)
    assert write(module, bundles) is True
    assert sorted(contents(delta)) == [*CHANGED[:2], "debs-jetpack6-arm64.tar", "delta.yml", CHANGED[-1]]
    assert yaml.safe_load((delta / "delta.yml").read_text()) == {
        "k3s_version": "v1",
        "plugin_image": "plugin:1",
        "since": digest(old / "SHA256SUMS"),
    }
    assert (contents(old), contents(new)) == before
    assert write(module, bundles) is False


def test_delta_that_is_written_again_has_no_file_of_the_one_before(
    module: ModuleType, bundles: tuple[Path, Path, Path]
) -> None:
    write(module, bundles)
    (bundles[2] / "old-file").touch()
    (bundles[2] / "SHA256SUMS").unlink()  # cut off
    assert write(module, bundles) is True
    assert sorted(contents(bundles[2])) == sorted([*CHANGED, "delta.yml"])


def test_directory_of_something_else_is_refused(module: ModuleType, bundles: tuple[Path, Path, Path]) -> None:
    bundles[2].mkdir()
    (bundles[2] / "mine").touch()
    with pytest.raises(module.BundleError, match="is no delta"):
        module.outdated(str(bundles[2]), CHANGED)


def test_what_is_no_bundle_is_named(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(module.BundleError, match=r"is no bundle: .*SHA256SUMS"):
        module.read(str(tmp_path), "SHA256SUMS")


# As docs/offline.md has it.
MERGE = "cp -r {old} {merged} && cp {delta}/* {merged} && cd {merged} && sha256sum --check --quiet SHA256SUMS"


def merged(old: Path, delta: Path, there: Path) -> subprocess.CompletedProcess[str]:
    """Lay a delta over a copy of a bundle."""
    command = MERGE.format(old=old, delta=delta, merged=there)
    return subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)


def test_delta_over_a_copy_of_the_bundle_before_is_the_bundle(
    module: ModuleType, load: Load, bundles: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    old, new, delta = bundles
    write(module, bundles)
    before = contents(old)
    ran = merged(old, delta, tmp_path / "merged")
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert contents(old) == before
    assert contents(new).items() <= contents(tmp_path / "merged").items()
    facts = load("preflight/library/bundle_info.py")
    assert facts.inspect(str(tmp_path / "merged"))["delta"] is None
    # The index of a bundle that is made there again does not list what only says where it came from.
    sums = load("bundle/library/bundle_index.py").sums(str(tmp_path / "merged"))
    assert "delta.yml" not in sums


@pytest.mark.parametrize("over_another", [False, True])
def test_delta_that_is_no_bundle_yet_is_told_with_its_base_and_the_command(
    module: ModuleType, load: Load, bundles: tuple[Path, Path, Path], tmp_path: Path, over_another: bool
) -> None:
    old, _, path = bundles
    write(module, bundles)
    if over_another:
        other = bundle(tmp_path / "other", OLD | {"k3s-arm64": "another"}, "plugin:1")
        assert merged(other, path, tmp_path / "merged").returncode != 0
        path = tmp_path / "merged"
    facts = load("preflight/library/bundle_info.py").inspect(str(path))
    (found,) = load("preflight/filter_plugins/preflight_bundle.py").findings_of_bundle(facts, "aarch64")
    assert found["id"] == "bundle-delta"
    assert "k3s-arm64" in found["found"]
    assert digest(old / "SHA256SUMS") in found["expected"]
    assert "v1, plugin:1" in found["expected"]
    assert f"cp -r BUNDLE NEW && cp {path}/* NEW" in found["fix"]


@pytest.mark.parametrize(("text", "words"), [("a: [", "is not YAML"), ("since: 1\n", "does not say")])
def test_damaged_delta_yml_is_named(load: Load, tmp_path: Path, text: str, words: str) -> None:
    directory = bundle(tmp_path / "bundle", OLD, "plugin:1")
    (directory / "delta.yml").write_text(text)
    (directory / "k3s-arm64").unlink()
    facts = load("preflight/library/bundle_info.py").inspect(str(directory))
    assert words in facts["errors"][0]


def made(site: Path, name: str, plugin: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run playbooks/bundle.yml on small files: the bundle `name` with this plugin image."""
    page = site / "releases/v1"
    page.mkdir(parents=True, exist_ok=True)
    (page / "k3s-arm64").write_text("K3s")
    # An archive has the time of its writing in it.
    for path, image in (
        (page / "k3s-airgap-images-arm64.tar.gz", "rancher/mirrored-pause:3.6"),
        (site / "device-query.tar.gz", "device-query:r36"),
    ):
        if not path.exists():
            archive(path, image)
    archive(site / "plugin.tar.gz", plugin)
    released = sorted(page.glob("k3s*"))
    (page / "sha256sum-arm64.txt").write_text("".join(f"{digest(path)}  {path.name}\n" for path in released))
    settings = {
        "jetson_k3s_bundle": str(site / name),
        "bundle_k3s_version": "v1",
        "bundle_k3s_release_url": page.parent.as_uri(),
        "bundle_plugin_archive": str(site / "plugin.tar.gz"),
        "bundle_device_query_archive": str(site / "device-query.tar.gz"),
    }
    (site / "inventory").write_text(
        f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    return play(
        site / "inventory",
        CHECKOUT / "playbooks/bundle.yml",
        f"--extra-vars={json.dumps(settings)}",
        *arguments,
    )


def test_playbook_writes_the_delta_of_another_plugin(tmp_path: Path) -> None:
    first = made(tmp_path, "bundle", "tegra-device-plugin:1")
    assert first.returncode == 0, first.stdout
    assert not (tmp_path / "bundle-delta").exists()
    since = f"--extra-vars=bundle_since={tmp_path}/bundle"
    second = made(tmp_path, "bundle-2", "tegra-device-plugin:2", since)
    assert second.returncode == 0, second.stdout
    delta = tmp_path / "bundle-2-delta"
    assert sorted(contents(delta)) == [
        "SHA256SUMS",
        "bundle.yml",
        "delta.yml",
        "tegra-device-plugin-arm64.tar.gz",
    ]
    assert f"{delta} has what differs from {tmp_path}/bundle: 0.0 MB in 3 files" in " ".join(
        second.stdout.split()
    )
    ran = merged(tmp_path / "bundle", delta, tmp_path / "merged")
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


@pytest.mark.parametrize("since", ["bundle", "none"])
def test_earlier_bundle_is_there_and_another_one(tmp_path: Path, since: str) -> None:
    bundle(tmp_path / "bundle", OLD, "plugin:1")
    before = contents(tmp_path / "bundle")
    ran = made(tmp_path, "bundle", "plugin:2", f"--extra-vars=bundle_since={tmp_path}/{since}")
    assert ran.returncode != 0
    assert "Nothing was changed." in ran.stdout
    assert contents(tmp_path / "bundle") == before
