#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Gather in one round trip all that the other roles need to know about a board.

Runs on the board, therefore Python 3.6 compatible. Looks only; starts and changes nothing.
"""

import glob
import gzip
import json
import os
import platform
import re
import shlex
import shutil
import socket
import time

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

DATA_ROOT = "/var/lib/docker"
CONTAINERD_STORE = "io.containerd.snapshotter.v1"

DEVICE_TREE = ("sys/firmware/devicetree/base", "proc/device-tree")
UNITS = ("docker.service", "k3s.service", "k3s-agent.service", "jtop.service")
UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "ExecStart",
    "Environment",
    "EnvironmentFiles",
)

# Flags of dockerd whose key in daemon.json has another name (moby cmd/dockerd/config*.go).
FLAG_KEYS = {
    "D": "debug",
    "G": "group",
    "H": "hosts",
    "b": "bridge",
    "g": "data-root",
    "l": "log-level",
    "s": "storage-driver",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "graph": "data-root",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
# What nvidia_docker writes into daemon.json. Not `runtimes`: those dockerd merges (moby's skipDuplicates).
OWN_KEYS = frozenset(["default-runtime"])

# What Docker and Kubernetes ask of the kernel: feature, the options of which one brings it, its modules.
KERNEL_FEATURES = {
    "br_netfilter": (("BRIDGE_NETFILTER",), ("br_netfilter",)),
    "bridge": (("BRIDGE",), ("bridge",)),
    "ip_set": (("IP_SET",), ("ip_set",)),
    "iptable_raw": (("IP_NF_RAW",), ("iptable_raw",)),
    # Renamed in Linux 5.2.
    "masquerade": (
        ("NETFILTER_XT_TARGET_MASQUERADE", "IP_NF_TARGET_MASQUERADE"),
        ("xt_MASQUERADE", "ipt_MASQUERADE"),
    ),
    "nf_tables": (("NF_TABLES",), ("nf_tables",)),
    "overlay": (("OVERLAY_FS",), ("overlay",)),
    "veth": (("VETH",), ("veth",)),
    "vxlan": (("VXLAN",), ("vxlan",)),
    "xt_addrtype": (("NETFILTER_XT_MATCH_ADDRTYPE",), ("xt_addrtype",)),
    "xt_comment": (("NETFILTER_XT_MATCH_COMMENT",), ("xt_comment",)),
    "xt_conntrack": (("NETFILTER_XT_MATCH_CONNTRACK",), ("xt_conntrack",)),
    "xt_multiport": (("NETFILTER_XT_MATCH_MULTIPORT",), ("xt_multiport",)),
    "xt_nat": (("NETFILTER_XT_NAT",), ("xt_nat",)),
    "xt_statistic": (("NETFILTER_XT_MATCH_STATISTIC",), ("xt_statistic",)),
}

# Where pip, Debian's Python and our role jtop put packages; jetson-stats insists on the system's Python.
PACKAGES = (
    "usr/lib/python3*/dist-packages",
    "usr/local/lib/python3*/dist-packages",
    "usr/local/lib/jetson-k3s/jtop-*",
)

# Where K3s reads its configuration, in this order, and those of the kubelet's arguments that matter here.
K3S_CONFIG = ("etc/rancher/k3s/config.yaml", "etc/rancher/k3s/config.yaml.d/*.yaml")
KUBELET_ARGUMENTS = ("cgroup-driver", "fail-cgroupv1")
# The key, the rest of its line and its list below: boards may have no parser for YAML.
KUBELET_ARG = re.compile(r"^kubelet-arg\+?:.*(?:\n(?:[ \t-].*)?)*", re.MULTILINE)


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
    """Output of `systemctl show` on several units, as {unit: {property: value}}; repeated ones as lines."""
    units = {}
    for block in text.strip().split("\n\n"):
        properties = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            properties[key] = properties[key] + "\n" + value if key in properties else value
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


def words(text):
    """Words of a line as a shell divides it; a line with an open quote is divided at its blanks."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def environment(root, properties):
    """The variables that a unit gives its program, files after settings as in systemd.exec(5)."""
    values = dict(pair.split("=", 1) for pair in words(properties.get("Environment", "")) if "=" in pair)
    for entry in properties.get("EnvironmentFiles", "").splitlines():
        for line in (read(root, entry.split(" (")[0].lstrip("/")) or "").splitlines():
            name, sign, value = line.strip().partition("=")
            if sign and not name.startswith(("#", ";")):
                values[name] = " ".join(words(value))
    return values


def arguments(command, variables):
    """A unit's command as arguments, variables put in as by systemd: `$A` as words, `${A}` as text."""
    result = []
    for word in (command or "").split():
        if re.match(r"^\$\w+$", word):
            result.extend(variables.get(word[1:], "").split())
        else:
            result.append(re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match.group(1), ""), word))
    return result


def conflicting_flags(command_line, config):
    """Flags of dockerd whose key stands in daemon.json or will: dockerd refuses to start with both."""
    keys = (OWN_KEYS | set(config)) - {"runtimes"}
    flags = []
    for argument in command_line[1:]:
        flag = argument.split("=", 1)[0]
        if not flag.startswith("--"):
            flag = flag[:2]  # -Hfd:// and -H fd:// are the same
        name = flag.lstrip("-")
        if flag.startswith("-") and FLAG_KEYS.get(name, name) in keys:
            flags.append(flag)
    return sorted(set(flags))


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


def cgroup_controllers(root):
    """Names of the controllers that the kernel offers, whichever the version."""
    unified = read(root, "sys/fs/cgroup/cgroup.controllers")
    if unified is not None:
        return sorted(unified.split())
    # Columns: name, hierarchy, number of cgroups, enabled (Linux kernel/cgroup/cgroup-v1.c).
    return sorted(re.findall(r"^(\w+)\s+\d+\s+\d+\s+1$", read(root, "proc/cgroups") or "", re.MULTILINE))


def kernel_config(root, release):
    """The kernel's options that are y or m, without CONFIG_; None where it does not tell."""
    try:
        with gzip.open(os.path.join(root, "proc/config.gz"), "rt", errors="replace") as handle:
            text = handle.read(FACT_FILE_BYTES)
    except OSError:
        text = read(root, "boot/config-" + release)
    if text is None:
        return None
    return dict(re.findall(r"^CONFIG_(\w+)=([ym])$", text, re.MULTILINE))


def module_names(root, release):
    """Modules of this kernel, built in or loadable; None where the lists of them are missing."""
    lists = [
        read(root, "lib/modules/{}/{}".format(release, name)) for name in ("modules.builtin", "modules.dep")
    ]
    if None in lists:
        return None
    return {
        os.path.basename(path).replace("-", "_")
        for path in re.findall(r"^(\S+?)\.ko", "\n".join(lists), re.M)
    }


def kernel_features(root, release):
    """{feature: has the kernel got it}; null where neither its configuration nor its modules tell."""
    config, present = kernel_config(root, release), module_names(root, release)
    loaded = {line.split()[0] for line in (read(root, "proc/modules") or "").splitlines() if line}
    features = {}
    for feature, (options, modules) in KERNEL_FEATURES.items():
        states = {config.get(option) for option in options} if config is not None else set()
        if "y" in states or loaded.intersection(modules):
            features[feature] = True
        elif present is not None and (config is None or "m" in states):
            # A module that was configured is there only when its package is installed.
            features[feature] = bool(present.intersection(modules))
        else:
            features[feature] = "m" in states if config is not None else None
    return features


def swap(root):
    """Bytes of swap, and those of them that zram holds."""
    sizes = {"total_bytes": 0, "zram_bytes": 0}
    for line in (read(root, "proc/swaps") or "").splitlines()[1:]:
        name, _, kib = line.split()[:3]
        sizes["total_bytes"] += int(kib) * 1024
        if os.path.basename(name).startswith("zram"):
            sizes["zram_bytes"] += int(kib) * 1024
    return sizes


def has_default_route(root):
    """Does a route lead out of here? K3s wants one, with or without Internet access."""
    ipv4 = [line.split() for line in (read(root, "proc/net/route") or "").splitlines()[1:]]
    ipv6 = [line.split() for line in (read(root, "proc/net/ipv6_route") or "").splitlines()]
    return any(row[1] == row[7] == "0" * 8 for row in ipv4) or any(
        (row[0], row[1]) == ("0" * 32, "00") and row[-1] != "lo" for row in ipv6
    )


def power_mode(text):
    """Number and name of the power mode from `nvpmodel -q`; null where there is no nvpmodel."""
    match = re.search(r"^NV Power Mode: *(\S+)\s+(\d+)\s*$", text, re.MULTILINE)
    return {"id": int(match.group(2)), "name": match.group(1)} if match else {"id": None, "name": None}


def jtop_facts(root, unit):
    """jtop: the newest jetson-stats for the system's Python, and its service."""
    found = [
        parse_version(r"jetson_stats-(\d+(?:\.\d+)*)", os.path.basename(path))
        for directory in PACKAGES
        for path in glob.glob(os.path.join(root, directory, "jetson_stats-*-info"))
    ]
    versions = [version for version in found if version]
    state = unit_state(unit)
    state["version"] = max(versions, key=lambda text: [int(part) for part in text.split(".")], default=None)
    return state


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
    config = daemon_json(root)
    variables = environment(root, unit)
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
            "containerd_store": ["driver-type", CONTAINERD_STORE] in (info.get("DriverStatus") or []),
            "data_root": first([info.get("DockerRootDir"), config["config"].get("data-root"), DATA_ROOT]),
            "daemon_json": config,
            "conflicting_flags": conflicting_flags(arguments(state["command"], variables), config["config"]),
            "no_iptables_raw": variables.get("DOCKER_INSECURE_NO_IPTABLES_RAW") == "1",
        }
    )
    return state


def kubelet_arguments(root):
    """The judged ones of the arguments that K3s' configuration gives the kubelet, null where it does not."""
    files = [path for pattern in K3S_CONFIG for path in sorted(glob.glob(os.path.join(root, pattern)))]
    found = dict.fromkeys(KUBELET_ARGUMENTS)
    for path in files:
        text = re.sub(r"(^|\s)#.*", "", read(root, path) or "")
        for name, value in re.findall(r"([\w-]+)=([^\s\"',\]]*)", " ".join(KUBELET_ARG.findall(text))):
            if name in found:
                found[name] = value
    return found


def k3s_facts(commands, root, units):
    """K3s: the version its link leads to, what it tells the kubelet, and the state of both units."""
    return {
        "version": parse_version(r"k3s version (v\S+)", commands.output("k3s", "--version")),
        "kubectl": commands.path("kubectl"),
        "kubelet_arguments": kubelet_arguments(root),
        "server": unit_state(units.get("k3s.service", {})),
        "agent": unit_state(units.get("k3s-agent.service", {})),
    }


def nvidia_runtime_facts(commands):
    """NVIDIA's container runtime: its path and version."""
    text = commands.output("nvidia-container-runtime", "--version")
    package = commands.output("dpkg-query", "--show", "--showformat=${Version}", "nvidia-container-toolkit")
    return {
        "path": commands.path("nvidia-container-runtime"),
        # The runtime of JetPack 4 prints runc's version only: then its package tells.
        "version": first(
            [
                parse_version(r"NVIDIA Container Runtime version (\d+\.\d+(?:\.\d+)?)", text),
                parse_version(r"^(\d+\.\d+(?:\.\d+)?)", package),
            ]
        ),
    }


def iptables_facts(commands):
    """iptables: its version and which backend the alternatives chose; before 1.8 there was one only."""
    text = commands.output("iptables", "--version")
    version = parse_version(r"v(\d+(?:\.\d+)+)", text)
    return {
        "version": version,
        "backend": first([parse_version(r"\((\w+)\)", text), "legacy" if version else None]),
    }


def main():
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    commands = Commands(module)
    root = "/"
    units = parse_units(
        commands.output("systemctl", "show", "--property=" + ",".join(UNIT_PROPERTIES), *UNITS)
    )
    docker = docker_facts(commands, root, units.get("docker.service", {}))
    release = os.uname().release
    facts = board_identity(root)
    facts.update(
        {
            "hostname": socket.gethostname(),
            "machine_id": read(root, "etc/machine-id"),
            "arch": os.uname().machine,
            "python": platform.python_version(),
            "clock": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "kernel": release,
            "kernel_features": kernel_features(root, release),
            "cgroup_version": cgroup_version(root),
            "cgroup_controllers": cgroup_controllers(root),
            "memory_bytes": memory_bytes(root),
            "swap": swap(root),
            "disk_free_bytes": disk_free_bytes(docker["data_root"]),
            "default_route": has_default_route(root),
            "iptables": iptables_facts(commands),
            "power_mode": power_mode(commands.output("nvpmodel", "-q")),
            "jtop": jtop_facts(root, units.get("jtop.service", {})),
            "docker": docker,
            "nvidia_runtime": nvidia_runtime_facts(commands),
            "k3s": k3s_facts(commands, root, units),
        }
    )
    module.exit_json(changed=False, ansible_facts={"jetson": facts})


if __name__ == "__main__":
    main()
