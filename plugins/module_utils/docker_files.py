# SPDX-License-Identifier: Apache-2.0
"""The files around Docker that role nvidia_docker writes beside daemon.json.

Runs on boards and on the controller, therefore Python 3.6 compatible.
"""

import os
from typing import Any, Dict, Optional

from ansible.module_utils.compat.version import LooseVersion
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_toolkit import (
    RUNTIME_CONFIG,
    strict_config,
)

DROP_IN = "etc/systemd/system/docker.service.d/50-jetson-k3s.conf"
# https://github.com/moby/moby/pull/49621; not a key of daemon.json.
RAW_DROP_IN = """\
# Written by Ansible (role nvidia_docker). Docker 28 wants the iptables table "raw", which this kernel lacks.
[Service]
Environment=DOCKER_INSECURE_NO_IPTABLES_RAW=1
"""
# Variables of a file override those of Environment=, such as in an owner's http-proxy.conf.
PROXY_DROP_IN = "etc/systemd/system/docker.service.d/60-jetson-k3s-proxy.conf"
PROXY_FILE = "etc/docker/jetson-k3s.env"
PROXY_TEXT = """\
# Written by Ansible (role nvidia_docker): jetson_k3s_proxy of the inventory.
[Service]
EnvironmentFile=-/{}
""".format(PROXY_FILE)
PRIVATE = 0o600
# First version that wants the table, and first that can do without it.
WANTS_RAW, KNOWS_NO_RAW = "28.0.0", "28.0.2"

# Stands while a change around Docker waits for its restart.
MARKER = "run/jetson-k3s/docker.restart"


class EnvironmentProblem(Exception):  # noqa: N818 - it is the board's, not this program's
    """The board cannot run this Docker; the text says why and what to do."""


def needs_raw_drop_in(raw: Optional[str], docker_version: Optional[str]) -> bool:
    """Does Docker need DOCKER_INSECURE_NO_IPTABLES_RAW? EnvironmentProblem if it does not know that variable.

    `raw` is what fails there, None where nothing does.
    """
    if raw is None or not docker_version:
        return False
    version = LooseVersion(docker_version)
    if version < WANTS_RAW:
        return False
    if version < KNOWS_NO_RAW:
        raise EnvironmentProblem(
            "Docker {} publishes no ports on this kernel ({}; https://github.com/moby/moby/issues/49557). "
            "Install Docker 28.0.2 or newer, or 27.5.1 and `apt-mark hold` it.".format(docker_version, raw)
        )
    return True


def read(path: str) -> str:
    """Text of a file, '' without it."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def strict_mode(text: str) -> Optional[bool]:
    """Whether config.toml is that of strict mode; None if it has a part of it."""
    return next((strict for strict in (False, True) if strict_config(text, strict) == text), None)


def file_facts(root: str) -> Dict[str, Any]:
    """State of the files. The proxy's text is no fact, because it may have a password."""
    drop_in, proxy = read(os.path.join(root, DROP_IN)), (PROXY_FILE, PROXY_DROP_IN)
    return {
        "raw_drop_in": {"": False, RAW_DROP_IN: True}.get(drop_in),
        "proxy": any(os.path.exists(os.path.join(root, path)) for path in proxy),
        "strict": strict_mode(read(os.path.join(root, RUNTIME_CONFIG))),
        "restart_due": os.path.exists(os.path.join(root, MARKER)),
    }
