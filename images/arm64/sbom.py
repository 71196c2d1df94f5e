# SPDX-License-Identifier: Apache-2.0
"""The image's software bill of materials, in SPDX 2.3 JSON, read from what is in the layer alone."""

from __future__ import annotations

import email
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from images.arm64.pack import Image, sha256, timestamp

# What licences that are no SPDX expressions mean, as the wheels in use write them.
_LICENCES = {"AGPL-3.0": "AGPL-3.0-or-later", "3-Clause BSD License": "BSD-3-Clause"}
_UNKNOWN = "NOASSERTION"
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*$")


@dataclass(frozen=True, order=True)
class Component:
    """A package in the image; `licence` is an SPDX expression or NOASSERTION, `comment` is about it."""

    name: str
    version: str
    url: str
    licence: str
    comment: str
    supplier: str


def write(out: Path, image: Image, name: str, moment: int) -> None:
    """Write the document for an image; `moment` (Unix seconds) is its date."""
    found = components(image.layer, image.platform["architecture"])
    layer = sha256(image.layer)
    arch = image.platform["architecture"]
    whole = {
        "SPDXID": "SPDXRef-image",
        "name": name,
        "versionInfo": image.digest,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "checksums": [{"algorithm": "SHA256", "checksumValue": layer}],
    }
    packages = [_package(index, one) for index, one in enumerate(found)]
    contains = [_relationship("SPDXRef-image", "CONTAINS", package["SPDXID"]) for package in packages]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name} for linux/{arch}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name.replace(':', '-')}-{arch}-{layer}",
        "creationInfo": {"created": timestamp(moment), "creators": ["Tool: images.arm64.sbom"]},
        "packages": [whole, *packages],
        "relationships": [_relationship("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"), *contains],
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


def components(layer: Path, arch: str) -> list[Component]:
    """Return the Debian and Python packages in a layer's tar, sorted."""
    with tarfile.open(layer) as tar:
        texts = {member.name: _text(tar, member) for member in tar if _is_record(member)}
    return sorted([*_debian(texts, arch), *_python(texts)])


def _is_record(member: tarfile.TarInfo) -> bool:
    path = PurePosixPath(member.name)
    if not member.isfile():
        return False
    return (
        (str(path.parent) == "var/lib/dpkg/status.d" and path.suffix != ".md5sums")
        or path.match("usr/share/doc/*/copyright")
        or path.match("*.dist-info/METADATA")
        or path.match("usr/local/bin/python3.11")
    )


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = tar.extractfile(member)
    return content.read().decode(errors="replace") if content else ""


def _debian(texts: dict[str, str], arch: str) -> Iterator[Component]:
    for path, text in texts.items():
        if path.startswith("var/lib/dpkg/"):
            fields = email.message_from_string(text)
            name, version = fields["Package"], fields["Version"]
            said = _copyright_licences(texts.get(f"usr/share/doc/{name}/copyright", ""))
            comment = f"usr/share/doc/{name}/copyright in the image names: {', '.join(said)}" if said else ""
            of = "all" if fields["Architecture"] == "all" else arch
            url = f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={of}"
            yield Component(name, version, url, _UNKNOWN, comment, "Organization: Debian")


def _copyright_licences(text: str) -> list[str]:
    """Return the short names in a Debian copyright file, where it is in the machine-readable form (DEP 5)."""
    return sorted(set(re.findall(r"^License: *(\S.*?)\s*$", text, re.MULTILINE)))


def _python(texts: dict[str, str]) -> Iterator[Component]:
    for path, text in texts.items():
        if path == "usr/local/bin/python3.11":
            yield Component("python", "3.11", "pkg:generic/python@3.11", "PSF-2.0", "", "Organization: PSF")
        if path.endswith(".dist-info/METADATA"):
            metadata = email.message_from_string(text)
            name, version = metadata["Name"], metadata["Version"]
            licence = _licence(metadata)
            comment = "" if licence != _UNKNOWN else f"its metadata says: {metadata['License']}"
            url = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
            yield Component(name, version, url, licence, comment, _UNKNOWN)


def _licence(metadata: Message) -> str:
    said = metadata["License-Expression"] or metadata["License"] or ""
    said = _LICENCES.get(said, said)
    return said if _EXPRESSION.match(said) else _UNKNOWN


def _package(index: int, one: Component) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-{index}-{re.sub('[^A-Za-z0-9.-]', '-', one.name)}",
        "name": one.name,
        "versionInfo": one.version,
        "supplier": one.supplier,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": one.licence,
        "licenseComments": one.comment,
        "copyrightText": _UNKNOWN,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": one.url}
        ],
    }


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
