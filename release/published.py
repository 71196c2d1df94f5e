# SPDX-License-Identifier: Apache-2.0
"""Check the files of a published release before publish.yml pushes them. Prints their names."""

import argparse
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from release import plan, signature, version
from tools.process import ToolError

SUMS = "SHA256SUMS"
# A line of sha256sum for a file of the directory itself. The names become arguments of commands.
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9._-]*)")


def pushed(number: str) -> dict[str, str]:
    """Return the files of a version that are pushed, by what they are."""
    return {
        "image": "tegra-device-plugin.oci.tar",
        "chart": f"tegra-device-plugin-{number}.tgz",
        "collection": f"jetson_k3s-cluster-{number}.tar.gz",
    }


def parsed(sums: str) -> dict[str, str]:
    """Return the SHA-256 of each file of SHA256SUMS by its name. Raises ToolError."""
    listed = {}
    for line in sums.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in listed:
            raise ToolError(f"{SUMS}: this is no line for one more file of the release: {line!r}")
        listed[match[2]] = match[1]
    return listed


def problems(number: str, listed: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return every reason against publishing version `number`; empty without any.

    `listed` has the SHA-256 of each file as signed, `found` those of the release's files.
    """
    return [
        *(
            f"{name} is not in {SUMS}, which has no file of {number}: this is the release of another version"
            for name in pushed(number).values()
            if name not in listed
        ),
        *(f"{name} is missing from the release" for name in sorted(listed.keys() - found.keys())),
        *(f"{name} is not in {SUMS}: nobody signed it" for name in sorted(found.keys() - listed.keys())),
        *(
            f"{name} has the SHA-256 {found[name]}, {SUMS} says {listed[name]}"
            for name in sorted(listed.keys() & found.keys())
            if found[name] != listed[name]
        ),
    ]


def verify(directory: Path, tag: str, signers: str) -> dict[str, str]:
    """Return the version, and the files that are pushed. Raises ToolError or OSError.

    Every file must be signed, and every signed file there. The signature knows no tag: it belongs to the
    version that stands in the names of the chart and of the collection.
    """
    number = tag.removeprefix("v")
    if version.numbers(number) is None or tag != plan.tag(number):
        raise ToolError(f"the tag {tag!r} is none of a release: v and three numbers, such as v0.2.0")
    signature.verify(directory / SUMS, signers)
    listed = parsed((directory / SUMS).read_text())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.name not in (SUMS, SUMS + signature.SUFFIX)
    }
    if against := problems(number, listed, found):
        raise ToolError("".join(f"\n  * {reason}" for reason in against))
    return {"version": number, **pushed(number)}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m release.published", description=__doc__)
    parser.add_argument("directory", type=Path, help="the release's files, and no others")
    parser.add_argument("tag", help="such as v0.2.0")
    parser.add_argument("--signers", required=True, help="the line that `make release` prints")
    options = parser.parse_args()
    try:
        names = verify(options.directory, options.tag, options.signers)
    except (ToolError, OSError) as error:
        sys.stderr.write(f"error: the release is not published: {error}\n")
        return 1
    sys.stdout.writelines(f"{what}={name}\n" for what, name in names.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
