# SPDX-License-Identifier: Apache-2.0
"""A bundle from the files of a release: its SHA256SUMS is compared before anything is taken."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from release import signature
from tests.lab import archive
from tests.release.conftest import Checkout, make_key
from tests.unit.roles.playing import play, write_inventory

PLUGIN = "tegra-device-plugin-arm64.tar.gz"


@pytest.fixture
def dist(released: Checkout, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released.path / "dist/0.2.0", tmp_path / "fetched"))


def make_bundle(
    dist: Path, site: Path, *, k3s: str = "K3s", signers: Path | str = "", **more: object
) -> tuple[int, str]:
    """Run playbooks/bundle.yml with a K3s release of small files; the bundle is made in `site`/bundle."""
    page = site / "releases/v1"
    page.mkdir(parents=True, exist_ok=True)
    (page / "k3s-arm64").write_text(k3s)
    images = ["docker.io/rancher/mirrored-pause:3.6"]
    archive.write(page / "k3s-airgap-images-arm64.tar.gz", images, "arm64", {}, {})
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in page.glob("k3s*")]
    (page / "sha256sum-arm64.txt").write_text("".join(sums))
    settings = {
        "jetson_k3s_bundle": str(site / "bundle"),
        "k3s_version": "v1",
        "k3s_release_url": page.parent.as_uri(),
        "bundle_plugin_archive": str(dist / PLUGIN),
        "bundle_release_signers": str(signers),
        "bundle_controller_wheels": False,
        **more,
    }
    (site / "settings.json").write_text(json.dumps(settings))
    inventory = write_inventory(site, {"controller": ["localhost"]})
    run = play(inventory, "playbooks/bundle.yml", f"--extra-vars=@{site}/settings.json")
    return run.returncode, run.said


@pytest.mark.acceptance
def test_bundle_takes_the_image_of_a_release(dist: Path, tmp_path: Path) -> None:
    code, said = make_bundle(dist, tmp_path / "site")
    assert code == 0, said
    bundle = tmp_path / "site/bundle"
    assert (bundle / PLUGIN).read_bytes() == (dist / PLUGIN).read_bytes()
    assert yaml.safe_load((bundle / "bundle.yml").read_text())["plugin_image"] == "tegra-device-plugin:0.2.0"


def test_missing_files_are_named_before_the_download(dist: Path, tmp_path: Path) -> None:
    (dist / PLUGIN).unlink()
    code, said = make_bundle(dist, tmp_path / "site", bundle_files=[f"{tmp_path}/debs.tar"])
    assert code != 0
    for file, fix in ((dist / PLUGIN, "Build the plugin's"), (tmp_path / "debs.tar", "Correct it in bundle")):
        assert re.search(rf"{file} is not there\. {fix}", " ".join(said.split())), said
    assert not (tmp_path / "site/bundle").exists()


def test_setting_of_the_boards_alone_is_refused(dist: Path, tmp_path: Path) -> None:
    boards = {"jetson-1": {"k3s_version": "v1"}, "jetson-2": {"k3s_version": "v1"}, "jetson-3": {}}
    inventory = write_inventory(tmp_path, {"controller": ["localhost"], "k3s_cluster": boards})
    settings = {"jetson_k3s_bundle": f"{tmp_path}/bundle", "bundle_plugin_archive": str(dist / PLUGIN)}
    run = play(inventory, "playbooks/bundle.yml", f"--extra-vars={json.dumps(settings)}")
    assert run.returncode != 0
    assert "k3s_version of jetson-1, jetson-2 is not used: bundle.yml runs on this computer" in run.said
    assert not (tmp_path / "bundle").exists()


def test_changed_image_of_a_release_is_refused(dist: Path, tmp_path: Path) -> None:
    with (dist / PLUGIN).open("ab") as file:
        file.write(b"\0")
    code, said = make_bundle(dist, tmp_path / "site")
    assert code != 0
    assert "SHA-256 is" in said
    assert not (tmp_path / "site/bundle" / PLUGIN).exists()


def test_image_that_the_release_does_not_list_is_refused(dist: Path, tmp_path: Path) -> None:
    sums = (dist / "SHA256SUMS").read_text().splitlines(keepends=True)
    (dist / "SHA256SUMS").write_text("".join(line for line in sums if PLUGIN not in line))
    code, said = make_bundle(dist, tmp_path / "site")
    assert code != 0
    assert "not in SHA256SUMS" in said


@pytest.mark.acceptance
def test_image_without_sums_beside_it_is_taken(dist: Path, tmp_path: Path) -> None:
    (dist / "SHA256SUMS").unlink()
    code, said = make_bundle(dist, tmp_path / "site")
    assert code == 0, said


def test_first_use_pins_k3s_and_a_release_that_changes_is_refused(dist: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    code, said = make_bundle(dist, site)
    assert code == 0, said
    pins = (site / "k3s-releases.sha256").read_text()
    digest = hashlib.sha256(b"K3s").hexdigest()
    assert f"{digest}  v1/k3s-arm64\n" in pins
    assert "First use of K3s v1:" in said
    assert f"k3s-arm64 {digest}" in said
    shutil.rmtree(site / "bundle")
    code, said = make_bundle(dist, site, k3s="another K3s with sums that fit")
    assert code != 0
    assert "K3s v1 was not downloaded: k3s-arm64: The checksum for" in said
    assert f"did not match {digest}" in said
    assert f"is pinned in {site}/k3s-releases.sha256" in said
    assert f"remove its line from {site}/k3s-releases.sha256" in said
    assert not (site / "bundle/k3s-arm64").exists()
    assert (site / "k3s-releases.sha256").read_text() == pins
    code, said = make_bundle(dist, site)
    assert code == 0, said
    assert "First use" not in said


def test_file_of_pins_that_is_damaged_is_named_with_its_line(dist: Path, tmp_path: Path) -> None:
    pins = tmp_path / "site/k3s-releases.sha256"
    pins.parent.mkdir()
    pins.write_text(f"{'0' * 64}  v0/k3s\nk3s\n")
    code, said = make_bundle(dist, tmp_path / "site")
    assert code != 0
    assert f"{pins} line 2: expected is one line" in said


@pytest.mark.parametrize("missing", ["", "SHA256SUMS.sig", "SHA256SUMS"])
def test_with_keys_named_only_a_signed_release_is_taken(
    released: Checkout, dist: Path, tmp_path: Path, missing: str
) -> None:
    signers = tmp_path / "signers"
    signers.write_text(signature.allowed_signers(released.key))
    if missing:
        (dist / missing).unlink()
    code, said = make_bundle(dist, tmp_path / "site", signers=signers)
    assert (code == 0) is (not missing), said
    assert (tmp_path / "site/bundle" / PLUGIN).exists() is (not missing)
    assert not missing or f"bundle_release_signers: no key in {signers} has signed {dist}/SHA256SUMS" in said


def test_release_of_another_key_is_refused(dist: Path, tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text(signature.allowed_signers(make_key(tmp_path / "other")))
    code, said = make_bundle(dist, tmp_path / "site", signers=signers)
    assert (code != 0, "bundle_release_signers: no key in" in said) == (True, True), said
