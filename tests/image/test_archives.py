# SPDX-License-Identifier: Apache-2.0
"""The files that `make image` writes, read by a tar reader alone, and the builders that can make them."""

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.arm64 import base, build, builder, pack
from images.arm64.context import CHECKOUT
from release import identity, version
from tests.acceptance.site import registry
from tools import engine
from tools.debian import ensure_packages
from tools.process import run

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

# Bytes; what a board copies over its network and unpacks on an SD card.
LARGEST_ARCHIVE = 21_500_000


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build.build_all(directory)
    return directory


@pytest.fixture(scope="module")
def blobs(dist: Path) -> dict[str, bytes]:
    return contents(dist / "tegra-device-plugin.oci.tar")


@pytest.fixture(scope="module")
def index(blobs: dict[str, bytes]) -> dict[str, Any]:
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    found: dict[str, Any] = json.loads(blob(blobs, entry))
    return found


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def blob(blobs: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = blobs[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert sha256(data) == descriptor["digest"]
    assert len(data) == descriptor["size"]
    return data


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_the_index_lists_both_platforms(index: dict[str, Any]) -> None:
    assert [manifest["platform"] for manifest in index["manifests"]] == [
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
        {"architecture": "amd64", "os": "linux"},
    ]


def test_every_blob_matches_its_descriptor(blobs: dict[str, bytes], index: dict[str, Any]) -> None:
    for listed in index["manifests"]:
        manifest = json.loads(blob(blobs, listed))
        config = json.loads(blob(blobs, manifest["config"]))
        assert config["architecture"] == listed["platform"]["architecture"]
        layers = [gzip.decompress(blob(blobs, layer)) for layer in manifest["layers"]]
        assert [sha256(layer) for layer in layers] == config["rootfs"]["diff_ids"]


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_docker_and_oci_archives_hold_the_same_image(
    dist: Path, blobs: dict[str, bytes], index: dict[str, Any], arch: str
) -> None:
    (listed,) = (one for one in index["manifests"] if one["platform"]["architecture"] == arch)
    config = blob(blobs, json.loads(blob(blobs, listed))["config"])
    files = contents(dist / f"tegra-device-plugin-{arch}.tar.gz")
    (entry,) = json.loads(files["manifest.json"])
    assert files[entry["Config"]] == config
    assert [sha256(files[name]) for name in entry["Layers"]] == json.loads(config)["rootfs"]["diff_ids"]
    assert entry["RepoTags"] == [build.reference()]


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_the_archive_is_small(dist: Path, arch: str) -> None:
    assert (dist / f"tegra-device-plugin-{arch}.tar.gz").stat().st_size < LARGEST_ARCHIVE


def test_labels_name_version_licence_and_commit(blobs: dict[str, bytes], index: dict[str, Any]) -> None:
    for listed in index["manifests"]:
        config = json.loads(blob(blobs, json.loads(blob(blobs, listed))["config"]))
        labels = {key.rpartition(".")[2]: value for key, value in config["config"]["Labels"].items()}
        assert labels["title"] == "tegra-device-plugin"
        assert labels["version"] == version.current()
        assert labels["licenses"] == "Apache-2.0"
        assert labels["created"] == config["created"]
        assert labels.get("source", "") == identity.address(identity.owner())
        commit = labels["revision"].removesuffix("-dirty")
        assert re.fullmatch("[0-9a-f]{40}", commit)
        assert run(["git", "-C", CHECKOUT, "cat-file", "-t", commit]).stdout.strip() == "commit"


def test_another_build_gives_the_same_bytes(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = builder.find().debian_base("amd64")
    # An empty cache; only the base is the same.
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builder.Docker, "debian_base", lambda _self, _arch: base)
    again = build.build("amd64", tmp_path / "again.tar.gz")
    assert again.read_bytes() == (dist / "tegra-device-plugin-amd64.tar.gz").read_bytes()


@pytest.mark.parametrize("arch", build.ARCHITECTURES)
def test_bill_of_materials_lists_the_layer(dist: Path, tmp_path: Path, arch: str) -> None:
    document = json.loads((dist / f"tegra-device-plugin-{arch}.spdx.json").read_text())
    assert document["spdxVersion"] == "SPDX-2.3"
    listed = {package["name"]: package for package in document["packages"]}
    ids = {package["SPDXID"] for package in document["packages"]}
    assert len(ids) == len(document["packages"])
    related = {one["relatedSpdxElement"] for one in document["relationships"]}
    assert related == ids

    files = contents(dist / f"tegra-device-plugin-{arch}.tar.gz")
    layer = tmp_path / "layer.tar"
    layer.write_bytes(files[f"{arch}/layer.tar"])
    inside = contents(layer)
    assert listed[build.reference()]["checksums"][0]["checksumValue"] == sha256(layer.read_bytes())[7:]
    debian = {
        Path(name).name
        for name in inside
        if re.fullmatch(r"var/lib/dpkg/status\.d/[^/]+(?<!\.md5sums)", name)
    }
    python = {
        re.search(r"^Name: (.+)$", inside[name].decode(), re.MULTILINE)[1]  # type: ignore[index] # required there
        for name in inside
        if name.endswith(".dist-info/METADATA")
    }
    assert debian | python | {build.reference()} == listed.keys()
    assert {
        "libc6",
        "libstdc++6",
        "libpython3.11-stdlib",
        "grpcio",
        "protobuf",
        "tegra-device-plugin",
    } <= listed.keys()
    # What is in the image has its licence beside it, and is named as vulnerability scanners name it.
    for name in debian:
        assert f"usr/share/doc/{name}/copyright" in inside, name
    for name in python:
        assert listed[name]["licenseDeclared"] != "NOASSERTION", name
    for name in debian | python:
        assert listed[name]["versionInfo"]
        assert listed[name]["externalRefs"][0]["referenceLocator"].startswith(
            ("pkg:deb/debian/", "pkg:pypi/")
        )


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Debian-made base in a registry, in place of Docker Hub's Python."""
    engine.ensure()
    name, archive = base.archive("amd64")
    with registry(tmp_path_factory.mktemp("registry")) as found:
        found.push(archive, name, "python:3.11-slim-bookworm")
        yield f"localhost:{found.port}/python:3.11-slim-bookworm"


@pytest.mark.parametrize("tool", [builder.Docker, builder.Podman])
def test_builder_makes_the_same_layer_on_a_base_of_a_registry(
    tool: type[builder.Docker], pulled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool is not builder.Docker:
        ensure_packages(tool.__name__.lower())
    registries, place = tmp_path / "registries.conf", pulled.partition("/")[0]
    registries.write_text(f'[[registry]]\nlocation = "{place}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registries))
    expected = diff_ids(build.build("amd64", tmp_path / "expected.tar.gz"))
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builder, "find", tool)
    try:
        assert diff_ids(build.build("amd64", tmp_path / "made.tar.gz", pulled)) == expected
    finally:
        run([tool.program, "image", "rm", pulled], check=False)


@pytest.mark.parametrize("tool", [builder.Docker, builder.Podman])
def test_labels_say_what_this_build_was_told(tool: type[builder.Docker], tmp_path: Path) -> None:
    if tool is not builder.Docker:
        ensure_packages(tool.__name__.lower())
    lines = ["FROM scratch AS settings", f"LABEL {builder.STAGE_LABEL}=settings", "ARG SAID"]
    lines += ['LABEL said="${SAID}"', "FROM settings AS made", "COPY Dockerfile /"]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    for said in ("once", "again"):
        saved = tmp_path / f"{said}.tar"
        tool().build(tmp_path, "made", {"SAID": said}, saved)
        with pack.opened_docker_archive(saved) as (_, config, _layers):
            assert json.loads(config)["config"]["Labels"]["said"] == said


def diff_ids(archive: Path) -> list[str]:
    image = pack.read_docker_archive(archive, archive.with_suffix(".layer"))
    found: list[str] = json.loads(image.config)["rootfs"]["diff_ids"]
    return found
