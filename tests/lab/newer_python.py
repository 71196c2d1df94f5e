# SPDX-License-Identifier: Apache-2.0
"""The Python of a newer Debian, for what the machine's own is too old for: unpacked, and not installed."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools import debian
from tools.cache import cache, cached
from tools.process import step

SUITE, VERSION = "trixie", "3.13"
PACKAGES = (f"python{VERSION}-minimal", f"libpython{VERSION}-stdlib", f"python{VERSION}-venv")
# With the newer C library, which no program gets that Python starts.
WRAPPER = """\
#!/bin/sh
tree={tree}
set -- --library-path "$tree{libraries}" "$tree/usr/bin/python.real" "$@"
exec "$tree{loader}" --argv0 "$0" "$@"
"""


class NoPythonError(Exception):
    """No Python was found, and none can be unpacked."""


def of_debian(pythons: Sequence[str]) -> str:
    """Return its program. Raises NoPythonError if its version is none of these, or this is not Debian."""
    if VERSION not in pythons or not debian.can_unpack():
        raise NoPythonError(
            f"this computer has no Python {', '.join(pythons)}, and only root on Debian can unpack one"
        )
    return str(cached(name(), _unpack) / f"usr/bin/python{VERSION}")


def name() -> str:
    """Return the name of the tree in the cache."""
    return f"python/{SUITE}-{debian.architecture()}-{VERSION}"


def _unpack(out: Path) -> None:
    out.mkdir()
    archive = out.with_suffix(".tar")
    with step(f"unpacking Debian {SUITE}'s Python {VERSION}"):
        debian.mmdebstrap(
            archive, "extract", debian.architecture(), PACKAGES, excluded=debian.EXCLUDED, suite=SUITE
        )
        subprocess.run(
            ["tar", "--extract", f"--file={archive}", f"--directory={out}", "--exclude=./dev/*"], check=True
        )
    program = out / f"usr/bin/python{VERSION}"
    program.rename(program.with_name("python.real"))
    (loader,) = out.glob("usr/lib*/ld-linux-*.so.*")
    (library,) = out.glob("usr/lib/*/libc.so.6")
    program.write_text(
        WRAPPER.format(
            tree=shlex.quote(str(cache() / name())),
            loader=f"/{loader.relative_to(out)}",
            libraries=f"/{library.parent.relative_to(out)}",
        )
    )
    program.chmod(0o755)
