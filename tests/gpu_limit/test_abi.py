# SPDX-License-Identifier: Apache-2.0
"""The check of the library before it is preloaded: each fault that ends programs or hides the limit."""

from pathlib import Path

import pytest

from images.arm64 import gpu_limit
from tests.gpu_limit.abi import flaws
from tests.lab import compiler
from tools.process import run


@pytest.mark.parametrize("arch", gpu_limit.ARCHITECTURES)
def test_the_library_is_fit_to_be_preloaded(arch: str) -> None:
    assert flaws(gpu_limit.build(arch), arch) == []


@pytest.mark.parametrize("arch", ["amd64", pytest.param("arm64", marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(
    ("code", "options", "flaw"),
    [
        ("void *pthread_self(); void *more(void) { return pthread_self(); }", (), "it calls pthread_self"),
        ("void *dlopen(); void *more(void) { return dlopen(); }", (), "it calls dlopen"),
        ("void cuInit(); void more(void) { cuInit(); }", (), "it calls cuInit"),
        ("", ("-Wl,--no-as-needed", "-lm"), "it needs libm.so.6 libc.so.6, not libc.so.6 alone"),
        ("void more(void) {}", ("-fvisibility=default",), "its exports differ in"),
        ("", ("-Wl,-z,execstack",), "its stack is executable"),
        ("", ("-O0",), "dlsym calls glibc's instead of jumping to it"),
    ],
)
def test_a_flaw_is_named(arch: str, code: str, options: tuple[str, ...], flaw: str, tmp_path: Path) -> None:
    more, library = tmp_path / "more.c", tmp_path / gpu_limit.LIBRARY
    more.write_text(code)
    flags = [flag for flag in gpu_limit.FLAGS if not flag.startswith("-Wl")]
    files = [path for path in gpu_limit.sources() if path.suffix == ".c"]
    gcc = [compiler.tool("gcc", arch), "-nostartfiles", *flags, *gpu_limit.FLAGS_OF[arch]]
    run([*gcc, "-Wl,-z,noexecstack", *options, "-o", library, *files, more])
    found = flaws(library, arch)
    assert any(one.startswith(flaw) for one in found), found
