# SPDX-License-Identifier: Apache-2.0
"""The list of the image's wheels, which tools/lock.py writes: those of its architectures, with hashes."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from images.arm64.context import HERE, PIP_INSTALL, WHEEL_PLATFORMS, wheel_options
from tools.process import run

LIST = HERE / "requirements.txt"
# HTTP/2 and WebSockets: lightkube executes nothing in pods here, and one stream is enough.
UNUSED = {"h2", "hpack", "hyperframe", "wsproto"}


def resolve(declared: Sequence[str], pins: Path) -> str:
    """Return the list for what is declared, in the versions of `pins`. Raises ToolError with pip's reason."""
    pip = [*PIP_INSTALL, "--dry-run", "--report=-", f"--constraint={pins}", "--target=unused"]
    hashes: defaultdict[str, set[str]] = defaultdict(set)
    for arch in WHEEL_PLATFORMS:
        for wheel in json.loads(run([*pip, *wheel_options(arch), *declared]).stdout)["install"]:
            name = wheel["metadata"]["name"].lower().replace("_", "-")
            if name not in UNUSED:
                pinned = f"{name}=={wheel['metadata']['version']}"
                hashes[pinned].add(wheel["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = []
    for pinned, found in sorted(hashes.items()):
        lines.append(" \\\n    ".join([pinned, *(f"--hash=sha256:{one}" for one in sorted(found))]))
    return "\n".join(lines) + "\n"
