# SPDX-License-Identifier: Apache-2.0
"""Programs of every Ubuntu that a JetPack image has, with the library in their /etc/ld.so.preload.

Each runs in a root directory of its own, on its own glibc; arm64's in QEMU's user mode.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from images.arm64 import gpu_limit
from tests.gpu_limit.archives import known, unpacked
from tests.lab import compiler
from tests.lab.workloads import LIBCUDA_FLAGS, LIBCUDA_SOURCE
from tools.debian import ensure_packages
from tools.process import run

CUDA = {"2.27": 10020, "2.31": 11040, "2.35": 12060, "2.39": 13000}
LOADER = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
PROGRAM = Path(__file__).with_name("lookups.c")
INSTALLED = Path("usr/lib/tegra-gpu-limit", gpu_limit.LIBRARY)


class Root:
    """A root directory with a glibc, the simulated driver and what is compiled for them."""

    def __init__(self, path: Path, glibc: str, arch: str) -> None:
        self.path, self.arch = path, arch
        files = unpacked("glibc", f"{glibc}-{arch}")
        libraries = path / "lib"
        libraries.mkdir()
        for name in ("libc.so.6", "libdl.so.2", "libpthread.so.0", Path(LOADER[arch]).name):
            # lib/ comes before lib64/, whose links are absolute.
            found = next(one for one in sorted(files.rglob(name)) if one.is_file())
            shutil.copy(found, libraries / name)
        loader = path / LOADER[arch]
        loader.parent.mkdir(exist_ok=True)
        if not loader.exists():
            shutil.copy(libraries / loader.name, loader)
        driver = libraries / "libcuda.so.1"
        self._compile(driver, LIBCUDA_SOURCE, f"-DCUDA={CUDA[glibc]}", *LIBCUDA_FLAGS)
        entry = f"-Wl,--dynamic-linker=/{LOADER[arch]}"
        self._compile(path / "lookups", PROGRAM, entry, "-rdynamic")
        self._compile(path / "linked", PROGRAM, entry, "-rdynamic", "-DLINKED", driver)

    def _compile(self, out: Path, *sources_and_options: str | Path) -> None:
        # Linked to this glibc's own files, or it would need what only the compiler's has.
        libc = [self.path / "lib" / name for name in ("libdl.so.2", "libpthread.so.0", "libc.so.6")]
        gcc = [compiler.tool("gcc", self.arch), "-std=gnu11", "-O1", "-fno-stack-protector", "-nostdlib"]
        atomics = gpu_limit.FLAGS_OF[self.arch]
        run([*gcc, *atomics, "-o", out, *sources_and_options, "-Wl,--allow-shlib-undefined", *libc, "-lgcc"])

    def preload(self) -> None:
        target = self.path / INSTALLED
        target.parent.mkdir(parents=True)
        shutil.copy(gpu_limit.build(self.arch), target)
        (self.path / "etc").mkdir()
        (self.path / "etc" / "ld.so.preload").write_text(f"/{INSTALLED}\n")

    def run(self, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        emulated: list[str] = []
        if self.arch == "arm64" and os.uname().machine != "aarch64":
            ensure_packages("qemu-user-static")
            shutil.copy("/usr/bin/qemu-aarch64-static", self.path)
            emulated = ["/qemu-aarch64-static"]
        # A user namespace lets others change the root, too.
        mapped = ["--map-root-user"] if os.geteuid() else []
        return subprocess.run(
            ["unshare", *mapped, *options, f"--root={self.path}", *emulated, f"/{program}"],
            env={
                "NVIDIA_GPU_MEMORY_LIMIT": "100",
                "TEGRA_GPU_LIMIT_LEDGER": "/made",
                "LD_LIBRARY_PATH": "/lib",
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(params=known("glibc"))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return Root(tmp_path, *request.param.split("-"))


def test_programs_are_limited_however_they_find_the_driver(root: Root) -> None:
    before = root.run("lookups")
    assert (before.returncode, "CUDA_ERROR_OUT_OF_MEMORY" in before.stdout) == (1, True), before
    root.preload()
    for program in ("lookups", "linked"):
        ran = root.run(program)
        assert (ran.returncode, ran.stdout) == (0, "all well\n"), ran
        assert ran.stderr.startswith("tegra-gpu-limit: out of memory"), ran.stderr
        assert ran.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a setuid program of root's")
@pytest.mark.parametrize("glibc", [name.removesuffix("-amd64") for name in known("glibc") if "amd64" in name])
def test_the_caller_of_a_setuid_program_chooses_neither_limit_nor_ledger(glibc: str, tmp_path: Path) -> None:
    root = Root(tmp_path, glibc, "amd64")
    root.preload()
    tmp_path.chmod(0o755)
    assert "all well" in root.run("lookups").stdout
    (tmp_path / "made").unlink()
    (tmp_path / "lookups").chmod(0o4755)
    ran = root.run("lookups", "--setuid=65534")
    # It is not limited, which it says, and root has made no file for another user.
    assert (ran.returncode, "CUDA_ERROR_OUT_OF_MEMORY" in ran.stdout) == (1, True), ran
    assert not (tmp_path / "made").exists()
