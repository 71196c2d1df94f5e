# SPDX-License-Identifier: Apache-2.0
"""Telling systemd how far we are (sd_notify(3)); silent when nobody listens."""

import os
import socket


def notify(state: str) -> None:
    """Send a state as `READY=1` or `STATUS=...` to the socket that systemd named in NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), address)
