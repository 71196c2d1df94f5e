#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What Docker needs around it on a Jetson: iptables, the proxy of the site, and who gets the GPU unasked.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.docker_files import (
    DROP_IN,
    PRIVATE,
    PROXY_DROP_IN,
    PROXY_FILE,
    PROXY_TEXT,
    RAW_DROP_IN,
    EnvironmentProblem,
    needs_raw_drop_in,
    read,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_iptables import (
    NotTried,
    iptables_plan,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_kernel import (
    kernel_config,
    kernel_lacks,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_toolkit import (
    RUNTIME_CONFIG,
    strict_config,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: docker_environment
short_description: What Docker needs around it on a Jetson
description:
  - Kernels of some JetPacks lack features that newer programs need. Without the iptables table C(raw)
    Docker 28 publishes no port unless its unit says so. With some kernels only iptables-legacy works, with
    others only iptables-nft. The present one is tried with real rules in a network namespace of its own, and
    the other one where that fails; also in check mode. If iptables cannot be tried, it stays as it is.
  - With C(strict) NVIDIA's runtime gives the GPU to those only to whom the device plugin gave it.
  - Docker gets the proxy by an environment file of root's alone, which a drop-in names. Each Docker reads it,
    while the key C(proxies) of daemon.json is of Docker 23. C(systemctl show) tells every user the variables
    of a unit, and not those of its files.
  - A marker exists from before the first change that needs a restart of Docker until the role removes it.
options:
  docker_version: {description: Version of the engine that starts next.}
  strict:
    type: bool
    description: >-
      Whether an unprivileged container's C(NVIDIA_VISIBLE_DEVICES) counts for nothing. Without this option
      the configuration of NVIDIA's runtime stays.
  proxy:
    description: >-
      Content of the environment file for the proxy. An empty text removes it. Without this option it stays.
  state:
    choices: [present, absent]
    default: present
    description: C(absent) takes back everything but the choice of iptables.
  postpone:
    type: bool
    default: false
    description: Leave the files alone if the change needs a restart of Docker.
  marker:
    type: path
    required: true
    description: File that says that a restart of Docker is due. In /run, because a reboot restarts as well.
"""

RETURN = r"""
restart_due: {type: bool, description: 'Whether the marker exists, or would exist outside check mode.'}
postponed: {type: bool, description: Whether a change was left out.}
"""

Data = Dict[str, Any]  # parameters, or a plan for iptables


class Change(NamedTuple):
    """A file before and after; whether Docker reads it only when it starts."""

    path: str
    before: str
    after: str
    restarts: bool


def read_private(path: str, wanted: str) -> str:
    """Text of a file with a secret, '' if others can read it and it has to be written again."""
    text = read(path)
    return text if text and (not wanted or os.stat(path).st_mode & 0o777 == PRIVATE) else ""


def put(path: str, text: str, rename: Callable[[str, str], None] = os.rename) -> None:
    """Write a file in one atomic step, the one that a link leads to; an empty text removes it.

    With AnsibleModule.atomic_move as `rename` an old file's owner and mode stay.
    """
    path = os.path.realpath(path)
    if not text:
        os.unlink(path)
    elif path.endswith(PROXY_FILE):
        replace_file(path, text, PRIVATE)
    else:
        replace_file(path, text, rename=rename)


def shown(path: str, before: str, after: str) -> Dict[str, str]:
    """A diff without secrets."""
    before, after, same = redact(before), redact(after), redact(before) == redact(after)
    return {
        "before_header": path,
        "after_header": path,
        "before": before,
        "after": after + "(another secret)\n" if same else after,
    }


def variants(module: AnsibleModule, root: str) -> Dict[str, Data]:
    """The plan for iptables and ip6tables, empty where they cannot be tried."""
    release = os.uname().release
    try:
        return iptables_plan(module, root, kernel_lacks(root, release, kernel_config(root, release)))
    except NotTried as reason:
        module.warn("iptables stays as it is, because it could not be tried: {}".format(reason))
        return {}


def proxy_files(root: str, proxy: Optional[str]) -> List[Change]:
    """The files of the proxy. `proxy` is None where they stay as they are."""
    if proxy is None:
        return []
    file, drop_in = os.path.join(root, PROXY_FILE), os.path.join(root, PROXY_DROP_IN)
    return [
        Change(PROXY_FILE, read_private(file, proxy), proxy, True),
        Change(PROXY_DROP_IN, read(drop_in), PROXY_TEXT if proxy else "", True),
    ]


def plan(root: str, params: Data, iptables: Dict[str, Data]) -> Tuple[List[Change], Dict[str, str]]:
    """What has to change: files, and {alternative: path to choose}.

    `iptables` is the plan of variants().
    """
    present = params["state"] == "present"
    drop_in = read(os.path.join(root, DROP_IN))
    if not present:
        wanted = ""
    elif "iptables" in iptables:
        raw = iptables["iptables"]["raw"]
        wanted = RAW_DROP_IN if needs_raw_drop_in(raw, params["docker_version"]) else ""
    else:
        wanted = drop_in
    runtime_config = read(os.path.join(root, RUNTIME_CONFIG))
    strict = runtime_config
    if params["strict"] is not None:
        strict = strict_config(runtime_config, bool(present and params["strict"]))
    files = [
        Change(DROP_IN, drop_in, wanted, True),
        *proxy_files(root, params["proxy"] if present else ""),
        # Read at each start of a container: no restart.
        Change(RUNTIME_CONFIG, runtime_config, strict, False),
    ]
    choices = {name: family["choose"] for name, family in sorted(iptables.items()) if family["choose"]}
    return [change for change in files if change.before != change.after], choices


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "docker_version": {"type": "str"},
            "strict": {"type": "bool"},
            "proxy": {"type": "str", "no_log": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "postpone": {"type": "bool", "default": False},
            "marker": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    root, marker = "/", module.params["marker"]
    try:
        iptables = variants(module, root) if module.params["state"] == "present" else {}
        files, choices = plan(root, module.params, iptables)
    except EnvironmentProblem as problem:
        module.fail_json(msg=str(problem))
    restart = bool(choices) or any(change.restarts for change in files)
    due = restart or os.path.exists(marker)
    postponed = due and module.params["postpone"]
    if postponed:
        files, choices = [change for change in files if not change.restarts], {}
    if not module.check_mode:
        if restart and not postponed:
            leave_marker(marker)
        for change in files:
            put(os.path.join(root, change.path), change.after, module.atomic_move)
        for name, path in choices.items():
            module.run_command(["update-alternatives", "--set", name, path], check_rc=True)
    module.exit_json(
        changed=bool(files or choices),
        restart_due=due,
        postponed=postponed,
        diff=[shown(change.path, change.before, change.after) for change in files]
        + [
            {
                "before": "{} fails: {}\n".format(name, iptables[name]["reason"]),
                "after": "{} is {}\n".format(name, path),
            }
            for name, path in choices.items()
        ],
    )


if __name__ == "__main__":
    main()
