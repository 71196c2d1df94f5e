# SPDX-License-Identifier: Apache-2.0
"""Findings of the bundle, and the facts about it."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import load
from tests.unit.roles.preflight_facts import with_facts
from tests.unit.roles.test_bundle_index import archive

module = load("preflight/filter_plugins/preflight_bundle.py")
bundle_module = load("preflight/library/bundle_info.py")


def bundle(**errors: str | None) -> dict[str, Any]:
    names = (
        "bundle.yml",
        "k3s-arm64",
        "k3s-airgap-images-arm64.tar.gz",
        "tegra-device-plugin-arm64.tar.gz",
    )
    files: dict[str, dict[str, str | None]] = {name: {"error": None} for name in names}
    files.update({name.replace("_", "-"): {"error": error} for name, error in errors.items()})
    return {"path": "/bundle", "indexed": True, "errors": [], "files": files}


def test_whole_bundle_has_no_findings() -> None:
    assert module.findings_of_bundle(bundle(), "aarch64") == []


def test_only_files_for_this_architecture_matter() -> None:
    others = {"k3s_amd64": "damaged", "device-query-amd64.tar.gz": "damaged"}
    assert module.findings_of_bundle(bundle(**others), "aarch64") == []
    assert [
        entry["found"] for entry in module.findings_of_bundle(bundle(k3s_arm64="damaged"), "aarch64")
    ] == ["k3s-arm64: damaged"]


def test_bundle_of_another_architecture_names_each_missing_file() -> None:
    found = [entry["found"] for entry in module.findings_of_bundle(bundle(), "x86_64")]
    assert len(found) == 3
    assert "k3s-amd64: not listed in SHA256SUMS" in found


def test_one_error_of_the_whole_bundle_is_enough() -> None:
    broken = bundle() | {"errors": ["no such directory"], "files": {}}
    assert [entry["id"] for entry in module.findings_of_bundle(broken, "aarch64")] == ["bundle-unusable"]


def test_owners_images_are_verified_where_the_bundle_has_some() -> None:
    content = bundle()
    content["files"]["device-query-l4t36-arm64.tar.gz"] = {"error": "damaged"}
    found = [entry["found"] for entry in module.findings_of_bundle(content, "aarch64")]
    assert found == ["device-query-l4t36-arm64.tar.gz: damaged"]


def test_bundle_needs_no_k3s_where_it_is_downloaded() -> None:
    content = bundle(k3s_arm64="missing")
    del content["files"]["k3s-airgap-images-arm64.tar.gz"]
    assert module.findings_of_bundle(content, "aarch64", "download") == []


PULLED = f"registry.example/tegra-device-plugin@sha256:{'0' * 64}"


def test_bundle_needs_no_plugin_where_a_registry_has_it() -> None:
    content = bundle()
    del content["files"]["tegra-device-plugin-arm64.tar.gz"]
    assert module.findings_of_bundle(content, "aarch64", "bundle", PULLED) == []


@pytest.mark.parametrize(
    ("files", "source", "image", "found"),
    [
        ({}, "download", "", []),
        ({"tegra-device-plugin-amd64.tar.gz": "damaged"}, "download", "", []),
        ({"tegra-device-plugin-arm64.tar.gz": "damaged"}, "download", PULLED, []),
        (
            {"tegra-device-plugin-arm64.tar.gz": "damaged"},
            "download",
            "",
            ["/dist/tegra-device-plugin-arm64.tar.gz: damaged"],
        ),
        (
            {"tegra-device-plugin-arm64.tar.gz": None},
            "bundle",
            "",
            ["jetson_k3s_bundle is set for this board, and not for all boards of this run"],
        ),
    ],
)
def test_boards_that_download_k3s_need_no_bundle(
    files: dict[str, str | None], source: str, image: str, found: list[str]
) -> None:
    built = {"path": "/dist", "indexed": False, "errors": []}
    built["files"] = {name: {"error": error} for name, error in files.items()}
    findings = module.findings_of_bundle(built, "aarch64", source, image)
    assert [entry["found"] for entry in findings] == found


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "accepted"),
    [
        ("", True),
        (PULLED, True),
        ("registry.example:5000/a/b:0.1.0-jtop" + DIGEST, True),
        ("localhost/b" + DIGEST, True),
        ("docker.io/owner/b:1" + DIGEST, True),
        ("registry.example/b:0.1.0", False),
        ("registry.example/b@sha256:0", False),
        ("owner/b" + DIGEST, False),
        ("b" + DIGEST, False),
        ("registry.example/b --privileged" + DIGEST, False),
    ],
)
def test_plugins_image_of_a_registry_is_named_by_its_digest(image: str, accepted: bool) -> None:
    found = module.findings_of_plugin_image(image)
    assert [entry["id"] for entry in found] == ([] if accepted else ["plugin-image"])


@pytest.mark.parametrize(
    ("supply", "runtime", "finding"),
    [
        ("", "containerd", None),
        ("b", "docker", None),
        ("c", "docker", "image-supply-host"),
        ("c", "containerd", "image-supply-host"),
        ("b", "containerd", "image-supply-containerd"),
    ],
)
def test_board_that_supplies_images_is_one_of_the_cluster_and_has_docker(
    supply: str, runtime: str, finding: str | None
) -> None:
    found = module.findings_of_image_supply(with_facts(container_runtime=runtime), supply, ["a", "b"])
    assert [entry["id"] for entry in found] == ([finding] if finding else [])
    if finding == "image-supply-host":
        assert ("'c'" in found[0]["found"], "a, b" in found[0]["fix"]) == (True, True)


def test_state_of_a_damaged_file(tmp_path: Path) -> None:
    versions = {
        "version": 1,
        "k3s_version": "v1",
        "plugin_image": "a:1",
        "pause_image": "c:1",
    }
    (tmp_path / "bundle.yml").write_text(yaml.safe_dump(versions))
    (tmp_path / "k3s-arm64").write_text("k3s")
    sums = [f"{bundle_module.sha256(str(path))}  {path.name}" for path in sorted(tmp_path.iterdir())]
    (tmp_path / "SHA256SUMS").write_text("\n".join([*sums, "0" * 64 + "  gone", ""]))
    (tmp_path / "k3s-arm64").write_text("K3s")
    facts = bundle_module.inspect(str(tmp_path))
    assert facts["errors"] == []
    assert facts["versions"] == versions
    assert facts["files"]["bundle.yml"]["error"] is None
    assert "SHA256SUMS says" in facts["files"]["k3s-arm64"]["error"]
    assert facts["files"]["gone"]["error"] == "missing"


def test_state_of_an_archive_of_packages(tmp_path: Path) -> None:
    archive = tmp_path / "debs-jetpack6-arm64.tar"
    names = ("./nvidia-container-toolkit_1.18.0-1_arm64.deb", "tzdata_1%3a2025b-0_all.deb", "./README")
    with tarfile.open(archive, "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    state = bundle_module.check_file(str(archive), bundle_module.sha256(str(archive)))
    assert (state["error"], state["packages"]) == (
        None,
        {"nvidia-container-toolkit": "1.18.0-1", "tzdata": "1:2025b-0"},
    )
    archive.write_text("no archive")
    state = bundle_module.check_file(str(archive), bundle_module.sha256(str(archive)))
    assert (state["packages"], "not an archive of Debian packages" in state["error"]) == ({}, True)


VERSIONS = "version: 1\nk3s_version: v1\nplugin_image: a:1\npause_image: c:1\n"


def test_state_of_what_was_built_here(tmp_path: Path) -> None:
    (tmp_path / "tegra-device-plugin.oci.tar").write_text("of no interest")
    nothing = bundle_module.inspect_built(str(tmp_path), "v1")
    assert (nothing["indexed"], nothing["versions"], nothing["files"]) == (False, {"k3s_version": "v1"}, {})
    archive(tmp_path / "tegra-device-plugin-arm64.tar.gz", "a:1")
    (tmp_path / "tegra-device-plugin-amd64.tar.gz").write_text("none")
    files = bundle_module.inspect_built(str(tmp_path), "v1")["files"]
    assert list(files["tegra-device-plugin-arm64.tar.gz"]["images"]) == ["a:1"]
    assert files["tegra-device-plugin-arm64.tar.gz"]["error"] is None
    assert "not an archive of `docker save`" in files["tegra-device-plugin-amd64.tar.gz"]["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2\n", "version: 1"),
        ("- a\n", "version: 1"),
        ("version: 1\nk3s_version: v1\n", "lacks plugin_image"),
        ("a: [", "not YAML"),
        (VERSIONS + "jtop: {version: 4.3.2, wheels: [../.ssh/id_rsa]}\n", "SHA256SUMS lacks: ../.ssh/id_rsa"),
        (VERSIONS + "jtop: {version: 4.3.2, wheels: /etc}\n", "jtop must have"),
        (VERSIONS + "jtop: {version: ../4, wheels: []}\n", "jtop must have"),
        (VERSIONS + "jtop: [/etc/shadow]\n", "jtop must have"),
    ],
)
def test_unusable_bundle_yml_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    (tmp_path / "bundle.yml").write_text(text)
    assert words in bundle_module.inspect(str(tmp_path))["errors"][0]


def test_damaged_list_of_sums_is_named_with_its_line() -> None:
    with pytest.raises(bundle_module.BundleError, match="line 2"):
        bundle_module.parse_sums("0" * 64 + "  a\nnonsense\n")
