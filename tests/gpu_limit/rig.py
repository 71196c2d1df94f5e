# SPDX-License-Identifier: Apache-2.0
"""Runs programs with the library preloaded, on a SIMULATED driver of a CUDA release."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tools.cache import CHECKOUT

# The CUDA of JetPack 4, 5, 6 and 7.
RELEASES = ("10.2", "11.4", "12.6", "13.0")
PRELUDE = """
import ctypes, os, sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from tests.gpu_limit.cuda import *
from tests.gpu_limit.cuda import driver
start()
"""


@dataclass(frozen=True)
class Rig:
    """How programs are run: on which driver, with what limit (MiB) and ledger."""

    driver: Path
    limit: str | None = "100"
    ledger: Path | None = None
    library: Path | None = None
    """Preloaded; None: nothing is."""
    device_mib: int = 4096

    def but(self, **changes: object) -> "Rig":
        return replace(self, **changes)  # type: ignore[arg-type]  # by name

    @property
    def environment(self) -> dict[str, str]:
        chosen = {
            "LD_PRELOAD": self.library and str(self.library),
            "NVIDIA_GPU_MEMORY_LIMIT": self.limit,
            "TEGRA_GPU_LIMIT_LEDGER": self.ledger and str(self.ledger),
        }
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            **inherited,
            "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'plugin'}",
            "LD_LIBRARY_PATH": str(self.driver),
            "SIMULATED_GPU_MIB": str(self.device_mib),
            **{name: value for name, value in chosen.items() if value},
        }

    def start(self, code: str) -> subprocess.Popen[str]:
        """Start Python code that knows the names of tests/gpu_limit/cuda.py; it talks through pipes."""
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @contextmanager
    def standing(self, code: str) -> Iterator[subprocess.Popen[str]]:
        """Start code that prints `there` and waits for its standard input; it is killed at the end."""
        with self.start(code) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n", process.stderr and process.stderr.read()
            try:
                yield process
            finally:
                process.kill()

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run such code to its end, which must be a good one."""
        with self.start(code) as process:
            out, error = process.communicate()
        assert process.returncode == 0, error
        return subprocess.CompletedProcess(process.args, 0, out, error)
