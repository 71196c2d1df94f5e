# SPDX-License-Identifier: Apache-2.0
"""Virtual boards: systemd containers with a SIMULATED Tegra, reached over SSH.

A board is found by the labels of its container; nothing else records it.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import boards
from tests.lab import ssh, staging
from tests.lab.images import FLASHED_SSHD, SSHD_CONFIG, SSHD_FILE, SUDO_PASSWORD, SUDO_RULE, board_image
from tools.cache import CHECKOUT
from tools.engine import CHECKOUT_LABEL, LABEL, docker
from tools.process import ToolError, run, tail

BOARD_LABEL = f"{LABEL}.board"
TYPE_LABEL = f"{LABEL}.type"
PLAIN = "plain"
"""The type of a host that is no board: the same computer without a SIMULATED Tegra."""
READY_SECONDS = 120
NEW_TREE = f"/{staging.TREE}.new"
NVPMODEL_UNIT = """\
[Unit]
Description=SIMULATED nvpmodel, which switches the GPU on
ConditionPathExists={tree}

[Service]
Type=oneshot
ExecStart=/bin/sleep {seconds}
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""
SIMULATED_POWER = Path(__file__).parent / "simulated_power"

# What systemd, a nested Docker engine and a kubelet need. A list instead of --privileged, so that every
# machine gives the same board: --privileged fails where root lacks a capability (in many containers).
CAPABILITIES = (
    "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "NET_RAW", "SYS_MODULE",
    "SYS_TIME", "MKNOD", "SYS_CHROOT", "SYSLOG", "IPC_LOCK",
)  # fmt: skip
# Overlay file systems do not nest, and etcd wants a real one.
VOLUMES = ("/var/lib/docker", "/var/lib/rancher")


@dataclass(frozen=True)
class Board:
    """One virtual board. `running` is what its container was when it was looked up."""

    lab: str
    name: str
    container: str
    type: str
    address: str
    running: bool

    @property
    def variables(self) -> Mapping[str, object]:
        password = {"ansible_become_password": SUDO_PASSWORD} if asks_for_password(self.name) else {}
        kind = {"jetson_k3s_host_kind": "plain", "k3s_container_runtime": "containerd"}
        return password | (kind if self.type == PLAIN else {})

    def exec(self, *command: str, check: bool = True, timeout: float | None = 120) -> str:
        """Run a command on the board as root, past SSH; return its stdout, or raise ToolError."""
        return docker("exec", self.container, *command, check=check, timeout=timeout)


def asks_for_password(name: str) -> bool:
    """Return whether sudo on a board asks for a password: on every second one, as on boards as flashed."""
    return int(name.rpartition("-")[2]) % 2 == 0


@contextmanager
def as_flashed(board: Board) -> Iterator[None]:
    """A board whose SSH takes the account's password and knows no key yet, and whose sudo asks for it."""
    kept = f"/etc/kept{SUDO_RULE.replace('/', '-')}"
    restart = "systemctl restart ssh"  # a reload would not wait
    board.exec("sh", "-ec", f"mv {SUDO_RULE} {kept}; printf '{FLASHED_SSHD}' > {SSHD_FILE}; {restart}")
    try:
        yield
    finally:
        back = f"mv {kept} {SUDO_RULE}; printf '{SSHD_CONFIG}' > {SSHD_FILE}; {restart}"
        board.exec("sh", "-ec", back)


def labels(lab: str) -> tuple[str, str]:
    """Return the options by which everything that belongs to a lab is found again."""
    return (f"--label={LABEL}={lab}", f"--label={CHECKOUT_LABEL}={CHECKOUT}")


def network_name(lab: str) -> str:
    return f"jetson-k3s-{lab}"


def find(lab: str) -> list[Board]:
    ids = docker(
        "ps", "--all", "--quiet", f"--filter=label={LABEL}={lab}", f"--filter=label={BOARD_LABEL}"
    ).split()
    if not ids:
        return []
    found = []
    for entry in json.loads(docker("inspect", *ids)):
        labels = entry["Config"]["Labels"]
        addresses = entry["NetworkSettings"]["Networks"][network_name(lab)]["IPAMConfig"] or {}
        found.append(
            Board(
                lab=lab,
                name=labels[BOARD_LABEL],
                container=entry["Name"].lstrip("/"),
                type=labels[TYPE_LABEL],
                address=addresses.get("IPv4Address", ""),
                running=entry["State"]["Running"],
            )
        )
    return sorted(found, key=lambda board: int(board.name.rpartition("-")[2]))


def create(lab: str, name: str, address: str, fixture: boards.Fixture | None) -> None:
    """Create a board's container, not started yet, with its simulated hardware and its SSH keys inside.

    Without a fixture it is a plain host.
    """
    container = f"{lab}-{name}"
    volumes = []
    for place in VOLUMES:
        volume = f"{container}{place.replace('/', '-')}"
        docker("volume", "create", *labels(lab), volume)
        volumes.append(f"--volume={volume}:{place}")
    docker(
        "create",
        "--pull=never",
        f"--name={container}",
        f"--hostname={name}",
        *labels(lab),
        f"--label={BOARD_LABEL}={name}",
        f"--label={TYPE_LABEL}={fixture.id if fixture else PLAIN}",
        f"--network={network_name(lab)}",
        f"--network-alias={name}",
        f"--ip={address}",
        *(f"--cap-add={capability}" for capability in _capabilities()),
        *(f"--security-opt={option}=unconfined" for option in ("seccomp", "apparmor", "systempaths")),
        *(f"--tmpfs={place}" for place in ("/run:exec", "/run/lock", "/tmp:exec")),
        *_cgroup_options(),
        # The kernel is the machine's, so its modules are, too.
        *(("--volume=/lib/modules:/lib/modules:ro",) if Path("/lib/modules").is_dir() else ()),
        "--device=/dev/kmsg",  # the kubelet does not start without it
        # The board's containers are in its cgroup, and a privileged one may use every device.
        "--device-cgroup-rule=a *:* rwm",
        "--stop-signal=SIGRTMIN+3",
        *volumes,
        board_image(),
        staging.BOARD_INIT,
    )
    with staging.directory() as stage:
        if fixture:
            host_key = staging.own_files(stage, lab, name)
            staging.tegra(stage, fixture, "ready")
        else:
            host_key = staging.plain_files(stage, lab, name)
        docker("cp", "--archive", f"{stage}/.", f"{container}:/")
        if asks_for_password(name):
            empty = stage / "empty"
            empty.touch()
            docker("cp", str(empty), f"{container}:{SUDO_RULE}")
    ssh.trust(lab, address, host_key)


def lose_disks(one: Board) -> None:
    docker("rm", "--force", "--volumes", one.container)
    docker("volume", "rm", *(f"{one.container}{place.replace('/', '-')}" for place in VOLUMES))


def start(board: Board) -> None:
    """Start a board and wait until it is up and takes SSH connections; raises ToolError with a diagnosis."""
    docker("start", board.container)
    wait_until_up(board)


def switch_on_after_reboot(board: Board, *, always: bool) -> None:
    """Start a board again whose own reboot has ended its container; one that `docker kill` ends stays off."""
    docker("update", f"--restart={'unless-stopped' if always else 'no'}", board.container)


def boot_id(board: Board) -> str:
    """Which boot of the board this is."""
    return board.exec("cat", "/proc/sys/kernel/random/boot_id").strip()


def reboot(board: Board) -> None:
    docker("restart", board.container)
    wait_until_up(board)


def stage_state(board: Board, state: boards.State) -> tuple[str, ...]:
    """Copy simulated hardware to a running board; return the command that puts it into /sys and /dev."""
    with staging.directory() as stage:
        staging.tegra(stage, boards.load()[board.type], state, tree="tree")
        board.exec("rm", "-rf", NEW_TREE)
        docker("cp", "--archive", str(stage / "tree"), f"{board.container}:{NEW_TREE}")
    return (staging.VIRTUAL_BOARD, "apply", NEW_TREE)


def set_state(board: Board, state: boards.State) -> None:
    """Change the simulated hardware of a running board, in /sys and /dev; it stays so over a reboot."""
    board.exec(*stage_state(board, state))


def switch_gpu_on_late(board: Board, seconds: int) -> None:
    """Switch the GPU off; at the next boot a SIMULATED nvpmodel.service switches it on after some seconds."""
    set_state(board, "unpowered")
    unit = NVPMODEL_UNIT.format(seconds=seconds, command=" ".join(stage_state(board, "ready")), tree=NEW_TREE)
    board.exec("sh", "-c", 'printf %s "$1" > /etc/systemd/system/nvpmodel.service', "sh", unit)
    board.exec("systemctl", "enable", "nvpmodel")


def set_toolkit(board: Board, version: str) -> None:
    """Give a running board another release of the SIMULATED NVIDIA toolkit, as apt would."""
    board.exec("sh", "-c", f"echo {version} > {staging.TOOLKIT_VERSION}")


def simulate_power(board: Board) -> None:
    """Give a board SIMULATED power modes; 0 is in force, 3 differs in clocks, 2 in a mask as well."""
    for name, place in (("nvpmodel", "/usr/sbin"), ("jetson_clocks", "/usr/bin"), ("nvpmodel.conf", "/etc")):
        docker("cp", str(SIMULATED_POWER / name), f"{board.container}:{place}/{name}")
    board.exec("sh", "-c", "mkdir -p /var/lib/nvpmodel; echo 0 > /var/lib/nvpmodel/simulated")


def simulate_heat(board: Board, state: int) -> None:
    """Set a SIMULATED cooling device of the GPU's clock to this state; from 1 on it slows the board down."""
    script = 'mkdir -p "$1" && echo thermal-devfreq-0 > "$1/type" && echo "$2" > "$1/cur_state"'
    board.exec("sh", "-c", script, "sh", "/sys/class/thermal/cooling_device0", str(state))


def wait_until_up(board: Board) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not ssh.answers(board.address):
        if (
            time.monotonic() > deadline
            or docker("inspect", "--format={{.State.Running}}", board.container) != "true"
        ):
            raise ToolError(f"{board.name} does not take SSH connections\n{diagnosis(board)}")
        time.sleep(0.1)
    remaining = max(5, deadline - time.monotonic())
    state = board.exec("timeout", f"{remaining:.0f}", "systemctl", "is-system-running", "--wait", check=False)
    if state != "running":
        raise ToolError(f"{board.name} is {state or 'not up'}\n{diagnosis(board)}")


def diagnosis(board: Board) -> str:
    questions = {
        "container": [
            "inspect",
            "--format={{.State.Status}}, exit code {{.State.ExitCode}} {{.State.Error}}",
            board.container,
        ],
        "failed units": ["exec", board.container, "systemctl", "--failed", "--no-legend", "--plain"],
        "journal": ["exec", board.container, "journalctl", "--boot", "--no-pager", "--lines=25"],
    }
    said = []
    for title, question in questions.items():
        result = run(["docker", *question], check=False, timeout=20)
        said.append(f"{title}:\n{tail(result.stdout + result.stderr, lines=25)}")
    return "\n".join(said)


def _cgroup_options() -> tuple[str, ...]:
    """Return the options that give a board's systemd a cgroup tree to work in.

    With cgroup v2 it sees its own part as the root (and makes it writable, see board-init). With v1 that
    does not work for systemd's own hierarchy: it sees the machine's tree, and keeps to its part of it.
    """
    if docker("info", "--format={{.CgroupVersion}}") == "2":
        return ("--cgroupns=private",)
    return ("--cgroupns=host", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw")


def _capabilities() -> tuple[str, ...]:
    """Return the capabilities of a board: the list, and SYS_RESOURCE where this machine has it to give."""
    bounding = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:")
    )
    sys_resource = 1 << 24  # include/uapi/linux/capability.h
    return (*CAPABILITIES, "SYS_RESOURCE") if int(bounding.split()[1], 16) & sys_resource else CAPABILITIES
