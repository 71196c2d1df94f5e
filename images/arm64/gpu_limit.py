# SPDX-License-Identifier: Apache-2.0
"""Build libtegra-gpu-limit.so from plugin/gpu_limit.

The compiler is Zig's, as PyPI has it: one package for every machine and both architectures. Its version is
locked, so the library is the same bytes wherever it is built. tests/gpu_limit checks them.
"""

import argparse
import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path

from images.arm64.emulation import MACHINES
from tools.cache import CHECKOUT, cache, cached, place
from tools.process import ToolError, run, say, step

SOURCES = CHECKOUT / "plugin" / "gpu_limit"
LIBRARY = "libtegra-gpu-limit.so"
ARCHITECTURES = ("arm64", "amd64")
FLAGS = (
    *("-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    # Both would need symbols of a newer glibc.
    *("-fno-stack-protector", "-U_FORTIFY_SOURCE"),
    # It is loaded at the start, so its thread's variables have a fixed place: no __tls_get_addr.
    "-ftls-model=initial-exec",
    "-Wl,-z,now,-z,relro,-z,noexecstack,-z,defs,--hash-style=both,--build-id=none",
)
# Atomics in line: the helpers would come from a newer libgcc.
FLAGS_OF = {"amd64": (), "arm64": ("-mno-outline-atomics",)}


def build(arch: str) -> Path:
    """Return the cached library for `arch`; raises ToolError if it cannot be compiled."""
    return cached(entry(arch), lambda out: _build(arch, out)) / LIBRARY


def entry(arch: str) -> str:
    """Return the name of the library in the cache, by everything that it is made of."""
    try:
        zig = metadata.version("ziglang")
    except metadata.PackageNotFoundError as error:
        raise ToolError("Zig's compiler is missing in .venv: sh tools/bootstrap.sh image") from error
    recipe = hashlib.sha256(repr((zig, compiler(arch), FLAGS)).encode())
    for path in sources():
        recipe.update(f"{path.name}\0".encode() + path.read_bytes())
    return f"gpu-limit/{arch}-{recipe.hexdigest()[:12]}"


def sources() -> list[Path]:
    """Return the files that it is made of."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))


def _build(arch: str, out: Path) -> None:
    out.mkdir()
    library = out / LIBRARY
    files = [path.name for path in sources() if path.suffix == ".c"]
    places = {f"ZIG_{kind}_CACHE_DIR": str(cache() / "zig") for kind in ("GLOBAL", "LOCAL")}
    with step(f"compiling {LIBRARY} for {arch}"):
        run(
            [sys.executable, *compiler(arch), *FLAGS, f"-Wl,-soname,{LIBRARY}", "-o", library, *files],
            cwd=SOURCES,
            env=os.environ | places,
        )


def compiler(arch: str) -> tuple[str, ...]:
    """Return Python's arguments that compile for an architecture.

    glibc 2.17 is arm64's first version, older than that of every container in use.
    """
    return "-m", "ziglang", "cc", "-target", f"{MACHINES[arch]}-linux-gnu.2.17", *FLAGS_OF[arch]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m images.arm64.gpu_limit", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("dist/gpu-limit"), help="default: %(default)s")
    options = parser.parse_args()
    try:
        for arch in ARCHITECTURES:
            target = options.output / arch / LIBRARY
            place(build(arch), target)
            say(f"{arch}: {target} ({target.stat().st_size / 1e3:.0f} kB)")
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
