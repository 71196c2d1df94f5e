# SPDX-License-Identifier: Apache-2.0
"""The version of the package, and the git revision of the image."""

from pathlib import Path

# That of pyproject.toml: `make release` sets both.
VERSION = "0.1.0"
UNKNOWN = "unknown"

_PACKAGE = Path(__file__).parent


def git_revision() -> str:
    """Give the revision from the file REVISION, which only the image's build writes; else `unknown`."""
    file = _PACKAGE / "REVISION"
    return file.read_text().strip() if file.is_file() else UNKNOWN
