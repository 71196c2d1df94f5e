# SPDX-License-Identifier: Apache-2.0
"""The executable of a K3s release, downloaded and compared with the release's own checksums."""

import hashlib
import http.client
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tools.cache import cached
from tools.process import ToolError, step

PAGE = "https://github.com/k3s-io/k3s/releases/download"
VERSION = re.compile(r"v\d+\.\d+\.\d+\+k3s\d+")
NAMES = {"amd64": "k3s", "arm64": "k3s-arm64"}
TIMEOUT_SECONDS = 20
"""Of each answer of the page."""


class UnreachableError(ToolError):
    """The page does not answer, or does not have the release."""


def executable(version: str, arch: str) -> Path:
    """Return the cached executable, downloaded when it is absent; `arch` is as Debian names it.

    Raises UnreachableError, or ToolError when what came is not the released file.
    """

    def download(out: Path) -> None:
        address = f"{PAGE}/{urllib.parse.quote(version)}"
        wanted = _checksum(f"{address}/sha256sum-{arch}.txt", NAMES[arch])
        with step(f"downloading K3s {version} ({arch})"):
            _fetch(f"{address}/{NAMES[arch]}", out)
        with out.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise ToolError(
                f"{address}/{NAMES[arch]} has the SHA-256 {found}, and the release's own list says {wanted}: "
                "the download was changed on its way. Nothing was kept. Try again, or from another network."
            )
        out.chmod(0o755)

    return cached(f"k3s-release/{version}-{arch}", download)


def _checksum(address: str, name: str) -> str:
    """Return the SHA-256 of a file from a list of checksums."""
    with _opened(address) as answer:
        text = answer.read(1 << 20).decode("ascii", "replace")
    found = re.search(rf"^([0-9a-f]{{64}})[ \t]+\*?{re.escape(name)}$", text, re.MULTILINE)
    if found is None:
        raise ToolError(f"{address} has no checksum of {name}")
    return found[1]


def _fetch(address: str, out: Path) -> None:
    with _opened(address) as answer, out.open("wb") as file:
        try:
            shutil.copyfileobj(answer, file, 1 << 20)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{address}: {error}") from error
        length = answer.headers.get("Content-Length")
    if length is not None and out.stat().st_size != int(length):
        raise UnreachableError(f"{address}: cut off after {out.stat().st_size} of {length} bytes")


def _opened(address: str) -> http.client.HTTPResponse:
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS)  # noqa: S310 - https, or a test's server
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"{address}: HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise UnreachableError(f"{address}: {getattr(error, 'reason', error)}") from error
    return answer
