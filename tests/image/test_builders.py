# SPDX-License-Identifier: Apache-2.0
"""Each builder makes the same image, on a base that is pulled from a registry."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.arm64 import base, build, builder, pack
from tests.acceptance.site import registry
from tools import engine
from tools.debian import ensure_packages

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Debian-made base in a registry, in place of Docker Hub's Python."""
    engine.ensure()
    name, archive = base.archive("amd64")
    with registry(tmp_path_factory.mktemp("registry")) as found:
        found.push(archive, name, "python:3.11-slim-bookworm")
        yield f"localhost:{found.port}/python:3.11-slim-bookworm"


@pytest.mark.parametrize("tool", [builder.Docker, builder.Podman, builder.Buildah])
def test_builder_makes_the_same_layer_on_a_base_of_a_registry(
    tool: type[builder.Builder], pulled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool is not builder.Docker:
        ensure_packages(tool.__name__.lower())
    registries, place = tmp_path / "registries.conf", pulled.partition("/")[0]
    registries.write_text(f'[[registry]]\nlocation = "{place}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registries))
    expected = diff_ids(build.build("amd64", tmp_path / "expected.tar.gz"))
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builder, "find", tool)
    assert diff_ids(build.build("amd64", tmp_path / "made.tar.gz", pulled)) == expected


def diff_ids(archive: Path) -> list[str]:
    image = pack.read_docker_archive(archive, archive.with_suffix(".layer"))
    found: list[str] = json.loads(image.config)["rootfs"]["diff_ids"]
    return found
