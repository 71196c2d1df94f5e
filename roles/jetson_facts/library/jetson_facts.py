#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Gather in one round trip all that the other roles need to know about a board.

Runs on the board, therefore Python 3.6 compatible. Looks only; starts and changes nothing.
"""

import json
import os
import re
import shutil
import socket

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: jetson_facts
short_description: Facts about a Jetson board, its Docker engine and its K3s
description:
  - Returns one fact, C(jetson), with the board's identity and the state of what the roles manage.
author: The jetson-k3s authors
options: {}
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
ansible_facts:
  description: One key, C(jetson); a value that the board does not tell is null.
  returned: always
  type: dict
  sample:
    jetson:
      platform: tegra
      soc: tegra234
      l4t: 36.4.3
      jetpack: "6.2"
"""

# L4T release -> JetPack, from NVIDIA's release notes (the table jetson-stats carries as well).
JETPACK = {
    "39.2.0": "7.2",
    "38.4.0": "7.1", "38.2.2": "7.0", "38.2.1": "7.0", "38.2.0": "7.0",
    "36.5.0": "6.2.2", "36.4.7": "6.2.1", "36.4.4": "6.2.1", "36.4.3": "6.2", "36.4.2": "6.1",
    "36.4.0": "6.1", "36.3.0": "6.0",
    "35.6.4": "5.1.6", "35.6.3": "5.1.5", "35.6.2": "5.1.5", "35.6.1": "5.1.5", "35.6.0": "5.1.4",
    "35.5.0": "5.1.3", "35.4.1": "5.1.2", "35.3.1": "5.1.1", "35.2.1": "5.1", "35.1.0": "5.0.2",
    "32.7.6": "4.6.6", "32.7.5": "4.6.5", "32.7.4": "4.6.4", "32.7.3": "4.6.3", "32.7.2": "4.6.2",
    "32.7.1": "4.6.1", "32.6.1": "4.6", "32.5.2": "4.5.1", "32.5.1": "4.5.1", "32.5.0": "4.5",
    "32.4.4": "4.4.1", "32.4.3": "4.4", "32.3.1": "4.3",
}  # fmt: skip

L4T_LINE = re.compile(r"^# R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
SOC = re.compile(r"^nvidia,(tegra\d+)$")  # not "tegra23x", which JetPack 5 lists after tegra234
PART_NUMBER = re.compile(r"\+(p\d{4}-\d{4})")
FACT_FILE_BYTES = 1 << 20  # far above any file read here; a board's file never makes us eat memory

DEVICE_TREE = ("sys/firmware/devicetree/base", "proc/device-tree")
UNITS = ("docker.service", "k3s.service", "k3s-agent.service")
# Flags of dockerd that name what our keys of daemon.json name: dockerd refuses to start when both are given.
CONFLICTING_FLAGS = ("--default-runtime", "--add-runtime")


def read(root, path):
    """Text of a file below root without trailing NULs and newlines, None if it cannot be read."""
    try:
        with open(os.path.join(root, path), "rb") as handle:
            return handle.read(FACT_FILE_BYTES).decode("utf-8", "replace").rstrip("\0\n")
    except OSError:
        return None


def first(values):
    """The first value that is not None, else None."""
    return next((value for value in values if value is not None), None)


def l4t_release(release_text):
    """L4T release such as 36.4.3 from the text of /etc/nv_tegra_release, None if it names none."""
    match = L4T_LINE.match(release_text or "")
    return "{}.{}".format(*match.groups()) if match else None


def jetpack_release(l4t):
    """JetPack of an L4T release; an unknown patch counts as the newest known one of its major.minor."""
    if l4t is None:
        return None
    if l4t in JETPACK:
        return JETPACK[l4t]
    branch = ".".join(l4t.split(".")[:2]) + "."
    siblings = [release for release in JETPACK if release.startswith(branch)]
    return JETPACK[max(siblings, key=lambda release: int(release.split(".")[2]))] if siblings else None


def board_identity(root):
    """Who is this board: platform ('tegra' or 'none'), SoC, module, model, L4T and JetPack."""
    compatible = first(read(root, tree + "/compatible") for tree in DEVICE_TREE) or ""
    socs = [match.group(1) for match in map(SOC.match, compatible.split("\0")) if match]
    modules = sorted(set(PART_NUMBER.findall(compatible)))
    family = read(root, "sys/devices/soc0/family") or ""
    release = read(root, "etc/nv_tegra_release")
    l4t = l4t_release(release)
    is_tegra = bool(socs) or release is not None or family.lower().startswith("tegra")
    return {
        "platform": "tegra" if is_tegra else "none",
        "soc": socs[0] if socs else None,
        # Some JetPack 5 trees list several modules: then the tree does not tell which one it is.
        "module": modules[0] if len(modules) == 1 else None,
        "model": first(read(root, tree + "/model") for tree in DEVICE_TREE),
        "l4t": l4t,
        "jetpack": jetpack_release(l4t),
    }


def daemon_json(root):
    """State of Docker's configuration file: {exists, error, config}; the error names line and column."""
    text = read(root, "etc/docker/daemon.json")
    if text is None or not text.strip():
        return {"exists": text is not None, "error": None, "config": {}}
    try:
        config = json.loads(text)
    except ValueError as error:
        return {"exists": True, "error": str(error), "config": {}}
    if not isinstance(config, dict):
        return {"exists": True, "error": "the top level is not a JSON object", "config": {}}
    return {"exists": True, "error": None, "config": config}


def parse_units(text):
    """Output of `systemctl show` on several units, as {unit: {property: value}}."""
    units = {}
    for block in text.strip().split("\n\n"):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in properties:
            units[properties["Id"]] = properties
    return units


def unit_state(properties):
    """What the roles ask about one unit."""
    exec_start = re.search(r"argv\[\]=(.*?) ;", properties.get("ExecStart", ""))
    return {
        "installed": properties.get("LoadState") == "loaded",
        "active": properties.get("ActiveState") == "active",
        "enabled": properties.get("UnitFileState") == "enabled",
        "command": exec_start.group(1) if exec_start else None,
    }


def parse_version(pattern, text):
    """First group of the pattern in the text, None without a match."""
    match = re.search(pattern, text or "")
    return match.group(1) if match else None


def memory_bytes(root):
    """MemTotal of /proc/meminfo in bytes."""
    kib = parse_version(r"MemTotal:\s+(\d+) kB", read(root, "proc/meminfo"))
    return int(kib) * 1024 if kib else None


def cgroup_version(root):
    """2 on a unified hierarchy, else 1."""
    return 2 if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")) else 1


def disk_free_bytes(path):
    """Bytes free for root below path or below its nearest parent that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


class Commands:
    """Runs commands on the board; a command that is missing or fails answers with an empty text."""

    def __init__(self, module):
        self.module = module

    def path(self, name):
        """Absolute path of an executable, None if there is none."""
        return self.module.get_bin_path(name, opt_dirs=["/usr/local/bin"])

    def output(self, *argv):
        """Standard output of a command that ended well, '' otherwise."""
        if self.path(argv[0]) is None:
            return ""
        code, out, _ = self.module.run_command([self.path(argv[0]), *argv[1:]])
        return out if code == 0 else ""


def docker_facts(commands, root, unit):
    """The engine: what is installed, what runs, which images it has, and its configuration file."""
    info = json.loads(commands.output("docker", "info", "--format", "{{json .}}") or "{}")
    running = bool(info.get("ServerVersion"))
    images = commands.output(
        "docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"
    )
    state = unit_state(unit)
    state.update(
        {
            "installed": commands.path("dockerd") is not None,
            "running": running,
            "version": info.get("ServerVersion") or None,
            "default_runtime": info.get("DefaultRuntime"),
            "runtimes": sorted(info.get("Runtimes") or {}),
            "cgroup_driver": info.get("CgroupDriver"),
            "storage_driver": info.get("Driver"),
            "images": dict(line.rsplit(" ", 1) for line in images.splitlines()),
            "daemon_json": daemon_json(root),
            "conflicting_flags": [flag for flag in CONFLICTING_FLAGS if flag in (state["command"] or "")],
        }
    )
    return state


def k3s_facts(commands, units):
    """K3s: the version its link leads to and the state of both units."""
    return {
        "version": parse_version(r"k3s version (v\S+)", commands.output("k3s", "--version")),
        "kubectl": commands.path("kubectl"),
        "server": unit_state(units.get("k3s.service", {})),
        "agent": unit_state(units.get("k3s-agent.service", {})),
    }


def nvidia_runtime_facts(commands):
    """NVIDIA's container runtime: its path and version."""
    text = commands.output("nvidia-container-runtime", "--version")
    return {
        "path": commands.path("nvidia-container-runtime"),
        # The runtime of JetPack 4 prints runc's version only: then its own is not known.
        "version": parse_version(r"NVIDIA Container Runtime version (\d+\.\d+(?:\.\d+)?)", text),
    }


def main():
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    commands = Commands(module)
    root = "/"
    units = parse_units(
        commands.output(
            "systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState,ExecStart", *UNITS
        )
    )
    facts = board_identity(root)
    facts.update(
        {
            "hostname": socket.gethostname(),
            "machine_id": read(root, "etc/machine-id"),
            "arch": os.uname().machine,
            "kernel": os.uname().release,
            "cgroup_version": cgroup_version(root),
            "memory_bytes": memory_bytes(root),
            "disk_free_bytes": disk_free_bytes("/var/lib/docker"),
            "docker": docker_facts(commands, root, units.get("docker.service", {})),
            "nvidia_runtime": nvidia_runtime_facts(commands),
            "k3s": k3s_facts(commands, units),
        }
    )
    module.exit_json(changed=False, ansible_facts={"jetson": facts})


if __name__ == "__main__":
    main()
