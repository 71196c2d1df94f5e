# SPDX-License-Identifier: Apache-2.0
"""Package sources with real signatures, and archives of packages as a board packs them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.debian import ensure_packages

OWNER, OTHER, EXPIRED = "owner@example.com", "other@example.com", "expired@example.com"
THEN = ("--faked-system-time", "20200101T000000")
SOURCE = "ports.example.com_ubuntu_dists_jammy"
RELEASE = {"Origin": "Ubuntu", "Suite": "jammy-updates", "Codename": "jammy"}
INDEX = "main/binary-amd64/Packages"


Files = dict[str, bytes]


@dataclass(frozen=True)
class Keys:
    """Keys of package sources. `keyrings` has the file of each with its public key."""

    home: Path

    def gpg(self, *arguments: str, data: bytes = b"") -> bytes:
        gpg = ["gpg", "--batch", "--quiet", "--no-permission-warning", "--passphrase", ""]
        environment = os.environ | {"GNUPGHOME": str(self.home)}
        ran = subprocess.run([*gpg, *arguments], input=data, env=environment, capture_output=True, check=True)
        return ran.stdout

    def keyring(self, user: str) -> Path:
        return self.home / f"{user}.gpg"

    def key_id(self, user: str) -> str:
        listed = self.gpg("--with-colons", "--list-keys", user).decode()
        return next(line.split(":")[4] for line in listed.splitlines() if line.startswith("pub:"))

    def clearsigned(self, text: str, *users: str, options: tuple[str, ...] = ()) -> bytes:
        signers = [argument for user in users for argument in ("--local-user", user)]
        return self.gpg(*options, *signers, "--clearsign", data=text.encode())

    def detached(self, text: str, user: str) -> bytes:
        return self.gpg("--local-user", user, "--detach-sign", data=text.encode())


@contextmanager
def made_keys() -> Iterator[Keys]:
    ensure_packages("gpg", "gpg-agent", "gpgv")
    keys = Keys(Path(tempfile.mkdtemp(prefix="gpg-")))  # short: gpg's sockets lie in it
    try:
        for user, options in ((OWNER, ()), (OTHER, ()), (EXPIRED, THEN)):
            expires = "1d" if options else "never"
            keys.gpg(*options, "--quick-generate-key", user, "ed25519", "sign", expires)
            keys.keyring(user).write_bytes(keys.gpg("--export", user))
        yield keys
    finally:
        environment = os.environ | {"GNUPGHOME": str(keys.home)}
        subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=False)
        shutil.rmtree(keys.home, ignore_errors=True)


@dataclass(frozen=True)
class Deb:
    name: str
    version: str = "1.0-1"
    architecture: str = "amd64"
    content: bytes = b"the package"

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    @property
    def listed(self) -> str:
        """Its paragraph in an index."""
        digest = hashlib.sha256(self.content).hexdigest()
        return (
            f"Package: {self.name}\nVersion: {self.version}\nArchitecture: {self.architecture}\n"
            f"Filename: pool/{self.name}.deb\nSize: {len(self.content)}\nSHA256: {digest}\n"
            f"Description: a package\n of several lines\n"
        )


DEBS = (Deb("docker.io", "20.10-0ubuntu1"), Deb("runc", "2:1.1~rc1", content=b"with an epoch"))
FOR_ALL = Deb("docker-doc", "1+dfsg", "all", b"for all architectures")


def index_of(*debs: Deb) -> str:
    return "\n".join(deb.listed for deb in debs)


def release_of(index: str, path: str = INDEX, **fields: str) -> str:
    given = "".join(f"{name}: {value}\n" for name, value in (RELEASE | fields).items())
    digest = hashlib.sha256(index.encode()).hexdigest()
    return f"{given}SHA256:\n {'0' * 64} 7 main/source/Sources.gz\n {digest} {len(index)} {path}\n"


def files_of(*debs: Deb) -> Files:
    return {deb.file_name: deb.content for deb in debs}


def source_of(keys: Keys, index: str, *users: str, source: str = SOURCE, **fields: str) -> Files:
    """The files of a package source as an archive has them."""
    text = release_of(index, **fields)
    return {
        f"{source}/InRelease": keys.clearsigned(text, *(users or (OWNER,))),
        f"{source}/{INDEX.replace('/', '_')}": index.encode(),
    }


def board_archive(keys: Keys, *debs: Deb) -> Files:
    """What an honest board packs, by name."""
    return files_of(*debs) | source_of(keys, index_of(*debs))


def write_archive(path: Path, files: Files, *members: tarfile.TarInfo) -> Path:
    """Write the files, and members without content."""
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path
