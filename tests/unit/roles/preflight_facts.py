# SPDX-License-Identifier: Apache-2.0
"""What preflight is given: the matrix, and the facts of a good board."""

import copy
from typing import Any

import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_places
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    preflight_docker,
    preflight_releases,
    preflight_toolkit,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight_module

from tests.unit.roles.places import ROLES

# What the module bundle_info finds where boards download K3s.
WITHOUT_BUNDLE: dict[str, Any] = {"path": "", "indexed": False, "errors": [], "versions": {}, "files": {}}
MATRIX = ROLES / "preflight/vars/main"


def data(name: str) -> Any:
    """A file of the matrix. Each run with scripted boards reads all of them: libyaml is ten times as fast."""
    return yaml.load((MATRIX / f"{name}.yml").read_text(), Loader=yaml.CSafeLoader)


KERNEL = data("kernel")["__preflight_kernel"]
DOCKERD = data("dockerd")["__preflight_dockerd"]
RELEASES = data("bad_releases")["__preflight_bad_releases"]
TOOLKIT = data("toolkit")["__preflight_toolkit"]
RULES = [
    *data("compatibility")["__preflight_rules"],
    *data("inventory")["__preflight_inventory_rules"],
    *preflight_releases.rules_of_releases(RELEASES),
    *preflight_toolkit.rules_of_toolkit(TOOLKIT),
    *preflight_module.rules_of_kernel(KERNEL, data("kernel")["__preflight_kernel_fix"]),
    *preflight_docker.rules(DOCKERD),
]
GOOD: dict[str, Any] = {
    "platform": "tegra",
    "jetpack": "6.2",
    "l4t": "36.4.3",
    "soc": "tegra234",
    "kernel": "5.15.148-tegra",
    "kernel_package": "nvidia-l4t-kernel",
    "arch": "aarch64",
    "hostname": "jetson-1",
    "hostname_file": "jetson-1",
    "resolver": {"hosts": {}, "nameservers": ["192.168.1.1"], "search": []},
    "machine_id": "aa",
    "python": "3.10.12",
    "clock": {"board": 1_000_000.0, "controller": 1_000_000.0},
    "cgroup_version": 2,
    "cgroup_lacks": {},
    "mig_instances": 0,
    "kernel_lacks": {},
    "kernel_modules": None,
    "boot_arguments": None,
    "default_route": True,
    "network": {"addresses": [], "routes": [], "towards_server": None},
    "firewalls": {"ufw": None, "firewalld": None},
    "iptables": {
        "version": "1.8.7",
        "backend": "nf_tables",
        **dict.fromkeys(("changes", "not_tried", "problem", "raw")),
    },
    "simulated": False,
    "memory_bytes": 8 * 10**9,
    "swap_bytes": 4 * 10**9,
    "disks": {
        name: {
            "path": path,
            "filesystem": 1,
            "type": "ext4",
            "read_only": False,
            "unmounted": None,
            "total_bytes": 64 * 10**9,
            "free_bytes": 20 * 10**9,
        }
        for name, path in {
            "docker": "/var/lib/docker",
            "k3s": "/var/lib/rancher/k3s",
            "kubelet": "/var/lib/kubelet",
            "uploads": "/var/lib/jetson-k3s",
            "containerd": "/var/lib/containerd",
        }.items()
    },
    "places": {
        "places": {place.path: "/run" if place.path == "/run" else "/" for place in jetson_places.PLACES},
        "mounts": {
            point: {
                "type": kind,
                "filesystem": number,
                "read_only": False,
                "noexec": point == "/run",
                "in_memory": point == "/run",
                "free_bytes": 20 * 10**9,
                "free_inodes": 10**6,
            }
            for number, (point, kind) in enumerate({"/": "ext4", "/run": "tmpfs"}.items(), 1)
        },
    },
    "controller": {"ansible_core": "2.19.4"},
    "role": "server",
    "host_kind": "board",
    "container_runtime": "docker",
    "user_images": {"stored": 0, "sent": 0},
    "flannel_backend": "vxlan",
    "network_policy": True,
    "strict": False,
    "gpu_device_plugin_api": "device-plugin",
    "gpu_device_plugin_throttle_taint": False,
    "gpu_device_plugin_config": {},
    "docker": {
        "installed": True,
        "engine": {"origin": "package", "path": "/usr/bin/dockerd", "package": "docker.io"},
        "unit": True,
        "data_root": "/var/lib/docker",
        "containerd_root": "/var/lib/containerd",
        "active": True,
        "enabled": True,
        "running": True,
        "default_runtime": "runc",
        "stand_by": None,
        "stand_by_settings": None,
        "kept": {},
        "files": {"raw_drop_in": False, "proxy": False, "strict": False, "restart_due": False},
        "failure": None,
        "version": "27.5.1",
        "min_api_version": "1.24",
        "containerd_store": False,
        "runc": "1.1.12",
        "images": {},
        "contents": {},
        "cgroup_driver": "systemd",
        "conflicting_flags": [],
        "daemon_json": {"exists": False, "error": None, "config": {}},
        "flags": {},
        "flag_values": {},
        **{"settings": {}, "places": {}, "all_keys": [], "unknown_keys": []},
    },
    "apt": {
        "manager": "apt",
        "system": {"id": "ubuntu", "version": "22.04", "codename": "jammy", "name": "Ubuntu 22.04.5 LTS"},
        "incomplete": [],
        "interrupted": False,
        "locked_by": None,
        "conflicts": [],
        "sources": {"count": 5, "ubuntu": ["jammy"], "l4t": ["r36.4"], "unfilled": []},
    },
    "image_supply": {"installed": False, "active": False, "enabled": False, "trusted": []},
    "packages": {"installed": ["containerd", "docker.io"], "held": [], "ours": [], "unattended": []},
    "nvidia_runtime": {
        "path": "/usr/bin/nvidia-container-runtime",
        "version": "1.16.2",
        "optional_lists": [],
        "config": {
            "exists": True,
            "broken": None,
            "unread": None,
            "values": {"disable-require": False, "nvidia-container-runtime": {"mode": "auto"}},
            "keys": ["disable-require", "nvidia-container-runtime.mode"],
            "problems": {},
        },
    },
    "k3s": {
        "version": None,
        "binary": None,
        "agents_join_with": None,
        "etcd": False,
        "unfinished_restore": None,
        "server": {"installed": False, "active": False, "command": None},
        "agent": {"installed": False, "active": False, "command": None},
        "settings": {"flannel-backend": None, "node-ip": None, "node-name": None},
        "kubelet_arguments": dict.fromkeys(("cgroup-driver", "fail-cgroupv1", "fail-swap-on")),
        "feature_gates": {"kube-apiserver": [], "kube-scheduler": [], "kubelet": []},
        "registries": None,
        "credentials": None,
        "external_datastore": False,
        "node_ip": {"owner": [], "role": None},
    },
    "bundle": {"k3s_version": "v1.33.5+k3s1"},
    "k3s_source": "bundle",
    "host": "jetson-1",
    "groups": ["server"],
    "boards": ["jetson-1", "jetson-2"],
    "joined": "jetson-1",
    "kubectl_server": "jetson-1",
    "image_supply_host": "",
    "bundle_images": [],
    "jtop_lacks_wheels": False,
    "gpu_device_plugin_image": "",
    "registries": False,
    "registries_problems": [],
    "registries_docker": [],
    "credentials": False,
    "proxy": {"given": False, "problems": [], "inside": [], "elsewhere": []},
    "release_url": "https://github.com/k3s-io/k3s/releases/download",
    "release_pinned": False,
    "datastore": {"external": False, "servers": 1, "restores": False},
    "migrates": False,
    "not_taken_over": [],
    "takes_over": False,
    "foreign_runtime": "",
    "own_unit": {"installed": False, "command": None},
    "other_unit": {"installed": False, "command": None},
    "token_refused": "unreachable",
    "token_message": "",
    "token_length": None,
    "update": {"asked": False},
    "held_packages": [],
}


def with_facts(**changes: Any) -> dict[str, Any]:
    facts = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = facts
        for parent in parents:
            place = place[parent]
        place[key] = value
    return facts
