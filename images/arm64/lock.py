# SPDX-License-Identifier: Apache-2.0
"""Write requirements.txt, after the plugin's dependencies or constraints.txt have changed."""

import json
import tomllib
from collections import defaultdict

from images.arm64.context import CHECKOUT, HERE, PIP_INSTALL, WHEEL_PLATFORMS, wheel_options
from tools.process import run

HEAD = "# Wheels of the plugin's image for arm64 and amd64, written by `python -m images.arm64.lock`."
# HTTP/2 and WebSockets: lightkube executes nothing in pods here, and one stream is enough.
UNUSED = {"h2", "hpack", "hyperframe", "wsproto"}


def main() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["dra"]]
    resolve = [*PIP_INSTALL, "--dry-run", "--report=-", f"--constraint={CHECKOUT}/constraints.txt"]
    hashes: defaultdict[str, set[str]] = defaultdict(set)
    for arch in WHEEL_PLATFORMS:
        options = [*wheel_options(arch), "--target=unused"]
        for wheel in json.loads(run([*resolve, *options, *declared]).stdout)["install"]:
            name = wheel["metadata"]["name"].lower().replace("_", "-")
            if name not in UNUSED:
                pinned = f"{name}=={wheel['metadata']['version']}"
                hashes[pinned].add(wheel["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [HEAD]
    for pinned, found in sorted(hashes.items()):
        lines.append(" \\\n    ".join([pinned, *(f"--hash=sha256:{one}" for one in sorted(found))]))
    (HERE / "requirements.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
