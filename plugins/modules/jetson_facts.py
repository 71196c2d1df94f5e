#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Gather in one round trip all that the other roles need to know about a board.

Runs on the board, therefore Python 3.6 compatible. Changes nothing, and starts nothing but short commands.
"""

import glob
import json
import os
import platform
import socket
import time
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import sha256
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.docker_files import file_facts
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_content import contents_by_name
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_apt import apt_facts, kernel_package
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import (
    board_identity,
    disk,
    first,
    memory_bytes,
    mig_instances,
    parse_version,
    power_mode,
    read,
    simulated,
    swap_bytes,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_certificates import certificate_facts
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_commands import Commands
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_engine import (
    containerd_root,
    engine_facts,
    uses_containerd_store,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_iptables import iptables_facts
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_kernel import (
    boot_arguments,
    cgroup_lacks,
    cgroup_version,
    kernel_config,
    kernel_lacks,
    missing_modules,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_network import (
    addresses,
    default_devices,
    firewalls,
    node_ip,
    routes,
    source_address,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_packages import (
    package_facts,
    reboot_facts,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_places import (
    mounts,
    place_facts,
    unmounted,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_resolver import resolver_facts
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_services import (
    active_binary,
    agents_join_with,
    arguments,
    credentials,
    daemon_flags,
    daemon_json,
    daemon_values,
    environment,
    image_supply_facts,
    jtop_facts,
    k3s_environment,
    k3s_files,
    k3s_settings,
    on_etcd,
    parse_units,
    registries,
    unfinished_restore,
    unit_state,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_toolkit import (
    BASE_LISTS,
    config_facts,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact_data

DOCUMENTATION = r"""
module: jetson_facts
short_description: Facts about a Jetson board, its Docker engine and its K3s
description:
  - Returns one fact, C(jetson), with the board's identity and the state of what the roles manage.
options:
  controller_clock: {type: float, required: true, description: In seconds since 1970.}
  server: {default: '', description: Host name or address of the K3s server; empty where there is none.}
  data_root: {default: '', description: 'The data-root of Docker in the inventory, or empty.'}
"""

RETURN = r"""
ansible_facts: {type: dict, description: 'One key, C(jetson); a value that the board does not tell is null.'}
"""

Data = Dict[str, Any]  # facts
Unit = Dict[str, str]

DATA_ROOT = "/var/lib/docker"
# Of the container of role gpu_device_plugin.
STAND_BY_LABEL = "io.github.jetson-k3s.stand-by"
STAND_BY_SETTINGS = "var/lib/jetson-k3s/device-plugin/config.yaml"
# Of the containers of module docker_kept_images.
KEEPS_LABEL = "io.github.jetson-k3s.keeps"
# Where K3s and its containerd, the pods' files and logs, and uploads of the roles lie. No setting may move
# them (role k3s, k3s_options.py), but a disk may be mounted there.
DISKS = {"k3s": "/var/lib/rancher/k3s", "kubelet": "/var/lib/kubelet", "uploads": "/var/lib/jetson-k3s"}
CONTAINERD_STORE = "io.containerd.snapshotter.v1"
# What a board mounts into containers.
LISTS = "etc/nvidia-container-runtime/host-files-for-container.d/*.csv"
SUPPLY = "jetson-k3s-registry.service"
FIREWALLD = "firewalld.service"
UPGRADES = "apt-daily-upgrade.timer"
UNITS = ("docker.service", "k3s.service", "k3s-agent.service", "jtop.service", SUPPLY, UPGRADES, FIREWALLD)
UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "ExecStart",
    "Environment",
    "EnvironmentFiles",
    "ExecMainStartTimestampMonotonic",
)


def unit_failure(unit: Unit) -> Optional[str]:
    """How a unit has failed, in words; None where it runs or was not started."""
    result = unit.get("Result") or "no result"
    if unit.get("ActiveState") == "failed":
        return "failed ({})".format(result)
    return "starts again and again ({})".format(result) if unit.get("SubState") == "auto-restart" else None


def component(server: Data, name: str) -> Optional[str]:
    """The version of a program that a running Docker uses, as `docker version` says."""
    found = [one.get("Version") for one in server.get("Components") or [] if one.get("Name") == name]
    return found[0] or None if found else None


def kept_images(commands: Commands) -> Dict[str, List[str]]:
    """Ids of the images that module docker_kept_images keeps, by their archive."""
    containers = commands.output("docker", "ps", "--all", "--quiet", "--filter=label=" + KEEPS_LABEL).split()
    found: Dict[str, List[str]] = {}
    for one in json.loads(commands.output("docker", "inspect", *containers) or "[]") if containers else []:
        found.setdefault(one["Config"]["Labels"][KEEPS_LABEL], []).append(one["Image"])
    return found


def docker_facts(commands: Commands, root: str, unit: Unit, wanted_root: str = "") -> Data:
    """The engine: what is installed, what runs, which images it has, and its configuration file.

    `wanted_root` is the data-root that the inventory gives it.
    """
    info = json.loads(commands.output("docker", "info", "--format", "{{json .}}") or "{}")
    server = json.loads(commands.output("docker", "version", "--format", "{{json .Server}}") or "null") or {}
    config = daemon_json(root)
    state = unit_state(unit)
    command_line = arguments(state["command"], environment(root, unit))
    values = daemon_values(command_line)
    running = bool(info.get("ServerVersion"))
    program = parse_version(r"Docker version ([^,\s]+)", commands.output("dockerd", "--version"))
    images = commands.output(
        "docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"
    )
    named = dict(line.rsplit(" ", 1) for line in images.splitlines())
    # Of the next start.
    given = [wanted_root, config["config"].get("data-root"), *values.get("data-root", [])[-1:]]
    directory = next(filter(None, [*given, info.get("DockerRootDir"), DATA_ROOT]))
    data_root = os.path.join("/", str(directory))
    version = program or info.get("ServerVersion") or None
    containerd_store = uses_containerd_store(info, ["driver-type", CONTAINERD_STORE], version, data_root)
    inspected = "[]"
    if containerd_store and named:
        inspected = commands.partial_output("docker", "image", "inspect", *sorted(set(named.values())))
    settings = os.path.join(root, STAND_BY_SETTINGS)
    state.update(
        {
            "installed": commands.path("dockerd") is not None,
            "engine": engine_facts(root, commands.path("dockerd")),
            "unit": state["installed"],
            "running": running,
            "failure": unit_failure(unit),
            # Of the program: what runs now may be older, and starts no more.
            "version": version,
            "containers": info.get("Containers"),
            "stand_by": commands.output(
                "docker", "ps", "--all", "--filter=label=" + STAND_BY_LABEL, "--format={{.Status}}"
            ).strip()
            or None,
            "stand_by_settings": sha256(settings) if os.path.isfile(settings) else None,
            "kept": kept_images(commands),
            "min_api_version": server.get("MinAPIVersion"),
            "runc": component(server, "runc"),
            "default_runtime": info.get("DefaultRuntime"),
            "cgroup_driver": info.get("CgroupDriver"),
            "images": named,
            "containerd_store": containerd_store,
            # Where an id is the digest of a manifest, which a bundle does not know.
            "contents": contents_by_name(json.loads(inspected or "[]")),
            "data_root": data_root,
            "containerd_root": containerd_root(root, state["command"], data_root),
            "daemon_json": config,
            # What role nvidia_docker writes beside that.
            "files": file_facts(root),
            "flags": daemon_flags(command_line),
            "flag_values": values,
        }
    )
    return state


def k3s_facts(commands: Commands, root: str, units: Dict[str, Unit]) -> Data:
    """K3s: the version its link leads to, what it tells the kubelet, certificates, and both units."""
    server = unit_state(units.get("k3s.service", {}))
    agent = unit_state(units.get("k3s-agent.service", {}))
    files = k3s_files(root)
    given = k3s_environment(root, units)
    settings = k3s_settings(files, server["command"] or agent["command"])
    unit = units.get("k3s.service" if server["installed"] else "k3s-agent.service", {})
    return {
        "version": parse_version(r"k3s version (v\S+)", commands.output("k3s", "--version")),
        "binary": active_binary(root),
        "kubectl": commands.path("kubectl"),
        "files": files,
        "environment": given,
        "registries": registries(root),
        "credentials": credentials(root),
        "settings": settings,
        "node_ip": node_ip(root, files, given, server["command"] or agent["command"]),
        "certificates": certificate_facts(root, settings, unit, environment(root, unit), server["installed"]),
        "etcd": on_etcd(root),
        # Of role user_images.
        "kept_images": os.path.exists(os.path.join(root, "var/lib/jetson-k3s/containerd-images")),
        "agents_join_with": agents_join_with(root),
        # One that runs has joined again, or was started with other data since.
        "unfinished_restore": None if server["active"] else unfinished_restore(root),
        "server": server,
        "agent": agent,
    }


def nvidia_runtime_facts(commands: Commands, root: str) -> Data:
    """NVIDIA's container runtime: path, version, configuration, lists that newer ones do not always read."""
    text = commands.output("nvidia-container-runtime", "--version")
    package = commands.output("dpkg-query", "--show", "--showformat=${Version}", "nvidia-container-toolkit")
    return {
        "path": commands.path("nvidia-container-runtime"),
        "config": config_facts(commands, root),
        "optional_lists": sorted(
            os.path.basename(path)
            for path in glob.glob(os.path.join(root, LISTS))
            if os.path.basename(path) not in BASE_LISTS
        ),
        # The runtime of JetPack 4 prints runc's version only: then its package tells.
        "version": first(
            [
                parse_version(r"NVIDIA Container Runtime version (\d+\.\d+(?:\.\d+)?)", text),
                parse_version(r"^(\d+\.\d+(?:\.\d+)?)", package),
            ]
        ),
    }


def network_facts(commands: Commands, root: str, server: str, pinned: Optional[str]) -> Data:
    """Addresses and routes. The one towards the server where there is a choice, or one was `pinned`."""
    known = routes(root)
    asks = server and (pinned or len(default_devices(known)) > 1)
    return {
        "addresses": addresses(commands.output("ip", "-oneline", "address", "show")),
        "routes": known,
        "towards_server": source_address(server) if asks else None,
    }


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "controller_clock": {"type": "float", "required": True},
            "server": {"type": "str", "default": ""},
            "data_root": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    commands = Commands(module)
    root = "/"
    units = parse_units(
        commands.output("systemctl", "show", "--property=" + ",".join(UNIT_PROPERTIES), *UNITS)
    )
    docker = docker_facts(commands, root, units.get("docker.service", {}), module.params["data_root"])
    k3s = k3s_facts(commands, root, units)
    network = network_facts(commands, root, module.params["server"], k3s["node_ip"]["role"])
    release = os.uname().release
    config = kernel_config(root, release)
    lacking = kernel_lacks(root, release, config)
    disks = dict(DISKS, docker=docker["data_root"], containerd=docker["containerd_root"])
    mounted = mounts(root)
    facts: Data = dict(board_identity(root))
    facts.update(
        {
            "hostname": socket.gethostname(),
            "hostname_file": read(root, "etc/hostname"),
            "resolver": resolver_facts(root, module.params["server"]),
            "machine_id": read(root, "etc/machine-id"),
            "arch": os.uname().machine,
            "python": platform.python_version(),
            "clock": {"board": time.time(), "controller": module.params["controller_clock"]},
            "kernel": release,
            "kernel_package": kernel_package(root, release),
            "kernel_lacks": lacking,
            "kernel_modules": missing_modules(root, release, config, lacking),
            "reboot": reboot_facts(root, release),
            "cgroup_version": cgroup_version(root),
            "cgroup_lacks": cgroup_lacks(root, config),
            "boot_arguments": boot_arguments(root),
            "simulated": simulated(root),
            "memory_bytes": memory_bytes(root),
            "swap_bytes": swap_bytes(root),
            "disks": {
                name: dict(disk(path), unmounted=unmounted(root, mounted, os.path.realpath(path)))
                for name, path in disks.items()
            },
            "places": place_facts(root),
            "network": network,
            "default_route": bool(default_devices(network["routes"])),
            "firewalls": firewalls(root, unit_state(units.get(FIREWALLD, {}))["active"], commands.output),
            "iptables": iptables_facts(module, root, lacking),
            "mig_instances": mig_instances(root),
            "power_mode": power_mode(commands.output("nvpmodel", "-q")),
            "jtop": jtop_facts(root, units.get("jtop.service", {})),
            "image_supply": image_supply_facts(root, units.get(SUPPLY, {}), commands.path("docker-registry")),
            "docker": docker,
            "nvidia_runtime": nvidia_runtime_facts(commands, root),
            "apt": apt_facts(root),
            "packages": package_facts(commands, root, units.get(UPGRADES, {})),
            "k3s": k3s,
        }
    )
    module.exit_json(changed=False, ansible_facts={"jetson": redact_data(facts)})


if __name__ == "__main__":
    main()
