# SPDX-License-Identifier: Apache-2.0
"""Images of a registry, read and copied by Debian's skopeo from Debian's registry, over HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.acceptance import site
from tests.unit.roles.playing import answer
from tests.unit.roles.test_user_images import BASE, FIRST, digest_of, docker_archive
from tools import debian
from tools.process import run

pytestmark = pytest.mark.acceptance

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
CUDA = "CUDA_VERSION=12.2.0"


@dataclass(frozen=True)
class Published:
    """An image in a registry. It has a variant for arm64 alone."""

    name: str
    digest: str
    environment: dict[str, str]
    """With it skopeo takes the registry without TLS."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    debian.ensure_packages("skopeo")
    directory = tmp_path_factory.mktemp("registry")
    with site.registry(directory) as registry:
        name = f"localhost:{registry.port}/app"
        settings = directory / ".config/containers/registries.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'[[registry]]\nlocation = "localhost:{registry.port}"\ninsecure = true\n')
        environment = {"HOME": str(directory), "PATH": "/usr/bin:/bin"}
        image = docker_archive(directory / "app.tar", "app:arm64", [BASE, FIRST], "arm64", CUDA)
        run(
            ["skopeo", "copy", "--quiet", f"docker-archive:{image}", f"docker://{name}:arm64"],
            env=environment,
        )
        yield Published(f"{name}:1.0", put_index(registry.port, "1.0"), environment)


def put_index(port: int, tag: str) -> str:
    """Give the image an index, as those of several architectures have one; return its digest."""
    registry = HTTPConnection("localhost", port)
    registry.request("GET", "/v2/app/manifests/arm64", headers={"Accept": MANIFESTS})
    answered = registry.getresponse()
    manifest, kind = answered.read(), answered.headers["Content-Type"]
    entry = {"mediaType": kind, "digest": digest_of(manifest), "size": len(manifest)}
    entries = [{**entry, "platform": {"os": "linux", "architecture": "arm64"}}]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    registry.request("PUT", f"/v2/app/manifests/{tag}", index, {"Content-Type": INDEX})
    stored = registry.getresponse()
    assert stored.status == 201, stored.read()
    registry.close()
    return f"sha256:{hashlib.sha256(index).hexdigest()}"


def test_image_is_read_before_it_is_sent(published: Published) -> None:
    said = answer("image_info", {"image": published.name}, **published.environment)
    assert [(one["name"], one["architecture"], one["cuda"]) for one in said["images"]] == [
        (published.name, "arm64", "12.2.0")
    ]


def test_image_is_copied_by_its_digest_for_the_boards_that_have_a_variant(
    published: Published, tmp_path: Path
) -> None:
    repository = published.name.rpartition(":")[0]
    names = {
        f"{published.name}@{published.digest}": published.name,
        f"{repository}@{published.digest}": f"{repository}:sha256-{published.digest[7:19]}",
    }
    for reference, name in names.items():
        arguments = {"path": str(tmp_path), "images": [reference], "architectures": ["arm64", "amd64"]}
        said = answer("bundle_images", arguments, **published.environment)
        (image,) = said["images"]
        assert (image["name"], image["source"]) == (name, reference)
        assert [layer["diff_id"] for layer in image["layers"]] == [digest_of(BASE), digest_of(FIRST)]
        for layer in image["layers"]:
            content = (tmp_path / "images" / layer["digest"][7:]).read_bytes()
            assert digest_of(content) == layer["digest"]


def test_image_that_is_not_there_is_named_with_the_words_of_skopeo(
    published: Published, tmp_path: Path
) -> None:
    gone = f"{published.name}@sha256:{'0' * 64}"
    arguments = {"path": str(tmp_path), "images": [gone], "architectures": ["arm64"]}
    said = answer("bundle_images", arguments, **published.environment)
    assert said["failed"] and f"{gone}: skopeo could not read it: " in said["msg"]
    assert "manifest unknown" in said["msg"]
    assert not (tmp_path / "images").exists() or list((tmp_path / "images").iterdir()) == []
