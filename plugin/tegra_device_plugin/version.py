# SPDX-License-Identifier: Apache-2.0
"""Which plugin this is: the version of its package, and the git revision that its image was built from."""

from importlib import metadata, resources

UNKNOWN = "unknown"


def version() -> str:
    """Give the package's version; `unknown` when it runs from a source tree."""
    try:
        return metadata.version("tegra-device-plugin")
    except metadata.PackageNotFoundError:
        return UNKNOWN


def revision() -> str:
    """Give the revision from the file REVISION, which only the image's build writes; else `unknown`."""
    file = resources.files(__package__) / "REVISION"
    return file.read_text().strip() if file.is_file() else UNKNOWN
