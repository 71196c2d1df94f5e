# SPDX-License-Identifier: Apache-2.0
"""How programs on a board resolve names: by its /etc/hosts and /etc/resolv.conf, which are only read.

Runs on the board, therefore Python 3.6 compatible.
"""

from typing import Any, Dict, List

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import read

# A file with names to block may be long: other names are no fact.
KEPT = ".local"


def hosts_of(text: str, server: str) -> Dict[str, str]:
    """{name: its first address} of /etc/hosts, of the server's name and of those that end in .local."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in (one.lower().rstrip(".") for one in names):
            if name == server.lower() or name.endswith(KEPT):
                found.setdefault(name, address)
    return found


def resolver_of(hosts: str, configuration: str, server: str) -> Dict[str, Any]:
    """What the texts of /etc/hosts and /etc/resolv.conf say."""
    nameservers: List[str] = []
    search: List[str] = []
    for line in configuration.splitlines():
        keyword, *values = line.partition("#")[0].split() or [""]
        if keyword == "nameserver":
            nameservers += values[:1]
        elif keyword in ("search", "domain"):
            search = [value for value in values if value != "."]
    return {"hosts": hosts_of(hosts, server), "nameservers": nameservers, "search": search}


def resolver_facts(root: str, server: str) -> Dict[str, Any]:
    """The names of /etc/hosts that matter, and the name servers and search domains of /etc/resolv.conf."""
    return resolver_of(read(root, "etc/hosts") or "", read(root, "etc/resolv.conf") or "", server)
