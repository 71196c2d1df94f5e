# SPDX-License-Identifier: Apache-2.0
"""Fill a directory with Ansible's wheels for controllers without Internet: `python -m tools.wheelhouse DIR`.

The wheels are those of the lists in tools/requirements/, for Linux with glibc. tools/bootstrap.sh installs
them. Prints the names of new wheels, and removes all other files.
"""

import argparse
import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import Marker

LISTS = Path(__file__).resolve().parent / "requirements"
FOR = re.compile(r"^# For Python (.*)$", re.MULTILINE)
"""The head of a list names its Pythons."""
MACHINES = ("x86_64", "aarch64")
# glibc 2.28 is older than that of every supported system.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# A requirement of a list: `NAME==VERSION ; MARKER \`, and its hashes in further lines.
REQUIREMENT = re.compile(
    r"^(?P<pin>[a-z0-9][^\s;]*) *(?:; *(?P<marker>[^\\\n]*?))? *\\\n(?P<hashes>(?: .*\n?)+)", re.MULTILINE
)


def needed(text: str, python: str, machine: str) -> Iterator[str]:
    """Yield the lines of a list that this Python needs. pip would decide for the Python that runs it."""
    environment: dict[str, str] = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "sys_platform": "linux",
    }
    for one in REQUIREMENT.finditer(text):
        if one["marker"] is None or Marker(one["marker"]).evaluate({**environment}):
            yield f"{one['pin']} \\\n{one['hashes']}"


def download(directory: Path, text: str, python: str, machine: str) -> None:
    """Have pip download what is missing. Raises CalledProcessError, with pip's words in `stderr`."""
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch, "requirements.txt")
        listed.write_text("".join(needed(text, python, machine)))
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        options.append("--only-binary=:all:")
        target = [f"--python-version={python}", "--implementation=cp"]
        target += [f"--platform={platform}_{machine}" for platform in PLATFORMS]
        pip = [sys.executable, "-m", "pip", "download", *options, *target, f"--requirement={listed}"]
        subprocess.run([*pip, f"--dest={directory}"], check=True, capture_output=True, text=True)


def fill(directory: Path, lists: Path = LISTS) -> list[str]:
    """Make the files in a directory the wheels of the lists; return the names of new ones."""
    directory.mkdir(exist_ok=True)
    before = {path.name for path in directory.iterdir()}
    hashes: set[str] = set()
    for path in sorted(lists.glob("ansible-*.txt")):
        text = path.read_text()
        hashes.update(HASH.findall(text))
        for python, machine in itertools.product(FOR.findall(text)[0].split(), MACHINES):
            download(directory, text, python, machine)
    for path in directory.iterdir():
        if hashlib.sha256(path.read_bytes()).hexdigest() not in hashes:
            path.unlink()
    return sorted({path.name for path in directory.iterdir()} - before)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheelhouse", description=__doc__)
    parser.add_argument("directory", type=Path)
    try:
        new = fill(parser.parse_args().directory)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip()
        sys.stderr.write(
            f"error: pip cannot download the controller's wheels: {reason}\n"
            "For a bundle without them, set bundle_controller_wheels to false.\n"
        )
        return 1
    sys.stdout.write("".join(f"{name}\n" for name in new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
