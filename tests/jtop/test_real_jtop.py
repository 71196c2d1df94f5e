# SPDX-License-Identifier: Apache-2.0
"""The plugin's telemetry, by the relay, of the real jtop service of both versions that boards have.

Its sources are fetched once into the lab's cache. A board is a host tree (tests.boards) with what else jtop
reads. The service runs in mount and PID namespaces of its own, with that tree as its root directory: every
path it opens is the true one. Needs root.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.telemetry.jtop import SOCKET, JtopError, read_once
from tegra_device_plugin.telemetry.jtop_facts import compare

from tests.boards import Fixture, build, load
from tools.cache import cached
from tools.process import ToolError, run, tail

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root"),
]

# What a version needs besides itself, as its own metadata says.
DEPENDENCIES = ("smbus2==0.6.1", "distro==1.9.0", "nvidia-ml-py==13.615.71")
READY_SECONDS = 20.0

GPU_MEMORY_KIB = 123456  # what nvmap says is in use on every simulated board

DIRECTORIES = (
    *("run", "tmp", "usr", "realproc"),
    *("sys/class/hwmon", "sys/class/power_supply", "sys/bus/i2c/devices", "sys/kernel/debug/clk"),
)
# Of /proc what is not the board's but the processes': links into a procfs of the namespace.
REAL_PROC = (
    *("self", "thread-self", "uptime", "mounts", "buddyinfo"),
    *("swaps", "filesystems", "sys", "loadavg"),
)
SHIM = Path(__file__).with_name("board_shim") / "sitecustomize.py"

SERVER = """
import logging
from jtop.service import JtopServer
logging.basicConfig(level=logging.INFO)
JtopServer(force=True).loop_for_ever()
"""

# $1: the board's root; the rest: the server's command. /usr and Python's own directory are the computer's.
ENTER = """
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

BOARDS = load()
VERSIONS = ("4.3.2", "7.2.2")  # the last one of JetPack 4's Python, and of today's
FACTS = ("model", "module", "l4t", "jetpack", "gpu", "compute-capability")
RELAY = Path(__file__).parents[2] / "roles/jtop/files/jtop_relay.py"

# jtop's name for the module; power mode and load as the simulated board has them.
MODULES = {
    "nano-jp4": "NVIDIA Jetson Nano (4 GB ram)",
    "tx2-jp4": "NVIDIA Jetson TX2",
    "xaviernx-jp5": "NVIDIA Jetson Xavier NX (Developer kit)",
    "agxorin-jp5": "NVIDIA Jetson AGX Orin",
    "orinnano-jp6": "NVIDIA Jetson Orin Nano (Developer kit)",
}


def packages(version: str) -> Path:
    """A directory with jetson-stats' package `jtop` and its dependencies; fetched when it is absent.

    Unpacked and not installed: older versions install and start a systemd unit when pip builds them as root.
    """

    def fetch(target: Path) -> None:
        target.mkdir()
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run([*pip, "install", "--target", target, *DEPENDENCIES])
        archives = target / "archives"
        source = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"jetson-stats=={version}")
        run([*pip, "download", "--dest", archives, *source])
        (archive,) = archives.iterdir()
        run(["tar", "--extract", f"--file={archive}", f"--directory={archives}"])
        (archives / archive.name.removesuffix(".tar.gz") / "jtop").rename(target / "jtop")
        shutil.rmtree(archives)

    return cached(f"jetson-stats/{version}", fetch)


def add_what_jtop_reads(fixture: Fixture, root: Path) -> None:
    """Directories it insists on, a processor, nvmap's debug files, the group that may connect, nvpmodel."""
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in REAL_PROC:
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
        "opt/simulated/sitecustomize.py": SHIM.read_text(),
        "opt/simulated/nvpmodel": nvpmodel(fixture),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "opt/simulated/nvpmodel").chmod(0o755)


def nvpmodel(fixture: Fixture) -> str:
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


@contextmanager
def running(version: str, fixture: Fixture, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The service on a board's tree, until the block ends or it is killed: then its socket stays behind."""
    build(fixture, root)
    add_what_jtop_reads(fixture, root)
    log, found = root / "jtop.log", packages(version)
    environment = {
        "PATH": "/opt/simulated:/usr/bin:/usr/sbin:/bin",
        "PYTHONPATH": f"{found}:/opt/simulated",
        # In the EEPROM of module p3767-0005: 699-13767-0005-300 A.0, say.
        "SIMULATED_PART_NUMBER": f"699-1{fixture.data['p_number'].removeprefix('p')}-300 A.0",
    }
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(root)]
    command += [sys.base_prefix, str(found), f"{sys.base_prefix}/bin/python3", "-c", SERVER]
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
        ) as process,
    ):
        try:
            deadline = time.monotonic() + READY_SECONDS
            while "service ready" not in log.read_text() or not (root / "run/jtop.sock").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ToolError(f"the jtop service did not start:\n{tail(log.read_text())}")
                time.sleep(0.05)  # another program's log: nothing to wait for
            yield process
        finally:
            process.kill()  # unshare, and by --kill-child PID 1 of the namespace, and so all others


@pytest.fixture
def board() -> Iterator[Path]:
    """The root of a board, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="board-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def relayed(version: str, root: Path) -> Iterator[None]:
    """The relay of role jtop with jetson-stats of a version: one for each connection, as by systemd."""
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"PYTHONPATH": str(packages(version))}
    path = root / SOCKET
    path.parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):  # shut down
            while True:
                connection, _ = listener.accept()
                with connection:
                    command = (sys.executable, str(RELAY), str(root / "run/jtop.sock"))
                    end = connection.fileno()
                    started.append(subprocess.Popen(command, stdin=end, stdout=end, env=environment))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
        for process in started:
            assert process.wait(10) is not None, "it ends with its connection"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("type_", MODULES)
def test_all_telemetry_arrives(version: str, type_: str, board: Path) -> None:
    fixture = BOARDS[type_]
    with running(version, fixture, board), relayed(version, board):
        (board / "sys" / fixture.gpu_device / "load").write_text("345\n")
        told = read_once(board)
        found = detect(board)
    assert told.gpu_load_percent == 34.5
    assert told.gpu_frequency_hz == fixture.data["devfreq_min"]
    assert told.gpu_temperature_celsius == pytest.approx(48.0, abs=1)
    assert told.gpu_memory_bytes == GPU_MEMORY_KIB * 1024
    assert told.memory_total_bytes == fixture.memory_bytes
    assert told.memory_used_bytes == pytest.approx(fixture.memory_bytes / 2, rel=0.01)
    assert told.power_mode == fixture.data["nvpmodel"][fixture.data["nvpmodel_default"]]
    assert told.module == MODULES[type_]
    assert told.part_number == fixture.data["p_number"]
    assert told.jetpack == fixture.jetpack
    assert told.model == fixture.data["dt_model"]
    assert told.l4t == fixture.l4t
    assert told.gpu == fixture.data["of_node_name"]
    assert told.compute_capability == fixture.compute_capability
    compared = {fact.name: fact.agrees for fact in compare(found, told)}
    assert compared == dict.fromkeys(FACTS, True) | ({"gpu": None} if told.gpu == "gpu" else {})


def test_another_release_file_than_that_of_the_board_is_named(board: Path) -> None:
    """An upgrade without a reboot: jtop has the facts since its start."""
    with running("7.2.2", BOARDS["agxorin-jp6"], board), relayed("7.2.2", board):
        file = board / "etc/nv_tegra_release"
        file.write_text(file.read_text().replace("REVISION: 4.3", "REVISION: 4.4"))
        told, found = read_once(board), detect(board)
    assert {fact.name for fact in compare(found, told) if fact.agrees is False} == {"l4t", "jetpack"}


def test_thor_without_nvml_tells_what_it_can(board: Path) -> None:
    with running("7.2.2", BOARDS["thor5000-jp70"], board), relayed("7.2.2", board):
        told = read_once(board)
        found = detect(board)
    assert {fact.name: fact.agrees for fact in compare(found, told)} == dict.fromkeys(
        set(FACTS) - {"gpu"}, True
    )
    assert told.gpu_load_percent is None
    assert told.memory_total_bytes == BOARDS["thor5000-jp70"].memory_bytes
    assert told.gpu_temperature_celsius == pytest.approx(48.0, abs=1)


@pytest.mark.parametrize(("service_version", "client_version"), [VERSIONS, VERSIONS[::-1]])
def test_another_version_is_said(service_version: str, client_version: str, board: Path) -> None:
    with (
        running(service_version, BOARDS["orinnano-jp6"], board),
        relayed(client_version, board),
        pytest.raises(JtopError) as refused,
    ):
        read_once(board)
    assert service_version in str(refused.value)
    assert client_version in str(refused.value)
