# SPDX-License-Identifier: Apache-2.0
"""The commands that stay, `k3s server` and `k3s agent`, and what is done with a server's data."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import config, datastore, payload, processes
from .agent import run_agent
from .errors import StandinError
from .processes import Children
from .server import run_server

log = logging.getLogger(__name__)


def run_daemon(command: config.Command, flags: Sequence[str]) -> int:
    """Run a server or an agent until it is stopped, and return the exit status. Raises StandinError."""
    logging.basicConfig(format="level=%(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    if os.geteuid() != 0:
        raise StandinError(f"must run as root: k3s {command}")
    asked = config.load(command, flags, os.environ)
    log.info("Starting %s", payload.version_text())
    programs = payload.unpacked(asked.data_dir)

    async def body(children: Children) -> None:
        runner = run_server if command == "server" else run_agent
        await runner(children, asked, programs)

    return processes.run(body)


def save_snapshot(flags: Sequence[str]) -> Path:
    """Save a snapshot of the data of this host's server, and return it. Raises StandinError."""
    asked = config.load("server", [], os.environ)
    return datastore.save(flags, asked, payload.unpacked(asked.data_dir))
