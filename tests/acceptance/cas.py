# SPDX-License-Identifier: Apache-2.0
"""The CAs of a cluster, as its boards have them and as clients meet them."""

import base64
import socket
import ssl

from tests.lab.board import Board
from tests.lab.vm.machine import Machine

DATA = "/var/lib/rancher/k3s"
SERVER_CA = f"{DATA}/server/tls/server-ca.crt"
AGENT_CA = f"{DATA}/agent/server-ca.crt"


def read(board: Board | Machine, path: str) -> str:
    """A file's text as it is; exec() takes the end of the last line away."""
    return base64.b64decode(board.exec("base64", path)).decode()


def is_trusted_by_openssl(server: Board | Machine, ca: str) -> bool:
    """Whether a client of OpenSSL that knows only this CA takes the server for the true one."""
    context = ssl.create_default_context(cadata=ca)
    try:
        with (
            socket.create_connection((server.address, 6443), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=server.address),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return False
