# SPDX-License-Identifier: Apache-2.0
"""Boards of the grade arm64: an emulated machine each, on the lab's network, with a SIMULATED Tegra GPU.

A booted machine is saved once per type of board (kernel and device tree differ), without a name, keys or
network. Every board starts from a copy of that and is made one of its own through the guest agent.
"""

import hashlib
import json
import shutil
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from tests import boards
from tests.lab import ssh, staging
from tests.lab.paths import lab_dir
from tests.lab.vm import devicetree, disk
from tests.lab.vm.qemu import KERNEL_ARGUMENTS, MACHINE, Qemu
from tools.cache import cached
from tools.debian import ensure_packages
from tools.engine import docker
from tools.process import ToolError, run, step, tail

GRADE = "arm64"
RECORD = "machine.json"
BOOT_SECONDS = 300
READY_SECONDS = 300
# An emulated processor takes several times as long for everything as the slowest real one.
PATIENCE = {"k3s_timeout": 1200, "gpu_device_plugin_timeout": 900, "gpu_verify_timeout": 900}
POLL_SECONDS = 0.2
# What an owner might set: garbage is collected less often, for which the machine has the memory.
K3S_ENVIRONMENT = "GOGC=400\n"

NETWORK = """[Match]
Name=eth0
[Link]
MACAddress={mac}
[Network]
Address={address}/24
Gateway={gateway}
LinkLocalAddressing=no
"""
# A restored machine has the machine-id, the clock and the name of the saved one.
PERSONALISE = """set -e
umount /etc/machine-id 2>/dev/null || true
rm -f /etc/machine-id && systemd-machine-id-setup >/dev/null 2>&1
systemctl restart systemd-journald
hostname "$(cat /etc/hostname)"
systemctl daemon-reload
systemctl start virtual-board
networkctl reload && networkctl reconfigure eth0
systemctl enable --now ssh >/dev/null 2>&1
systemctl is-system-running --wait
"""


@dataclass(frozen=True)
class Machine:
    """One emulated board."""

    lab: str
    name: str
    type: str
    address: str

    @property
    def variables(self) -> Mapping[str, object]:
        """Return what the roles need to be told of it: to wait longer."""
        return PATIENCE

    @property
    def running(self) -> bool:
        """Say whether it is switched on."""
        return self.qemu.pid is not None

    @property
    def qemu(self) -> Qemu:
        """Return the process behind it."""
        return Qemu(machines(self.lab) / self.name, _interface(self.lab, self.name))

    def exec(self, *command: str, check: bool = True, timeout: float | None = 300) -> str:
        """Run a command on the board as root, past SSH; return its stdout, or raise ToolError."""
        status, out, err = self.qemu.exec(*command, timeout=timeout or BOOT_SECONDS)
        if check and status != 0:
            raise ToolError(f"{self.name}: {' '.join(command)}: exit status {status}\n{tail(out + err)}")
        return out.strip()

    def load_image(self, archive: Path) -> None:
        """Give the board's Docker engine the image of an archive."""
        there = "/var/tmp/image.tar.gz"
        ssh.copy(self.lab, self.address, archive, there)
        self.exec("docker", "load", "--input", there)
        self.exec("rm", there)


def machines(lab: str) -> Path:
    """Return the directory that holds a lab's emulated boards, one directory each."""
    return lab_dir(lab) / "machines"


def find(lab: str) -> list[Machine]:
    """Return the emulated boards of a lab."""
    return [Machine(**json.loads(record.read_text())) for record in sorted(machines(lab).glob(f"*/{RECORD}"))]


def create(
    lab: str, name: str, address: str, fixture: boards.Fixture, state: boards.State = "ready"
) -> Machine:
    """Start a board from the saved machine of its type (made when absent), and make it one of its own."""
    saved = saved_machine(fixture)
    machine = Machine(lab, name, fixture.id, address)
    directory = machines(lab) / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / RECORD).write_text(json.dumps(asdict(machine)))
    _overlay(saved / "disk.qcow2", "qcow2", directory / "disk.qcow2")
    assets = disk.assets()
    machine.qemu.start(assets.kernel, assets.initrd, saved / "board.dtb", saved / "state.gz")
    machine.qemu.resume()
    _until_agent(machine.qemu, READY_SECONDS)
    with staging.directory() as stage:
        host_key = staging.own_files(stage, lab, name)
        staging.tegra(stage, fixture, state, arch=disk.ARCH)
        _own_network(stage, name, address)
        _own_defaults(stage)
        machine.exec("date", "--set", f"@{time.time():.3f}")
        status, out, err = machine.qemu.exec("tar", "-x", "-C", "/", stdin=_packed(stage))
        if status != 0:
            raise ToolError(f"{name}: cannot put the lab's files onto the emulated board\n{tail(out + err)}")
    machine.qemu.attach(_bridge(lab))
    ssh.trust(lab, address, host_key)
    machine.exec("sh", "-c", PERSONALISE, check=False)
    wait_until_up(machine)
    return machine


def start(machine: Machine) -> None:
    """Switch a board on that was switched off; it boots from its own disk."""
    saved, assets = saved_machine(boards.load()[machine.type]), disk.assets()
    machine.qemu.start(assets.kernel, assets.initrd, saved / "board.dtb")
    machine.qemu.attach(_bridge(machine.lab))
    wait_until_up(machine)


def reboot(machine: Machine) -> None:
    """Press the board's power button, and wait until it is up again."""
    machine.qemu.end()
    start(machine)


def wait_until_up(machine: Machine) -> None:
    """Wait until a board takes SSH connections and systemd has finished booting."""
    deadline = time.monotonic() + READY_SECONDS
    while not ssh.answers(machine.address):
        if time.monotonic() > deadline or not machine.running:
            raise ToolError(f"{machine.name} does not take SSH connections\n{diagnosis(machine)}")
        time.sleep(POLL_SECONDS)
    _until_agent(machine.qemu, READY_SECONDS)
    state = machine.exec("systemctl", "is-system-running", "--wait", check=False)
    if state != "running":
        raise ToolError(f"{machine.name} is {state or 'not up'}\n{diagnosis(machine)}")


def end_all(lab: str) -> None:
    """Switch off every emulated board of a lab, also one that was being made."""
    for directory in machines(lab).glob("*"):
        Qemu(directory, _interface(lab, directory.name)).end()


def diagnosis(machine: Machine) -> str:
    """Return what helps to see why a board is not up."""
    console = machines(machine.lab) / machine.name / "console.log"
    said = [f"console:\n{tail(console.read_text(errors='replace')) if console.exists() else '  (none)'}"]
    if machine.running and machine.qemu.answers():
        failed = machine.exec("systemctl", "--failed", "--no-legend", "--plain", check=False)
        said.append(f"failed units:\n{tail(failed)}")
        said.append(f"journal:\n{tail(machine.exec('journalctl', '-b', '-n25', '--no-pager', check=False))}")
    return "\n".join(said)


def saved_machine(fixture: boards.Fixture) -> Path:
    """Return the cached directory of a booted machine of a type: state.gz, disk.qcow2, board.dtb."""
    assets = disk.assets()
    recipe = (assets.digest, MACHINE, KERNEL_ARGUMENTS, devicetree.source(fixture))
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]

    def build(out: Path) -> None:
        ensure_packages("qemu-system-arm", "qemu-utils", "iproute2")
        out.mkdir()
        qemu = Qemu(out, _interface("saved", fixture.id))
        _virt_device_tree(out.parent / "virt.dtb")
        devicetree.write(fixture, out.parent / "virt.dtb", out / "board.dtb")
        _overlay(assets.disk, "raw", out / "disk.qcow2")
        with step(f"booting an emulated {fixture.id} once, to save it"):
            try:
                qemu.start(assets.kernel, assets.initrd, out / "board.dtb")
                _until_agent(qemu, BOOT_SECONDS)
                status, state, _ = qemu.exec("systemctl", "is-system-running", "--wait", timeout=BOOT_SECONDS)
                if status != 0:
                    _, failed, _ = qemu.exec("systemctl", "--failed", "--no-legend", "--plain")
                    raise ToolError(f"the emulated board boots, but is {state.strip()}\n{tail(failed)}")
                qemu.save(out / "state.gz")
            finally:
                qemu.end()
        for leftover in ("pid", "qmp.sock", "agent.sock"):
            (out / leftover).unlink(missing_ok=True)

    return cached(f"arm64/saved-{fixture.id}-{digest}", build)


def _virt_device_tree(out: Path) -> None:
    """Write what QEMU's machine says of itself, the part of the tree that is not the Jetson's."""
    dump = f"{MACHINE[1]},dumpdtb={out}"
    run(["qemu-system-aarch64", "-M", dump, *MACHINE[2:], "-nodefaults", "-display", "none"])


def _overlay(base: Path, base_format: str, out: Path) -> None:
    """Make a disk that takes the changes; the base must not change from now on."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", base_format, out])


def _until_agent(qemu: Qemu, seconds: float) -> None:
    """Wait until the agent in the guest answers."""
    deadline = time.monotonic() + seconds
    while not qemu.answers():
        if qemu.pid is None or time.monotonic() > deadline:
            console = (qemu.directory / "console.log").read_text(errors="replace")
            raise ToolError(
                f"the emulated board does not come up within {seconds:g} s; its console:\n{tail(console)}"
            )
        time.sleep(POLL_SECONDS)


def _own_network(stage: Path, name: str, address: str) -> None:
    """Stage name and address. The MAC is one of Docker's for this address, so no two boards share one."""
    numbers = [int(number) for number in address.split(".")]
    mac = ":".join(f"{number:02x}" for number in (0x02, 0x42, *numbers))
    gateway = ".".join([*address.split(".")[:3], "1"])
    network = stage / "etc/systemd/network/lab.network"
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(NETWORK.format(mac=mac, address=address, gateway=gateway))
    (stage / "etc/hostname").write_text(f"{name}\n")
    (stage / "etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")


def _own_defaults(stage: Path) -> None:
    """Stage the environment of K3s' services, where their owner would set it."""
    defaults = stage / "etc/default"
    defaults.mkdir(parents=True, exist_ok=True)
    for service in ("k3s", "k3s-agent"):
        (defaults / service).write_text(K3S_ENVIRONMENT)


def _packed(stage: Path) -> bytes:
    """Return a staged tree as a tar, with its owners and modes."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # What is below: the board's / keeps its owner and mode.
        for path in sorted(stage.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(stage)), recursive=False)
    return buffer.getvalue()


def _interface(lab: str, name: str) -> str:
    """Return the name of a board's tap interface, of which Linux takes 15 characters."""
    return f"jk3s{hashlib.sha256(f'{lab}/{name}'.encode()).hexdigest()[:10]}"


def _bridge(lab: str) -> str:
    """Return the interface of the lab's Docker network on this machine."""
    return f"br-{docker('network', 'inspect', '--format={{.Id}}', f'jetson-k3s-{lab}')[:12]}"
