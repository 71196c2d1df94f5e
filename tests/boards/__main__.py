# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.boards add ARCHIVE ID`: make the board of a snapshot one of the tests' boards."""

import argparse
import sys
from pathlib import Path

from tests.boards.captured import UnfitError, add


def main() -> int:
    """Do what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.boards", description=__doc__)
    commands = parser.add_subparsers(required=True)
    adding = commands.add_parser("add", help="put the board of a snapshot into boards.json")
    adding.add_argument("archive", type=Path, metavar="ARCHIVE")
    adding.add_argument("id", metavar="ID", help="its new id, such as orinnx8-jp6")
    adding.add_argument("--like", default="", metavar="ID", help="the board whose facts complete it")
    options = parser.parse_args()
    try:
        text = add(options.archive, options.id, options.like)
    except (UnfitError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n\nThis is in tests/boards/boards.json now. Run the tests: make check\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
