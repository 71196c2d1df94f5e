#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take K3s off a board: what K3s' own uninstall script removes, and what it leaves behind in docker mode.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re
import shutil
import signal
import socket
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: k3s_reset
short_description: No K3s on the board any more
description:
  - Removes services, pods, network interfaces, packet filter rules, mounts and files of K3s, in that order,
    and checks afterwards that nothing is left. Containers of others are left alone, and so are Docker's
    images.
  - What the owner of the board has put into /etc/rancher stays, and so does /etc/rancher/node/password, by
    which a server knows the board again.
"""

RETURN = r"""
removed: {type: list, elements: str, description: 'What was there and is gone, or would be gone.'}
"""

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

UNITS = ("k3s", "k3s-agent", "tegra-device-plugin-boot")
# Both dockershim and cri-dockerd give it to every container of a pod.
POD_LABEL = "io.kubernetes.pod.name"
# Of the role nvidia_docker, whose containers keep the bundle's images while K3s is there.
KEEPER_LABEL = "io.github.jetson-k3s.keeps"
# Of the role gpu_device_plugin, whose container serves while the plugin's pod does not run.
STAND_BY_LABEL = "io.github.jetson-k3s.stand-by"
DATA = "/var/lib/rancher/k3s"
# docs/changes.md says what each of the following is.
# Trees. Mounts below them are unmounted first, or the removal would delete their content.
TREES = (
    "/var/lib/rancher/k3s",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/run/k3s",
    "/run/flannel",
    "/var/lib/tegra-gpu-limit",
    "/var/lib/jetson-k3s/device-plugin",
    "/var/lib/jetson-k3s/images",
    "/var/log/pods",
    "/var/log/containers",
)
FILES = (
    "/var/lib/jetson-k3s/containerd-images",
    "/etc/rancher/k3s/k3s.yaml",
    "/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml",
    "/etc/rancher/k3s/jetson-k3s.env",
    "/etc/rancher/k3s/jetson-k3s.token",
    "/etc/rancher/k3s/jetson-k3s.agent-token",
    "/etc/rancher/k3s/jetson-k3s.old-token*",
    "/run/jetson-k3s/k3s*.restart",
    "/run/cdi/gpu.jetson-k3s.github.io-claim-*.json",
    "/run/cdi/tegra-device-plugin.json",
    "/etc/tmpfiles.d/jetson-k3s-device-plugin.conf",
    "/usr/local/bin/k3s",
    "/usr/local/bin/k3s-v*",
    "/usr/local/bin/k3s.previous",
    "/usr/local/bin/k3s-killall.sh",
    "/usr/local/bin/k3s-uninstall.sh",
    "/usr/local/bin/k3s-agent-uninstall.sh",
)
# Files that may be the owner's as well, by how role k3s begins its own.
WRITTEN = {"/etc/rancher/k3s/registries.yaml": "# Written by Ansible (role k3s)"}
UNIT_FILES = (
    "/etc/systemd/system/k3s.service",
    "/etc/systemd/system/k3s.service.env",
    "/etc/systemd/system/k3s.service.d",
    "/etc/systemd/system/k3s-agent.service",
    "/etc/systemd/system/k3s-agent.service.env",
    "/etc/systemd/system/k3s-agent.service.d",
    "/etc/systemd/system/tegra-device-plugin-boot.service",
)
LINKS_TO_K3S = (
    "/usr/local/bin/kubectl",
    "/usr/local/bin/crictl",
    "/usr/local/bin/ctr",
)
# Those within others first.
DIRECTORIES_IF_EMPTY = (
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/k3s",
    "/var/lib/jetson-k3s/jtop",
    # The kubelet makes these.
    "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
    "/usr/libexec/kubernetes/kubelet-plugins/volume",
    "/usr/libexec/kubernetes/kubelet-plugins",
    "/usr/libexec/kubernetes",
)
INTERFACES = ("cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0")
NETWORK_NAMESPACES = "/run/netns/cni-*"
# Lines of iptables-save, by the pattern of K3s' own k3s-killall.sh.
KUBERNETES_RULE = re.compile(r"KUBE-|CNI-|flannel", re.IGNORECASE)


class ResetError(Exception):
    """Something cannot be removed; the text says what and why."""


class Stage(NamedTuple):
    """One kind of things to remove."""

    title: str
    find: Callable[[], List[str]]
    remove: Callable[[List[str]], object]


def below(path: str, tree: str) -> bool:
    """Is the path inside the tree, not the tree itself?"""
    return path.startswith(tree.rstrip("/") + "/")


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo (proc(5))."""

    parent: str
    """Number of the mount that has `path`."""
    device: str
    root: str
    """The directory of the file system that is mounted."""
    path: str


def unescape(path: str) -> str:
    """A path of /proc/self/mountinfo without octal escapes."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escape, character)
    return path


def read_mounts(mountinfo: str) -> Dict[str, Mount]:
    """The mounts by their numbers, in order of mounting."""
    found = {}
    for line in mountinfo.splitlines():
        number, parent, device, root, path = line.split(" ")[:5]
        found[number] = Mount(parent, device, unescape(root), unescape(path))
    return found


def is_of_itself(mount: Mount, mounts: Dict[str, Mount]) -> bool:
    """Is it a directory that is mounted onto itself?"""
    parent = mounts.get(mount.parent)
    if parent is None or parent.device != mount.device:
        return False
    return mount.root == os.path.normpath(os.path.join(parent.root, os.path.relpath(mount.path, parent.path)))


def mounts_below(trees: List[str], mountinfo: str) -> List[str]:
    """Mounts to remove: those inside the trees, and trees that the kubelet has mounted. The last one first.

    Where the root file system is not shared, the kubelet mounts its directory onto itself (MakeRShared).
    Other trees that are mounts belong to the board's owner.
    """
    mounts = read_mounts(mountinfo)
    return [
        mount.path
        for mount in mounts.values()
        if any(below(mount.path, tree) for tree in trees)
        or (mount.path in trees and is_of_itself(mount, mounts))
    ][::-1]


def begins(path: str, text: str) -> bool:
    """Is there a file that begins like this?"""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(len(text)) == text
    except IOError:
        return False


def family(roots: List[int], parents: Dict[int, int]) -> List[int]:
    """The processes and all that descend from them; `parents` is {pid: parent's pid}."""
    members = set(roots)
    while True:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        if not more:
            return sorted(members)
        members |= more


class Board:
    """Finds and removes. Every `find_*` returns a list of texts; what removes them takes this list."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.run_command: Run = module.run_command

    def run(self, *argv: str, stdin: Optional[str] = None) -> str:
        """Standard output of a command; ResetError when it fails. `stdin` is text for it."""
        code, out, err = self.run_command(list(argv), data=stdin)
        if code != 0:
            raise ResetError(redact("`{}`: {}".format(" ".join(argv), err.strip() or out.strip())))
        return out

    def has(self, program: str) -> bool:
        """Is there such a program?"""
        return self.module.get_bin_path(program) is not None

    # Services

    def find_services(self) -> List[str]:
        """Units that run or start at boot."""
        shown = self.run(
            "systemctl",
            "show",
            "--property=Id,ActiveState,UnitFileState",
            *(unit + ".service" for unit in UNITS),
        )
        found = []
        for block in shown.strip().split("\n\n"):
            unit = dict(line.split("=", 1) for line in block.splitlines())
            if unit["ActiveState"] not in ("inactive", "failed") or unit["UnitFileState"] == "enabled":
                found.append(unit["Id"])
        return found

    # Containers

    def find_containers(self) -> List[str]:
        """Names of the pods' containers in Docker, running or not, and of those of our roles."""
        if not self.has("docker"):
            return []
        names = []
        for label in (POD_LABEL, KEEPER_LABEL, STAND_BY_LABEL):
            of_ours = "--filter=label=" + label
            names += self.run("docker", "ps", "--all", of_ours, "--format={{.Names}}").split()
        return names

    # Processes: containerd's shims and their pods, which outlive K3s in containerd mode

    def find_processes(self) -> List[str]:
        """Pids of programs that K3s has unpacked, and of what they have started."""
        parents, roots = {}, []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/{}/stat".format(pid)) as stat:
                    # "pid (name) state ppid ...", and a name may contain blanks and brackets.
                    parents[int(pid)] = int(stat.read().rpartition(")")[2].split()[1])
                if below(os.readlink("/proc/{}/exe".format(pid)), os.path.realpath(DATA)):
                    roots.append(int(pid))
            except (OSError, IndexError):
                continue  # it has ended, or is the kernel's
        return [str(pid) for pid in family(roots, parents)]

    def remove_processes(self, pids: List[str]) -> None:
        """Kill them."""
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass

    # Network

    def find_namespaces(self) -> List[str]:
        """Network namespaces that a CNI plugin has made."""
        return sorted(map(os.path.basename, glob.glob(NETWORK_NAMESPACES)))

    def find_interfaces(self) -> List[str]:
        """Network interfaces of the pod network."""
        return [name for _, name in socket.if_nameindex() if name in INTERFACES]

    def packet_filter(self, name: str) -> List[str]:
        """Lines of `NAME-save`; none where there is no such packet filter."""
        program = self.module.get_bin_path(name + "-save")
        code, out, _ = self.run_command([program]) if program else (1, "", "")
        return out.splitlines(True) if code == 0 else []

    def find_rules(self) -> List[str]:
        """Packet filters that have rules or chains of Kubernetes."""
        names = ("iptables", "ip6tables")
        return [name for name in names if any(map(KUBERNETES_RULE.search, self.packet_filter(name)))]

    def remove_rules(self, names: List[str]) -> None:
        """Take these rules and chains away, and no others."""
        for name in names:
            kept = [line for line in self.packet_filter(name) if not KUBERNETES_RULE.search(line)]
            self.run(name + "-restore", "--counters", stdin="".join(kept))

    # Mounts and files

    def mountinfo(self) -> str:
        """The mounts of this process, as the kernel lists them."""
        with open("/proc/self/mountinfo") as stream:
            return stream.read()

    def mount_points(self) -> List[str]:
        """Where file systems and directories are mounted."""
        return [mount.path for mount in read_mounts(self.mountinfo()).values()]

    def find_mounts(self) -> List[str]:
        """Mounts of the kubelet and of its pods."""
        return mounts_below([os.path.realpath(tree) for tree in TREES], self.mountinfo())

    def find_files(self) -> List[str]:
        """Files, links and trees."""
        found = [path for pattern in (*FILES, *UNIT_FILES) for path in sorted(glob.glob(pattern))]
        found += [path for path, text in WRITTEN.items() if begins(path, text)]
        found += [
            path
            for path in LINKS_TO_K3S
            if os.path.islink(path) and os.path.basename(os.readlink(path)) == "k3s"
        ]
        found += [
            tree for tree in TREES if os.path.isdir(tree) and (os.listdir(tree) or self.removable(tree))
        ]
        found += [path for path in DIRECTORIES_IF_EMPTY if os.path.isdir(path) and not os.listdir(path)]
        return found

    def removable(self, tree: str) -> bool:
        """May the directory itself go? Not when its owner has put it elsewhere by a mount or a link."""
        # Not os.path.ismount(), which misses a directory of the same file system.
        return not os.path.islink(tree) and os.path.realpath(tree) not in self.mount_points()

    def remove_files(self, paths: List[str]) -> None:
        """Remove them; of a tree that is a mount or a link its content."""
        for path in paths:
            if path in TREES and not self.removable(path):
                for name in os.listdir(path):
                    self.delete(os.path.join(path, name))
            else:
                self.delete(path)
        for path in DIRECTORIES_IF_EMPTY:
            if os.path.isdir(path) and not os.listdir(path):
                os.rmdir(path)
        if any(path in UNIT_FILES for path in paths):
            self.run("systemctl", "daemon-reload")
            self.run_command(["systemctl", "reset-failed", *UNITS])  # complains when none has failed

    def delete(self, path: str) -> None:
        """Remove a file, a link or a directory with all that is in it."""
        if os.path.isdir(path) and not os.path.islink(path):
            if self.find_mounts():
                raise ResetError("{} is still mounted".format(", ".join(self.find_mounts())))
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def by(self, *argv: str) -> Callable[[List[str]], object]:
        """A function that calls the command for each of a list."""
        return lambda names: [self.run(*argv, name) for name in names]

    def stages(self) -> List[Stage]:
        """The stages in the order in which things can go."""
        return [
            Stage("service", self.find_services, self.by("systemctl", "disable", "--now")),
            # With their anonymous volumes.
            Stage("container", self.find_containers, self.by("docker", "rm", "--force", "--volumes")),
            Stage("process", self.find_processes, self.remove_processes),
            Stage("network namespace", self.find_namespaces, self.by("ip", "netns", "delete")),
            Stage("network interface", self.find_interfaces, self.by("ip", "link", "delete")),
            Stage("Kubernetes' rules in", self.find_rules, self.remove_rules),
            Stage("mount", self.find_mounts, self.by("umount")),
            Stage("file", self.find_files, self.remove_files),
        ]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    stages = Board(module).stages()
    removed: List[str] = []
    try:
        for stage in stages:
            found = stage.find()
            if found and not module.check_mode:
                stage.remove(found)
            removed += ["{} {}".format(stage.title, one) for one in found]
        left = (
            [] if module.check_mode else [stage.title + " " + one for stage in stages for one in stage.find()]
        )
    except (ResetError, OSError) as error:
        module.fail_json(msg="K3s could not be removed: {}".format(error), removed=removed)
    if left:
        module.fail_json(
            msg="K3s was removed, but there is still, or again: {}".format(", ".join(left)),
            removed=removed,
        )
    diff = {"before": "".join(line + "\n" for line in removed), "after": ""}
    module.exit_json(changed=bool(removed), removed=removed, diff=diff)


if __name__ == "__main__":
    main()
