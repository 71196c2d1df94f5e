#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take the packages of a board for the bundle if signed indexes list them. Runs on the controller."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replacement
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.deb822 import parse_fields
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.signed_index import (
    Package,
    UntrustedError,
    check_form,
    check_package,
    check_release,
    check_signatures,
    listed_indexes,
    listed_packages,
)

DOCUMENTATION = r"""
module: debs_verified
short_description: Packages of a board, verified with the signed indexes of their sources
description:
  - Reads an archive of C(debs_archive), which any board may have written. Each package has to be in an index
    that a key of O(keyrings) has signed, with its SHA-256, size, name, version and architecture.
  - Then writes an archive of the packages alone. If one fails, O(path) stays as it is.
options:
  archive: {type: path, required: true, description: The archive of the board.}
  path: {type: path, required: true, description: The archive to write.}
  keyrings: {type: list, elements: path, required: true, description: 'Trusted keys, not ASCII-armored.'}
  architecture: {required: true, description: That of the boards, such as C(arm64).}
  codename: {required: true, description: 'That of the boards'' Ubuntu, such as C(jammy).'}
"""

RETURN = r"""
packages: {type: list, elements: str, description: Names of the files.}
"""

DEB = re.compile(r"[a-z0-9][a-z0-9+.-]{0,99}_[\w.+~%-]{1,99}_[a-z0-9-]{1,30}[.]deb", re.ASCII)
OF_SOURCE = re.compile(
    r"(?P<source>[\w+%~@][\w.+%~:@,=-]{0,254})/(?P<file>InRelease|Release|Release[.]gpg|[\w.+%~-]{0,199}Packages)",
    re.ASCII,
)
# Far above real ones: Ubuntu's largest index has 60 MB, its Release 0.3 MB, and Docker needs 100 packages.
MAX_FILES = 5000
MAX_BYTES = {"InRelease": 16 << 20, "Release": 16 << 20, "Release.gpg": 1 << 20}
MAX_BYTES_OF_FILE = 512 << 20
MAX_BYTES_OF_ARCHIVE = 2 << 30
BLOCK = 1 << 20
SHOWN = 5
KEPT = "The packages were not taken, and the bundle has kept its own files."
Members = dict[str, tarfile.TarInfo]
Run = Callable[[list[str]], str]


def members(archive: tarfile.TarFile) -> tuple[Members, dict[str, Members]]:
    """(packages by file name, {source: files by name}). UntrustedError if anything else is in the archive."""
    debs: Members = {}
    sources: dict[str, Members] = {}
    for number, member in enumerate(archive, 1):
        of_source = OF_SOURCE.fullmatch(member.name)
        if not (of_source or DEB.fullmatch(member.name)) or not member.isreg() or member.issparse():
            raise UntrustedError(
                "the board has put {!r} into the archive, which is neither a package nor an index".format(
                    member.name[:200]
                )
            )
        place, name = debs, member.name
        if of_source:
            place, name = sources.setdefault(of_source["source"], {}), of_source["file"]
        if name in place:
            raise UntrustedError("the board has put {} into the archive twice".format(member.name))
        limit = MAX_BYTES.get(name, MAX_BYTES_OF_FILE)
        if number > MAX_FILES or member.size > limit:
            raise UntrustedError(
                "{} has {} bytes and is file {} of the archive. The limits are {} bytes and {} files".format(
                    member.name, member.size, number, limit, MAX_FILES
                )
            )
        place[name] = member
    if not debs:
        raise UntrustedError("the board has put no package into the archive")
    return debs, sources


def opened(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """A stream of a file's content."""
    stream = archive.extractfile(member)
    assert stream is not None  # noqa: S101 - members() takes regular files only
    return stream


def content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The content of a small file."""
    with opened(archive, member) as stream:
        return stream.read()


def digest_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Hexadecimal SHA-256 of a file."""
    found = hashlib.sha256()
    with opened(archive, member) as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            found.update(block)
    return found.hexdigest()


def signed_text(archive: tarfile.TarFile, files: Members, keyrings: Iterable[str], run: Run) -> str:
    """The part of a source's InRelease or Release that a trusted key has signed. UntrustedError, OSError."""
    with tempfile.TemporaryDirectory() as directory:
        text, signed, signature = (os.path.join(directory, name) for name in ("text", "signed", "signature"))
        gpgv = [
            "gpgv",
            "--homedir",
            directory,
            "--status-fd",
            "1",
            "--weak-digest",
            "SHA1",
            "--weak-digest",
            "RIPEMD160",
        ]
        gpgv += [argument for path in keyrings for argument in ("--keyring", path)]
        if "InRelease" in files:
            data = content(archive, files["InRelease"])
            check_form(data)
            write(signed, data)
            # Without --output nobody knows which part of the file is signed.
            check_signatures(run([*gpgv, "--output", text, signed]))
        elif "Release" in files and "Release.gpg" in files:
            write(text, content(archive, files["Release"]))
            write(signature, content(archive, files["Release.gpg"]))
            check_signatures(run([*gpgv, signature, text]))
        else:
            raise UntrustedError(
                "it is not signed. Remove the source from the board's /etc/apt/sources.list.d"
            )
        with open(text, encoding="utf-8") as stream:
            return stream.read()


def write(path: str, data: bytes) -> None:
    """Write a file."""
    with open(path, "wb") as stream:
        stream.write(data)


def offered(
    archive: tarfile.TarFile, files: Members, release: dict[str, str], digests: set[str]
) -> dict[str, Package]:
    """Packages with these SHA-256 in the indexes of a source, whose Release is signed. UntrustedError."""
    listed = listed_indexes(release)
    found: dict[str, Package] = {}
    for name, member in files.items():
        if name.endswith("Packages"):
            if (digest_of(archive, member), member.size) not in listed:
                raise UntrustedError(
                    "its {} is not the index that its signed Release lists. Run the command again. If the "
                    "message stays, the index was changed on the board or on its way there".format(name)
                )
            with opened(archive, member) as stream:
                found.update(listed_packages(stream, digests))
    return found


def verified(archive: tarfile.TarFile, settings: dict[str, Any], now: datetime, run: Run) -> Members:
    """The packages, each of them in a signed index. UntrustedError."""
    debs, sources = members(archive)
    digests = {name: digest_of(archive, member) for name, member in debs.items()}
    offers: dict[str, Package] = {}
    refused: dict[str, str] = {}
    for source, files in sorted(sources.items()):
        try:
            release = parse_fields(signed_text(archive, files, settings["keyrings"], run))
            check_release(release, now, settings["codename"])
            offers.update(offered(archive, files, release, set(digests.values())))
        except UntrustedError as error:
            # Another source may list the same package.
            refused[source] = str(error)
    unknown = sorted(name for name in debs if digests[name] not in offers)
    if unknown:
        raise UntrustedError(explain(unknown, refused))
    for name, member in debs.items():
        check_package(name, member.size, offers[digests[name]], settings["architecture"])
    return debs


def explain(unknown: list[str], refused: dict[str, str]) -> str:
    """Why packages are in no index that is trusted."""
    more = " and {} more".format(len(unknown) - SHOWN) if len(unknown) > SHOWN else ""
    reasons = ["{}: {}".format(source, reason) for source, reason in refused.items()]
    return "{}{}: no trusted index lists this content. {}".format(
        ", ".join(unknown[:SHOWN]),
        more,
        ". ".join(reasons)
        or "They were changed, or are of no package source of the board. Collect them on another board",
    )


def write_archive(path: str, archive: tarfile.TarFile, debs: Members) -> None:
    """Write the packages alone, with headers of our own. OSError."""
    with replacement(path) as stream, tarfile.open(fileobj=stream, mode="w") as made:
        for name, member in sorted(debs.items()):
            header = tarfile.TarInfo(name)
            header.size = member.size
            with opened(archive, member) as source:
                made.addfile(header, source)


def check_keyrings(paths: list[str]) -> None:
    """UntrustedError for a file that gpgv would not read. OSError."""
    for path in paths:
        with open(path, "rb") as stream:
            if stream.read(BLOCK).lstrip().startswith(b"-----BEGIN PGP"):
                raise UntrustedError(
                    "{0} of bundle_debs_keyrings is ASCII-armored, which gpgv does not read. Convert it with "
                    "`gpg --dearmor --output KEYRING.gpg {0}`, and name KEYRING.gpg instead".format(path)
                )


def check_size(path: str) -> None:
    """UntrustedError for an archive that is too large to be read. OSError."""
    if os.path.getsize(path) > MAX_BYTES_OF_ARCHIVE:
        raise UntrustedError("the board's archive has more than {} bytes".format(MAX_BYTES_OF_ARCHIVE))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "path": {"type": "path", "required": True},
            "keyrings": {"type": "list", "elements": "path", "required": True, "no_log": False},
            "architecture": {"type": "str", "required": True},
            "codename": {"type": "str", "required": True},
        },
    )
    params = module.params

    def run(argv: list[str]) -> str:
        # gpgv fails if one of several signers is unknown: its status says more.
        status: str = module.run_command(argv)[1]
        return status

    try:
        check_keyrings(params["keyrings"])
        check_size(params["archive"])
        with tarfile.open(params["archive"], "r:") as archive:
            debs = verified(archive, params, datetime.now(timezone.utc), run)
            write_archive(params["path"], archive, debs)
    except (UntrustedError, OSError) as error:
        module.fail_json(msg="{} {}.".format(KEPT, error))
    except (tarfile.TarError, KeyError, ValueError) as error:
        module.fail_json(
            msg="{} The archive or an index in it cannot be read ({!r}). Run the command again.".format(
                KEPT, error
            )
        )
    module.exit_json(changed=True, packages=sorted(debs))


if __name__ == "__main__":
    main()
