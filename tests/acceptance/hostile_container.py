# SPDX-License-Identifier: Apache-2.0
"""Attacks by the files of the memory limit: of a container, and of another user of the board."""

import json
from collections.abc import Callable

# As containers see it (plugin/gpu_limit/account.c).
LEDGER = "/run/tegra-gpu-limit/ledger"
NOBODY = "65534"

# Runs in a container of the plugin's image, and prints what has succeeded.
ATTACKS = """
import ctypes, fcntl, json, mmap, os, struct
LIBRARY = "/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so"
PATHS = ["/run/tegra-gpu-limit/ledger", "/etc/ld.so.preload", LIBRARY]
PROGRAM = b"#!/bin/sh\\nid\\n"
MS_REMOUNT, MS_BIND = 32, 4096
libc = ctypes.CDLL(None, use_errno=True)
def write(path, flags=os.O_RDWR):
    file = os.open(path, flags)
    try: os.write(file, PROGRAM)
    finally: os.close(file)
def write_by_its_descriptor(path):
    file = os.open(path, os.O_RDONLY)
    try: write(f"/proc/self/fd/{file}")
    finally: os.close(file)
def map_it(path):
    file = os.open(path, os.O_RDONLY)
    try: mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
    finally: os.close(file)
def mount_it_writable(path):
    if libc.mount(None, path.encode(), None, MS_REMOUNT | MS_BIND, None):
        raise OSError(ctypes.get_errno(), "mount")
def unmount(path):
    if libc.umount2(path.encode(), 0):
        raise OSError(ctypes.get_errno(), "umount")
# VFS_CAP_REVISION_2 with CAP_SETUID permitted and effective (linux/capability.h).
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0)
ATTACKS = {
    "write": write,
    "append": lambda path: write(path, os.O_WRONLY | os.O_APPEND),
    "write by its descriptor": write_by_its_descriptor,
    "map": map_it,
    "grow": lambda path: os.truncate(path, 300 << 20),
    "setuid": lambda path: os.chmod(path, 0o4755),
    "own": lambda path: os.chown(path, 1000, 1000),
    "give capabilities": lambda path: os.setxattr(path, "security.capability", CAPABILITY),
    "touch": lambda path: os.utime(path, (0, 0)),
    "link": lambda path: os.link(path, path + ".mine"),
    "remove": os.unlink,
    "replace": lambda path: os.rename(path, path + ".mine"),
    "mount it writable": mount_it_writable,
    "unmount": unmount,
}
done = []
for path in PATHS:
    os.stat(path)
    for name, attack in ATTACKS.items():
        try: attack(path)
        except (OSError, ValueError): continue
        done.append(f"{name}: {path}")
# What the library does is possible, for every user.
file = os.open(PATHS[0], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, 0, 8, 0))
print(json.dumps(done))
"""

# Runs in a container of the plugin's image: makes a limit of 100 MiB in the directory, and prints its mounts.
PREPARE = """
import json, pathlib, sys
from tegra_device_plugin.sharing import memory_limit
from tegra_device_plugin.sharing.memory_limit import Limit
directory = pathlib.Path(sys.argv[1])
memory_limit.provide_files(directory, pathlib.Path("/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so"))
limit = Limit(directory, "m0", 100 << 20)
limit.prepare()
print(json.dumps(limit.mounts))
"""

Run = Callable[..., str]
"""Runs a command on a machine as root, past its own failures with `check=False`, and gives its output."""


def successes(run: Run, image: str) -> list[str]:
    """Give the attacks that succeed: of a container with Docker's default rights, and of another user."""
    directory = run("mktemp", "--directory")
    run("chmod", "755", directory)
    try:
        docker = ("docker", "run", "--rm", "--network=none", "--env=NVIDIA_VISIBLE_DEVICES=void")
        python = (image, "-c")
        plugin = (*docker, "--cap-drop=ALL", f"--volume={directory}:{directory}", "--entrypoint=python3.11")
        mounts = json.loads(run(*plugin, *python, PREPARE, directory).splitlines()[-1])
        volumes = [f"--volume={host}:{container}:ro" for host, container in mounts]
        found = []
        for user in ("0", NOBODY):
            rights = ("--security-opt=no-new-privileges", f"--user={user}", "--entrypoint=python3.11")
            done = json.loads(run(*docker, *rights, *volumes, *python, ATTACKS).splitlines()[-1])
            found += [f"user {user} of a container: {one}" for one in done]
        (ledger,) = (host for host, container in mounts if container == LEDGER)
        return found + of_other_users(run, ledger)
    finally:
        run("rm", "--recursive", directory)


def of_other_users(run: Run, ledger: str) -> list[str]:
    """Give what another user of the machine can do with a ledger whose path it knows."""
    beside = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
    attacks = {
        "read": ("dd", f"if={ledger}", "status=none"),
        "list": ("ls", ledger.rpartition("/")[0]),
        "execute": (ledger,),
    }
    return [
        f"another user: {name}"
        for name, command in attacks.items()
        if run(*beside, "sh", "-c", '"$@" >/dev/null 2>&1 && echo done', "sh", *command, check=False).strip()
    ]
