# SPDX-License-Identifier: Apache-2.0
"""Boards of the grade arm64: an emulated machine each, on the lab's network, with a SIMULATED Tegra GPU.

All boards boot from copies of one disk. At its first boot a board unpacks an archive with its name, its keys,
its network and the simulated Tegra.
"""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import boards
from tests.lab import lab_dir, ssh, staging
from tests.lab.vm import disk
from tools.debian import ensure_packages
from tools.engine import docker
from tools.process import ToolError, run, step, tail

GRADE = "arm64"
# Of QEMU's cores A76 is the next of kin of the Orin's A78AE; its atomic instructions (LSE) cost the emulator
# less than older cores' loops.
MACHINE = ("-M", "virt,gic-version=3", "-cpu", "cortex-a76", "-smp", "2", "-m", "3072")
# 2 GiB is the most that QEMU takes for translated code. Half of that, its default, is full every minute under
# Kubernetes, and then all of it is translated again.
ACCELERATOR = "tcg,thread=multi,tb-size=2048"
# cgroup v1, as on L4T; without apparmor=0 Docker asks for a program that minimal Debian lacks. With kpti each
# system call changes the address space, for which QEMU forgets every address it has looked up. With random
# addresses (without norandmaps) a program that is started again has to be translated again.
KERNEL_ARGUMENTS = (
    "console=ttyAMA0 systemd.unified_cgroup_hierarchy=0 apparmor=0 mitigations=off kpti=off norandmaps"
    " net.ifnames=0"
)
READY_SECONDS = 600
END_SECONDS = 20
POLL_SECONDS = 0.2
# An emulated processor takes several times as long for everything as the slowest real one.
PATIENCE = {"jetson_k3s_timeout": 1200}
# What an owner might set: garbage is collected less often, for which the machine has the memory.
K3S_ENVIRONMENT = "GOGC=400\n"
SERIAL_NUMBER = "1423000000000"
GPU_REGISTERS = "0x0 0x1000000"  # size of the GPU's first register range; nothing on the board reads it
NETWORK = """[Match]
Name=eth0
[Network]
Address={address}/24
Gateway={gateway}
LinkLocalAddressing=no
"""


@dataclass(frozen=True)
class Machine:
    """One emulated board, in a directory: machine.json, disk.qcow2, board.dtb, own.tar, pid, console.log."""

    lab: str
    name: str
    type: str
    address: str

    @property
    def variables(self) -> Mapping[str, object]:
        """Return the variables by which the roles wait longer."""
        return PATIENCE

    @property
    def directory(self) -> Path:
        return machines(self.lab) / self.name

    @property
    def interface(self) -> str:
        """Return its tap interface here, which exists as long as QEMU runs. Linux takes 15 characters."""
        return f"jk3s{hashlib.sha256(f'{self.lab}/{self.name}'.encode()).hexdigest()[:10]}"

    @property
    def pid(self) -> int | None:
        """Return the process id of its QEMU, None when it is switched off."""
        try:
            pid = int((self.directory / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if b"qemu-system-aarch64" in command and self.interface.encode() in command else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    def exec(self, *command: str, check: bool = True, timeout: float | None = 300) -> str:
        argv = ssh.command(self.lab, self.address, shlex.join(["sudo", "--", *command]))
        return run(argv, check=check, timeout=timeout).stdout.strip()


def machines(lab: str) -> Path:
    return lab_dir(lab) / "machines"


def find(lab: str) -> list[Machine]:
    records = sorted(machines(lab).glob("*/machine.json"))
    return [Machine(**json.loads(record.read_text())) for record in records]


def create(lab: str, name: str, address: str, fixture: boards.Fixture) -> None:
    """Make a board that is switched off: its device tree, its disk, and what it unpacks at its first boot."""
    ensure_packages("qemu-system-arm", "qemu-utils", "iproute2")
    machine = Machine(lab, name, fixture.id, address)
    directory = machine.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    described = f"{MACHINE[1]},dumpdtb={directory / 'virt.dtb'}"
    run(["qemu-system-aarch64", "-M", described, *MACHINE[2:], "-nodefaults", "-display", "none"])
    _write_device_tree(fixture, directory / "virt.dtb", directory / "board.dtb")
    base = ("-b", disk.assets().disk, "-F", "raw")
    run(["qemu-img", "create", "-q", "-f", "qcow2", *base, directory / "disk.qcow2"])
    with staging.directory() as stage:
        ssh.trust(lab, address, staging.own_files(stage, lab, name))
        staging.tegra(stage, fixture, "ready", arch=disk.ARCH)
        gateway = ".".join([*address.split(".")[:3], "1"])
        files = {
            "etc/hostname": f"{name}\n",
            "etc/hosts": f"127.0.0.1 localhost\n{address} {name}\n",
            "etc/systemd/network/lab.network": NETWORK.format(address=address, gateway=gateway),
            "etc/default/k3s": K3S_ENVIRONMENT,
            "etc/default/k3s-agent": K3S_ENVIRONMENT,
        }
        for place, text in files.items():
            (stage / place).parent.mkdir(parents=True, exist_ok=True)
            (stage / place).write_text(text)
        with tarfile.open(directory / "own.tar", mode="w") as tar:
            # What is below: the board's / keeps its owner and mode.
            for path in sorted(stage.rglob("*")):
                tar.add(path, arcname=str(path.relative_to(stage)), recursive=False)
    (directory / "machine.json").write_text(json.dumps(asdict(machine)))


def _write_device_tree(fixture: boards.Fixture, machine: Path, out: Path) -> None:
    """Write QEMU's device tree with a Jetson's identity laid over it."""
    ensure_packages("device-tree-compiler")
    own = run(["dtc", "-q", "-I", "dtb", "-O", "dts", machine]).stdout
    # dtc merges nodes that are given twice, the later properties win.
    run(["dtc", "-q", "-I", "dts", "-O", "dtb", "-o", out, "-"], stdin=own + _device_tree(fixture))


def _device_tree(fixture: boards.Fixture) -> str:
    """Return what makes a Jetson of the machine, as source that comes after the machine's own.

    The kernel makes a platform device of the GPU's node, named as on the real board: its address, then the
    node's name. A GPU on PCI (Thor) has no node.
    """
    lines = [
        f"model = {_strings(fixture.data['dt_model'])};",
        f"compatible = {_strings(*fixture.data['dt_compatible'])};",
        f"serial-number = {_strings(SERIAL_NUMBER)};",
    ]
    if fixture.data["of_compatible"]:
        lines += _gpu(fixture)
    return "/ {\n" + "".join(f"\t{line}\n" for line in lines) + "};\n"


def _gpu(fixture: boards.Fixture) -> list[str]:
    """Return the GPU's node, below bus@0 from L4T 36 on and at the top before."""
    address = fixture.data["devfreq"].partition(".")[0]
    name = fixture.data["of_node_name"]
    node = f"{name}@{address}" if name == "gpu" else name
    properties = (
        f"compatible = {_strings(fixture.data['of_compatible'])}; reg = <0x0 0x{address} {GPU_REGISTERS}>;"
    )
    gpu = f"{node} {{ {properties} }};"
    if "bus@0" not in fixture.gpu_device:
        return [gpu]
    bus = 'compatible = "simple-bus"; #address-cells = <2>; #size-cells = <2>; ranges;'
    return [f"bus@0 {{ {bus}", f"\t{gpu}", "};"]


def _strings(*values: str) -> str:
    return ", ".join(f'"{value}"' for value in values)


def start(machine: Machine) -> None:
    """Switch a board on and wait until it is up; raises ToolError with the end of its console."""
    assets, directory, own = disk.assets(), machine.directory, machine.directory / "own.tar"
    # Docker's for this address, so no two boards share one.
    mac = ":".join(f"{int(number):02x}" for number in ("2", "66", *machine.address.split(".")))
    argv: list[str | Path] = [
        "qemu-system-aarch64", *MACHINE, "-accel", ACCELERATOR,
        "-nodefaults", "-display", "none", "-monitor", "none", "-serial", "file:console.log",
        "-kernel", assets.kernel, "-initrd", assets.initrd, "-dtb", "board.dtb", "-append", KERNEL_ARGUMENTS,
        "-drive", "file=disk.qcow2,format=qcow2,if=none,id=disk,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=disk",
        "-netdev", f"tap,id=net,ifname={machine.interface},script=no,downscript=no",
        "-device", f"virtio-net-pci,netdev=net,mac={mac},romfile=",
        "-device", "virtio-rng-pci",
    ]  # fmt: skip
    if own.exists():
        argv += ["-drive", "file=own.tar,format=raw,if=none,id=own,readonly=on"]
        argv += ["-device", "virtio-blk-pci,drive=own"]
    with step(f"booting the emulated {machine.name}"), (directory / "qemu.log").open("w") as log:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the terminal is meant for the lab
        )
        (directory / "pid").write_text(f"{process.pid}\n")
        while not Path("/sys/class/net", machine.interface).exists():
            if process.poll() is not None:
                raise ToolError(f"QEMU does not start\n{tail((directory / 'qemu.log').read_text())}")
            time.sleep(POLL_SECONDS)
        bridge = f"br-{docker('network', 'inspect', '--format={{.Id}}', f'jetson-k3s-{machine.lab}')[:12]}"
        run(["ip", "link", "set", machine.interface, "master", bridge, "up"])
        _wait_until_up(machine)
    own.unlink(missing_ok=True)


def _wait_until_up(machine: Machine) -> None:
    """Wait until a board takes SSH connections and systemd has finished booting."""
    deadline = time.monotonic() + READY_SECONDS
    while machine.running and time.monotonic() < deadline and not ssh.answers(machine.address):
        time.sleep(POLL_SECONDS)
    try:
        machine.exec("systemctl", "is-system-running", "--wait", timeout=READY_SECONDS)
    except ToolError as error:
        console = (machine.directory / "console.log").read_text(errors="replace")
        raise ToolError(f"{machine.name} is not up: {error}\nits console:\n{tail(console)}") from error


def end_all(lab: str) -> None:
    """Take the power from every emulated board of a lab, and wait until their processes are gone."""
    for machine in find(lab):
        deadline = time.monotonic() + END_SECONDS
        while (pid := machine.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            # Gone when it is nobody's child or has been waited for.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(POLL_SECONDS)
