# SPDX-License-Identifier: Apache-2.0
"""The Docker engine that carries the boards: the running one, or Debian's, installed and started here."""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cache import cache, locked
from tools.debian import ensure_packages, has_apt
from tools.process import ToolError, run, say, step, tail

# Everything the lab makes in Docker carries this label, so that `down` needs no other record.
LABEL = "io.github.jetson-k3s.lab"
CHECKOUT_LABEL = f"{LABEL}.checkout"
START_SECONDS = 60
STOP_SECONDS = 30
# Boards need overlay2 on a named volume, which Debian 12's engine (20.10) has.
PACKAGES = ("docker.io", "iptables")


def docker(
    *args: str | Path, stdin: str | None = None, timeout: float | None = 300, check: bool = True
) -> str:
    """Run a docker command and return its stdout, stripped; raises ToolError as `process.run` does."""
    return run(["docker", *args], stdin=stdin, timeout=timeout, check=check).stdout.strip()


def answers() -> bool:
    """Say whether a Docker engine answers."""
    return shutil.which("docker") is not None and run(["docker", "version"], check=False).returncode == 0


def can_be_installed() -> bool:
    """Say whether ensure() may install Debian's engine here."""
    return os.geteuid() == 0 and has_apt()


def ensure() -> None:
    """Make sure that a Docker engine answers: install Debian's and start it when there is none.

    Raises ToolError when that is not possible, saying what is missing.
    """
    if answers():
        return
    with locked("engine"):
        if answers():
            return
        if os.geteuid() != 0:
            raise ToolError(
                "no Docker engine answers (`docker version` fails), and starting one needs root: "
                "start Docker, let this user use it (group docker), or run this as root"
            )
        ensure_packages(*PACKAGES)
        if answers():
            return
        if Path("/run/systemd/system").is_dir():
            run(["systemctl", "start", "docker"])
        else:
            _start_dockerd()


@contextmanager
def kept() -> Iterator[None]:
    """Keep the engine up meanwhile, also when the last lab is removed; several processes may keep it."""
    with _users_path().open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def stop_ours() -> None:
    """Stop the dockerd that the lab started, unless somebody keeps it or a container still runs on it."""
    with locked("engine"), _users_path().open("w") as users:
        pid = _our_dockerd()
        if pid is None:
            return
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if answers() and docker("ps", "--quiet"):
            say("the Docker engine that the lab started stays up: containers still run on it")
            return
        os.kill(pid, signal.SIGTERM)
        for _ in range(STOP_SECONDS * 10):
            if _our_dockerd() is None:
                break
            time.sleep(0.1)
        else:
            raise ToolError(f"dockerd (pid {pid}) does not end after SIGTERM; its log: {_log_path()}")
        _pid_path().unlink(missing_ok=True)
        say("stopped the Docker engine that the lab had started")


def _users_path() -> Path:
    path = cache() / "locks" / "engine-users.lock"
    path.parent.mkdir(exist_ok=True)
    return path


def _pid_path() -> Path:
    return cache() / "engine" / "dockerd.pid"


def _log_path() -> Path:
    return cache() / "engine" / "dockerd.log"


def _our_dockerd() -> int | None:
    """Return the pid of the dockerd that the lab started, None when it does not run."""
    try:
        pid = int(_pid_path().read_text())
        # A dead child that nobody waited for has an empty command line.
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"dockerd" in command.split(b"\0")[0] else None


def _start_dockerd() -> None:
    """Start dockerd in the background, on a machine whose init would not do it."""
    _pid_path().parent.mkdir(exist_ok=True)
    with step("starting a Docker engine (dockerd)"):
        with _log_path().open("w") as log:
            # A session of its own: Ctrl-C at the terminal is meant for the lab, not for the engine.
            daemon = subprocess.Popen(
                ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _pid_path().write_text(f"{daemon.pid}\n")
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if daemon.poll() is not None or time.monotonic() > deadline:
                daemon.terminate()
                said = tail(_log_path().read_text(errors="replace"))
                raise ToolError(f"dockerd does not come up (log: {_log_path()})\n{said}")
            time.sleep(0.2)
