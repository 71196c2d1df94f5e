# SPDX-License-Identifier: Apache-2.0
"""What the lab puts onto a board of any grade: its own files, SSH keys, and the SIMULATED Tegra."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import boards
from tests.lab import k3s, ssh, workloads
from tests.lab.images import USER

HERE = Path(__file__).parent
BOARD_INIT = "/usr/local/lib/jetson-k3s-lab/board-init"
RUNTIME = "/usr/bin/nvidia-container-runtime"
VIRTUAL_BOARD = "/usr/local/lib/jetson-k3s-lab/virtual-board"
# The part of the NVIDIA runtime's stand-in that knows who gets the GPU.
RUNTIME_EDITOR = "/usr/local/lib/jetson-k3s-lab/edit-container"
# The part of the stand-in that CDI's hooks call.
CONTAINER_HOOK = "/usr/local/lib/jetson-k3s-lab/container-hook"
# The release of NVIDIA's toolkit that it behaves as: one line, also the text of `--version`.
TOOLKIT_VERSION = "/usr/local/lib/jetson-k3s-lab/toolkit-version"
# What a board gets besides the image: (file of the checkout, path on the board, mode).
OWN_FILES = (
    (HERE / "virtual_board/board-init", BOARD_INIT.lstrip("/"), 0o755),
    (HERE / "virtual_board/virtual_board.py", VIRTUAL_BOARD.lstrip("/"), 0o755),
    (HERE / "virtual_board/virtual-board.service", "etc/systemd/system/virtual-board.service", 0o644),
    (HERE / "nvidia_runtime/nvidia-container-runtime", RUNTIME.lstrip("/"), 0o755),
    (HERE / "nvidia_runtime/runtime.py", RUNTIME_EDITOR.lstrip("/"), 0o755),
    (HERE / "nvidia_runtime/container_hook.py", CONTAINER_HOOK.lstrip("/"), 0o755),
)
# A plain host gets nothing of NVIDIA's. Its containers are clamped as those of a board.
CLAMP = "/usr/local/lib/jetson-k3s-lab/runc-clamp"
PLAIN_FILES = (
    (HERE / "virtual_board/board-init", BOARD_INIT.lstrip("/"), 0o755),
    (HERE / "nvidia_runtime/nvidia-container-runtime", CLAMP.lstrip("/"), 0o755),
    (HERE / "nvidia_runtime/runtime.py", RUNTIME_EDITOR.lstrip("/"), 0o755),
)
TREE = "var/lib/simulated-tegra"


@contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory whose content is going to a board, where everybody may read it."""
    umask = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="jetson-k3s-board-") as made:
            stage = Path(made)
            stage.chmod(0o755)
            yield stage
    finally:
        os.umask(umask)


def own_files(stage: Path, lab: str, name: str) -> str:
    """Stage the lab's files of a board and the SSH keys; return the public host key."""
    _copy(stage, OWN_FILES)
    (stage / "usr/bin/nvidia-ctk").symlink_to("nvidia-container-runtime")
    wanted = stage / "etc/systemd/system/sysinit.target.wants/virtual-board.service"
    wanted.parent.mkdir()
    wanted.symlink_to("../virtual-board.service")
    for_k3s(stage, RUNTIME)
    return _keys(stage, lab, name)


def plain_files(stage: Path, lab: str, name: str) -> str:
    """Stage the same of a plain host: no Tegra, and nothing of NVIDIA's."""
    _copy(stage, PLAIN_FILES)
    version = stage / TOOLKIT_VERSION.lstrip("/")
    version.write_text("none\n")
    for_k3s(stage, CLAMP)
    return _keys(stage, lab, name)


def _copy(stage: Path, files: Sequence[tuple[Path, str, int]]) -> None:
    for source, path, mode in files:
        target = stage / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(mode)


def _keys(stage: Path, lab: str, name: str) -> str:
    authorized = stage / "etc/ssh/authorized_keys" / USER
    authorized.parent.mkdir(parents=True)
    authorized.write_text(ssh.make_key(ssh.key_path(lab), f"jetson-k3s lab {lab}"))
    return ssh.make_key(stage / "etc/ssh/ssh_host_ed25519_key", name)


def for_k3s(stage: Path, clamp: str) -> None:
    """Stage what K3s needs on a host that shares cgroups with others, and whose root may lack rights.

    `clamp` is the program that edits containers, and starts the real runc.
    """
    # A reset removes K3s' drop-ins from /etc/systemd.
    files = {
        "etc/rancher/k3s/config.yaml.d/60-virtual-board.yaml": k3s.BOARD_SETTINGS,
        "usr/lib/systemd/system/k3s.service.d/virtual-board.conf": k3s.UNIT_SETTINGS,
        "usr/lib/systemd/system/k3s-agent.service.d/virtual-board.conf": k3s.UNIT_SETTINGS,
    }
    for name, text in files.items():
        path = stage / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    before_runc = stage / "usr/local/sbin/runc"
    before_runc.parent.mkdir(parents=True)
    before_runc.symlink_to(clamp)


def tegra(
    stage: Path,
    fixture: boards.Fixture,
    state: boards.State,
    tree: str = "",
    arch: str = workloads.DEFAULT_ARCH,
) -> None:
    """Stage a simulated Tegra: what is mounted (sys, dev, proc) below `tree`, the rest at its place."""
    root = stage / ".build"
    boards.build(fixture, root, state=state, nodes="char")
    target = stage / (tree or TREE)
    target.mkdir(parents=True, exist_ok=True)
    for part in ("sys", "dev", "proc"):
        (root / part).rename(target / part)
    if tree:
        shutil.rmtree(root)
    else:
        # A library that programs can load, with the board's facts behind it.
        facts = root / fixture.library_dir.lstrip("/") / "libcuda.so.1.1"
        program = workloads.libcuda(fixture.cuda, arch) / "libcuda.so.1"
        facts.write_bytes(program.read_bytes() + b"\n" + facts.read_bytes())
        shutil.copytree(root, stage, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(root)
        version = stage / TOOLKIT_VERSION.lstrip("/")
        version.parent.mkdir(parents=True, exist_ok=True)
        version.write_text(f"{fixture.toolkit}\n")
