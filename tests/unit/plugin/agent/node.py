# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED node: a board's tree with processes in pods, and a kubelet that lists containers."""

from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests import boards
from tests.conformance.pod_resources import Kubelet

CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
GPU = "nvidia.com/gpu"
UNIT_MIB = 64
HEADER = f"{'CLIENT':<18} {'PROCESS':>18} {'PID':>8} {'SIZE':>11}\n"


def uid(number: int) -> str:
    return f"{number:08x}-1111-2222-3333-444455556666"


def cgroup(number: int) -> str:
    """The control group of a process in the pod with that uid (version 2, systemd, containerd)."""
    slice_ = f"kubepods-burstable-pod{uid(number).replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{slice_}/cri-containerd-{number:064x}.scope\n"


def row(pid: int, kib: int, name: str = "python3", client: str = "user") -> str:
    return f"{client:<18} {name:>18} {pid:>8} {kib:>10}K\n"


@dataclass
class Pod:
    number: int
    name: str
    percent: int = 0
    units: int = 0
    first_unit: int = 0
    gpus: int = 0


class Node:
    def __init__(self, root: Path, kubelet: Kubelet, board: str = "orinnano-jp6") -> None:
        self.root = root
        self.kubelet = kubelet
        self.pods: list[Pod] = []
        self.used_mib: dict[int, int] = {}
        boards.build(boards.load()[board], root)
        self._clients = root / "sys/kernel/debug/nvmap/iovmm/clients"
        self._clients.parent.mkdir(parents=True)
        for node in ("dev/nvgpu/igpu0/sched", "dev/nvhost-sched-gpu"):
            root.joinpath(node).parent.mkdir(parents=True, exist_ok=True)
            root.joinpath(node).touch()
        self.use_memory()

    def admits(self, pod: Pod) -> None:
        """The kubelet gives a pod its devices and makes its log directory."""
        self.pods.append(pod)
        (self.root / f"var/log/pods/default_{pod.name}_{uid(pod.number)}").mkdir(parents=True, exist_ok=True)
        answer = api.ListPodResourcesResponse()
        for one in self.pods:
            container = answer.pod_resources.add(namespace="default", name=one.name).containers.add(name="c")
            for resource, prefix, first, count in (
                (CORE, "c", 0, one.percent),
                (MEMORY, "m", one.first_unit, one.units),
                (GPU, "igpu0::", one.number, one.gpus),
            ):
                if count:
                    ids = [f"{prefix}{number}" for number in range(first, first + count)]
                    container.devices.add(resource_name=resource, device_ids=ids)
        self.kubelet.answer = answer.SerializeToString()

    def process(self, pid: int, pod: int | None) -> None:
        directory = self.root / "proc" / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        directory.joinpath("cgroup").write_text(
            "0::/system.slice/nvargus-daemon.service\n" if pod is None else cgroup(pod)
        )
        for one in self.pods:
            if one.number == pod:
                self.log(f"{one.name}_default_c-{pod:064x}.log")

    def log(self, name: str) -> None:
        """Link a container's log, which is in a directory that is not seen from the agent's pod."""
        link = self.root / "var/log/containers" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to("/var/log/pods/elsewhere/0.log")

    def use_memory(self, **mib_by_pid: int) -> None:
        """Processes (`p123=5`) have so many MiB of GPU memory."""
        self.used_mib |= {int(name[1:]): mib for name, mib in mib_by_pid.items()}
        rows = "".join(row(pid, mib * 1024) for pid, mib in self.used_mib.items())
        total = sum(self.used_mib.values()) * 1024
        self._clients.write_text(HEADER + rows + f"{'total':<18} {'':>18} {'':>8} {total:>10}K\n")
