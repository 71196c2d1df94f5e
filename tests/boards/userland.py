# SPDX-License-Identifier: Apache-2.0
"""L4T's user space on a simulated board: release file, the runtime's CSV lists, a stand-in for libcuda."""

import json
from pathlib import Path, PurePosixPath

from tests.boards.fixture import DATA, Fixture

# By L4T release line: the device nodes of L4T's own lists (present on the board or not: the runtime skips
# absent entries) and, of its hundreds of libraries, libcuda.
_CSV = json.loads(DATA.read_text(encoding="utf-8"))["csv"]
# Each line's lists have the entries of these as well.
_AND_OF = {32: (), 35: (32,), 36: (), 38: (36,), 39: (36, 38)}


def write(fixture: Fixture, root: Path) -> None:
    """Write the release file, the CSV lists and the simulated libcuda below `root`."""
    etc = root / "etc"
    csv_dir = etc / "nvidia-container-runtime" / "host-files-for-container.d"
    csv_dir.mkdir(parents=True)
    (etc / "nv_tegra_release").write_text(fixture.data["nv_tegra_release"], encoding="utf-8")
    for line in (*_AND_OF[fixture.l4t_major], fixture.l4t_major):
        for name, kinds in _CSV[str(line)].items():
            with (csv_dir / name).open("a", encoding="utf-8") as entries:
                for kind, paths in kinds.items():
                    place = "/dev/" if kind == "dev" else ""
                    entries.writelines(f"{kind}, {place}{path}\n" for path in paths)

    libraries = root / fixture.library_dir.lstrip("/")
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.1.1").write_text(libcuda_facts(fixture), encoding="utf-8")
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.1.1")
    (libraries.parent / "libcuda.so").symlink_to(PurePosixPath(libraries.name, "libcuda.so.1.1"))


def write_run(root: Path) -> None:
    """Make /run below `root`, and /var/run as Debian has it: an absolute link, good only on the host."""
    (root / "run").mkdir()
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")


def libcuda_facts(fixture: Fixture) -> str:
    """What the SIMULATED libcuda says of this board's GPU, and the nodes that it must open."""
    facts = {
        "device_name": fixture.data["devicequery_name"],
        "compute_capability": fixture.compute_capability,
        "multiprocessors": fixture.data["sm"],
        "memory_bytes": fixture.memory_bytes,
        "integrated": 1,
        "pci_bus_id": 1 if fixture.is_pci else 0,
    }
    lines = [
        "# SIMULATED libcuda: not a library, but the facts of a board's GPU.",
        *(f"{key}={value}" for key, value in facts.items()),
        *(f"open=/dev/{name}" for name in fixture.cuda_nodes),
    ]
    return "".join(f"{line}\n" for line in lines)
