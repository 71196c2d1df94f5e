# SPDX-License-Identifier: Apache-2.0
"""Which firewall runs on a board, and what it lets in.

Runs on the board, therefore Python 3.6 compatible.
"""

import re

from ansible.module_utils.jetson_board import read

EVERYTHING = "everything"
ANY = ("any", "0.0.0.0/0", "::/0")
# A rule in a file of ufw (its backend_iptables.py): action, protocol, port, to, port, from, direction.
UFW_RULE = re.compile(
    r"^### tuple ### (?:allow|limit)\S* (\S+) (\S+) \S+ \S+ (\S+) (?:\S+ \S+ )?in(_\S+)?", re.MULTILINE
)
UFW_ACCEPTS = re.compile(r'^DEFAULT_INPUT_POLICY="?ACCEPT', re.MULTILINE)
SETTING = re.compile(r"^ +([\w-]+): *(.*)$", re.MULTILINE)
RICH_PORT = re.compile(r'\bport port="(\S+)" protocol="(\w+)" accept')


def _normal(ports, protocols):
    """Each port or range with each protocol: `2379-2380/tcp`."""
    return [
        "{}/{}".format(port.replace(":", "-"), protocol)
        for port in ports.split(",")
        for protocol in protocols
    ]


def ufw(root):
    """What ufw lets in: ports such as 6443/tcp, and networks. None where it is off."""
    if not re.search(r"^ENABLED=yes", read(root, "etc/ufw/ufw.conf") or "", re.MULTILINE):
        return None
    if UFW_ACCEPTS.search(read(root, "etc/default/ufw") or ""):
        return [EVERYTHING]
    rules = "\n".join(read(root, path) or "" for path in ("etc/ufw/user.rules", "etc/ufw/user6.rules"))
    opened = []
    for protocol, ports, source, device in UFW_RULE.findall(rules):
        if ports not in ANY:
            opened += _normal(ports, ("tcp", "udp") if protocol == "any" else (protocol,))
        elif source not in ANY:
            opened.append(source)
        elif protocol == "any":
            opened.append(EVERYTHING if not device else "interface " + device[1:])
    return sorted(set(opened))


def firewalld(text):
    """The same of all zones, as `firewall-cmd --list-all-zones` prints them; unused zones open no ports."""
    opened = []
    for zone in text.split("\n\n"):
        values = {key: value.split() for key, value in SETTING.findall(zone)}
        if values.get("target") == ["ACCEPT"]:
            opened += values.get("sources", [])
            opened += ["interface " + name for name in values.get("interfaces", [])]
        opened += values.get("ports", [])
        opened += ["{}/{}".format(*port) for port in RICH_PORT.findall(zone)]
    return sorted(set(opened))


def firewalls(root, firewalld_runs, output):
    """Of each firewall what it lets in, None of one that does not run; `output` runs a command."""
    return {
        "ufw": ufw(root),
        "firewalld": firewalld(output("firewall-cmd", "--list-all-zones")) if firewalld_runs else None,
    }
