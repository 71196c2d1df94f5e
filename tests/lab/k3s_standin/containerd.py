# SPDX-License-Identifier: Apache-2.0
"""containerd as K3s runs its own: places, configuration, images from files, NVIDIA's runtime."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import cgroups, files
from .api import until
from .config import Config
from .errors import StandinError
from .kubectl import DATA_DIR
from .packed import DIGEST, RUNTIME
from .processes import Children

log = logging.getLogger(__name__)

STATE = Path("/run/k3s/containerd")  # K3s'
SOCKET = STATE / "containerd.sock"
# Where K3s looks for NVIDIA's runtime (pkg/agent/containerd), the container toolkit's own name for it.
NVIDIA_RUNTIME = "nvidia-container-runtime"
CRI_RUNTIME = "plugins.'io.containerd.cri.v1.runtime'"


def configuration(root: Path, pause_image: str, cni: Path, programs: Path, nvidia: str | None) -> str:
    """Return config.toml; `nvidia` is the path of NVIDIA's runtime, None when the board has none."""

    def text(value: object) -> str:
        return json.dumps(str(value))  # TOML's basic strings are JSON's

    lines = [
        "version = 3",
        f"root = {text(root)}",
        f"state = {text(STATE)}",
        "[grpc]",
        f"  address = {text(SOCKET)}",
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]",
        f"  sandbox = {text(pause_image)}",
        f"[{CRI_RUNTIME}]",
        # What a board lacks the right to is left out: a virtual one is a container.
        "  restrict_oom_score_adj = true",
        f"[{CRI_RUNTIME}.cni]",
        f"  bin_dirs = [{text(programs)}]",
        f"  conf_dir = {text(cni)}",
    ]
    for name, binary in (("runc", "runc"), ("nvidia", nvidia)):
        if binary:
            lines += [
                f"[{CRI_RUNTIME}.containerd.runtimes.{name}]",
                '  runtime_type = "io.containerd.runc.v2"',
                f"[{CRI_RUNTIME}.containerd.runtimes.{name}.options]",
                f"  BinaryName = {text(binary)}",
                "  SystemdCgroup = false",
            ]
    return "\n".join(lines) + "\n"


def kubelet_flags() -> dict[str, str]:
    """Return the kubelet's flags for containerd."""
    board = cgroups.root(Path("/proc/self/cgroup").read_text())
    cgroups.ensure(board, cgroups.hierarchies(Path("/proc/self/mounts").read_text()))
    return {
        "container-runtime-endpoint": f"unix://{SOCKET}",
        "cgroup-driver": "cgroupfs",
        # A kubelet of 1.36 without QoS cgroups ends when a pod's limits are looked at.
        "cgroups-per-qos": "true",
        "cgroup-root": board,
    }


def cni_directory(config: Config) -> Path:
    """Return where the configuration of the pods' network is, as in K3s."""
    return config.data_dir / "agent" / "etc" / "cni" / "net.d"


async def start(children: Children, config: Config, programs: Path) -> None:
    """Start containerd and give it the images that lie in `agent/images`."""
    home = config.data_dir / "agent"
    file = home / "etc" / "containerd" / "config.toml"
    cni = cni_directory(config)
    cni.mkdir(parents=True, exist_ok=True)
    nvidia = shutil.which(NVIDIA_RUNTIME)
    content = configuration(home / "containerd", config.pause_image, cni, programs, nvidia)
    files.write(file, content)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"  # for the shim, which containerd starts by name
    await children.start("containerd", [programs / "containerd", "--config", file])
    ctr: list[Path | str] = [programs / "ctr", "--address", SOCKET]
    await until(lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0)
    for archive in sorted((home / "images").glob("*.tar*")):
        log.info("Importing images from %s", archive)
        await asyncio.to_thread(import_images, ctr, archive)


def import_images(ctr: list[Path | str], archive: Path) -> None:
    """Import one archive. Raises StandinError with containerd's complaint."""
    done = subprocess.run(
        [*ctr, "--namespace=k8s.io", "images", "import", "--all-platforms=false", archive],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise StandinError(f"cannot import {archive}: {done.stderr.strip()}")


def become_ctr(arguments: Sequence[str]) -> None:
    """Become containerd's client. Raises StandinError where Docker runs the pods."""
    if RUNTIME != "containerd":
        raise StandinError("k3s ctr talks to containerd; this stand-in drives Docker: use docker")
    ctr = f"{DATA_DIR}/data/{DIGEST}/bin/ctr"
    os.execv(ctr, ["ctr", f"--address={SOCKET}", *arguments])  # noqa: S606  (no shell is wanted)
