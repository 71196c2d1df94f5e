# SPDX-License-Identifier: Apache-2.0
"""Check the libraries, symbols and segments of libtegra-gpu-limit.so.

The dynamic linker preloads it into every program of a container, with any glibc from 2.27 on. A version of a
symbol that the glibc lacks would end every program, so the library may need only a short list of symbols.
"""

import re
from pathlib import Path

from images.arm64 import gpu_limit
from tests.lab import compiler
from tools.process import run

# glibc 2.17 is arm64's first version; amd64's secure_getenv is of it.
GLIBC = {"amd64": {"GLIBC_2.2.5", "GLIBC_2.17"}, "arm64": {"GLIBC_2.17"}}
# What is called: system calls and string functions. Nothing that allocates, no dl*, no pthread_*, no cu*, and
# nothing that is a cancellation point (pthreads(7)), in which a thread would end with a lock.
# fmt: off
CALLED = frozenset((
    "__errno_location", "clock_gettime", "dl_iterate_phdr", "getpid", "madvise", "memcmp", "memcpy", "memset",
    "mmap", "munmap", "secure_getenv", "strcmp", "strcpy", "strlen", "syscall",
))
# fmt: on
# A compiler's way to pass a call on: glibc must see who called, not us.
INDIRECT_JUMP = {"amd64": re.compile(r"\bjmp\s+\*"), "arm64": re.compile(r"\bbr\s+x\d")}


def hooks() -> frozenset[str]:
    """Return the names that are wrapped, as driver.h lists them."""
    lists = (gpu_limit.SOURCES / "driver.h").read_text().partition("#define HOOKS")[2]
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
        if len(fields) > 7 and fields[4] != "LOCAL":
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
