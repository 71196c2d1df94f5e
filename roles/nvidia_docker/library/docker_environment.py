#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What Docker needs around it on a Jetson: iptables that the kernel can do, and who gets the GPU unasked.

Runs on the board, therefore Python 3.6 compatible.
"""

import gzip
import os
import re

from ansible.module_utils.atomic_files import leave_marker, replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.compat.version import LooseVersion
from ansible.module_utils.redact import redact

DOCUMENTATION = r"""
module: docker_environment
short_description: What Docker needs around it on a Jetson
description:
  - Kernels of some JetPacks lack what newer programs take for granted. Without the iptables table C(raw)
    Docker 28 publishes no port unless its unit says so; without C(nf_tables) and C(nft_compat) only
    iptables-legacy works. A kernel that does not show its configuration is taken to have everything.
  - With C(strict) NVIDIA's runtime gives the GPU to those only to whom the device plugin gave it.
  - A marker stands from before the first change that needs a restart of Docker until the role removes it.
author: The jetson-k3s authors
options:
  docker_version:
    description: Version of the engine that starts next.
    type: str
  strict:
    description: Whether an unprivileged container's C(NVIDIA_VISIBLE_DEVICES) counts for nothing.
    type: bool
    required: true
  state:
    description: C(absent) takes back everything but the choice of iptables.
    type: str
    choices: [present, absent]
    default: present
  hold:
    description: Leave alone what would need a restart of Docker.
    type: bool
    default: false
  marker:
    description: File that says that a restart of Docker is due. In /run, because a reboot restarts as well.
    type: path
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

RETURN = r"""
restart_due:
  description: Whether the marker stands, or would stand outside check mode.
  returned: success
  type: bool
held:
  description: Whether something was left alone.
  returned: success
  type: bool
"""

DROP_IN = "etc/systemd/system/docker.service.d/50-jetson-k3s.conf"
RUNTIME_CONFIG = "etc/nvidia-container-runtime/config.toml"
# https://github.com/moby/moby/pull/49621; not a key of daemon.json.
RAW_DROP_IN = """\
# Written by Ansible (role nvidia_docker). Docker 28 wants the iptables table "raw", which this kernel lacks.
[Service]
Environment=DOCKER_INSECURE_NO_IPTABLES_RAW=1
"""
# First version that wants the table, and first that can do without it.
WANTS_RAW, KNOWS_NO_RAW = "28.0.0", "28.0.2"
# iptables-nft works through both.
NFT_OPTIONS = ("NF_TABLES", "NFT_COMPAT")
IPTABLES = ("iptables", "ip6tables")

# Keys of config.toml, all of the top level, and their values in strict mode.
STRICT = (
    ("accept-nvidia-visible-devices-envvar-when-unprivileged", "false"),
    ("accept-nvidia-visible-devices-as-volume-mounts", "true"),
)
OURS = "  # jetson-k3s: strict"
THEIRS = "#jetson-k3s# "


class EnvironmentProblem(Exception):  # noqa: N818 - it is the board's, not this program's
    """The board cannot run this Docker; the text says why and what to do."""


def kernel_options(config):
    """Options (without CONFIG_) that are built in or modules; None for a configuration that is not known."""
    if config is None:
        return None
    return set(re.findall(r"^CONFIG_(\w+)=[ym]$", config, re.MULTILINE))


def read_kernel_config(root):
    """Text of /proc/config.gz, None where the kernel does not show it."""
    try:
        with gzip.open(os.path.join(root, "proc/config.gz"), "rt") as stream:
            return stream.read()
    except OSError:
        return None


def needs_raw_drop_in(options, docker_version):
    """Must Docker be told that there is no table raw? EnvironmentProblem where it cannot be told."""
    if options is None or "IP_NF_RAW" in options or not docker_version:
        return False
    version = LooseVersion(docker_version)
    if version < WANTS_RAW:
        return False
    if version < KNOWS_NO_RAW:
        raise EnvironmentProblem(
            "Docker {} publishes no ports on this kernel, which has no iptables table raw "
            "(https://github.com/moby/moby/issues/49557). Install Docker 28.0.2 or newer, "
            "or 27.5.1 and hold it.".format(docker_version)
        )
    return True


def needs_legacy_iptables(options):
    """Does this kernel lack what iptables-nft works through?"""
    return options is not None and not options.issuperset(NFT_OPTIONS)


def strict_config(text, strict):
    """config.toml with the keys of strict mode, or as its owner had it; exactly reversible."""
    lines = [
        line[len(THEIRS) :] if line.startswith(THEIRS) else line
        for line in text.splitlines()
        if not line.endswith(OURS)
    ]
    if strict:
        table = next(
            (number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines)
        )
        names = tuple(key for key, _ in STRICT)
        top = [THEIRS + line if line.split("=")[0].strip() in names else line for line in lines[:table]]
        lines = ["{} = {}{}".format(key, value, OURS) for key, value in STRICT] + top + lines[table:]
    return "".join(line + "\n" for line in lines)


def read(path):
    """Text of a file, '' without it."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def put(path, text, rename=os.rename):
    """Write a file in one atomic step, the one that a link leads to; an empty text removes it.

    With AnsibleModule.atomic_move as `rename` an old file's owner and mode stay.
    """
    path = os.path.realpath(path)
    if text:
        replace_file(path, text, rename=rename)
    else:
        os.unlink(path)


def nft_alternatives(root):
    """Those of iptables and ip6tables whose alternative is the nft one."""
    return [
        name
        for name in IPTABLES
        if os.path.islink(os.path.join(root, "etc/alternatives", name))
        and os.readlink(os.path.join(root, "etc/alternatives", name)).endswith("-nft")
    ]


def plan(root, params):
    """What has to change: ([(path, before, after, restarts Docker)], [alternatives to set to legacy])."""
    present = params["state"] == "present"
    options = kernel_options(read_kernel_config(root)) if present else None
    drop_in = RAW_DROP_IN if present and needs_raw_drop_in(options, params["docker_version"]) else ""
    runtime_config = read(os.path.join(root, RUNTIME_CONFIG))
    files = [
        (DROP_IN, read(os.path.join(root, DROP_IN)), drop_in, True),
        # Read at each start of a container: no restart.
        (RUNTIME_CONFIG, runtime_config, strict_config(runtime_config, present and params["strict"]), False),
    ]
    legacy = nft_alternatives(root) if needs_legacy_iptables(options) else []
    return [change for change in files if change[1] != change[2]], legacy


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "docker_version": {"type": "str"},
            "strict": {"type": "bool", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "hold": {"type": "bool", "default": False},
            "marker": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    root, marker = "/", module.params["marker"]
    try:
        files, legacy = plan(root, module.params)
    except EnvironmentProblem as problem:
        module.fail_json(msg=str(problem))
    restart = bool(legacy) or any(restarts for _, _, _, restarts in files)
    due = restart or os.path.exists(marker)
    held = due and module.params["hold"]
    if held:
        files, legacy = [change for change in files if not change[3]], []
    if not module.check_mode:
        if restart and not held:
            leave_marker(marker)
        for path, _, after, _ in files:
            put(os.path.join(root, path), after, module.atomic_move)
        for name in legacy:
            module.run_command(
                ["update-alternatives", "--set", name, "/usr/sbin/{}-legacy".format(name)], check_rc=True
            )
    module.exit_json(
        changed=bool(files or legacy),
        restart_due=due,
        held=held,
        diff=[
            {"before_header": path, "after_header": path, "before": redact(before), "after": redact(after)}
            for path, before, after, _ in files
        ]
        + [
            {"before": "{0} is {0}-nft\n".format(name), "after": "{0} is {0}-legacy\n".format(name)}
            for name in legacy
        ],
    )


if __name__ == "__main__":
    main()
