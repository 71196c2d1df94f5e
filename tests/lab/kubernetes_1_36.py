# SPDX-License-Identifier: Apache-2.0
"""Plain nodes with Kubernetes 1.36 and containerd 2 on virtual boards, and nothing of K3s.

It is for what needs a kubelet of Kubernetes 1.34 or newer: the DRA driver, and the health of devices in a
pod's status. Each program is a systemd unit. `k3s` is a SIMULATED program with the commands that roles run on
a server; the roles after role k3s run on these nodes with `--tags`.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import api_server, gomodules, lab, staging, workloads
from tests.lab.board import Board
from tools import debian
from tools.engine import docker

VERSION = gomodules.KUBERNETES
PROGRAMS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet",
)  # fmt: skip
# K3s' places, so that reset.yml removes all of it.
HOME = Path("/var/lib/rancher/k3s")
PROGRAM_DIRECTORY = HOME / "data/bin"
SERVER = HOME / "server"
IMAGES = HOME / "agent/images"
NETWORK = HOME / "agent/etc/cni/net.d"
CONTAINERD = HOME / "agent/etc/containerd/config.toml"
SOCKET = "/run/k3s/containerd/containerd.sock"
ADMIN_KUBECONFIG = Path("/etc/rancher/k3s/k3s.yaml")
UNITS = Path("/etc/systemd/system")
UNIT_PREFIX = "plain-"  # a board has a containerd.service, Docker's
PORT = 6443
POD_CIDR = "10.42.0.0/24"
# The components' users, with their groups. The kubelet's, which has the node's name, is added to them.
USERS = {
    **api_server.ADMIN,
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
}
K3S = f"""\
#!/bin/sh
# SIMULATED: the commands of K3s that Ansible roles run, for a node with plain Kubernetes.
bin={PROGRAM_DIRECTORY}
case $1 in
--version)
	echo "k3s version {VERSION}+k3s.plain (SIMULATED: Kubernetes for tests, not K3s)"
	;;
server)
	until "$0" kubectl get --raw=/readyz >/dev/null 2>&1; do sleep 0.5; done
	;;
agent)
	;;
kubectl)
	shift
	KUBECONFIG=${{KUBECONFIG:-{ADMIN_KUBECONFIG}}} exec $bin/kubectl "$@"
	;;
ctr)
	shift
	exec $bin/ctr --address={SOCKET} "$@"
	;;
*)
	echo "k3s (SIMULATED) knows --version, server, agent, kubectl and ctr only, not $1" >&2
	exit 1
	;;
esac
"""
K3S_UNIT = """\
[Unit]
Description=SIMULATED K3s: plain Kubernetes, started and stopped as one
Wants={units}
After={units}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/k3s {role}

[Install]
WantedBy=multi-user.target
"""
UNIT = """\
[Unit]
Description={name} of a node with plain Kubernetes
PartOf={k3s}.service
# After Docker and nvpmodel as K3s (role k3s). The last one (role gpu_device_plugin) is before K3s by itself.
After=network-online.target docker.service nvpmodel.service tegra-device-plugin-boot.service {after}

[Service]
Type={type}
Environment=PATH={programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre={before}
ExecStart={command}
Restart=always
RestartSec=3
TimeoutStartSec=infinity
# Pods outlive a restart.
KillMode=process
Delegate=yes
"""
CONTAINERD_CONFIGURATION = f"""\
version = 3
root = "{HOME}/agent/containerd"
state = "/run/k3s/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/{workloads.PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/local/bin"]
  conf_dir = "{NETWORK}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
"""
BRIDGE = {
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "ipMasq": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]], "routes": [{"dst": "0.0.0.0/0"}]},
}
NETWORK_CONFIGURATION = {"cniVersion": "1.0.0", "name": "pods", "plugins": [BRIDGE]}
# With cgroup v1 Kubernetes 1.35 and newer start only with this setting. Role preflight reads it here.
K3S_CONFIGURATION = "kubelet-arg: [fail-cgroupv1=false]\n"


@dataclass(frozen=True)
class Service:
    """A program, its flags, and the programs that it starts after."""

    name: str
    flags: Sequence[str]
    after: Sequence[str] = ()
    type: str = "exec"
    before: str = "-/bin/true"

    @property
    def unit(self) -> str:
        return unit_name(self.name)

    def text(self, k3s: str) -> str:
        """Return the unit, which starts and stops with the unit `k3s`."""
        return UNIT.format(
            name=self.name,
            k3s=k3s,
            after=" ".join(map(unit_name, self.after)),
            type=self.type,
            programs=PROGRAM_DIRECTORY,
            before=self.before,
            command=" ".join([str(PROGRAM_DIRECTORY / self.name), *self.flags]),
        )


def unit_name(program: str) -> str:
    return f"{UNIT_PREFIX}{program}.service"


def compiled() -> Path:
    """Return the cached executable that is etcd and the programs of Kubernetes.

    Raises NoGoError where there is no Go to compile it.
    """
    return gomodules.programs(gomodules.HYPERKUBE, debian.architecture()) / "hyperkube"


@contextmanager
def fresh(name: str, agents: int = 0) -> Iterator[list[Board]]:
    """Bring up a lab of nodes, the first one the server, and a bundle that fits it; both go at the end.

    Raises NoGoError where there is no Go to compile it with.
    """
    hyperkube = compiled()
    with tempfile.TemporaryDirectory() as place:
        k3s = Path(place, "k3s")
        k3s.write_text(K3S)
        k3s.chmod(0o755)
        with lab.fresh(name, [lab.DEFAULT_TYPE] * (1 + agents), which=str(k3s)) as boards:
            server = boards[0]
            with staging.directory() as stage:
                write_server(stage, server, [board.name for board in boards])
                docker("cp", "--archive", f"{stage}/.", f"{server.container}:/")
            for board in boards:
                install(board, server, hyperkube)
            yield boards


def install(board: Board, server: Board, hyperkube: Path) -> None:
    """Make the board a node; of the `server` its programs as well."""
    board.exec("mkdir", "-p", str(PROGRAM_DIRECTORY), str(IMAGES))
    docker("cp", str(hyperkube), f"{board.container}:{PROGRAM_DIRECTORY}")
    # Kubernetes 1.36 needs containerd 2, which Debian 12 does not have.
    (deb,) = debian.package_files("containerd", suite="testing").glob("*.deb")
    docker("cp", str(deb), f"{board.container}:/root/containerd.deb")
    unpack = "dpkg-deb --extract /root/containerd.deb /root/containerd"
    board.exec("sh", "-c", f"{unpack} && mv /root/containerd/usr/bin/* {PROGRAM_DIRECTORY}")
    links = f"cd {PROGRAM_DIRECTORY} && for it in {' '.join(PROGRAMS)}; do ln -s hyperkube $it; done"
    board.exec("sh", "-c", links)
    archive = IMAGES / "pause.tar.gz"
    docker("cp", str(workloads.pause_archive()), f"{board.container}:{archive}")
    with staging.directory() as stage:
        if board != server:
            copy_credentials(stage, board.name, server)
        k3s = write_node(stage, board, is_server=board == server)
        docker("cp", "--archive", f"{stage}/.", f"{board.container}:/")
    board.exec("systemctl", "daemon-reload")
    board.exec("systemctl", "enable", "--now", k3s, timeout=api_server.START_SECONDS)
    board.exec("k3s", "ctr", "--namespace=k8s.io", "images", "import", str(archive))
    server.exec("sh", "-c", f"until k3s kubectl get node {board.name}; do sleep 0.5; done")
    server.exec("k3s", "kubectl", "wait", "--for=condition=Ready", f"node/{board.name}", "--timeout=90s")


def cgroup(text: str) -> str:
    """Return the board's part of the cgroup tree, from the text of its init's /proc/PID/cgroup.

    With cgroup v1 a virtual board sees the machine's tree, and with v2 its own.
    """
    paths = dict(line.split(":", 2)[1:] for line in text.splitlines())
    return (paths.get("memory") or paths[""]).removesuffix("/init.scope")


def write_server(stage: Path, server: Board, nodes: Sequence[str]) -> None:
    """Write the credentials of a server and of all nodes below `stage`, as they lie on the server's board."""
    directory = below(stage, SERVER)
    directory.mkdir(parents=True)
    kubelets = {kubelet_user(node): "system:nodes" for node in nodes}
    tokens = api_server.write_credentials(directory, {**USERS, **kubelets})
    (admin,) = api_server.ADMIN
    paths = {user: kubeconfig_path(user) for user in tokens} | {admin: ADMIN_KUBECONFIG}
    for user, path in paths.items():
        url = f"https://{server.address}:{PORT}"
        write(stage, path, api_server.kubeconfig(SERVER, url, tokens[user]))


def copy_credentials(stage: Path, node: str, server: Board) -> None:
    """Copy what a node that is no server has of the server's directory."""
    users = ("system:kube-proxy", kubelet_user(node))
    for path in (SERVER / "apiserver.crt", *map(kubeconfig_path, users)):
        write(stage, path, server.exec("cat", str(path)))


def write_node(stage: Path, board: Board, *, is_server: bool) -> str:
    """Write configuration and units of a node below `stage`; return the name of its K3s' unit."""
    k3s, role = ("k3s", "server") if is_server else ("k3s-agent", "agent")
    found = node_services(board, cgroup(board.exec("cat", "/proc/1/cgroup")), is_server=is_server)
    if is_server:
        found += server_services(board.address)
    files: Mapping[Path, str] = {
        CONTAINERD: CONTAINERD_CONFIGURATION,
        NETWORK / "10-bridge.conflist": json.dumps(NETWORK_CONFIGURATION),
        Path("/etc/rancher/k3s/config.yaml"): K3S_CONFIGURATION,
        Path("/usr/local/bin/k3s"): K3S,
        UNITS / f"{k3s}.service": K3S_UNIT.format(role=role, units=" ".join(one.unit for one in found)),
        **{UNITS / one.unit: one.text(k3s) for one in found},
    }
    for path, text in files.items():
        write(stage, path, text)
    below(stage, Path("/usr/local/bin/k3s")).chmod(0o755)
    return k3s


def write(stage: Path, path: Path, text: str) -> None:
    target = below(stage, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def below(stage: Path, path: Path) -> Path:
    return stage / path.relative_to("/")


def kubeconfig_path(user: str) -> Path:
    return SERVER / f"{user.rpartition(':')[2]}.kubeconfig"


def kubelet_user(node: str) -> str:
    return f"system:node:{node}"


def kubeconfig_option(user: str) -> str:
    return f"--kubeconfig={kubeconfig_path(user)}"


def server_services(address: str) -> list[Service]:
    behind_server = ["kube-apiserver"]
    return [
        Service("etcd", api_server.etcd_flags(SERVER), type="notify"),
        Service(
            "kube-apiserver",
            [
                *api_server.server_flags(SERVER, address, PORT),
                "--enable-admission-plugins=NodeRestriction",
                "--kubelet-preferred-address-types=InternalIP",
                # It samples its queues a thousand times a second, a third of the work of an idle API server.
                "--enable-priority-and-fairness=false",
            ],
            after=["etcd"],
            type="notify",
        ),
        Service(
            "kube-controller-manager",
            [
                kubeconfig_option("system:kube-controller-manager"),
                f"--service-account-private-key-file={SERVER}/service.key",
                f"--root-ca-file={SERVER}/apiserver.crt",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
            ],
            after=behind_server,
        ),
        Service(
            "kube-scheduler",
            [kubeconfig_option("system:kube-scheduler"), "--leader-elect=false"],
            after=behind_server,
        ),
    ]


def node_services(board: Board, board_cgroup: str, *, is_server: bool) -> list[Service]:
    behind_server = ["kube-apiserver"] if is_server else []
    return [
        Service("containerd", [f"--config={CONTAINERD}"], type="notify"),
        Service(
            "kubelet",
            [
                kubeconfig_option(kubelet_user(board.name)),
                f"--node-ip={board.address}",
                f"--container-runtime-endpoint=unix://{SOCKET}",
                "--cgroup-driver=cgroupfs",
                f"--cgroup-root={board_cgroup or '/'}",
                "--enforce-node-allocatable=",
                "--fail-cgroupv1=false",
                "--fail-swap-on=false",  # as K3s: boards have zram
                # A virtual board sees the disk of its machine, and images cannot be pulled again.
                "--eviction-hard=",
                "--image-gc-high-threshold=100",
            ],
            after=["containerd", *behind_server],
            type="notify",
            # Docker leaves hierarchies of cgroup v1 out that a kubelet needs.
            before=f"-/bin/sh -c 'for it in /sys/fs/cgroup/*/; do mkdir -p $${{it}}{board_cgroup}; done'",
        ),
        Service(
            "kube-proxy",
            [
                kubeconfig_option("system:kube-proxy"),
                f"--cluster-cidr={POD_CIDR}",
                "--proxy-mode=iptables",
                # The kernel's settings stay: a virtual board is a container.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
            after=behind_server,
        ),
    ]
