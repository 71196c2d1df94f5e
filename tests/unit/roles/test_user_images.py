# SPDX-License-Identifier: Apache-2.0
"""Images of the user: into the bundle, over the link, into the engine, and out of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.action import image_blobs as sending
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    containerd_images,
    image_archive,
    image_store,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import Blob
from ansible_collections.jetson_k3s.cluster.plugins.modules import (
    containerd_kept_images,
    docker_kept_images,
    docker_layers,
    registry_images,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import user_images

from tests.lab import archive
from tests.lab.bundle import checksums
from tests.unit.roles.places import COLLECTION, Data
from tests.unit.roles.playing import answer, play_text

ZSTD = b"\x28\xb5\x2f\xfd"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(seed: int, size: int = 20_000) -> bytes:
    """The tar of a layer that does not compress."""
    return archive.layer({f"file-{seed}": random.Random(seed).randbytes(size)})  # noqa: S311 - no secret


def config_of(layers: Sequence[bytes], arch: str, *env: str) -> bytes:
    described = {
        "os": "linux",
        "architecture": arch,
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(one) for one in layers]},
    }
    return json.dumps(described).encode()


def write(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def docker_archive(path: Path, name: str, layers: Sequence[bytes], arch: str = "arm64", *env: str) -> str:
    """An archive as Docker 24 writes it."""
    archive.write_layers(path, name, arch, {"Env": list(env)}, layers)
    return str(path)


def oci_archive(path: Path, name: str, images: dict[str, Sequence[bytes]], packed: bool = True) -> str:
    """An OCI archive with an index of images by architecture, and an attestation."""
    blobs: list[bytes] = []

    def put(content: bytes, **more: object) -> Data:
        blobs.append(content)
        return {"digest": digest_of(content), "size": len(content), **more}

    manifests = []
    for arch, layers in images.items():
        given = [gzip.compress(one, mtime=0) if packed else one for one in layers]
        manifest = {"config": put(config_of(layers, arch)), "layers": [put(one) for one in given]}
        manifests.append(put(json.dumps(manifest).encode()))
    attestation = {"vnd.docker.reference.type": "attestation-manifest"}
    manifests.append(put(b'{"config": {}, "layers": []}', annotations=attestation))
    index = put(json.dumps({"manifests": manifests}).encode(), annotations={"io.containerd.image.name": name})
    files = {f"blobs/{digest_of(one).replace(':', '/')}": one for one in blobs}
    return write(
        path, {"oci-layout": b"{}", "index.json": json.dumps({"manifests": [index]}).encode(), **files}
    )


BASE, FIRST, SECOND = layer(1, 60_000), layer(2), layer(3)
NAME = "registry.example.com/app:1.0"


def bundled(directory: Path, *archives: str, architectures: Sequence[str] = ("arm64",)) -> Data:
    """The answer of module bundle_images on a computer without skopeo."""
    arguments = {"path": str(directory), "images": list(archives), "architectures": list(architectures)}
    return answer("bundle_images", arguments, PATH="/nowhere")


def files(bundle: Path) -> set[str]:
    return {path.name for path in (bundle / "images").iterdir()} - {"index.json"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle").mkdir()
    return tmp_path / "bundle"


def test_layers_are_in_the_bundle_once_and_stay_as_they_were(tmp_path: Path, bundle: Path) -> None:
    one = docker_archive(tmp_path / "one.tar.gz", NAME, [BASE, FIRST], "arm64", "CUDA_VERSION=12.6.11")
    other = oci_archive(tmp_path / "other.tar", "other:1", {"arm64": [BASE, SECOND], "amd64": [FIRST]})
    said = bundled(bundle, one, other)
    assert said["changed"], said
    found = {image["name"]: image for image in said["images"]}
    assert (found[NAME]["cuda"], found[NAME]["source"]) == ("12.6.11", "one.tar.gz")
    assert found["other:1"]["architecture"] == "arm64"
    # Two manifests, two configurations, and three layers.
    assert len(files(bundle)) == 7
    for name in files(bundle):
        assert digest_of((bundle / "images" / name).read_bytes()) == f"sha256:{name}"
    unpacked = [
        gzip.decompress((bundle / "images" / name["digest"][7:]).read_bytes())
        for name in found[NAME]["layers"]
    ]
    assert unpacked == [BASE, FIRST]
    assert not bundled(bundle, one, other)["changed"]

    before = {path.name: path.stat().st_mtime_ns for path in (bundle / "images").iterdir()}
    newer = docker_archive(tmp_path / "newer.tar", "registry.example.com/app:1.1", [BASE, SECOND])
    assert bundled(bundle, newer)["changed"]
    base = found[NAME]["layers"][0]["digest"][7:]
    assert (bundle / "images" / base).stat().st_mtime_ns == before[base]
    assert len(files(bundle)) == 4
    # Without the setting nothing of it is left.
    assert bundled(bundle)["changed"] and not (bundle / "images").exists()
    assert not bundled(bundle)["changed"]


def cut(path: str, share: float) -> str:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * share)])
    return path


def damaged_layer(path: Path) -> str:
    """An archive whose layer is another one than its configuration says."""
    config = config_of([FIRST], "arm64")
    entry = {"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["layer.tar"]}
    return write(path, {"c.json": config, "layer.tar": SECOND, "manifest.json": json.dumps([entry]).encode()})


def test_bad_images_are_refused_with_the_remedy(tmp_path: Path, bundle: Path) -> None:
    app = docker_archive(tmp_path / "app.tar.gz", "app:1", [FIRST])
    amd64 = docker_archive(tmp_path / "amd64.tar", "tool:2", [FIRST], "amd64")
    (tmp_path / "b").mkdir()
    wrong = "amd64.tar: tool:2 is for amd64, and this bundle is for arm64"
    build = "docker buildx build --platform linux/arm64"
    half = cut(docker_archive(tmp_path / "cut.tar.gz", "app:1", [BASE]), 0.5)
    again = docker_archive(tmp_path / "again.tar", "app:1", [SECOND])
    both = "app.tar.gz and again.tar both have an image app:1, with different contents"
    same_file = docker_archive(tmp_path / "b/app.tar.gz", "app:2", [SECOND])
    pinned = f"registry.example.com/app:1.0@sha256:{'a' * 64}"
    other = write(tmp_path / "other.tar", {"a": b""})
    zstd = oci_archive(tmp_path / "zstd.tar", "z:1", {"arm64": [ZSTD + FIRST]}, packed=False)
    nameless = oci_archive(tmp_path / "nameless.tar", "latest", {"arm64": [FIRST]})
    cases: list[tuple[list[str], Sequence[str]]] = [
        ([amd64], [wrong, build, "bundle_architectures"]),
        ([half], ["cut.tar.gz: the archive is damaged"]),
        ([damaged_layer(tmp_path / "layer.tar")], ["is damaged (the layer layer.tar has the SHA-256"]),
        ([app, again], [both, "another tag"]),
        ([app, same_file], ["have the same file name: rename one"]),
        (["registry.example.com/app:1.0"], ["it has no digest", "Pin it", "skopeo inspect"]),
        ([pinned], ["skopeo is not on this computer", "sudo apt install skopeo"]),
        (["No Name"], ["neither a file that is there, nor the name of an image"]),
        ([other], ["no archive of an image", "docker save NAME:TAG --output other.tar"]),
        ([str(tmp_path / "gone.tar")], ["gone.tar: there is no such file"]),
        ([zstd], ["compressed by zstd"]),
        ([nameless], ["has no name: save it by its name"]),
    ]
    for images, words in cases:
        said = bundled(bundle, *images)
        assert said.get("failed") and all(word in said["msg"] for word in words), (images, said)
        assert [path for path in bundle.iterdir() if path.name.startswith(".")] == []


PLAY = """\
- hosts: server
  gather_facts: false
  tasks:
    - COLLECTION.image_blobs:
        source: "{{ bundle }}/images"
        path: "{{ board }}"
        layout: directory
        blobs: "{{ blobs }}"
        lock: "{{ ansible_facts.run_lock_path | default(omit) }}"
      register: sent
    - ansible.builtin.debug: {msg: "sent {{ sent.sent }} bytes, changed {{ sent.changed }}."}
"""


def test_link_that_was_cut_costs_only_the_last_piece(tmp_path: Path, bundle: Path) -> None:
    image = docker_archive(tmp_path / "app.tar", NAME, [BASE, FIRST])
    (entry,) = bundled(bundle, image)["images"]
    blobs = user_images.blobs([entry], manifests=True)
    total, board = sum(blob["size"] for blob in blobs), tmp_path / "board"
    cut_at, base = 40_000, entry["layers"][0]["digest"][7:]
    (board / "partial").mkdir(parents=True)
    content = (bundle / "images" / base).read_bytes()
    (board / "partial" / base).write_bytes(content[:cut_at])
    (board / "partial/of-another-image").touch()
    # The last piece had come, and nobody has compared the digest.
    first = entry["layers"][1]["digest"][7:]
    (board / "partial" / first).write_bytes((bundle / "images" / first).read_bytes())
    there = cut_at + (bundle / "images" / first).stat().st_size
    variables = {"bundle": str(bundle), "board": str(board), "blobs": blobs}
    play = PLAY.replace("COLLECTION", COLLECTION)
    assert f"sent {total - there} bytes, changed True." in play_text(tmp_path, play, variables=variables).said
    assert {path.name for path in board.iterdir()} - {"partial"} == files(bundle)
    for name in files(bundle):
        assert (board / name).read_bytes() == (bundle / "images" / name).read_bytes()
    assert list((board / "partial").iterdir()) == []
    assert "sent 0 bytes, changed False." in play_text(tmp_path, play, variables=variables).said
    (board / base).unlink()
    assert "changed True." in play_text(tmp_path, play, "--check", variables=variables).said
    assert not (board / base).exists()


LOCKED = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: COLLECTION.run_lock}
    - ansible.builtin.copy:
        content: "{{ lock }}"
        dest: "{{ __run_lock_path }}"
      when: lock is defined
"""


def test_lock_is_renewed_while_layers_are_sent(tmp_path: Path, bundle: Path) -> None:
    (entry,) = bundled(bundle, docker_archive(tmp_path / "app.tar", NAME, [BASE]))["images"]
    board, path = tmp_path / "board", tmp_path / "lock/lock.json"
    variables: Data = {"bundle": str(bundle), "board": str(board)}
    variables |= {"blobs": user_images.blobs([entry], manifests=True)}
    variables |= {"__run_lock_path": str(path), "__run_lock_uploads": str(tmp_path), "__run_lock_seconds": 60}
    play = (LOCKED + PLAY.partition("  tasks:\n")[2]).replace("COLLECTION", COLLECTION)
    # The lock had expired, and another run has the board.
    other: Data = {"who": "bert@ops2", "playbook": "upgrade.yml", "controller": "ops2", "process": "4712:200"}
    other |= {"since": "2026-11-22 10:50 UTC", "until": time.monotonic() + 60}
    ran = play_text(tmp_path, play, variables=variables | {"lock": other}, fails=True)
    assert "bert@ops2 has run upgrade.yml on this board since this run has checked it." in ran.said
    assert not [path for path in board.rglob("*") if path.is_file()]
    path.unlink()
    play_text(tmp_path, play, variables=variables)
    assert json.loads(path.read_text())["until"] > time.monotonic() + 3000
    assert {path.name for path in board.iterdir()} - {"partial"} == files(bundle)


def test_damaged_part_is_removed_and_named(tmp_path: Path) -> None:
    store, content = image_store.Blobs(str(tmp_path), image_store.REGISTRY), b"content"
    blob = Blob(digest_of(content), len(content))
    assert store.append(blob, 0, io.BytesIO(b"cont")) == 4
    assert store.lacking([blob]) == {blob.digest: 4}
    with pytest.raises(image_store.StoreError, match="another run sends the same image"):
        store.append(blob, 5, io.BytesIO(b"nt"))
    with pytest.raises(image_store.StoreError, match=r"has the SHA-256 .* Check the disk and the memory"):
        store.append(blob, 4, io.BytesIO(b"xxx"))
    assert store.lacking([blob]) == {blob.digest: 0}
    store.append(blob, 0, io.BytesIO(content))
    assert store.lacking([blob]) == {}
    assert Path(image_store.registry_blob(str(tmp_path), blob.digest)).read_bytes() == content


def test_pieces_follow_the_link() -> None:
    assert sending.next_size(4_000_000, 30) == sending.SMALLEST
    assert sending.next_size(4_000_000, 4) == 15_000_000
    assert sending.next_size(4_000_000, 0.0) == sending.LARGEST
    blobs = [{"digest": name, "size": 10} for name in ("a", "b", "c")]
    assert [one.digest for one in sending.order(blobs, {"a": 0, "c": 5})] == ["c", "a"]


def test_registry_gets_images_of_blobs_and_keeps_what_the_next_version_needs(
    tmp_path: Path, bundle: Path
) -> None:
    first = docker_archive(tmp_path / "first.tar", NAME, [BASE, FIRST])
    second = docker_archive(tmp_path / "second.tar", NAME, [BASE, SECOND])
    storage = tmp_path / "registry"
    store = image_store.Blobs(str(storage), image_store.REGISTRY)

    def send(entry: Data) -> set[str]:
        blobs = [Blob(one["digest"], one["size"]) for one in user_images.blobs([entry])]
        lacking = store.lacking(blobs)
        for blob in blobs:
            if blob.digest in lacking:
                content = (bundle / "images" / blob.digest[7:]).read_bytes()
                store.append(blob, 0, io.BytesIO(content))
        return set(lacking)

    def registry(entry: Data) -> Data:
        given = {"path": str(storage), "images": [entry["id"]], "described": [entry]}
        return answer("registry_images", given)

    (one,) = bundled(bundle, first)["images"]
    assert registry(one)["missing"] == [one["id"]]
    send(one)
    said = registry(one)
    assert (said["changed"], said["missing"]) == (True, [])
    manifest = registry_images.Store(str(storage)).parts(one["id"])[0]
    assert manifest == one["manifest"]["digest"]

    (two,) = bundled(bundle, second)["images"]
    assert registry(two)["missing"] == [two["id"]]  # and the first version goes
    assert send(two) == {two["config"]["digest"], two["layers"][1]["digest"]}
    assert registry(two)["missing"] == []
    assert not registry(two)["changed"]


IMAGE = {
    "name": "app:1",
    "source": "app.tar.gz",
    "id": "sha256:id",
    "content": "content:app",
    "architecture": "arm64",
    "cuda": "12.6",
    "cuda_arch": "",
    "l4t": "",
    "manifest": {"digest": "sha256:m", "size": 1},
    "config": {"digest": "sha256:c", "size": 2},
    "layers": [{"digest": "sha256:l", "size": 3_000_000_000, "diff_id": "sha256:d"}],
}
OF_REGISTRY = {**IMAGE, "name": "r/b:1", "source": "r/b:1@sha256:x", "id": "sha256:b", "content": "content:b"}
AMD64 = {**IMAGE, "architecture": "amd64", "id": "sha256:amd64"}
BUNDLE: Data = {
    "indexed": True,
    "path": "/bundle",
    "images": [IMAGE, OF_REGISTRY, AMD64],
    "files": {f"images/{name}": {"error": None} for name in "mcl"},
}
DOCKER: Data = {"images": {}, "contents": {}, "kept": {}}


def facts(docker: Data | None = None, **more: object) -> Data:
    return {"arch": "aarch64", "l4t": "36.4.0", "k3s": {}, "docker": {**DOCKER, **(docker or {})}, **more}


@pytest.mark.parametrize(
    ("board", "setting", "runtime", "lacking", "due"),
    [
        (facts(), [], "docker", [], False),
        (facts(), ["/srv/images/app.tar.gz"], "docker", ["app:1"], True),
        (facts(), ["app.tar.gz", "r/b:1@sha256:x"], "docker", ["app:1", "r/b:1"], True),
        (facts({"images": {"app:1": "sha256:id"}}), ["app.tar.gz"], "docker", [], True),
        (
            facts({"images": {"app:1": "sha256:id"}, "kept": {"bundle_images": ["sha256:id"]}}),
            ["app.tar.gz"],
            "docker",
            [],
            False,
        ),
        (facts({"kept": {"bundle_images": ["sha256:id"]}}), [], "docker", [], True),
        (facts({"images": {"app:1": "sha256:older"}}), ["app.tar.gz"], "docker", ["app:1"], True),
        (facts(), ["app.tar.gz"], "containerd", [], True),
        (facts(), [], "containerd", [], False),
        (facts(k3s={"kept_images": True}), [], "containerd", [], True),
    ],
)
def test_board_gets_the_images_of_its_setting(
    board: Data, setting: list[str], runtime: str, lacking: list[str], due: bool
) -> None:
    planned = user_images.plan(board, BUNDLE, setting, runtime)
    assert ([image["name"] for image in planned["lacking"]], planned["due"]) == (lacking, due)
    assert all(image["architecture"] == "arm64" for image in planned["images"])


@pytest.mark.parametrize(
    ("runtime", "images", "contents"),
    [
        ("docker", {"app:1": "sha256:id"}, {"app:1": "content:app"}),
        ("containerd", {"app:1": "sha256:m"}, {}),
    ],
)
def test_each_engine_knows_an_image_in_its_own_way(runtime: str, images: Data, contents: Data) -> None:
    planned = user_images.plan(facts(), BUNDLE, ["app.tar.gz"], runtime)
    assert planned["bundled"] == {"images": images, "contents": contents}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, False),
        ({"docker": {"kept": {"a.tar.gz": ["x"]}}, "k3s": {}}, False),
        ({"docker": {"kept": {"bundle_images": ["x"]}}}, True),
        ({"docker": {"kept": 7}, "k3s": {"kept_images": True}}, True),
        ({"docker": None, "k3s": "odd"}, False),
    ],
)
def test_role_has_work_only_where_images_were_loaded(given: Data, kept: bool) -> None:
    assert user_images.keeps(given) is kept


LOADED = {"images": {"app:1": "sha256:id"}, "kept": {"bundle_images": ["sha256:id"]}}


@pytest.mark.parametrize(
    ("board", "setting", "runtime", "supplied", "needed"),
    [
        (facts(), ["app.tar.gz"], "docker", False, (3_000_000_002, 3_000_000_002)),
        # The two share their layers, and one after the other is sent.
        (facts(), ["app.tar.gz", "r/b:1@sha256:x"], "docker", False, (3_000_000_002, 3_000_000_002)),
        (facts(), ["app.tar.gz"], "docker", True, (3_000_000_002, 0)),
        (facts(), ["app.tar.gz"], "containerd", False, (3_000_000_002, 3_000_000_002)),
        (facts(), ["app.tar.gz"], "containerd", True, (3_000_000_002, 0)),
        (facts(), [], "containerd", False, (0, 0)),
        (facts(LOADED), ["app.tar.gz"], "docker", False, (0, 0)),
        (facts(LOADED), ["r/b:1@sha256:x"], "docker", False, (0, 0)),
        (facts(k3s={"kept_images": True}), ["app.tar.gz"], "containerd", False, (0, 0)),
    ],
)
def test_first_images_need_space(
    board: Data, setting: list[str], runtime: str, supplied: bool, needed: tuple[int, int]
) -> None:
    space = user_images.space(board, BUNDLE, setting, runtime, supplied)
    assert (space["stored"], space["sent"]) == needed


def test_pull_of_a_large_image_may_take_longer() -> None:
    assert user_images.plan(facts(), BUNDLE, ["app.tar.gz"], "docker")["pull_seconds"] == 3000
    assert user_images.plan(facts(), BUNDLE, [], "docker")["pull_seconds"] == 900


@pytest.mark.parametrize(
    ("board", "bundle", "setting", "found"),
    [
        (facts(), BUNDLE, [], []),
        (facts(), BUNDLE, ["app.tar.gz"], []),
        (facts(), BUNDLE, ["other.tar"], ["bundle-images"]),
        (facts(), {**BUNDLE, "images": [], "indexed": False}, ["app.tar.gz"], ["bundle-images"]),
        (facts(), {**BUNDLE, "images": [AMD64]}, ["app.tar.gz"], ["image-architecture"]),
        (facts(l4t="35.4.1"), BUNDLE, ["app.tar.gz"], ["image-cuda"]),
        (facts(), {**BUNDLE, "files": {}}, ["app.tar.gz"], ["bundle-file"] * 3),
    ],
)
def test_preflight_names_images_that_a_board_cannot_get_or_run(
    board: Data, bundle: Data, setting: list[str], found: list[str]
) -> None:
    assert [one["id"] for one in user_images.findings(board, bundle, setting, "jetson-1")] == found


def test_registry_supplies_what_its_boards_name() -> None:
    hosts: dict[str, Data] = {
        "a": {"image_supply_host": "a", "bundle_images": []},
        "b": {"image_supply_host": "a", "bundle_images": ["app.tar.gz"]},
        "c": {"image_supply_host": "c", "bundle_images": ["r/b:1@sha256:x"]},
    }
    assert [one["id"] for one in user_images.supplied(BUNDLE, hosts, hosts, "a")] == [
        "sha256:amd64",
        "sha256:id",
    ]
    assert user_images.supplied({**BUNDLE, "images": []}, hosts, hosts, "a") == []
    assert user_images.sources(["r/x:1@sha256:y"], hosts, hosts) == [
        "r/x:1@sha256:y",
        f"{Path.cwd()}/app.tar.gz",
        "r/b:1@sha256:x",
    ]


KEPT_LABELS = (
    "io.cri-containerd.image=managed,io.cri-containerd.pinned=pinned,io.github.jetson-k3s.keeps=bundle"
)
# As `ctr images ls` prints them.
LISTED = "\n".join(
    [
        "REF TYPE DIGEST SIZE PLATFORMS LABELS",
        "docker.io/library/app:1 m.v2+json sha256:m 1.2 MiB linux/arm64 io.cri-containerd.image=managed",
        f"docker.io/library/old:1 m.v2+json sha256:o 1.2 MiB linux/arm64 {KEPT_LABELS}",
        "docker.io/rancher/pause:3 index.v1+json sha256:p 1 MiB linux/arm64 io.cri-containerd.pinned=pinned",
        "r/b:1 m.v2+json sha256:older 1 MiB linux/arm64 -",
    ]
)


def test_containerd_pins_images_of_the_setting_and_releases_others() -> None:
    present = containerd_images.listed(LISTED)
    wanted = {"docker.io/library/app:1": "sha256:m", "r/b:1": "sha256:m"}
    assert containerd_kept_images.plan(wanted, present) == (
        ["r/b:1"],
        ["docker.io/library/app:1"],
        ["docker.io/library/old:1"],
    )


@pytest.mark.parametrize(
    ("tags", "removed"),
    [(["app:1"], "app:1"), (["app:1", "mine:1"], "app:1"), ([], "sha256:i"), (["mine:1"], None)],
)
def test_docker_removes_only_the_name_that_was_loaded(tags: list[str], removed: str | None) -> None:
    assert docker_kept_images.removable({"Id": "sha256:i", "RepoTags": tags}, "app:1") == removed


@pytest.mark.parametrize(
    ("present", "has"),
    [([], []), (["base"], ["1"]), (["base", "app"], ["1", "2"]), (["app"], []), (["base", "other"], ["1"])],
)
def test_docker_gets_only_layers_that_it_lacks(present: list[str], has: list[str]) -> None:
    layers = [{"digest": "1", "diff_id": "base"}, {"digest": "2", "diff_id": "app"}]
    assert docker_layers.unneeded([{"layers": layers}], [["x"], present]) == has
    # Another image has the same layers on top of others.
    turned = {"layers": [{"digest": "0", "diff_id": "zero"}, *layers]}
    assert docker_layers.unneeded([{"layers": layers}, turned], [["x"], present]) == []
    sent = user_images.blobs([IMAGE], manifests=True, present=["sha256:l"])
    assert [blob["digest"] for blob in sent] == ["sha256:c", "sha256:m"]


FAKE_ENGINE = """\
#!/bin/sh
cat > "$LOADED"
"""


def test_engine_gets_an_archive_that_both_engines_read(tmp_path: Path, bundle: Path) -> None:
    """SIMULATED docker: it writes the archive that it gets into a file."""
    image = docker_archive(tmp_path / "app.tar", "app:1", [BASE, FIRST])
    entries = bundled(bundle, image)["images"]
    blobs, program, out = tmp_path / "blobs", tmp_path / "bin/docker", tmp_path / "loaded.tar"
    program.parent.mkdir()
    program.write_text(FAKE_ENGINE)
    program.chmod(0o755)
    (bundle / "images").rename(blobs)
    given = {"path": str(blobs), "images": entries, "engine": "docker"}
    said = answer("loaded_images", given, PATH=f"{program.parent}:/usr/bin:/bin", LOADED=str(out))
    assert (said["loaded"], blobs.exists()) == (["app:1"], False), said
    (found,) = image_archive.read(str(out))
    assert (found.id, found.names) == (entries[0]["id"], ("app:1",))
    with tarfile.open(out) as tar:
        index = json.loads((tar.extractfile("index.json") or io.BytesIO()).read())
    (described,) = index["manifests"]
    assert described["digest"] == entries[0]["manifest"]["digest"]
    assert described["annotations"] == {"io.containerd.image.name": "docker.io/library/app:1"}


ROLE = """\
- hosts: k3s_cluster
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ given }}", cacheable: true}
    - COLLECTION.bundle_info: {path: "{{ bundle }}"}
      register: preflight_bundle_info
    - ansible.builtin.include_role: {name: COLLECTION.user_images}
"""
DOCKER_PROGRAM = """\
#!/bin/sh
echo "$*" >> "$SAID"
case "$1 $2" in
    load*) cat > /dev/null; touch "$SAID.loaded" ;;
    'image inspect') [ -e "$SAID.loaded" ] && echo sha256:id ;;
esac
"""


def test_role_sends_loads_and_keeps_what_docker_lacks(tmp_path: Path, bundle: Path) -> None:
    """SIMULATED docker: it has an image once it has loaded one."""
    bundled(bundle, docker_archive(tmp_path / "app.tar", "app:1", [BASE, FIRST]))
    (bundle / "bundle.yml").write_text("{version: 1, k3s_version: v1, plugin_image: a, pause_image: b}")
    (bundle / "SHA256SUMS").write_text(checksums(bundle))
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(DOCKER_PROGRAM)
    program.chmod(0o755)
    given = facts({"running": True})
    run = play_text(
        tmp_path,
        ROLE.replace("COLLECTION", COLLECTION),
        groups={"k3s_cluster": {"jetson-1": {"given": given}}},
        variables={
            "bundle": str(bundle),
            "bundle_images": ["elsewhere/app.tar"],
            "__user_images_directory": str(tmp_path / "blobs"),
        },
        PATH=f"{program.parent}:{os.environ['PATH']}",
        SAID=str(tmp_path / "said"),
    )
    said = (tmp_path / "said").read_text().splitlines()
    kept = "create --label=io.github.jetson-k3s.keeps=bundle_images --network=none app:1 kept"
    assert [line for line in said if line.startswith(("load", "create"))] == ["load", kept], run.stdout
    assert not (tmp_path / "blobs").exists()
