# SPDX-License-Identifier: Apache-2.0
"""Runs the real jtop service on a simulated board, its sources fetched once into the lab's cache.

The board is a host tree (tests.boards) with what else jtop reads. The service runs in mount and PID
namespaces of its own, with that tree as its root directory: every path it opens is the true one. Needs root.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.boards import Fixture, build
from tools.cache import cached
from tools.process import ToolError, run, tail

# What a version needs besides itself, as its own metadata says.
_DEPENDENCIES = ("smbus2==0.6.1", "distro==1.9.0", "nvidia-ml-py==13.615.71")
_READY_SECONDS = 20.0

GPU_MEMORY_KIB = 123456  # what nvmap says is in use on every simulated board

_DIRECTORIES = (
    *("run", "tmp", "usr", "realproc"),
    *("sys/class/hwmon", "sys/class/power_supply", "sys/bus/i2c/devices", "sys/kernel/debug/clk"),
)
# Of /proc what is not the board's but the processes': links into a procfs of the namespace.
_REAL_PROC = (
    *("self", "thread-self", "uptime", "mounts", "buddyinfo"),
    *("swaps", "filesystems", "sys", "loadavg"),
)
_SHIM = Path(__file__).with_name("board_shim")

_SERVER = """
import logging
from jtop.service import JtopServer
logging.basicConfig(level=logging.INFO)
JtopServer(force=True).loop_for_ever()
"""

# $1: the board's root; the rest: the server's command. /usr and Python's own directory are the computer's.
_ENTER = """
set -e
board=$1 python=$2 packages=$3
shift 3
mount --make-rprivate /
mount -t proc proc "$board/realproc"
mount --rbind -o ro /usr "$board/usr"
for link in bin sbin lib lib64; do
  [ ! -e "/$link" ] || ln -sfn "usr/$link" "$board/$link"
done
for directory in "$python" "$packages"; do
  mkdir -p "$board$directory"
  mount --rbind "$directory" "$board$directory"
done
for node in null urandom; do
  touch "$board/dev/$node"
  mount --bind "/dev/$node" "$board/dev/$node"
done
mkdir -p "$board/dev/shm"
mount -t tmpfs tmpfs "$board/dev/shm"
exec chroot "$board" "$@"
"""


def packages(version: str) -> Path:
    """A directory with jetson-stats' package `jtop` and its dependencies; fetched when it is absent.

    Unpacked and not installed: older versions install and start a systemd unit when pip builds them as root.
    """

    def fetch(target: Path) -> None:
        target.mkdir()
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run([*pip, "install", "--target", target, *_DEPENDENCIES])
        archives = target / "archives"
        source = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"jetson-stats=={version}")
        run([*pip, "download", "--dest", archives, *source])
        (archive,) = archives.iterdir()
        run(["tar", "--extract", f"--file={archive}", f"--directory={archives}"])
        (archives / archive.name.removesuffix(".tar.gz") / "jtop").rename(target / "jtop")
        shutil.rmtree(archives)

    return cached(f"jetson-stats/{version}", fetch)


class Service:
    """A running jtop service; `host_root` is what the plugin's `--host-root` would be."""

    def __init__(self, version: str, fixture: Fixture, host_root: Path) -> None:
        self.host_root = host_root
        self.packages = packages(version)
        self._socket = host_root / "run/jtop.sock"
        self._log = host_root / "jtop.log"
        self._environment = {
            "PATH": "/opt/simulated:/usr/bin:/usr/sbin:/bin",
            "PYTHONPATH": f"{self.packages}:/opt/simulated",
            "SIMULATED_PART_NUMBER": _part_number(fixture),
        }
        self._process: subprocess.Popen[bytes] | None = None
        build(fixture, host_root)
        _add_what_jtop_reads(fixture, host_root)

    def start(self) -> None:
        prefix = sys.base_prefix
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
        command += [str(self.host_root), prefix, str(self.packages), f"{prefix}/bin/python3", "-c", _SERVER]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + _READY_SECONDS
        while "service ready" not in self._log.read_text() or not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ToolError(f"the jtop service did not start:\n{tail(self._log.read_text())}")
            time.sleep(0.05)  # another program's log: nothing to wait for

    def stop(self) -> None:
        """End it and all its processes at once, as a crash would: the socket stays behind."""
        if self._process:
            self._process.kill()  # unshare, and by --kill-child PID 1 of the namespace, and so all others
            self._process.wait()
            self._process = None


@contextmanager
def running(version: str, fixture: Fixture, host_root: Path) -> Iterator[Service]:
    service = Service(version, fixture, host_root)
    try:
        service.start()
        yield service
    finally:
        service.stop()


def _part_number(fixture: Fixture) -> str:
    """The number in the EEPROM of module p3767-0005: `699-13767-0005-300 A.0`, say."""
    return f"699-1{fixture.data['p_number'].removeprefix('p')}-300 A.0"


def _add_what_jtop_reads(fixture: Fixture, root: Path) -> None:
    """Directories it insists on, a processor, nvmap's debug files, the group that may connect, nvpmodel."""
    for directory in _DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in _REAL_PROC:
        (root / "proc" / name).symlink_to(f"/realproc/{name}")
    nvmap = f"{'CLIENT':<18} {'PROCESS':>18} {'PID':>8} {'SIZE':>11}\n"
    nvmap += f"{'total':<18} {'':>18} {'':>8} {GPU_MEMORY_KIB:>10}K\n"
    cpu = "sys/devices/system/cpu"
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": "root:x:0:\njtop:x:990:\n",
        "etc/fstab": "",
        "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n',
        "proc/stat": "cpu  600 0 600 60000 0 0 0 0 0 0\ncpu0 100 0 100 10000 0 0 0 0 0 0\n",
        "proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n\n",
        "sys/kernel/debug/nvmap/iovmm/clients": nvmap,
        "sys/kernel/debug/nvmap/iovmm/maps": nvmap,
        f"{cpu}/online": "0\n",
        f"{cpu}/present": "0\n",
        f"{cpu}/cpu0/cpufreq/scaling_governor": "schedutil\n",
        f"{cpu}/cpu0/cpufreq/scaling_min_freq": "729600\n",
        f"{cpu}/cpu0/cpufreq/scaling_max_freq": "1728000\n",
        f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "729600\n",
        f"{cpu}/cpu0/cpufreq/cpuinfo_min_freq": "115200\n",
        f"{cpu}/cpu0/cpufreq/cpuinfo_max_freq": "1728000\n",
        f"{cpu}/cpu0/cpufreq/cpuinfo_cur_freq": "729600\n",
        "opt/simulated/sitecustomize.py": (_SHIM / "sitecustomize.py").read_text(),
        "opt/simulated/nvpmodel": _nvpmodel(fixture),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "opt/simulated/nvpmodel").chmod(0o755)


def _nvpmodel(fixture: Fixture) -> str:
    """A SIMULATED nvpmodel that answers what jtop asks, in the real one's words."""
    modes, default = fixture.data["nvpmodel"], fixture.data["nvpmodel_default"]
    listed = "\n".join(f"POWER_MODEL: ID={number} NAME={name}" for number, name in enumerate(modes))
    return f"""#!/bin/sh
case $1 in
  -q) printf 'NV Power Mode: %s\\n%s\\n' {modes[default]} {default} ;;
  *) echo '{listed}
PM_CONFIG: DEFAULT={modes[default]}({default})' ;;
esac
"""
