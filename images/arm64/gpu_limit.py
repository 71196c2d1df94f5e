# SPDX-License-Identifier: Apache-2.0
"""Build libtegra-gpu-limit.so from plugin/gpu_limit, and check what would hurt whoever has it preloaded.

It is loaded into every program of a container, of whatever glibc from 2.27 on. A version of a symbol that a
glibc lacks would end them all, so what it may need is a short list.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

from images.arm64 import compiler
from tools.cache import CHECKOUT, cached, place
from tools.process import ToolError, run, say, step

SOURCES = CHECKOUT / "plugin" / "gpu_limit"
LIBRARY = "libtegra-gpu-limit.so"
ARCHITECTURES = ("arm64", "amd64")
FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    # Both would need symbols of a newer glibc.
    *("-fno-stack-protector", "-U_FORTIFY_SOURCE"),
    # It is loaded at the start, so its thread's variables have a fixed place: no __tls_get_addr.
    "-ftls-model=initial-exec",
    # Not the compiler's own start files: they refer to more than is needed.
    "-nostartfiles",
    # Its own functions, where it means them, though a program or an interposer may define the same names.
    "-Wl,-Bsymbolic-functions",
    "-Wl,-z,now,-z,relro,-z,noexecstack,-z,defs,--hash-style=both,--build-id=none",
)
# Atomics in line: the helpers would come from a newer libgcc.
FLAGS_OF = {"amd64": (), "arm64": ("-mno-outline-atomics",)}
# glibc 2.17 is arm64's first version; amd64's secure_getenv is of it.
GLIBC = {"amd64": {"GLIBC_2.2.5", "GLIBC_2.17"}, "arm64": {"GLIBC_2.17"}}
# What is called: system calls and string functions. Nothing that allocates, no dl*, no pthread_*, no cu*.
# fmt: off
CALLED = frozenset((
    "__errno_location", "close", "dl_iterate_phdr", "fcntl", "flock", "getpid", "memcmp", "memcpy", "memset",
    "mmap", "munmap", "nanosleep", "open", "pread", "secure_getenv", "strcmp", "strcpy", "strlen", "syscall",
    "write",
))
# fmt: on
# gcc's way to pass a call on: glibc must see who called, not us.
INDIRECT_JUMP = {"amd64": re.compile(r"\bjmp\s+\*"), "arm64": re.compile(r"\bbr\s+x\d")}


def build(arch: str) -> Path:
    """Return the cached library for `arch`; raises ToolError if it cannot be compiled, or fails a check."""
    recipe = hashlib.sha256(repr((FLAGS, FLAGS_OF[arch])).encode())
    for path in sources():
        recipe.update(f"{path.name}\0".encode() + path.read_bytes())
    return cached(f"gpu-limit/{arch}-{recipe.hexdigest()[:12]}", lambda out: _build(arch, out)) / LIBRARY


def sources() -> list[Path]:
    """Return the files that it is made of."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))


def _build(arch: str, out: Path) -> None:
    out.mkdir()
    library = out / LIBRARY
    files = [path.name for path in sources() if path.suffix == ".c"]
    gcc = compiler.tool("gcc", arch)
    with step(f"compiling {LIBRARY} for {arch}"):
        run([gcc, *FLAGS, *FLAGS_OF[arch], f"-Wl,-soname,{LIBRARY}", "-o", library, *files], cwd=SOURCES)
    if found := flaws(library, arch):
        raise ToolError(f"{LIBRARY} for {arch} must not be preloaded: {'; '.join(found)}")


def hooks() -> frozenset[str]:
    """Return the names that are wrapped, as driver.h lists them."""
    lists = (SOURCES / "driver.h").read_text().partition("#define HOOKS")[2]
    return frozenset(re.findall(r"DO\((cu\w+)\)", lists.partition("#define QUESTIONS")[0]))


def flaws(library: Path, arch: str) -> list[str]:
    """Return what is wrong with a library that is to be preloaded; empty: nothing."""
    readelf, objdump = (compiler.tool(name, arch) for name in ("readelf", "objdump"))

    def shown(*options: str) -> str:
        return run([readelf, "--wide", *options, library]).stdout

    dynamic = shown("--dynamic")
    found = []
    if (needed := re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) != ["libc.so.6"]:
        found.append(f"it needs {' '.join(needed) or 'nothing'}, not libc.so.6 alone")
    if other := set(re.findall(r"Name: (\S+)", shown("--version-info"))) - GLIBC[arch]:
        found.append(f"it needs {' '.join(sorted(other))}, which an old glibc lacks")
    symbols = [line.split() for line in shown("--dyn-syms").splitlines() if re.match(r"\s+\d+:", line)]
    names = {True: set[str](), False: set[str]()}
    for fields in symbols:
        # Num Value Size Type Bind Vis Ndx Name; sections are local.
        if len(fields) > 7 and fields[4] != "LOCAL":  # noqa: PLR2004
            names[fields[6] == "UND"].add(fields[7].partition("@")[0])
    if unknown := names[True] - CALLED:
        found.append(f"it calls {' '.join(sorted(unknown))}")
    if (exported := names[False]) != (expected := hooks() | {"dlsym"}):
        found.append(f"its exports differ in {' '.join(sorted(exported ^ expected))}")
    for tag in ("TEXTREL", "RELR"):
        if f"({tag})" in dynamic:
            found.append(f"it has {tag}")
    if not re.search(r"GNU_STACK.* RW ", shown("--segments")):
        found.append("its stack is executable")
    code = run([objdump, "--disassemble=dlsym", "--no-show-raw-insn", library]).stdout
    if not INDIRECT_JUMP[arch].search(code):
        found.append("dlsym calls glibc's instead of jumping to it")
    return found


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
