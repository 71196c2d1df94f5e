# SPDX-License-Identifier: Apache-2.0
"""One QEMU process: its command line, its monitor, and the agent inside the guest.

Monitor (QMP) and guest agent (QGA) speak alike: one JSON object per line, `execute` and `arguments` there,
`return` or `error` back. One small client does for both; the library for QMP knows no agent.
"""

import base64
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.debian import ensure_packages
from tools.process import ToolError, run, tail

# The same at saving and restoring: a saved state is for exactly this machine. Of QEMU's cores A76 is the next
# of kin of the Orin's A78AE; its atomic instructions (LSE) cost the emulator less than older cores' loops.
MACHINE = ("-M", "virt,gic-version=3", "-cpu", "cortex-a76", "-smp", "2", "-m", "3072")
# 2 GiB is the most that QEMU takes for translated code. Half of that, its default, is full every minute under
# Kubernetes, and then all of it is translated anew.
ACCELERATOR = "tcg,thread=multi,tb-size=2048"
# cgroup v1, as on L4T; without apparmor=0 Docker asks for a program that minimal Debian lacks. With kpti each
# system call changes the address space, for which QEMU forgets every address it has looked up. With random
# addresses (without norandmaps) a program that is started again has to be translated again.
KERNEL_ARGUMENTS = (
    "console=ttyAMA0 systemd.unified_cgroup_hierarchy=0 apparmor=0 mitigations=off kpti=off norandmaps"
    " net.ifnames=0"
)
AGENT_PORT = "org.qemu.guest_agent.0"  # the name that the agent's package expects
POLL_SECONDS = 0.1
AGENT_POLL_SECONDS = 0.5  # each question is work for the emulated board
SAVE_SECONDS = 300
END_SECONDS = 20


class AgentError(ToolError):
    """The monitor or the agent refused a command, or does not answer."""


@dataclass(frozen=True)
class Qemu:
    """A machine in a directory of its own: disk.qcow2, qmp.sock, agent.sock, pid, console.log."""

    directory: Path
    interface: str
    """The tap interface on this machine, which exists as long as the process."""

    @property
    def pid(self) -> int | None:
        """Return the process id, None when it does not run."""
        try:
            pid = int((self.directory / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if b"qemu-system-aarch64" in command and self.interface.encode() in command else None

    def start(self, kernel: Path, initrd: Path, dtb: Path, state: Path | None = None) -> None:
        """Start it, from power-on or from a saved state (then it stands still until `resume`)."""
        ensure_packages("qemu-system-arm", "qemu-utils")
        argv: list[str | Path] = [
            "qemu-system-aarch64", *MACHINE, "-accel", ACCELERATOR,
            "-nodefaults", "-display", "none", "-serial", "file:console.log",
            "-kernel", kernel, "-initrd", initrd, "-dtb", dtb, "-append", KERNEL_ARGUMENTS,
            "-drive", "file=disk.qcow2,format=qcow2,if=none,id=disk,cache=unsafe,discard=unmap",
            "-device", "virtio-blk-pci,drive=disk",
            "-netdev", f"tap,id=net,ifname={self.interface},script=no,downscript=no",
            "-device", "virtio-net-pci,netdev=net,romfile=",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off",
            "-device", f"virtserialport,chardev=agent,name={AGENT_PORT}",
            "-qmp", "unix:qmp.sock,server=on,wait=off",
        ]  # fmt: skip
        if state is not None:
            argv += ["-incoming", f"exec:gzip -dc '{state}'"]
        with (self.directory / "qemu.log").open("w") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is meant for the lab
            )
        (self.directory / "pid").write_text(f"{process.pid}\n")
        while not (self.directory / "qmp.sock").exists():
            if process.poll() is not None:
                said = tail((self.directory / "qemu.log").read_text())
                raise ToolError(f"QEMU does not start (exit status {process.returncode})\n{said}")
            time.sleep(POLL_SECONDS)

    def attach(self, bridge: str) -> None:
        """Put the machine's interface into a bridge of this machine."""
        run(["ip", "link", "set", self.interface, "master", bridge])
        run(["ip", "link", "set", self.interface, "up"])

    def resume(self) -> None:
        """Let a restored machine go on once its state is read."""
        with self.monitor() as monitor:
            self._until(monitor, "query-status", ("paused", "postmigrate", "prelaunch"), ("inmigrate",))
            monitor.call("cont")

    def save(self, state: Path) -> None:
        """Stop the machine and write its state, which goes with its disk as it is now; then end it."""
        with self.monitor() as monitor:
            monitor.call("stop")
            # The default of 32 MB/s is meant for networks.
            monitor.call("migrate-set-parameters", **{"max-bandwidth": 2**40})
            monitor.call("migrate", uri=f"exec:gzip -1 > '{state}'")
            self._until(monitor, "query-migrate", ("completed",), ("setup", "active", "device"))
        self.end()

    def _until(
        self, monitor: "Channel", question: str, wanted: Sequence[str], passing: Sequence[str]
    ) -> None:
        """Ask until the status is one that is wanted; ToolError for one that does not lead there."""
        deadline = time.monotonic() + SAVE_SECONDS
        while (status := monitor.call(question).get("status")) not in wanted:
            if status not in (*passing, None) or time.monotonic() > deadline:
                said = tail((self.directory / "qemu.log").read_text())
                raise ToolError(f"QEMU: {question} says {status}, not {' or '.join(wanted)}\n{said}")
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """Take the power away, and wait until the process is gone."""
        pid = self.pid
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self.pid is not None:
            # Gone when it is nobody's child or has been waited for.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    @contextmanager
    def monitor(self) -> Iterator["Channel"]:
        """Yield the connected monitor."""
        with Channel.connect(self.directory, "qmp.sock") as channel:
            channel.receive()  # its greeting
            channel.call("qmp_capabilities")
            yield channel

    def answers(self) -> bool:
        """Say whether the agent in the guest answers."""
        try:
            with Channel.connect(self.directory, "agent.sock", timeout=1) as agent:
                agent.sync()
        except (OSError, ToolError, json.JSONDecodeError):
            return False
        return True

    def exec(self, *command: str, stdin: bytes = b"", timeout: float = 120) -> tuple[int, str, str]:
        """Run a command in the guest as root; return its exit status, stdout and stderr."""
        deadline = time.monotonic() + timeout
        with Channel.connect(self.directory, "agent.sock", timeout=timeout) as agent:
            agent.sync()
            started = agent.call(
                "guest-exec",
                path=command[0],
                arg=list(command[1:]),
                **{"input-data": base64.b64encode(stdin).decode(), "capture-output": True},
            )
            while not (status := agent.call("guest-exec-status", pid=started["pid"]))["exited"]:
                if time.monotonic() > deadline:
                    raise ToolError(f"{' '.join(command)}: no end on the emulated board after {timeout:g} s")
                time.sleep(AGENT_POLL_SECONDS)
        out, err = (
            base64.b64decode(status.get(key, "")).decode(errors="replace") for key in ("out-data", "err-data")
        )
        return status.get("exitcode", 128 + status.get("signal", 0)), out, err


class Channel:
    """A connection on which JSON objects go to and fro, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    @contextmanager
    def connect(cls, directory: Path, name: str, timeout: float = 30) -> Iterator["Channel"]:
        """Connect to a socket in a directory, however long the directory's path is."""
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout)
                connection.connect(f"/proc/self/fd/{at}/{name}")
                yield cls(connection)
        finally:
            os.close(at)

    def receive(self) -> dict[str, Any]:
        """Return the next object."""
        line = self._lines.readline()
        if not line:
            raise AgentError("the connection to QEMU ended")
        # What the agent says first after `guest-sync-delimited` begins with this byte.
        received: dict[str, Any] = json.loads(line.lstrip(b"\xff"))
        return received

    def sync(self) -> None:
        """Skip what the agent still says to somebody who has gone."""
        self._connection.sendall(b"\xff")
        token = time.monotonic_ns() % 2**31
        self._send("guest-sync-delimited", {"id": token})
        while True:
            with suppress(json.JSONDecodeError):
                if self.receive().get("return") == token:
                    return

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run a command and return its result; events on the way are not for us."""
        self._send(command, arguments)
        while True:
            received = self.receive()
            if "error" in received:
                raise AgentError(f"QEMU refused {command}: {received['error'].get('desc')}")
            if "return" in received:
                result: dict[str, Any] = received["return"]
                return result

    def _send(self, command: str, arguments: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
