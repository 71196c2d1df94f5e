# SPDX-License-Identifier: Apache-2.0
"""Ports and addresses that servers and agents agree on, and how to ask for something there."""

import socket
import ssl
from urllib import parse, request

SUPERVISOR_PORT = 6443  # K3s' own
# K3s answers Kubernetes requests on 6443 too; here the API server has a port of its own.
API_PORT = 6444
API_URL = f"https://127.0.0.1:{API_PORT}"  # on the server
KUBELET_HEALTH_PORT = 10248
POD_CIDR = "10.42.0.0/16"  # K3s' default
SERVICE_CIDR = "10.43.0.0/16"  # K3s' default
FIRST_SERVICE_ADDRESS = "10.43.0.1"
# Any address outside this host's networks finds the interface of the default route; nothing is sent to it.
ELSEWHERE = "203.0.113.1"


def address_towards(host: str = ELSEWHERE) -> str:
    """Return this host's address on the way to another, 127.0.0.1 when there is no way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def url(address: str, port: int) -> str:
    """Return the URL of what listens at an address, which may be one of IPv6."""
    return f"https://{f'[{address}]' if ':' in address else address}:{port}"


def api_url(server: str) -> str:
    """Return where the API server is whose K3s is at the URL `server`."""
    return url(parse.urlsplit(server).hostname or "", API_PORT)


def opener(context: ssl.SSLContext) -> request.OpenerDirector:
    """Return an HTTPS client that asks the cluster directly, whatever proxy the environment names."""
    return request.build_opener(request.ProxyHandler({}), request.HTTPSHandler(context=context))
