# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's build context: the locked wheels and the plugin, unpacked for a target architecture."""

import shutil
import sys
import tempfile
from pathlib import Path

from images.arm64 import gpu_limit
from tools.process import run

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PACKAGE = CHECKOUT / "plugin" / "tegra_device_plugin"
# Platform tags of the wheels to take: glibc 2.28 is older than that of every base in use, 2014 is 2.17.
WHEEL_PLATFORMS = {
    "arm64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    "amd64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
}
PIP_INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
# What setuptools needs besides the package to make a wheel of the plugin.
METADATA = ("pyproject.toml", "plugin/README.md", "LICENSE")
FILES = ("Dockerfile", "nvidia-tegra.conf", "slim.py")


def plugin_sources() -> list[Path]:
    """Return the checkout's files that the plugin's wheel is made of. `make dev` and Python add others."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    package = sorted(path for path in files if path.suffix not in (".pyc", ".pyi"))
    return [*(CHECKOUT / name for name in METADATA), *package]


def write(target: Path, arch: str, revision: str) -> None:
    """Write the context into `target`, running no code of the target. Raises ToolError if pip fails."""
    target.mkdir()
    for name in FILES:
        shutil.copy(HERE / name, target)
    (target / "gpu-limit").mkdir()
    shutil.copy(gpu_limit.build(arch), target / "gpu-limit")
    _install_wheels(arch, target / "app")
    with tempfile.TemporaryDirectory() as scratch:
        copy_plugin(Path(scratch))
        # With the setuptools of the lists: it writes METADATA, which is in the image.
        # The Python of this computer may be older than the image's.
        _pip_install(target / "app", "--no-build-isolation", "--ignore-requires-python", scratch)
    (target / "app" / PACKAGE.name / "REVISION").write_text(f"{revision}\n")


def copy_plugin(target: Path) -> None:
    """Copy the sources of the plugin's wheel, as setuptools writes its directories beside them."""
    for path in plugin_sources():
        copy = target / path.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def wheel_options(arch: str) -> list[str]:
    """Return pip's options that choose an architecture's wheels."""
    platforms = [f"--platform={tag}" for tag in WHEEL_PLATFORMS[arch]]
    return ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11", *platforms]


def _install_wheels(arch: str, target: Path) -> None:
    listed = ("--require-hashes", "--requirement", HERE / "requirements.txt")
    _pip_install(target, *wheel_options(arch), *listed)


def _pip_install(target: Path, *what: str | Path) -> None:
    run([*PIP_INSTALL, "--no-deps", "--no-compile", "--target", target, *what])
