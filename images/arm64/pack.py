# SPDX-License-Identifier: Apache-2.0
"""One-layer container images as archives of Docker or OCI; the same input gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Image:
    """An image for one platform: `config` is its configuration as JSON, `layer` the file with its tar."""

    names: Sequence[str]
    platform: Mapping[str, str]
    config: bytes
    layer: Path

    @property
    def digest(self) -> str:
        """The configuration's digest, which Docker shows as the image's id."""
        return f"sha256:{hashlib.sha256(self.config).hexdigest()}"


def image(
    arch: str, settings: Mapping[str, Any], layer: Path, *, created: int, names: Sequence[str]
) -> Image:
    """Describe an image; `settings` is the `config` of OCI's configuration, `created` is Unix time."""
    platform = {"architecture": arch, "os": "linux"} | ({"variant": "v8"} if arch == "arm64" else {})
    moment = timestamp(created)
    config = {
        **platform,
        "created": moment,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}"]},
        "history": [{"created": moment, "created_by": "images/arm64/Dockerfile"}],
    }
    return Image(names, platform, _json(config), layer)


def timestamp(seconds: int) -> str:
    """Return a Unix time as RFC 3339, the form of all image dates."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def normalise(layers: Sequence[IO[bytes]], out: Path, moment: int) -> None:
    """Write layers' tars as one, without what differs from build to build.

    Entries are sorted, belong to root, and have the time `moment` (Unix seconds); hard links become files.
    The layers are of stages that only add, so nothing in them hides a file of an earlier one.
    """
    with ExitStack() as stack:
        members = {}
        for layer in layers:
            source = stack.enter_context(tarfile.open(fileobj=layer))
            for member in source:
                members[member.name.removeprefix("./").rstrip("/")] = (source, member)
        for root in ("", "."):
            members.pop(root, None)
        target = stack.enter_context(tarfile.open(out, "w", format=tarfile.PAX_FORMAT))
        for name, (source, member) in sorted(members.items()):
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = moment, member.mode
            info.type, info.linkname = member.type, member.linkname
            content = source.extractfile(member) if member.isfile() or member.islnk() else None
            data = content.read() if content else b""
            if content:
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", len(data)
            target.addfile(info, io.BytesIO(data))


def write_docker_archive(out: Path, images: Sequence[Image]) -> None:
    """Write images in the format of `docker save` (image specification v1.2), gzipped if `out` ends in .gz.

    Docker 20.10 loads neither OCI archives nor zstd.
    """
    entries = []
    with _created(out) as file, _tar(file) as archive:
        for one in images:
            config = f"{one.digest.removeprefix('sha256:')}.json"
            layer = f"{one.platform['architecture']}/layer.tar"
            entries.append({"Config": config, "RepoTags": list(one.names), "Layers": [layer]})
            _add(archive, config, one.config)
            _add_file(archive, layer, one.layer)
        _add(archive, "manifest.json", _json(entries))


@contextmanager
def opened_docker_archive(path: Path) -> Iterator[tuple[dict[str, Any], bytes, list[IO[bytes]]]]:
    """Open a `docker save` archive of one image: its entry in the manifest, its configuration, its layers."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_member(archive, "manifest.json").read())
        layers = [_member(archive, layer) for layer in entry["Layers"]]
        yield entry, _member(archive, entry["Config"]).read(), layers


def read_docker_archive(path: Path, layer: Path) -> Image:
    """Read an archive of `write_docker_archive` with one image, and write its layer to `layer`."""
    with opened_docker_archive(path) as (entry, config, (content,)), layer.open("wb") as file:
        shutil.copyfileobj(content, file)
    described = json.loads(config)
    platform = {key: described[key] for key in ("architecture", "os", "variant") if key in described}
    return Image(entry["RepoTags"] or [], platform, config, layer)


def write_oci_archive(out: Path, images: Sequence[Image], name: str) -> str:
    """Write an OCI archive (image-spec v1.0) whose index lists the images; return the index' digest."""
    scratch = out.with_name(f"{out.name}.blobs")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    manifests = []
    try:
        for one in images:
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _blob(scratch, f"{_OCI}.config.v1+json", one.config),
                "layers": [_blob_of_file(scratch, f"{_OCI}.layer.v1.tar+gzip", one.layer)],
            }
            described = _blob(scratch, f"{_OCI}.manifest.v1+json", _json(manifest))
            manifests.append({**described, "platform": one.platform})
        index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
        listed = _blob(scratch, f"{_OCI}.index.v1+json", _json(index))
        # containerd names the image by the first annotation, skopeo and podman by the second.
        listed["annotations"] = {
            "io.containerd.image.name": f"docker.io/library/{name}",
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
        with _created(out) as file, _tar(file) as archive:
            _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            top = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [listed]}
            _add(archive, "index.json", _json(top))
            for blob in sorted(scratch.iterdir()):
                _add_file(archive, f"blobs/sha256/{blob.name}", blob)
    finally:
        shutil.rmtree(scratch)
    return str(listed["digest"])


def _blob(directory: Path, media_type: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (directory / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _blob_of_file(directory: Path, media_type: str, path: Path) -> dict[str, Any]:
    packed = directory / "layer.partial"
    with path.open("rb") as plain, packed.open("wb") as file, _gzip(file) as zipped:
        shutil.copyfileobj(plain, zipped)
    digest = sha256(packed)
    packed = packed.replace(directory / digest)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": packed.stat().st_size}


@contextmanager
def _created(out: Path) -> Iterator[IO[bytes]]:
    """Create a complete file or none, gzipped if its name ends in `.gz`."""
    partial = out.with_name(f"{out.name}.partial")
    with partial.open("wb") as file:
        if out.suffix == ".gz":
            with _gzip(file) as zipped:
                yield cast("IO[bytes]", zipped)
        else:
            yield file
    partial.replace(out)


def _gzip(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile("", "wb", 9, file, mtime=0)


def _tar(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    info = tarfile.TarInfo(name)
    info.size = path.stat().st_size
    with path.open("rb") as file:
        archive.addfile(info, file)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    if content is None:
        raise tarfile.TarError(f"{name} is not a file")
    return content


def _json(data: object) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
