# SPDX-License-Identifier: Apache-2.0
"""The Helm chart as an archive, as `helm package` makes it; the same files give the same bytes."""

import gzip
import io
import tarfile
from pathlib import Path

from release import version

NAME = "tegra-device-plugin"
SOURCE = version.CHECKOUT / "plugin" / "deploy" / "chart"


def package(output: Path) -> Path:
    """Pack the chart into the directory `output`; return the archive's path."""
    archive = output / f"{NAME}-{version.current()}.tgz"
    with (
        archive.open("wb") as packed,
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        # Chart.yaml comes first: sorted by name it does.
        for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{NAME}/{path.relative_to(SOURCE)}")
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    return archive
