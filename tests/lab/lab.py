# SPDX-License-Identifier: Apache-2.0
"""A lab: its network, its boards, its bundle; bringing it up and removing every trace of it."""

import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests import boards
from tests.lab import LABS, board, bundle, inventory, lab_dir, ssh, workloads
from tests.lab.board import Board
from tests.lab.images import board_image
from tests.lab.vm import disk, machine
from tests.lab.vm.machine import Machine
from tools import engine
from tools.cache import CHECKOUT, locked
from tools.engine import CHECKOUT_LABEL, LABEL, docker
from tools.process import ToolError, run, say, step

DEFAULT_NAME = "lab"
DEFAULT_TYPE = "agxorin-jp6"
CONTAINER, ARM64 = GRADES = ("container", machine.GRADE)
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")
# One /24 of this range per lab: not K3s' (10.42, 10.43), not the nested engines' (172.17).
SUBNETS = tuple(f"10.207.{number}" for number in range(1, 255))
FIRST_ADDRESS = 11
MOST_BOARDS = 20
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_INSTANCES = 1024
"""A server of K3s has some 25, an agent 15, and all boards count as one user, root of this machine. The
kernel's own 128 are enough for six boards; beyond that a unit of systemd's fails while a board boots."""


def up(name: str, types: Sequence[str], which: str = "", grade: str = CONTAINER) -> list[Board | Machine]:
    """Bring a lab up, with a board per entry of `types` (ids of boards.json); return the boards.

    A lab that is up already is left as it is; stopped boards are started, missing ones are added. `which` is
    the K3s of the bundle, as k3s.k3s() takes it; `grade` says if the boards are containers or machines.
    """
    _check(name, types, grade)
    with engine.kept():  # until a board runs on it
        return _up(name, types, which, grade)


def _up(name: str, types: Sequence[str], which: str, grade: str) -> list[Board | Machine]:
    engine.ensure()
    _ensure_inotify_instances()
    fixtures = boards.load()
    with step("preparing the image of the boards"):
        _ = disk.assets() if grade == ARM64 else board_image()
    lab_dir(name).mkdir(parents=True, exist_ok=True)
    with locked(f"lab-{name}"):
        subnet = _network(name)
        wanted = {f"jetson-{number}": kind for number, kind in enumerate(types, 1)}
        existing = {found.name: found for found in find(name)}
        _check_existing(name, existing, wanted, grade)
        with step(f"starting {len(wanted)} virtual board(s)"):
            for number, (board_name, kind) in enumerate(wanted.items()):
                address = f"{subnet}.{FIRST_ADDRESS + number}"
                if board_name in existing:
                    continue
                if grade == ARM64:
                    machine.create(name, board_name, address, fixtures[kind])
                else:
                    board.create(name, board_name, address, fixtures.get(kind))
            _start(find(name))
        ready = find(name)
        inventory.control_directory(name).mkdir(exist_ok=True)
        inventory.write(name, ready)
        arch = disk.ARCH if grade == ARM64 else workloads.DEFAULT_ARCH
        bundle.write(inventory.bundle_path(name), arch=arch, which=which)
    return ready


@contextmanager
def fresh(name: str, types: Sequence[str], which: str = "") -> Iterator[list[Board]]:
    """Start a new lab of container boards, and remove it at the end, also after an error.

    `which` is the K3s of the bundle, as k3s.k3s() takes it.
    """
    down(name)
    try:
        up(name, types, which)
        yield board.find(name)
    finally:
        down(name)


def find(name: str) -> list[Board | Machine]:
    found: list[Board | Machine] = [*board.find(name), *machine.find(name)]
    return sorted(found, key=lambda one: int(one.name.rpartition("-")[2]))


def down(name: str) -> None:
    """Take a lab away: containers, volumes, networks, connections and its state directory. Idempotent."""
    with locked(f"lab-{name}"):
        ssh.close_connections(inventory.control_directory(name))
        machine.end_all(name)
        if engine.answers():
            # Again until there is nothing: a request that an interrupted `up` had sent may finish late.
            while _sweep(name):
                pass
        shutil.rmtree(lab_dir(name), ignore_errors=True)
    release_engine()


def release_engine() -> None:
    """Stop the Docker engine that the lab started once no lab is left, of no checkout."""
    if not names(everywhere=True):
        engine.stop_ours()


def names(everywhere: bool = False) -> list[str]:
    """Return the names of all labs of this checkout that left anything, or of all checkouts."""
    found = {path.name for path in LABS.iterdir()} if LABS.is_dir() else set()
    if engine.answers():
        ours = f"--filter=label={LABEL if everywhere else f'{CHECKOUT_LABEL}={CHECKOUT}'}"
        label = f'--format={{{{.Label "{LABEL}"}}}}'
        for listing in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
            found.update(docker(*listing, ours, label).split())
    return sorted(found)


def _ensure_inotify_instances() -> None:
    """Raise the machine's limit, until it boots again; without the right to, say what is missing."""
    if int(INOTIFY_LIMIT.read_text()) >= INOTIFY_INSTANCES:
        return
    try:
        INOTIFY_LIMIT.write_text(f"{INOTIFY_INSTANCES}\n")
        say(f"raised {INOTIFY_LIMIT} to {INOTIFY_INSTANCES}")
    except OSError as error:
        say(
            f"{INOTIFY_LIMIT} is {INOTIFY_LIMIT.read_text().strip()} and cannot be raised here "
            f"({error.strerror}). That is enough for about five boards; more need: "
            f"sudo sysctl fs.inotify.max_user_instances={INOTIFY_INSTANCES}"
        )


def _start(boards_to_start: Collection[Board | Machine]) -> None:
    """Start boards at the same time. An interruption does not wait for those that are still booting."""
    pool = ThreadPoolExecutor(max_workers=MOST_BOARDS)
    try:
        list(pool.map(_ensure_running, boards_to_start))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ensure_running(one: Board | Machine) -> None:
    if isinstance(one, Board):
        board.start(one)
    elif not one.running:
        machine.start(one)


def _sweep(name: str) -> bool:
    of_lab = f"--filter=label={LABEL}={name}"
    containers = docker("ps", "--all", "--quiet", of_lab).split()
    if containers:
        with step(f"removing {len(containers)} container(s) of lab {name!r}"):
            docker("rm", "--force", "--volumes", *containers)
    networks = docker("network", "ls", "--quiet", of_lab).split()
    if networks:
        docker("network", "rm", *networks)
    volumes = docker("volume", "ls", "--quiet", of_lab).split()
    if volumes:
        docker("volume", "rm", "--force", *volumes)
    return bool(containers or networks or volumes)


def _check(name: str, types: Sequence[str], grade: str) -> None:
    if not NAME.fullmatch(name):
        raise ToolError(f"{name!r} is no name for a lab: up to 30 of a-z, 0-9 and -, no - at the ends")
    known = [*boards.load(), *([board.PLAIN] if grade == CONTAINER else [])]
    if unknown := [kind for kind in types if kind not in known]:
        raise ToolError(f"no such board type: {', '.join(unknown)}; there are {', '.join(known)}")
    if not 0 < len(types) <= MOST_BOARDS:
        raise ToolError(f"a lab has 1 to {MOST_BOARDS} boards, not {len(types)}")


def _check_existing(
    name: str, existing: dict[str, Board | Machine], wanted: dict[str, str], grade: str
) -> None:
    have = {
        found.name: (found.type, CONTAINER if isinstance(found, Board) else ARM64)
        for found in existing.values()
    }
    if any((wanted.get(board_name), grade) != what for board_name, what in have.items()):
        said = ", ".join(f"{board_name} ({', '.join(what)})" for board_name, what in have.items())
        raise ToolError(
            f"lab {name!r} is there already with other boards: {said}; "
            f"take it down first (`python -m tests.lab down --name {name}`) or choose another --name"
        )


def _network(lab: str) -> str:
    """Return the first three numbers of the lab's subnet; make its network when it is not there."""
    network = board.network_name(lab)
    found = docker("network", "ls", f"--filter=name=^{network}$", "--format={{.Name}}")
    if not found:
        for subnet in SUBNETS:
            result = run(
                ["docker", "network", "create", *board.labels(lab), f"--subnet={subnet}.0/24", network],
                check=False,
            )
            if result.returncode == 0:
                return subnet
            if "overlaps" not in result.stderr:
                raise ToolError(f"cannot make the Docker network {network}: {result.stderr.strip()}")
        raise ToolError(
            "every subnet of 10.207.0.0/16 is taken; take other labs down (`python -m tests.lab down --all`)"
        )
    return docker("network", "inspect", "--format={{(index .IPAM.Config 0).Subnet}}", network).rpartition(
        "."
    )[0]
