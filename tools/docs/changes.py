# SPDX-License-Identifier: Apache-2.0
"""docs/changes.md: what the roles change on a board, from the lists that they use themselves."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

from tools.docs.markdown import item
from tools.docs.sources import constant, pattern, variables

# K3s' cri-dockerd (1.25) names no address and no port for its streaming server, so Linux chooses one.
EPHEMERAL = "32768-60999/tcp"
# Of K3s, kubelet and kube-proxy; no role sets one.
SYSCTLS = (
    "kernel.keys.*",
    "kernel.panic*",
    "net.bridge.*",
    "net.ipv4.conf.*",
    "net.ipv4.ip_forward",
    "net.ipv6.conf.*",
    "net.netfilter.nf_conntrack_*",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
)
# Links by which units start at boot.
WANTS = "/etc/systemd/system/multi-user.target.wants"
RESTORE = "`reset.yml -e jetson_k3s_confirm=restore-docker`"
OWN_CONTAINERS = f"your own containers may use it. {RESTORE} takes it back."
RECORDED = f"{RESTORE} needs it, and removes it."


@dataclass(frozen=True)
class Change:
    """Something that the roles change. `paths` are shell patterns, a directory with all that is in it.

    `stays`: why reset.yml leaves it alone and how it is removed; empty where reset.yml removes it.
    """

    what: str
    paths: tuple[str, ...] = ()
    stays: str = ""

    def covers(self, path: str) -> bool:
        return any(fnmatch(path, one) or fnmatch(path, f"{one}/*") for one in self.paths)


def changes(roles: Path) -> dict[str, list[Change]]:
    """Return all changes by the title of their section. KeyError where a role has no such list any more."""
    return {
        "K3s": list(k3s(roles)),
        "Docker and NVIDIA's runtime": list(nvidia_docker(roles)),
        "Images at a site": list(image_supply(roles / "image_supply")),
        "Each run": list(each_run(roles)),
        "Extras": list(extras(roles)),
        "Network": list(network(roles)),
        "Kernel": list(kernel(roles / "k3s")),
    }


def k3s(roles: Path) -> Iterator[Change]:
    """Role k3s, by what the role k3s_reset removes."""
    module = roles / "k3s_reset/library/k3s_reset.py"
    for name in ("TREES", "FILES", "UNIT_FILES", "LINKS_TO_K3S"):
        by_text: dict[str, tuple[str, ...]] = {}
        for path, what in constant(module, name).items():
            by_text[what] = (*by_text.get(what, ()), path)
        yield from (Change(what, paths) for what, paths in by_text.items())
    yield Change("directories, which are removed if they are empty", constant(module, "DIRECTORIES_IF_EMPTY"))
    units = constant(module, "UNITS")
    yield Change("a link, so that K3s starts at boot", tuple(f"{WANTS}/{unit}.service" for unit in units))
    yield Change("registries for containerd (`k3s_registries`)", tuple(constant(module, "WRITTEN")))
    yield Change(
        "the password by which servers recognise the board",
        ("/etc/rancher/node/password",),
        "a server refuses a board of the same name without it. Remove it after `forget.yml`.",
    )
    yield Change(
        "caches of kubectl", ("/root/.kube/cache",), "your own kubectl may use them. Remove them by hand."
    )
    yield Change(
        "the flags of an earlier K3s (`jetson_k3s_confirm`)",
        (pattern(roles / "k3s", "__k3s_migrated_path"),),
        "these settings are yours.",
    )
    yield Change(
        "the board's name (`jetson_set_hostname`)",
        ("/etc/hostname", "/etc/hosts"),
        "other services may use the name. Set it with `hostnamectl set-hostname`.",
    )
    yield Change(
        "backups on the server (`backup.yml` without `k3s_backup_recipient`)",
        (pattern(roles / "k3s_backup", "__k3s_backup_local"),),
        "the cluster can be restored from them after a reset. Remove them by hand.",
    )


def nvidia_docker(roles: Path) -> Iterator[Change]:
    """Role nvidia_docker."""
    role = roles / "nvidia_docker"
    environment = role / "library/docker_environment.py"
    documentation = constant(role / "library/docker_daemon_config.py", "DOCUMENTATION")
    options = yaml.safe_load(documentation)["options"]
    known = variables(role)
    daemon_json, record = options["path"]["default"], options["record"]["default"]
    logs = ", ".join(f"`{key}`" for key in known["__nvidia_docker_log_config"])
    yield Change(
        f"the keys `default-runtime` and `runtimes`, {logs} where Docker has no container yet, and those of "
        "`nvidia_docker_daemon_config`. All other keys stay as they are",
        (daemon_json,),
        OWN_CONTAINERS,
    )
    yield Change(
        "earlier versions of that file", (f"{daemon_json}.*~",), "they are your backup. Remove them by hand."
    )
    yield Change("the earlier values of these keys", (record,), RECORDED)
    yield Change(
        "a drop-in for Docker 28 and newer, where the kernel has no iptables table `raw`",
        (f"/{constant(environment, 'DROP_IN')}",),
        OWN_CONTAINERS,
    )
    yield Change(
        "the keys of strict mode (`nvidia_docker_strict`): "
        + ", ".join(f"`{key}`" for key, _ in constant(environment, "STRICT")),
        (f"/{constant(environment, 'RUNTIME_CONFIG')}",),
        OWN_CONTAINERS,
    )
    yield Change(
        "the variant of iptables that works with the kernel, if the other one fails",
        ("/etc/alternatives/ip*tables*", "/var/lib/dpkg/alternatives/ip*tables"),
        "Docker's rules are in that variant. `sudo update-alternatives --auto iptables` takes it back.",
    )
    yield Change("a mark that a restart of Docker is due", (pattern(role, "__nvidia_docker_marker"),))
    packages = known["__nvidia_docker_engine_packages"] + known["__nvidia_docker_runtime_packages"]
    yield Change(
        f"packages where the board lacks them: {', '.join(f'`{name}`' for name in packages)}, and those that "
        "they need",
        stays="your own containers may use them. `apt remove` removes them.",
    )
    yield Change(
        "a list of the packages that the role has installed, on apt hold",
        (pattern(role, "__nvidia_docker_record"),),
    )
    yield Change(
        "images of K3s and of the device plugin in Docker, each with a container that never runs and keeps "
        "it. The containers go, and the images stay",
        stays="`docker image prune --all` removes images that no container uses.",
    )


def image_supply(role: Path) -> Iterator[Change]:
    """Role image_supply, on the board that supplies images, and the trust of the others in it."""
    known = variables(role)
    unit = known["__image_supply_unit"]
    yield Change(
        "a registry (`image_supply_host`): settings, key, images, and the unit",
        (
            *(pattern(role, f"__image_supply_{name}") for name in ("directory", "data", "unit_path")),
            f"{WANTS}/{unit}.service",
        ),
    )
    yield Change(f"its user and group: `{known['__image_supply_user']}` (`image_supply_host`)")
    yield Change(
        "the package `docker-registry` where the board lacks it, and a link that keeps Debian's own service "
        "from starting (`image_supply_host`)",
        (pattern(role, "__image_supply_mask"),),
    )
    yield Change(
        "the certificate of that registry, on all boards (`image_supply_host`)",
        (f"{pattern(role, '__image_supply_trust')}/*/jetson-k3s.crt",),
    )


def each_run(roles: Path) -> Iterator[Change]:
    """What every run of a playbook leaves, or removes at its end."""
    uploads = roles / "upload/module_utils/uploads.py"
    base = pattern(roles / "upload", "__upload_base")
    lock = pattern(roles / "run_lock", "__run_lock_path")
    place = f"{base}/{constant(uploads, 'PROJECT')}"
    yield Change(
        "the directory of this project. Each run uploads into it, and removes its uploads at its end",
        (place, f"{place}/{constant(uploads, 'UPLOADS')}"),
        "the keys of daemon.json lie there. Remove it by hand.",
    )
    yield Change("a lock, so that one run at a time changes the board", (lock,))
    yield Change(
        "directories of these marks and locks in /run",
        (str(Path(lock).parent), "/run/jetson-k3s"),
        "they are empty, and a reboot removes them.",
    )
    yield Change(
        "directories of Ansible in the homes of its account and of root, and a mark of sudo's first use",
        ("/home/*/.ansible", "/root/.ansible", "/root/.ansible_async", "/home/*/.sudo_as_admin_successful"),
        "Ansible and sudo make them at each run. Remove them by hand.",
    )


def extras(roles: Path) -> Iterator[Change]:
    """Roles with playbooks of their own, which reset.yml does not know."""
    jtop, power = roles / "jtop", roles / "power_mode"
    yield Change(
        "jetson-stats with its service (`jtop.yml`)",
        (
            *(pattern(jtop, f"__jtop_{name}") for name in ("root", "unit_path", "program")),
            f"{WANTS}/jtop.service",
        ),
        "people may use it. `jtop.yml -e jetson_k3s_state=absent` removes it.",
    )
    yield Change(
        "settings of jetson-stats, and the group `jtop` (`jtop.yml`)",
        ("/usr/local/jtop",),
        "you may have put people into that group. Remove both by hand.",
    )
    unit = variables(power)["__power_mode_unit"]
    yield Change(
        "a unit that locks the clocks (`power_mode_jetson_clocks`)",
        (pattern(power, "__power_mode_unit_path"), f"{WANTS}/{unit}.service"),
        "`power_mode.yml` without that setting removes it.",
    )
    yield Change(
        "the power mode (`power_mode_nvpmodel`)",
        ("/var/lib/nvpmodel/status",),
        "set another one with `nvpmodel -m`.",
    )
    yield Change(
        "updates of packages (`os_update.yml`)", stays="a package does not go back to its earlier version."
    )


def network(roles: Path) -> Iterator[Change]:
    """Ports, interfaces and packet filter rules."""
    checks = roles / "preflight/filter_plugins/preflight_network.py"
    kubelet, api, etcd = (constant(checks, name) for name in ("KUBELET_PORT", "API_PORT", "ETCD_PORTS"))
    backends = constant(checks, "BACKEND_PORTS")
    module = roles / "k3s_reset/library/k3s_reset.py"
    yield Change(f"port {kubelet}: the kubelet, for servers")
    yield Change(
        "the pod network between boards: "
        + ", ".join(f"port {port} ({name})" for name, ports in backends.items() for port in ports)
    )
    yield Change(f"port {api}: the API, on servers")
    yield Change(
        f"one port of {EPHEMERAL}, with Docker: `kubectl exec` and `attach`. Linux chooses it at each start "
        "of K3s, on all addresses. Each request needs a token that is valid once"
    )
    yield Change(f"ports {etcd}: etcd, on servers of a cluster with several")
    yield Change(
        f"port {variables(roles / 'image_supply')['__image_supply_port']}/tcp: the registry "
        "(`image_supply_host`), on the board that it names"
    )
    yield Change("ports 9400/tcp and 9401/tcp: metrics (`gpu_device_plugin_metrics_on_host`)")
    names = ", ".join(f"`{name}`" for name in constant(module, "INTERFACES"))
    yield Change(f"interfaces of pods: {names}, of which a node has some; and network namespaces `cni-*`")
    yield Change("chains and rules of iptables and ip6tables whose names begin with KUBE, CNI or FLANNEL")


def kernel(role: Path) -> Iterator[Change]:
    """Modules and settings of the kernel, until the next reboot."""
    unit = (role / "templates/k3s.service.j2").read_text()
    modules = ", ".join(f"`{name}`" for name in re.findall(r"modprobe (\S+)", unit))
    until = "until the next reboot."
    yield Change(
        f"modules: {modules} by the unit; K3s loads those of its packet filter and pod network", stays=until
    )
    names = ", ".join(f"`{name}`" for name in SYSCTLS)
    yield Change(f"settings (sysctl) of K3s and of its kubelet: {names}", stays=until)


def render(roles: Path) -> str:
    """Return all changes as Markdown, with a heading for each section."""
    return "\n\n".join(
        f"### {title}\n\n" + "\n".join(line(change) for change in found)
        for title, found in changes(roles).items()
    )


def line(change: Change) -> str:
    """Return a change as an item of a list."""
    paths = ", ".join(f"`{path}`" for path in change.paths)
    stays = f"stays: {change.stays}" if change.stays else ""
    return item(f"{paths}: {change.what}" if paths else change.what, stays)
