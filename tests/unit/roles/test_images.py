# SPDX-License-Identifier: Apache-2.0
"""Container images: what a registry is filled with, what a board pulls, and how each store knows an image."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab import archive
from tests.unit.roles.loading import Data, load

filling = load("image_supply/library/registry_images.py")
pulling = load("image_supply/library/supplied_images.py")
image_content = load("image_content/module_utils/image_content.py")

Archive = Sequence[tuple[str, bytes | str]]
LAYER, OTHER, THIRD = b"one" * 50_000, b"another" * 50_000, b"third" * 50_000


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(name: str) -> bytes:
    """An image's configuration; its digest is the image's id."""
    return json.dumps({"name": name}).encode()


def write(path: Path, members: Archive) -> Path:
    """Write a gzipped tar; a text is where a symbolic link leads to."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def manifest(*entries: tuple[str, Sequence[str]]) -> tuple[str, bytes]:
    listed = [
        {"Config": name, "RepoTags": [f"{number}:1"], "Layers": list(layers)}
        for number, (name, layers) in enumerate(entries)
    ]
    return "manifest.json", json.dumps(listed).encode()


def named(name: str) -> str:
    """The file of a configuration up to Docker 24."""
    return f"{digest_of(config_of(name)).partition(':')[2]}.json"


def blob(content: bytes) -> str:
    """A file of an archive since Docker 25."""
    return f"blobs/sha256/{digest_of(content).partition(':')[2]}"


def old_archive(path: Path) -> Path:
    """Two images with a layer of both, as Docker 24 writes them: the second has a link to it."""
    return write(
        path,
        [
            ("a/layer.tar", LAYER),
            ("b/layer.tar", "../a/layer.tar"),
            ("c/layer.tar", OTHER),
            (named("a"), config_of("a")),
            (named("b"), config_of("b")),
            manifest((named("a"), ["a/layer.tar"]), (named("b"), ["b/layer.tar", "c/layer.tar"])),
        ],
    )


def new_archive(path: Path) -> Path:
    """An image as Docker 25 writes it, with its layer gzipped already."""
    packed = gzip.compress(THIRD, mtime=0)
    return write(
        path,
        [
            (blob(packed), packed),
            (blob(config_of("c")), config_of("c")),
            manifest((blob(config_of("c")), [blob(packed)])),
        ],
    )


def image(name: str) -> str:
    return digest_of(config_of(name))


def layers(store: Any, name: str) -> list[bytes]:
    """What an image of the store is unpacked from, every file as its digest says."""
    revision, kept, *packed = store.parts(image(name))
    contents = [Path(store.blob(part)).read_bytes() for part in (revision, kept, *packed)]
    assert [digest_of(content) for content in contents] == [revision, kept, *packed]
    assert contents[1] == config_of(name)
    return [gzip.decompress(content) for content in contents[2:]]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with three images of two archives."""
    made = filling.Store(str(tmp_path / "store"))
    filling.fill(made, str(old_archive(tmp_path / "old.tar.gz")), [image("a"), image("b")])
    filling.fill(made, str(new_archive(tmp_path / "new.tar.gz")), [image("c")])
    return made


def test_images_of_archives_of_every_docker_are_there(store: Any) -> None:
    assert layers(store, "a") == [LAYER]
    assert layers(store, "b") == [LAYER, OTHER]
    assert layers(store, "c") == [THIRD]


def test_layer_is_removed_once_no_image_needs_it(store: Any) -> None:
    gone = store.others([image("b")])
    assert {Path(path).name for path in gone} == {
        part.partition(":")[2] for name in "ac" for part in store.parts(image(name))
    } - {part.partition(":")[2] for part in store.parts(image("b"))} | {
        image(name).partition(":")[2] for name in "ac"
    }


@pytest.mark.parametrize("damage", ["cut short", "gone", "another image", "no JSON"])
def test_incomplete_image_is_missing_and_is_filled_again(store: Any, tmp_path: Path, damage: str) -> None:
    revision, _, layer = store.parts(image("a"))
    tag = Path(store.tags) / image("a").partition(":")[2] / "current/link"
    if damage == "cut short":
        Path(store.blob(layer)).write_bytes(b"")
    elif damage == "gone":
        Path(store.blob(layer)).unlink()
    elif damage == "another image":
        tag.write_text(store.parts(image("c"))[0])
    else:
        Path(store.blob(revision)).write_bytes(b"")
    assert store.parts(image("a")) == []
    assert image("a").partition(":")[2] in {
        Path(path).name for path in store.others([image("a"), image("c")])
    }
    filling.fill(store, str(tmp_path / "old.tar.gz"), [image("a")])
    assert layers(store, "a") == [LAYER]
    assert store.parts(image("a"))[0] == revision


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a", b"")], "no manifest.json"),
        ([(named("a"), config_of("a")), manifest((named("a"), ["gone"]))], "it lacks gone"),
        ([("l", LAYER), (named("a"), config_of("b")), manifest((named("a"), ["l"]))], "has the SHA-256"),
    ],
)
def test_inconsistent_archive_is_refused(tmp_path: Path, members: Archive, words: str) -> None:
    made = filling.Store(str(tmp_path / "store"))
    with pytest.raises(filling.ImageError, match=words):
        filling.fill(made, str(write(tmp_path / "a.tar.gz", members)), [image("a")])
    assert made.parts(image("a")) == []


# Ids of the image A in the containerd image store: its manifest of `docker load`, and that of the registry.
LOADED_A, MANIFEST_A = "sha256:loaded", "sha256:pulled"
# What the configuration of each image says.
LIKE = {LOADED_A: f"sha256:{'a' * 64}", MANIFEST_A: f"sha256:{'a' * 64}"}


class Engine:
    """SIMULATED: the answers of the docker command. `registry` is what a pull of each name would bring."""

    def __init__(self, there: Mapping[str, str], registry: Mapping[str, str]) -> None:
        self.there, self.registry = dict(there), registry
        self.ran: list[str] = []

    def run(self, argv: list[str], check_rc: bool = False) -> tuple[int, str, str]:
        command = argv[2:] if argv[0] == "timeout" else argv
        self.ran.append(" ".join(command[1:]))
        match command[1:]:
            case ["image", "inspect", name]:
                known = self.there.get(name, name if name in self.there.values() else None)
                described = [{"Id": known, "Config": {"User": LIKE.get(str(known), known)}}]
                return (0, json.dumps(described), "") if known else (1, "", "No such image")
            case ["pull", name]:
                if name not in self.registry:
                    return 1, "", "manifest unknown\n"
                self.there[name] = self.registry[name]
            case ["tag", found, name]:
                self.there[name] = self.there.get(found, found)
            case ["image", "rm", name]:
                del self.there[name]
        return 0, "", ""


REGISTRY = "192.168.1.12:5443"
FROM_A, FROM_B = (f"{REGISTRY}/jetson-k3s:{letter * 64}" for letter in "ab")
ID_A, ID_B = (f"sha256:{letter * 64}" for letter in "ab")


@pytest.mark.parametrize(
    ("there", "registry", "outcome", "afterwards"),
    [
        ({}, {FROM_A: ID_A, FROM_B: ID_B}, (True, "", None), {"x:1": ID_A, "y:1": ID_B}),
        ({"x:1": ID_A, "y:1": ID_B}, {}, (False, "", None), {"x:1": ID_A, "y:1": ID_B}),
        ({"x:1": ID_B}, {FROM_A: ID_A, FROM_B: ID_B}, (True, "", None), {"x:1": ID_A, "y:1": ID_B}),
        ({"x:1": ID_A}, {}, (False, "manifest unknown", None), {"x:1": ID_A}),
        (
            {"y:1": ID_B},
            {FROM_A: ID_B},
            (False, "", {"name": "x:1", "expected": ID_A, "found": ID_B}),
            {"y:1": ID_B},
        ),
    ],
    ids=["none", "all", "older", "not in the registry", "wrong"],
)
def test_board_pulls_missing_images_only(
    there: dict[str, str],
    registry: dict[str, str],
    outcome: tuple[bool, str, dict[str, str] | None],
    afterwards: dict[str, str],
) -> None:
    engine = Engine(there, registry)
    said = pulling.supply(pulling.Docker(engine.run), REGISTRY, {"x:1": ID_A, "y:1": ID_B}, {})
    assert said == outcome
    assert engine.there == afterwards
    if there == afterwards and not outcome[1] and not outcome[2]:
        assert not any(command.startswith("pull") for command in engine.ran)


def test_image_that_is_there_under_another_name_is_not_pulled() -> None:
    engine = Engine({"x:0": ID_A}, {})
    assert pulling.supply(pulling.Docker(engine.run), REGISTRY, {"x:1": ID_A}, {}) == (True, "", None)
    assert engine.there == {"x:0": ID_A, "x:1": ID_A}


@pytest.mark.parametrize(
    ("there", "brought", "pulls", "wrong"),
    [
        ({}, MANIFEST_A, 1, None),
        ({"x:1": LOADED_A}, "", 0, None),
        ({"x:1": ID_B}, MANIFEST_A, 1, None),
        ({}, ID_B, 1, ID_B),
    ],
    ids=["none", "loaded from an archive", "older", "wrong"],
)
def test_image_ids_of_the_containerd_store_are_known(
    there: dict[str, str], brought: str, pulls: int, wrong: str | None
) -> None:
    engine = Engine(there, {FROM_A: brought})
    contents = {"x:1": image_content.content_of_config({"config": {"User": ID_A}})}
    _, reason, found = pulling.supply(pulling.Docker(engine.run), REGISTRY, {"x:1": ID_A}, contents)
    assert (reason, found and found["found"]) == ("", wrong)
    assert sum(command.startswith("pull") for command in engine.ran) == pulls
    assert engine.there == ({} if wrong else {"x:1": brought or LOADED_A})


def test_pull_has_a_limit() -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["timeout", "900"]
        return 124, "", ""

    assert pulling.Docker(run).pull("x") == "not within 900 s"


archives = load("preflight/module_utils/bundle_archive.py")

CONFIG = {"Entrypoint": ["/pause"], "Env": ["A=1"], "Labels": {"made": "here"}}
# Empty settings of an image: Docker 28.5 names these for the containerd image store, Docker 29 none.
CONTAINERD_STORE: Data = {"Cmd": None, "OnBuild": None, "User": "", "Volumes": None, "WorkingDir": ""}
# Docker 20.10, of its own store.
OWN_STORE = CONTAINERD_STORE | {"Hostname": "", "Image": "", "Tty": False}


@pytest.fixture
def archived(tmp_path: Path) -> tuple[str, str]:
    """The id and the identity of an image in an archive."""
    archive.write(tmp_path / "x.tar.gz", ["docker.io/a:1"], "arm64", CONFIG, {"/pause": b"program"})
    found: dict[str, tuple[str, str]] = archives.archived_images(str(tmp_path / "x.tar.gz"))
    return found["a:1"]


@pytest.mark.parametrize("told", [OWN_STORE, CONTAINERD_STORE, {}], ids=["20.10", "28.5", "29"])
@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"Id": "sha256:of-another-manifest", "Created": "2026-01-01T00:00:00Z"}, True),
        ({"Architecture": "amd64"}, False),
        ({"RootFS": {"Layers": []}}, False),
        ({"RootFS": {"Layers": ["sha256:other"]}}, False),
        ({"Config": CONFIG | {"Env": ["A=2"]}}, False),
        ({"Config": CONFIG | {"User": "root"}}, False),
    ],
    ids=["same", "another manifest", "architecture", "no layer", "layer", "environment", "user"],
)
def test_image_is_known_in_each_store(
    tmp_path: Path, archived: tuple[str, str], told: Data, changed: Data, same: bool
) -> None:
    documents = archives.documents(str(tmp_path / "x.tar.gz"))
    layers = archives.json.loads(documents[f"{archived[0].partition(':')[2]}.json"])["rootfs"]["diff_ids"]
    inspected: Data = {
        "Id": archived[0],
        "RepoTags": ["a:1", "b:1"],
        "Os": "linux",
        "Architecture": "arm64",
        "RootFS": {"Type": "layers", "Layers": layers},
        "Config": CONFIG,
    } | changed
    inspected["Config"] = told | changed.get("Config", CONFIG)
    found = image_content.contents_by_name([inspected])
    assert [found[name] == archived[1] for name in ("a:1", "b:1")] == [same, same]
