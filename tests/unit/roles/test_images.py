# SPDX-License-Identifier: Apache-2.0
"""Container images: what a registry is filled with, what a board pulls, and how each store knows an image."""

import gzip
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_archive as archives
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import image_content, jetson_services
from ansible_collections.jetson_k3s.cluster.plugins.modules import registry_images as filling
from ansible_collections.jetson_k3s.cluster.plugins.modules import supplied_images as pulling

from tests.lab import archive
from tests.unit.roles.places import ROLES, Data
from tests.unit.roles.playing import answer, play_text

Archive = Sequence[tuple[str, bytes | str | None]]
LAYER, OTHER, THIRD = b"one" * 50_000, b"another" * 50_000, b"third" * 50_000


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(name: str) -> bytes:
    """An image's configuration; its digest is the image's id."""
    return json.dumps({"name": name}).encode()


def write(path: Path, members: Archive) -> Path:
    """Write a gzipped tar; a text is where a symbolic link leads to, and None makes a directory."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            elif content is None:
                info.type = tarfile.DIRTYPE
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


def test_manifest_of_an_image_is_the_one_that_docker_reads(store: Any) -> None:
    tag = Path(store.tags) / image("b").partition(":")[2] / "current/link"
    described = json.loads(Path(store.blob(tag.read_text())).read_text())
    assert (described["schemaVersion"], described["config"]["digest"]) == (2, image("b"))
    assert described["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert {layer["mediaType"] for layer in described["layers"]} == {
        "application/vnd.docker.image.rootfs.diff.tar.gzip"
    }
    for part in (described["config"], *described["layers"]):
        link = Path(store.layers) / part["digest"].partition(":")[2] / "link"
        assert link.read_text() == part["digest"]
        assert Path(store.blob(part["digest"])).stat().st_size == part["size"]


def test_only_requested_images_are_taken_from_an_archive(tmp_path: Path) -> None:
    made = filling.Store(str(tmp_path / "store"))
    filling.fill(made, str(old_archive(tmp_path / "old.tar.gz")), [image("a")])
    assert (bool(made.parts(image("a"))), made.parts(image("b"))) == (True, [])
    assert made.others([image("a")]) == []


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
        ([("manifest.json", None)], "manifest.json is not a file"),
        ([(named("a"), config_of("a")), manifest((named("a"), ["gone"]))], "it lacks gone"),
        ([("l", LAYER), (named("a"), config_of("b")), manifest((named("a"), ["l"]))], "has the SHA-256"),
    ],
)
def test_inconsistent_archive_is_refused(tmp_path: Path, members: Archive, words: str) -> None:
    made = filling.Store(str(tmp_path / "store"))
    with pytest.raises(filling.ImageError, match=words):
        filling.fill(made, str(write(tmp_path / "a.tar.gz", members)), [image("a")])
    assert made.parts(image("a")) == []


def test_registry_is_filled_and_cleaned_in_steps(tmp_path: Path) -> None:
    archived = str(old_archive(tmp_path / "old.tar.gz"))
    both = [image("a"), image("b")]
    steps: list[tuple[bool, Data, bool, list[str]]] = [
        # check mode, parameters, changed, missing
        (True, {"images": both}, False, both),
        (True, {"images": both, "archive": archived}, True, both),
        (False, {"images": both}, False, both),
        (False, {"images": both, "archive": archived}, True, []),
        (False, {"images": both, "archive": archived}, False, []),
        (True, {"images": both[:1]}, True, []),
        (False, {"images": both[:1]}, True, []),
        (False, {"images": both}, False, both[1:]),
    ]
    for check, parameters, changed, missing in steps:
        arguments = {"path": str(tmp_path / "store"), "_ansible_check_mode": check, **parameters}
        said = answer("registry_images", arguments)
        assert (said["changed"], said["missing"]) == (changed, missing), (check, parameters)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "store").rglob("data")} == {0o644}


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


DIGEST_A, DIGEST_B = (f"sha256:{letter * 64}" for letter in "cd")
BY_DIGEST = f"{REGISTRY}/jetson-k3s@{DIGEST_A}"
HELP = {"1.6": "--hosts-dir value  Custom hosts configuration directory", "2.1": "--hosts-dir value\n--local"}
PULL = 'exec "$@" > /dev/null'
# As `ctr` writes it: the second line is the reason.
NOT_FOUND = f"time=x level=info msg=next\nctr: failed to resolve reference {BY_DIGEST!r}: not found\n"


class Contained:
    """SIMULATED: the answers of K3s' ctr. `registry` has the digest that a pull of each name brings."""

    def __init__(self, there: Mapping[str, str], registry: Mapping[str, str], version: str = "1.6") -> None:
        self.there, self.registry, self.version = dict(there), registry, version
        self.pulls: list[tuple[list[str], object]] = []

    def run(self, argv: list[str], check_rc: bool = False, **more: object) -> tuple[int, str, str]:
        start = argv.index("k3s")
        assert argv[start : start + 4] == ["k3s", "ctr", "--namespace=k8s.io", "images"]
        match argv[start + 4 :]:
            case ["ls"]:
                rows = [f"{name} type {digest} 1 MiB linux/arm64 -" for name, digest in self.there.items()]
                return 0, "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows]), ""
            case ["pull", "--help"]:
                return 0, HELP[self.version], ""
            case ["pull", *flags, name]:
                self.pulls.append((flags, more["environ_update"]))
                assert argv[:start] == ["sh", "-c", PULL, "sh", "timeout", "900"]
                if name not in self.registry:
                    return 1, "", NOT_FOUND
                self.there[name] = self.registry[name]
            case ["tag", "--force", found, name]:
                assert check_rc
                self.there[name] = self.there[found]
            case ["rm", name]:
                del self.there[name]
        return 0, "", ""


X, Y = "docker.io/library/x:1", "docker.io/library/y:1"


@pytest.mark.parametrize(
    ("there", "registry", "outcome", "afterwards"),
    [
        ({}, {BY_DIGEST: DIGEST_A}, (True, "", None), {X: DIGEST_A}),
        ({X: DIGEST_A}, {}, (False, "", None), {X: DIGEST_A}),
        ({X: DIGEST_B, Y: DIGEST_B}, {BY_DIGEST: DIGEST_A}, (True, "", None), {X: DIGEST_A, Y: DIGEST_B}),
        ({Y: DIGEST_A}, {BY_DIGEST: DIGEST_A}, (True, "", None), {X: DIGEST_A, Y: DIGEST_A}),
        ({X: DIGEST_B}, {}, (False, NOT_FOUND.splitlines()[1], None), {X: DIGEST_B}),
        (
            {},
            {BY_DIGEST: DIGEST_B},
            (False, "", {"name": "x:1", "expected": DIGEST_A, "found": DIGEST_B}),
            {},
        ),
    ],
    ids=["none", "there", "older", "another name", "not in the registry", "wrong"],
)
def test_containerd_pulls_missing_images_by_the_digest_of_their_manifest(
    there: dict[str, str],
    registry: dict[str, str],
    outcome: tuple[bool, str, dict[str, str] | None],
    afterwards: dict[str, str],
) -> None:
    engine = Contained(there, registry)
    assert pulling.supply(pulling.Containerd(engine.run), REGISTRY, {"x:1": DIGEST_A}, {}) == outcome
    assert engine.there == afterwards
    assert len(engine.pulls) == (there.get(X) != DIGEST_A)


@pytest.mark.parametrize(("version", "flags"), [("1.6", []), ("2.1", ["--local"])])
def test_ctr_pulls_with_the_certificate_and_without_a_proxy(version: str, flags: list[str]) -> None:
    engine = Contained({}, {BY_DIGEST: DIGEST_A}, version)
    pulling.supply(pulling.Containerd(engine.run), REGISTRY, {"x:1": DIGEST_A}, {})
    direct = {"NO_PROXY": "192.168.1.12", "no_proxy": "192.168.1.12"}
    assert engine.pulls == [([*flags, "--hosts-dir=/etc/docker/certs.d"], direct)]


FAILS = """\
#!/bin/sh
case "$*" in *"pull --local"*) echo "$NO_PROXY" > "$SAID"; echo "ctr: no space" >&2; exit 1 ;; esac
[ "$5" != --help ] || echo --local
"""


def test_board_says_why_ctr_did_not_pull(tmp_path: Path) -> None:
    """SIMULATED k3s, started by the module itself."""
    program = tmp_path / "bin/k3s"
    program.parent.mkdir()
    program.write_text(FAILS)
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        registry = f"127.0.0.1:{server.getsockname()[1]}"
        given = {"registry": registry, "images": {"x:1": DIGEST_A}, "engine": "containerd"}
        environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "SAID": str(tmp_path / "said")}
        said = answer("supplied_images", given, **environment)
    assert (said["supplied"], said["reason"], said["changed"]) == (False, "ctr: no space", False), said
    assert (tmp_path / "said").read_text() == "127.0.0.1\n"


def test_registry_without_an_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        registry = f"127.0.0.1:{server.getsockname()[1]}"
        assert pulling.unreachable(registry) == ""
    assert pulling.unreachable(registry).startswith(f"{registry} does not answer: ")
    assert "does not answer" in pulling.unreachable("no-port")


def test_facts_have_the_registry_and_the_trusted_ones(tmp_path: Path) -> None:
    for path in ("192.168.1.12:5443/jetson-k3s.crt", "mine:5000/ca.crt"):
        file = tmp_path / "etc/docker/certs.d" / path
        file.parent.mkdir(parents=True)
        file.touch()
    unit = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
    assert jetson_services.image_supply_facts(str(tmp_path), unit, "/usr/bin/docker-registry") == {
        "installed": True,
        "active": True,
        "enabled": True,
        "command": None,
        "program": "/usr/bin/docker-registry",
        "trusted": ["192.168.1.12:5443"],
    }
    assert jetson_services.image_supply_facts(str(tmp_path / "bare"), {}, None)["trusted"] == []


CONFIG = {"Entrypoint": ["/pause"], "Env": ["A=1"], "Labels": {"made": "here"}}
# Empty settings of an image: Docker 28.5 names these for the containerd image store, Docker 29 none.
CONTAINERD_STORE: Data = {"Cmd": None, "OnBuild": None, "User": "", "Volumes": None, "WorkingDir": ""}
# Docker 20.10, of its own store.
OWN_STORE = CONTAINERD_STORE | {"Hostname": "", "Image": "", "Tty": False}


@pytest.fixture
def archived(tmp_path: Path) -> archives.ArchivedImage:
    """The id and the identity of an image in an archive."""
    archive.write(tmp_path / "x.tar.gz", ["docker.io/a:1"], "arm64", CONFIG, {"/pause": b"program"})
    return archives.archived_images(str(tmp_path / "x.tar.gz"))["a:1"]


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
    tmp_path: Path, archived: archives.ArchivedImage, told: Data, changed: Data, same: bool
) -> None:
    documents = archives.documents(str(tmp_path / "x.tar.gz"))
    layers = json.loads(documents[f"{archived.id.partition(':')[2]}.json"])["rootfs"]["diff_ids"]
    inspected: Data = {
        "Id": archived.id,
        "RepoTags": ["a:1", "b:1"],
        "Os": "linux",
        "Architecture": "arm64",
        "RootFS": {"Type": "layers", "Layers": layers},
        "Config": CONFIG,
    } | changed
    inspected["Config"] = told | changed.get("Config", CONFIG)
    found = image_content.contents_by_name([inspected])
    assert [found[name] == archived.content for name in ("a:1", "b:1")] == [same, same]


PLAY = """\
- hosts: server
  gather_facts: false
  vars_files: [VARS]
  vars: {__nvidia_docker_archive: x.tar.gz}
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ {'docker': given} }}", cacheable: true}
    - ansible.builtin.debug: {msg: "lacks {{ __nvidia_docker_lacks | sort | join(',') }}."}
"""
BUNDLED: Data = {
    "images": {"a:1": "sha256:config-a", "b:1": "sha256:config-b"},
    "contents": {"a:1": "content:a", "b:1": "content:b"},
}


def test_only_images_that_docker_lacks_are_loaded(tmp_path: Path) -> None:
    newer = {"a:1": "content:a", "b:1": "content:c"}
    boards: dict[str, tuple[Data, Data, str]] = {
        "bare": ({}, {}, "a:1,b:1"),
        "own-store": (BUNDLED["images"], {}, ""),
        "own-store-older": (BUNDLED["images"] | {"b:1": "sha256:config-c"}, {}, "b:1"),
        "containerd": (dict.fromkeys(BUNDLED["images"], "sha256:m"), BUNDLED["contents"], ""),
        "containerd-older": ({"a:1": "sha256:m"}, newer, "b:1"),
    }
    given = {name: {"images": images, "contents": contents} for name, (images, contents, _) in boards.items()}
    run = play_text(
        tmp_path,
        PLAY.replace("VARS", str(ROLES / "nvidia_docker/vars/main.yml")),
        groups={"server": {name: {"given": facts} for name, facts in given.items()}},
        variables={"preflight_bundle_info": {"files": {"x.tar.gz": BUNDLED}}},
    )
    for name, (_, _, lacks) in boards.items():
        assert f"ok: [{name}] => msg: lacks {lacks}." in run.said
