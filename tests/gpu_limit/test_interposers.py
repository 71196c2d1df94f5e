# SPDX-License-Identifier: Apache-2.0
"""Other libraries that wrap the driver's functions."""

from pathlib import Path

import pytest

from tests.gpu_limit.rig import Rig
from tests.lab import compiler
from tools.process import run

HERE = Path(__file__).parent
OUT_OF_MEMORY = 2


def compiled(out: Path, source: str, *options: str | Path) -> Path:
    run(
        [compiler.tool("gcc", "amd64"), "-O1", "-Wall", "-Werror", "-o", out, HERE / source, *options, "-ldl"]
    )
    return out


def wrapper(directory: Path, name: str) -> Path:
    early = ["-DEARLY"] if name == "second" else []
    options = ("-fPIC", "-shared", f'-DNAME="{name}"', *early)
    return compiled(directory / f"{name}.so", "interposer.c", *options)


def results(program: Path, how: str, rig: Rig, *preloaded: Path) -> list[str]:
    environment = {**rig.environment, "LD_PRELOAD": ":".join(map(str, preloaded))}
    return sorted(run([program, how], env=environment).stdout.splitlines())


@pytest.mark.parametrize("limit", ["100", None])
@pytest.mark.parametrize("how", ["linked", "default", "program", "driver"])
@pytest.mark.parametrize(
    "wrappers", [("own",), ("first", "second"), ("own", "first"), ("last",)], ids="-".join
)
def test_wrappers_before_the_library_are_called_as_without_it_and_none_evades_the_limit(
    rig: Rig, wrappers: tuple[str, ...], how: str, limit: str | None, tmp_path: Path
) -> None:
    own = ['-DNAME="own"'] if "own" in wrappers else []
    driver = f"-L{rig.driver}", "-l:libcuda.so.1"
    program = compiled(tmp_path / "program", "interposer.c", "-DPROGRAM", *own, *driver)
    before = [wrapper(tmp_path, name) for name in wrappers if name in ("first", "second")]
    after = [wrapper(tmp_path, name) for name in wrappers if name == "last"]
    assert rig.library
    chosen = rig.but(limit=limit)
    without = results(program, how, chosen, *before, *after)
    limited = results(program, how, chosen, *before, rig.library, *after)
    assert f"results 0 {OUT_OF_MEMORY if limit else 0}" in limited
    if not after:
        assert {line for line in limited if "results" not in line} == set(without) - {"results 0 0"}


def test_a_wrapper_in_a_plugin_is_limited_too(rig: Rig, tmp_path: Path) -> None:
    # The driver was loaded before: it comes before the plugin in the loader's order.
    plugin = compiled(
        tmp_path / "plugin.so", "interposer.c",
        *("-fPIC", "-shared", '-DNAME="plugin"', "-Wl,--no-as-needed", f"-L{rig.driver}", "-l:libcuda.so.1"),
    )  # fmt: skip
    ran = rig.run(f"""
        plugin = ctypes.CDLL("{plugin}")
        for mib in (60, 50):
            print(plugin.cuMemAlloc_v2(byref(c_uint64()), c_size_t(mib * MIB)), flush=True)
    """)
    assert ran.stdout == f"0\n{OUT_OF_MEMORY}\nplugin 2\n"


@pytest.mark.parametrize("linked", [True, False])
def test_the_driver_gets_its_own_functions(rig: Rig, linked: bool, tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    compiled(driver, "self_finding_driver.c", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")
    preloaded = f"{rig.library}:{driver}" if linked else str(rig.library)
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').found_own())"
    environment = {**rig.but(driver=tmp_path).environment, "LD_PRELOAD": preloaded}
    assert run(["python3", "-c", program], env=environment).stdout == "15\n"
