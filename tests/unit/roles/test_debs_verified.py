# SPDX-License-Identifier: Apache-2.0
"""Packages that a board collects for the bundle: taken if a signed index lists them, refused otherwise."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.roles.places import Data
from tests.unit.roles.playing import answer, play, write_inventory
from tests.unit.roles.signed_debs import (
    DEBS,
    EXPIRED,
    FOR_ALL,
    INDEX,
    OTHER,
    OWNER,
    SOURCE,
    THEN,
    Deb,
    Files,
    Keys,
    board_archive,
    files_of,
    index_of,
    made_keys,
    release_of,
    source_of,
    write_archive,
)

IN_RELEASE = f"{SOURCE}/InRelease"
PACKAGES = f"{SOURCE}/{INDEX.replace('/', '_')}"
DOCKER, RUNC = DEBS
EVIL = Deb("docker.io", "20.10-0ubuntu1", content=b"hostile code")
KEPT = b"the packages of the last run"


@pytest.fixture(scope="module")
def keys() -> Iterator[Keys]:
    with made_keys() as made:
        yield made


def take(place: Path, keys: Keys, files: Files, *members: tarfile.TarInfo, **settings: object) -> Data:
    """What the controller says of an archive of these files."""
    asked: Data = {
        "archive": str(write_archive(place / "packages.tar", files, *members)),
        "path": str(place / "bundle/debs-jetpack6-amd64.tar"),
        "keyrings": [str(keys.keyring(OWNER))],
        "architecture": "amd64",
        "codename": "jammy",
    }
    return answer("debs_verified", asked | settings)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a bundle that has packages."""
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/debs-jetpack6-amd64.tar").write_bytes(KEPT)
    return tmp_path


def packed(place: Path) -> Files:
    """The packages of the bundle, in the order of the archive."""
    with tarfile.open(place / "bundle/debs-jetpack6-amd64.tar") as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
        return found


def assert_kept(place: Path) -> None:
    (file,) = (place / "bundle").iterdir()
    assert file.read_bytes() == KEPT


def test_packages_of_a_signed_index_are_taken_without_the_index(keys: Keys, place: Path) -> None:
    debs = (*DEBS, FOR_ALL)
    said = take(place, keys, board_archive(keys, *debs))
    assert said.get("packages") == sorted(files_of(*debs)), said
    assert packed(place) == files_of(*debs)
    assert list(packed(place)) == sorted(files_of(*debs))
    assert len(list((place / "bundle").iterdir())) == 1


def test_one_known_signer_of_several_is_enough(keys: Keys, place: Path) -> None:
    index = index_of(*DEBS)
    assert "packages" in take(place, keys, files_of(*DEBS) | source_of(keys, index, OTHER, OWNER))


def test_signature_beside_the_release_is_enough(keys: Keys, place: Path) -> None:
    text = release_of(index_of(*DEBS))
    files = board_archive(keys, *DEBS) | {
        f"{SOURCE}/Release": text.encode(),
        f"{SOURCE}/Release.gpg": keys.detached(text, OWNER),
    }
    del files[IN_RELEASE]
    assert "packages" in take(place, keys, files)
    files[f"{SOURCE}/Release"] += b"\n"
    said = take(place, keys, files)
    assert "its signature is not of this text" in said["msg"]


def test_source_without_a_trusted_key_does_not_matter_if_another_lists_the_package(
    keys: Keys, place: Path
) -> None:
    files = board_archive(keys, *DEBS) | source_of(keys, index_of(*DEBS), OTHER, source="a_mirror")
    assert "packages" in take(place, keys, files)


Lie = Callable[[Keys], Files]


def with_index(debs: tuple[Deb, ...], index: str, *users: str, **fields: str) -> Lie:
    return lambda keys: files_of(*debs) | source_of(keys, index, *users, **fields)


def changed(name: str, change: Callable[[bytes], bytes]) -> Lie:
    def files(keys: Keys) -> Files:
        honest = board_archive(keys, *DEBS)
        return honest | {name: change(honest[name])}

    return files


def without(name: str) -> Lie:
    return lambda keys: {one: text for one, text in board_archive(keys, *DEBS).items() if one != name}


def renamed(name: str) -> Lie:
    return lambda keys: without(DOCKER.file_name)(keys) | {name: DOCKER.content}


def more(name: str) -> Lie:
    return lambda keys: board_archive(keys, *DEBS) | {name: b"hostile"}


def signed_by_a_key_that_expired(keys: Keys) -> Files:
    signed = keys.clearsigned(release_of(index_of(*DEBS)), EXPIRED, options=THEN)
    return board_archive(keys, *DEBS) | {IN_RELEASE: signed}


def signed_with_sha1(keys: Keys) -> Files:
    weak = ("--digest-algo", "SHA1", "--allow-weak-digest-algos")
    return board_archive(keys, *DEBS) | {
        IN_RELEASE: keys.clearsigned(release_of(index_of(*DEBS)), OWNER, options=weak)
    }


def with_a_signature_of_another_text(*form: str) -> Lie:
    """Beside the board's own Release, a text that the owner has signed, with its signature."""

    def files(keys: Keys) -> Files:
        index = index_of(EVIL)
        text = release_of(index_of(*DEBS)).encode()
        return files_of(EVIL) | {
            f"{SOURCE}/Release": release_of(index).encode(),
            f"{SOURCE}/Release.gpg": keys.gpg("--local-user", OWNER, *form, data=text),
            PACKAGES: index.encode(),
        }

    return files


def with_a_text_before_the_signed_one(keys: Keys) -> Files:
    index = index_of(EVIL)
    honest = board_archive(keys, *DEBS)
    return honest | {
        EVIL.file_name: EVIL.content,
        IN_RELEASE: release_of(index).encode() + honest[IN_RELEASE],
        PACKAGES: index.encode(),
    }


AGO = (datetime.now(UTC) - timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S UTC")
LISTED_AS_OTHER = DOCKER.listed.replace("Package: docker.io", "Package: docker-other")
LISTED_LARGER = DOCKER.listed.replace(f"Size: {len(DOCKER.content)}", "Size: 12")
LIES: dict[str, tuple[Lie, str]] = {
    "a package of its own": (
        lambda keys: board_archive(keys, *DEBS) | {"evil_1_amd64.deb": b"evil"},
        "evil_1_amd64.deb: no trusted index lists this content. They were changed, or are of no package",
    ),
    "a changed package": (
        changed(DOCKER.file_name, lambda _: EVIL.content),
        f"{DOCKER.file_name}: no trusted index lists this content",
    ),
    "a changed index": (
        lambda keys: board_archive(keys, *DEBS)
        | {EVIL.file_name: EVIL.content, PACKAGES: index_of(EVIL, RUNC).encode()},
        f"{SOURCE}: its main_binary-amd64_Packages is not the index that its signed Release lists",
    ),
    "a changed release": (
        changed(IN_RELEASE, lambda text: text.replace(b"Suite: jammy-updates", b"Suite: jammy-security")),
        f"{SOURCE}: its signature is not of this text",
    ),
    "a text before the signed one": (with_a_text_before_the_signed_one, "InRelease is not one signed text"),
    "two signed texts": (
        changed(IN_RELEASE, lambda text: text + text),
        "its InRelease is not one signed text",
    ),
    "a signature of another text": (with_a_signature_of_another_text("--detach-sign"), "is not of this text"),
    "another signed text": (with_a_signature_of_another_text("--sign"), "gpgv accepts no signature"),
    "another clear-signed text": (
        with_a_signature_of_another_text("--clearsign"),
        "gpgv accepts no signature",
    ),
    "an index that another key has signed": (
        with_index((EVIL,), index_of(EVIL), OTHER),
        "no file of bundle_debs_keyrings has the key KEY_OF_OTHER",
    ),
    "an index that nobody has signed": (without(IN_RELEASE), f"{SOURCE}: it is not signed"),
    "no index": (lambda _: files_of(*DEBS), "no trusted index lists this content"),
    "no package": (lambda keys: source_of(keys, index_of(*DEBS)), "has put no package into the archive"),
    "an expired index": (
        with_index(DEBS, index_of(*DEBS), **{"Valid-Until": AGO}),
        f"{SOURCE}: it has expired on {AGO}",
    ),
    "an index of another Ubuntu": (
        with_index(DEBS, index_of(*DEBS), Codename="trusty"),
        f"{SOURCE}: it is of Ubuntu's trusty, and boards of this JetPack have jammy",
    ),
    "an expired key": (signed_by_a_key_that_expired, "has expired. Replace the key in bundle_debs_keyrings"),
    "a weak signature": (signed_with_sha1, "is made with SHA-1"),
    "a package under the name of another": (
        with_index((DOCKER,), LISTED_AS_OTHER),
        f"{DOCKER.file_name} of 11 bytes is docker-other_20.10-0ubuntu1_amd64.deb of 11 bytes",
    ),
    "a package under another version": (
        renamed("docker.io_99_amd64.deb"),
        "docker.io_99_amd64.deb of 11 bytes is docker.io_20.10-0ubuntu1_amd64.deb",
    ),
    "a package of another size": (with_index((DOCKER,), LISTED_LARGER), "of 12 bytes in the signed index"),
    "a package for another architecture": (
        lambda keys: board_archive(keys, Deb("docker.io", architecture="arm64")),
        "docker.io_1.0-1_arm64.deb is for arm64, and boards have amd64",
    ),
    "a file that is no package": (more("postinst"), "'postinst' into the archive, which is neither"),
    "a path": (more("/etc/cron.d/evil_1_amd64.deb"), "'/etc/cron.d/evil_1_amd64.deb'"),
    "a path upwards": (more("../evil_1_amd64.deb"), "'../evil_1_amd64.deb'"),
    "a name with an escape sequence": (more("\x1b]0;evil_1_amd64.deb"), r"'\x1b]0;evil_1_amd64.deb'"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lie_of_a_board_is_refused_and_the_bundle_keeps_its_packages(
    keys: Keys, place: Path, lie: str
) -> None:
    make, words = LIES[lie]
    said = take(place, keys, make(keys), keyrings=[str(keys.keyring(user)) for user in (OWNER, EXPIRED)])
    assert said.get("failed"), said
    assert words.replace("KEY_OF_OTHER", keys.key_id(OTHER)) in said["msg"]
    assert said["msg"].startswith("The packages were not taken, and the bundle has kept its own files. ")
    assert_kept(place)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_member_that_is_no_file_is_refused(keys: Keys, place: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("link_1_amd64.deb")
    member.type, member.linkname = kind, "/etc/shadow"
    said = take(place, keys, board_archive(keys, *DEBS), member)
    assert "'link_1_amd64.deb' into the archive, which is neither" in said["msg"]
    assert_kept(place)


def test_package_that_is_there_twice_is_refused(keys: Keys, place: Path) -> None:
    member = tarfile.TarInfo(DOCKER.file_name)
    said = take(place, keys, board_archive(keys, *DEBS), member)
    assert f"{DOCKER.file_name} into the archive twice" in said["msg"]
    assert_kept(place)


def test_file_that_is_too_large_is_not_read(keys: Keys, place: Path) -> None:
    member = tarfile.TarInfo("huge/InRelease")
    member.size = 1 << 40
    said = take(place, keys, board_archive(keys, *DEBS), member)
    assert "huge/InRelease has 1099511627776 bytes" in said["msg"]
    assert_kept(place)


def test_archive_that_is_cut_off_is_refused(keys: Keys, place: Path) -> None:
    asked = {
        "archive": str(write_archive(place / "packages.tar", board_archive(keys, *DEBS))),
        "path": str(place / "bundle/debs-jetpack6-amd64.tar"),
        "keyrings": [str(keys.keyring(OWNER))],
        "architecture": "amd64",
        "codename": "jammy",
    }
    (place / "packages.tar").write_bytes((place / "packages.tar").read_bytes()[:515])
    said = answer("debs_verified", asked)
    assert "cannot be read" in said["msg"]
    assert_kept(place)


def test_armored_keyring_is_named_with_the_command_that_converts_it(keys: Keys, place: Path) -> None:
    armored = place / "vendor.asc"
    armored.write_bytes(keys.gpg("--armor", "--export", OWNER))
    said = take(place, keys, board_archive(keys, *DEBS), keyrings=[str(armored)])
    assert f"`gpg --dearmor --output KEYRING.gpg {armored}`" in said["msg"]
    assert_kept(place)


# Before anything is collected


@pytest.mark.parametrize(
    ("keyrings", "path", "words"),
    [
        (["OWNER", "HERE/vendor.gpg"], None, "bundle_debs_keyrings: HERE/vendor.gpg is not there. Correct"),
        ([], None, "bundle_debs_keyrings: no file is named. Correct"),
        (["OWNER"], "HERE", "gpgv is not on this computer, so the packages of jetson-1 cannot be verified"),
    ],
)
def test_missing_keyring_or_gpgv_is_named_before_a_board_is_asked(
    keys: Keys, tmp_path: Path, keyrings: list[str], path: str | None, words: str
) -> None:
    (tmp_path / "plugin.tar.gz").touch()

    def here(text: str) -> str:
        return text.replace("HERE", str(tmp_path)).replace("OWNER", str(keys.keyring(OWNER)))

    settings = {
        "jetson_k3s_bundle": here("HERE/bundle"),
        "bundle_plugin_archive": here("HERE/plugin.tar.gz"),
        "bundle_debs_from": "jetson-1",
        "bundle_debs_keyrings": [here(name) for name in keyrings],
    }
    inventory = write_inventory(tmp_path, {"k3s_cluster": ["jetson-1"]})
    environment = {"PATH": here(path)} if path else {}
    run = play(inventory, "playbooks/bundle.yml", f"--extra-vars={json.dumps(settings)}", **environment)
    assert run.returncode != 0
    assert here(words) in run.said
    assert not (tmp_path / "bundle").exists()
    assert "jetson_facts" not in run.said


# What a board packs


def build_package(pool: Path, name: str, version: str, depends: str = "") -> Path:
    control = pool / name / "DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: a <a@b.c>\n"
        f"Description: x\n{depends}"
    )
    subprocess.run(["dpkg-deb", "--build", pool / name, pool / f"{name}.deb"], check=True)
    shutil.rmtree(pool / name)
    return pool / f"{name}.deb"


def build_source(keys: Keys, root: Path, user: str, packages: list[Path]) -> str:
    """A package source that apt reads, as a line of sources.list."""
    paragraphs = []
    for path in packages:
        fields = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True, check=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        place = f"Filename: {path.relative_to(root)}\nSize: {path.stat().st_size}\nSHA256: {digest}\n"
        paragraphs.append(fields.stdout + place)
    index = "\n".join(paragraphs)
    suite = root / "dists/jammy"
    (suite / INDEX).parent.mkdir(parents=True)
    (suite / INDEX).write_text(index)
    text = release_of(index, Architectures="amd64", Components="main", Date=AGO)
    (suite / "InRelease").write_bytes(keys.clearsigned(text, user))
    return f"deb [arch=amd64 signed-by={keys.keyring(user)}] copy:{root} jammy main\n"


def test_packages_that_apt_has_downloaded_are_verified(
    keys: Keys, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt, pool = place / "apt", place / "source/pool"
    for name in ("lists/partial", "packages/partial"):
        (apt / name).mkdir(parents=True)
    debs = [
        build_package(pool, "jetson-k3s-a", "2:1.0~rc1", "Depends: jetson-k3s-b\n"),
        build_package(pool, "jetson-k3s-b", "1"),
    ]
    other = [build_package(place / "other/pool", "jetson-k3s-c", "1")]
    lines = [
        build_source(keys, place / "source", OWNER, debs),
        build_source(keys, place / "other", OTHER, other),
    ]
    (apt / "sources.list").write_text("".join(lines))
    (apt / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{apt}/sources.list"; Dir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State::Lists "{apt}/lists"; Dir::State::status "/dev/null"; Dir::Cache "{apt}";\n'
        f'Dir::Cache::archives "{apt}/packages"; Debug::NoLocking "true"; APT::Sandbox::User "root";\n'
        'APT::Architecture "amd64"; Acquire::GzipIndexes "true"; pkgCacheGen::Essential "none";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(apt / "apt.conf"))
    subprocess.run(["apt-get", "--quiet", "update"], check=True)
    subprocess.run(["apt-get", "--quiet", "--yes", "--download-only", "install", "jetson-k3s-a"], check=True)
    asked = {"directory": str(apt / "packages"), "path": str(place / "packages.tar")}
    said = answer("debs_archive", asked)
    (source,) = said["sources"]
    assert source.endswith("_source_dists_jammy")
    settings = {"keyrings": [str(keys.keyring(OWNER))], "architecture": "amd64", "codename": "jammy"}
    places = {"archive": asked["path"], "path": str(place / "bundle/debs-jetpack6-amd64.tar")}
    said = answer("debs_verified", settings | places)
    names = ["jetson-k3s-a_2%3a1.0~rc1_amd64.deb", "jetson-k3s-b_1_amd64.deb"]
    assert said.get("packages") == names, said
    assert list(packed(place).values()) == [path.read_bytes() for path in debs]
