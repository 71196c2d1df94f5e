# SPDX-License-Identifier: Apache-2.0
"""Signed indexes of Debian package sources: who has signed them, and which packages they list.

Pure functions. Runs on the controller.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.deb822 import parse_fields

BEGIN, SIGNATURE, END = (
    b"-----BEGIN PGP SIGNED MESSAGE-----",
    b"-----BEGIN PGP SIGNATURE-----",
    b"-----END PGP SIGNATURE-----",
)
# Lines of gpgv's `--status-fd`: doc/DETAILS of GnuPG. The id of a key is hexadecimal.
STATUS = re.compile(r"^\[GNUPG:\] ([A-Z_]+)(?: ([0-9A-F]{16,40})\b)?", re.MULTILINE)
DAMAGED = {"BADSIG", "ERROR", "NODATA"}
KEYS = "docs/offline.md, section Keys of package sources"


class UntrustedError(Exception):
    """The index or the package is not trusted. The text has the reason and the fix."""


class Package(NamedTuple):
    """A package as an index lists it. `size` is in bytes."""

    name: str
    version: str
    architecture: str
    size: int

    @property
    def file_name(self) -> str:
        """The name that apt gives to the file."""
        return "{}_{}_{}.deb".format(self.name, self.version.replace(":", "%3a"), self.architecture)


def check_form(signed: bytes) -> None:
    """UntrustedError unless an InRelease is one signed text, with nothing before or after."""
    lines = [line.rstrip() for line in signed.rstrip().split(b"\n")]
    once = lines.count(BEGIN) == lines.count(SIGNATURE) == lines.count(END) == 1
    if not once or (lines[0], lines[-1]) != (BEGIN, END):
        raise UntrustedError("its InRelease is not one signed text. Run `apt-get update` on the board")


def check_signatures(status: str) -> None:
    """UntrustedError unless a key of the keyrings has signed, by what gpgv writes to `--status-fd`."""
    keys: dict[str, list[str]] = {}
    for word, key in STATUS.findall(status):
        keys.setdefault(word, []).append(key)
    if DAMAGED & keys.keys():
        raise UntrustedError("its signature is not of this text: the index was changed after it was signed")
    # A second signer may be unknown here: Debian's indexes have several.
    if "GOODSIG" in keys:
        return
    for word, state in (("EXPKEYSIG", "has expired"), ("REVKEYSIG", "was revoked")):
        if word in keys:
            raise UntrustedError(
                "its key {} {}. Replace the key in bundle_debs_keyrings by the current one ({})".format(
                    ", ".join(keys[word]), state, KEYS
                )
            )
    if "NO_PUBKEY" in keys:
        raise UntrustedError(
            "no file of bundle_debs_keyrings has the key {}, which has signed it. Get the key from the owner "
            "of the source, compare its fingerprint, and add the file ({})".format(
                " or ".join(keys["NO_PUBKEY"]), KEYS
            )
        )
    raise UntrustedError(
        "gpgv accepts no signature of it: it has expired, is made with SHA-1, or is not a detached one. "
        "The owner of the source has to sign it again"
    )


def check_release(fields: dict[str, str], now: datetime, codename: str) -> None:
    """UntrustedError if a signed Release has expired, or is of a release of Ubuntu other than `codename`."""
    until = fields.get("Valid-Until")
    if until is not None and parsedate_to_datetime(until).astimezone(timezone.utc) < now:
        raise UntrustedError(
            "it has expired on {}. Compare the clock of this computer. If the clock is right, the mirror or "
            "the board has kept an old index: choose another".format(until)
        )
    if fields.get("Origin") == "Ubuntu" and fields.get("Codename") != codename:
        raise UntrustedError(
            "it is of Ubuntu's {}, and boards of this JetPack have {}. Collect the packages on a board with "
            "the sources of its own release".format(fields.get("Codename"), codename)
        )


def listed_indexes(fields: dict[str, str]) -> set[tuple[str, int]]:
    """SHA-256 and size of each Packages of a Release. apt uses only those that are listed uncompressed."""
    entries = [line.split() for line in fields.get("SHA256", "").splitlines() if line.strip()]
    return {
        (digest.lower(), int(size)) for digest, size, name in entries if name.split("/")[-1] == "Packages"
    }


def listed_packages(index: Iterable[bytes], digests: Container[str]) -> dict[str, Package]:
    """The packages of an index with one of these SHA-256, by it."""
    found: dict[str, Package] = {}
    for blank, lines in itertools.groupby(index, key=lambda line: not line.strip()):
        if blank:
            continue
        paragraph = list(lines)
        digest = next((line[7:].strip().decode() for line in paragraph if line.startswith(b"SHA256:")), "")
        if digest in digests:
            fields = parse_fields(b"".join(paragraph).decode())
            found[digest] = Package(
                fields["Package"], fields["Version"], fields["Architecture"], int(fields["Size"])
            )
    return found


def check_package(name: str, size: int, package: Package, architecture: str) -> None:
    """UntrustedError unless a file has the name and the size of its package, which boards can install."""
    if (name, size) != (package.file_name, package.size):
        raise UntrustedError(
            "{} of {} bytes is {} of {} bytes in the signed index".format(
                name, size, package.file_name, package.size
            )
        )
    if package.architecture not in (architecture, "all"):
        raise UntrustedError(
            "{} is for {}, and boards have {}".format(name, package.architecture, architecture)
        )
