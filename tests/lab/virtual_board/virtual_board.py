#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts a SIMULATED Tegra at its true paths on a virtual board (runs on the board, as root).

virtual-board boot       at every boot: mounts the simulated files over /sys, makes the device nodes
virtual-board apply DIR  while the board runs: turns the simulated files into those of DIR, as hardware would
                         (attributes change, nodes and links come and go)

The simulated files stand in /var/lib/simulated-tegra, in a tree with sys/, dev/ and proc/.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

TREE = Path("/var/lib/simulated-tegra")
LIVE = Path("/run/simulated-tegra")
# Merged with the real directory by an overlay. One overlay over all of /sys would hide /sys/fs/cgroup.
MERGED = ("devices", "class", "bus")
# A board has only its own of these: what the machine below has must not shine through.
OPAQUE = ("class/devfreq", "class/thermal", "devices/virtual/thermal", "bus/pci/devices", "bus/pci/drivers")
OVERLAY_OPAQUE = "trusted.overlay.opaque"  # Documentation/filesystems/overlayfs.rst
# The parts of the tree that change with the board's state.
AREAS = ("sys/devices", "sys/class", "sys/bus", "sys/firmware", "dev")


def run(*argv: str | Path) -> None:
    """Run a command."""
    subprocess.run([str(arg) for arg in argv], check=True)


def boot() -> None:
    """Put the simulated Tegra in place."""
    # Pods with propagated mounts need it; systemd does so on a real board, not in a container.
    run("mount", "--make-rshared", "/")
    keep_containers_in_own_cgroup()
    shutil.copytree(TREE / "sys", LIVE / "sys", symlinks=True)
    for directory in OPAQUE:
        path = LIVE / "sys" / directory
        path.mkdir(parents=True, exist_ok=True)
        os.setxattr(path, OVERLAY_OPAQUE, b"y")
    for directory in MERGED:
        lower, upper, work = Path("/sys", directory), LIVE / "sys" / directory, LIVE / "work" / directory
        upper.mkdir(exist_ok=True)
        work.mkdir(parents=True)
        run(
            "mount",
            "-t",
            "overlay",
            "-o",
            f"lowerdir={lower},upperdir={upper},workdir={work}",
            "tegra",
            lower,
        )
    # All of it is the board's: the ACPI tables of a PC do not belong on a Jetson. A kernel that has
    # read a device tree of its own shows that one.
    if not Path("/sys/firmware/devicetree").exists():
        run("mount", "--bind", LIVE / "sys/firmware", "/sys/firmware")
    shutil.copyfile(TREE / "proc/meminfo", LIVE / "meminfo")
    run("mount", "--bind", LIVE / "meminfo", "/proc/meminfo")
    for path in sorted((TREE / "dev").rglob("*")):
        install(path, Path("/dev", path.relative_to(TREE / "dev")))


def keep_containers_in_own_cgroup() -> None:
    """Make the board's Docker engine put containers below the board's own cgroup.

    With cgroup v1 the board shares the machine's cgroup tree; without this its containers would be the
    machine's, and their cgroups would outlive the board. With v2 it has no other place to put them, and a
    board that is a machine of its own shares with nobody.
    """
    in_container = Path("/run/systemd/container").exists()  # written by systemd(1) where it boots in one
    if not in_container or Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return
    match = re.search(r":(/\S*[0-9a-f]{64})", Path("/proc/self/cgroup").read_text())
    if match is None:
        sys.exit("virtual-board: /proc/self/cgroup does not name the board's container")
    Path("/etc/default/docker").write_text(f'DOCKER_OPTS="--cgroup-parent={match.group(1)}/docker"\n')


def install(source: Path, target: Path) -> None:
    """Make `target` like `source`, in one step for each reader."""
    found = source.lstat()
    if stat.S_ISDIR(found.st_mode):
        target.mkdir(exist_ok=True)
        return
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    if stat.S_ISLNK(found.st_mode):
        fresh.symlink_to(source.readlink())
    elif stat.S_ISCHR(found.st_mode):
        os.mknod(fresh, found.st_mode, found.st_rdev)
        os.chown(fresh, found.st_uid, found.st_gid)
        fresh.chmod(stat.S_IMODE(found.st_mode))
    else:
        shutil.copyfile(source, fresh)
        fresh.chmod(stat.S_IMODE(found.st_mode))
    fresh.replace(target)


def same(one: Path, other: Path) -> bool:
    """Say whether two entries of the simulated trees are alike."""
    a, b = one.lstat(), other.lstat()
    if (a.st_mode, a.st_rdev) != (b.st_mode, b.st_rdev):
        return False
    if stat.S_ISLNK(a.st_mode):
        return one.readlink() == other.readlink()
    return not stat.S_ISREG(a.st_mode) or one.read_bytes() == other.read_bytes()


def apply(new: Path, tree: Path = TREE, target: Path = Path("/")) -> None:
    """Turn the simulated files below `target` from those of `tree` into those of `new`.

    `new` then takes the place of `tree`.
    """
    for area in AREAS:
        before = {path.relative_to(tree) for path in (tree / area).rglob("*")}
        after = {path.relative_to(new) for path in (new / area).rglob("*")}
        changed = {path for path in before & after if not same(tree / path, new / path)}
        # A file cannot take the place of a directory, nor the other way round.
        retyped = {path for path in changed if kind(tree / path) != kind(new / path)}
        # The kernel's class and bus directories stay when their last device goes.
        gone = (before - after | retyped) - {Path("sys", directory) for directory in OPAQUE}
        for path in sorted(gone, reverse=True):
            remove(target / path)
        for path in sorted((after - before) | changed):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            install(new / path, target / path)
    shutil.rmtree(tree)
    new.rename(tree)


def kind(path: Path) -> int:
    """Return the type of a file, of a link itself."""
    return stat.S_IFMT(path.lstat().st_mode)


def remove(path: Path) -> None:
    """Remove a file, or a directory unless something else is in it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    elif not any(path.iterdir()):
        path.rmdir()


def main(argv: list[str]) -> None:
    """Do what the command line says."""
    if argv == ["boot"]:
        boot()
    elif len(argv) == 2 and argv[0] == "apply":
        apply(Path(argv[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
