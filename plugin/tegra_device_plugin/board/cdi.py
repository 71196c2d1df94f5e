# SPDX-License-Identifier: Apache-2.0
"""The board's GPU as a CDI spec, made from NVIDIA's CSV files, for kubelets and runtimes that know CDI.

NVIDIA's own generator uses NVML on a Jetson and fails (nvidia-ctk without --mode=csv). NVIDIA's runtime uses
the CSV files there. Format: github.com/cncf-tags/container-device-interface SPEC.md.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tegra_device_plugin.board.cards import find_nodes
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.health import HEALTHY, Health, unless_it_fails
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.hosttree import HostTree, raise_own_shortage
from tegra_device_plugin.system.kubernetes import CDI_VERSIONS
from tegra_device_plugin.system.log import ProblemLog, brief
from tegra_device_plugin.system.mounts import parts_of_host

KIND = "k8s.device-plugin.nvidia.com/gpu"  # the kind of NVIDIA's plugin; the toolkit's own is nvidia.com/gpu
NAMES = ("0", "all")
DIRECTORY = "/var/run/cdi"
SPEC_FILE = f"{DIRECTORY}/tegra-device-plugin.json"

RUNTIME_DIRECTORY = "/etc/nvidia-container-runtime"
_CSV_DIRECTORY = f"{RUNTIME_DIRECTORY}/host-files-for-container.d"
_CSV_BYTES = 1 << 20
_RELEASE = "/etc/nv_tegra_release"
_DRIVER = "libcuda.so"  # of package nvidia-l4t-cuda
_HOOKS = "/usr/bin/nvidia-ctk"  # of nvidia-container-toolkit-base
MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
OLDEST, WITH_GROUPS = CDI_VERSIONS
_GROUP_ACCESS, _ACCESS_FOR_ALL = stat.S_IRGRP | stat.S_IWGRP, stat.S_IROTH | stat.S_IWOTH


_LISTS_LOG = ProblemLog()  # for the process: its spec file changes with the settings
_MISSING = Health(False, "cdi-missing", "no CDI spec, so no container can have it")


class SpecFile(NamedTuple):
    """The spec of the board at `root`: a runtime rejects a container whose CDI device has none.

    So the spec comes before the devices that name it.
    """

    root: Path
    version: str = OLDEST

    def provide(self, found: Detection, *, renew: bool) -> Health:
        """Make the spec if it is missing; with `renew`, make it again and log which entries it lacks."""
        if not renew and HostTree(self.root).link(SPEC_FILE):
            return HEALTHY
        if renew:
            self._log_unmounted_entries()
        return unless_it_fails(lambda: write(self.root, found.gpu.device_nodes, self.version), _MISSING)

    def check(self, found: Detection) -> Health:
        return unless_it_fails(lambda: HostTree(self.root).resolve(SPEC_FILE), _MISSING)

    def _log_unmounted_entries(self) -> None:
        try:
            entries = unmounted_entries(self.root)
        except OSError as error:  # then no spec can be made, either
            raise_own_shortage(error)
            return
        if entries:
            _LISTS_LOG.warn(
                "the CDI spec lacks entries of NVIDIA's lists that are not mounted here: "
                f"{brief(entries)}: mount their directories below {self.root}, read-only"
            )


class NoCsvFilesError(OSError):
    """The board has none of NVIDIA's CSV files."""


class NoDriverLibraryError(OSError):
    """The CSV files lead to no libcuda: a container would get the GPU's nodes, and CUDA would not work."""


def device(name: str) -> str:
    return f"{KIND}={name}"


def write(root: Path, device_nodes: Sequence[str], version: str = OLDEST) -> None:
    """Make or renew the spec below the host root `root`; the same spec is not written again.

    `device_nodes` are the GPU's, in case the CSV files lack one. Raises OSError, and then writes nothing.
    """
    host = HostTree(root)
    text = json.dumps(spec(root, device_nodes, version), indent=2) + "\n"
    Path(host.real(DIRECTORY)).mkdir(exist_ok=True)
    update_file(Path(host.real(SPEC_FILE)), text)


def unmounted_entries(root: Path) -> tuple[str, ...]:
    """Give the entries of the CSV files that no spec from here has: their directories are not mounted.

    Raises NoCsvFilesError, OSError.
    """
    parts = parts_of_host(root)
    if parts is None:
        return ()
    paths = dict.fromkeys(path for _, path in _entries(HostTree(root)))
    return tuple(path for path in paths if not any(f"{path}/".startswith(f"{part}/") for part in parts))


def spec(root: Path, device_nodes: Sequence[str], version: str = OLDEST) -> dict[str, Any]:
    """Give the spec for the host seen at `root`. Raises NoCsvFilesError, NoDriverLibraryError, OSError."""
    nodes = dict.fromkeys(device_nodes)
    mounts: dict[str, None] = {}
    links: list[str] = []
    host = HostTree(root)
    of_cards = find_nodes(host, detect(root).gpu.sysfs).others
    for kind, pattern in _entries(host):
        for path in host.glob(pattern):
            if kind == "dev":
                if host.is_node(path) and path not in of_cards:
                    nodes[path] = None
            elif kind == "sym":
                if target := host.target(path):
                    links += ["--link", f"{target}::{path}"]
            else:
                mounts[path] = None
    _require_driver(host, mounts)
    mounts |= dict.fromkeys(host.glob(_RELEASE))
    folders = dict.fromkeys(str(Path(path).parent) for path in mounts if ".so" in Path(path).name)
    edits: dict[str, Any] = {"deviceNodes": [{"path": path} for path in nodes]}
    if version != OLDEST and (groups := _groups(host, nodes)):
        edits["additionalGids"] = groups
    return {
        "cdiVersion": version,
        "kind": KIND,
        "devices": [{"name": name, "containerEdits": edits} for name in NAMES],
        "containerEdits": {
            "mounts": [
                {"hostPath": path, "containerPath": path, "options": MOUNT_OPTIONS} for path in mounts
            ],
            "hooks": [
                _hook("create-symlinks", links),
                _hook("update-ldcache", [part for folder in folders for part in ("--folder", folder)]),
            ],
        },
    }


def _require_driver(host: HostTree, mounts: Iterable[str]) -> None:
    """Raise NoDriverLibraryError if no mount is, or has, the driver's own library."""
    for path in mounts:
        found = (
            [path]
            if _is_driver(path)
            else [f"{path}/{name}" for name in host.names(path) if _is_driver(name)]
        )
        if any(host.is_node(one) for one in found):
            return
    listed = dict.fromkeys(path for kind, path in _entries(host) if kind == "lib" and _is_driver(path))
    places = f"not there is {brief(tuple(listed))}" if listed else "they name no such file"
    raise NoDriverLibraryError(
        f"no {_DRIVER} of the driver by NVIDIA's lists in {_CSV_DIRECTORY}: {places}. Install "
        "nvidia-l4t-cuda and the lists again, or, if they are there, mount the host's /usr and /lib read-only"
    )


def _is_driver(path: str) -> bool:
    return Path(path).name.startswith(_DRIVER)


def _groups(host: HostTree, nodes: Iterable[str]) -> list[int]:
    """Give the groups, but root's, of the nodes that only their group may open. Toolkit 1.19 adds them."""
    found = filter(None, map(host.status, nodes))
    return sorted({one.st_gid for one in found if one.st_gid and _only_for_group(one)})


def _only_for_group(status: os.stat_result) -> bool:
    group = status.st_mode & _GROUP_ACCESS == _GROUP_ACCESS
    return group and status.st_mode & _ACCESS_FOR_ALL != _ACCESS_FOR_ALL


def _hook(name: str, arguments: Iterable[str]) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": _HOOKS, "args": ["nvidia-ctk", "hook", name, *arguments]}


def _entries(host: HostTree) -> Iterator[tuple[str, str]]:
    """Kinds and path patterns of all CSV files; invalid lines are skipped, as NVIDIA's runtime skips them."""
    files = host.glob(f"{_CSV_DIRECTORY}/*.csv")
    if not files:
        raise NoCsvFilesError(f"cdi-cri needs NVIDIA's CSV files, and there is none in {_CSV_DIRECTORY}")
    for file in files:
        content = host.read(file, _CSV_BYTES)
        if len(content) == _CSV_BYTES:  # truncated: the last line may be incomplete
            content = content[: content.rfind(b"\n") + 1]
        for line in content.decode("utf-8", "replace").splitlines():
            kind, _, path = (part.strip() for part in line.partition(","))
            if kind in ("dev", "dir", "lib", "sym") and path.startswith("/"):
                yield kind, path
