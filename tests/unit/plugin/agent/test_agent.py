# SPDX-License-Identifier: Apache-2.0
"""The command `agent` as its users meet it: a process, its log, its pages, its end."""

import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.cli import main

from tests.conformance.plugin import free_address, mounting, page, save
from tests.unit.plugin.agent.node import Node, Pod, uid

MIB = 2**20
UNITS = "version: v1\nsharing: {units: {memoryTotal: 4Gi, contextOverhead: 150Mi}}\n"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Running:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.lines = 0
        self.address = address

    def connect(self) -> socket.socket:
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)), timeout=5)

    def until_logged(self, text: str) -> str:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines += 1
            if text in line:
                return line
        raise AssertionError(f"it ended without problem_log {text!r}")

    def page(self, path: str) -> str:
        deadline = time.monotonic() + 10
        while True:
            try:
                return page(self.address, path)
            except urllib.error.HTTPError as error:
                return error.read().decode()
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # there is no event

    def metrics(self) -> Samples:
        families = text_string_to_metric_families(self.page("/metrics"))
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


@contextmanager
def running(node: Node, *arguments: str, before: str = "") -> Iterator[Running]:
    address, config = free_address(), node.root / "config.yaml"
    config.write_text(UNITS)
    agent = [sys.executable, "-m", "tegra_device_plugin", "agent", f"--config={config}"]
    command = [*shlex.split(before), *agent]
    places = [
        f"--host-root={node.root}",
        f"--pod-resources={node.kubelet.socket}",
        f"--metrics-address={address}",
    ]
    with subprocess.Popen([*command, *places, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Running(process, address)
        finally:
            process.kill()


def sample(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_memory_metrics_have_the_names_of_other_systems(node: Node) -> None:
    node.admits(Pod(1, "vision", percent=30, units=4))
    node.process(10, 1)
    node.process(20, None)
    node.use_memory(p10=100, p20=20, p0=3)
    with running(node, "--mode=report", "--foreign-metrics=dcgm,gpu-fractioning") as agent:
        agent.until_logged("mode report, policy best-effort")
        found = agent.metrics()
        while sample("tegra_gpu_agent_memory_used_bytes", owner="pods") not in found:
            found = agent.metrics()
        pod = {"namespace": "default", "pod": "vision"}
        fractioning = {**pod, "pod_uuid": uid(1), "gpu_uuid": "igpu0", "gpu": "0"}
        assert found[sample("gpu_fractioning_gpu_memory_used_bytes", **fractioning)] == 100 * MIB
        container = {**pod, "pod_uuid": uid(1), "container": "c"}
        assert found[sample("tegra_gpu_agent_container_memory_used_bytes", **container)] == 100 * MIB
        assert found[sample("DCGM_FI_DEV_FB_USED", gpu="0", UUID="igpu0")] == 120
        assert found[sample("tegra_gpu_agent_weight_percent", **pod)] == 30
        owners = {"pods": 100 * MIB, "outside": 20 * MIB, "kernel": 3 * MIB}
        for owner, size in owners.items():
            assert found[sample("tegra_gpu_agent_memory_used_bytes", owner=owner)] == size
        assert "tegra_gpu_agent_weights" not in {name for name, _ in found}
        assert agent.page("/healthz") == "ok\n"


def test_evict_ends_the_gpu_processes_of_the_offender_alone(node: Node) -> None:
    node.admits(Pod(1, "greedy", units=1))
    node.admits(Pod(2, "neighbour", units=1))
    with ExitStack() as started:
        first, second, idle, neighbour = (
            started.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(4)
        )
        for process, pod, mib in ((first, 1, 200), (second, 1, 121), (idle, 1, 0), (neighbour, 2, 256)):
            started.callback(process.kill)
            node.process(process.pid, pod)
            node.use_memory(**{f"p{process.pid}": mib})
        with running(node, "--mode=evict") as agent:
            line = agent.until_logged("of GPU memory")
            # 64 MiB are tolerated for one process: the context of another one does not fit into the share.
            assert f"pod default/greedy (uid {uid(1)}) has 321 MiB" in line
            assert f"its share is 256 MiB: ended its processes {first.pid}, {second.pid}" in line
            assert [process.wait(5) for process in (first, second)] == [-signal.SIGKILL] * 2
            assert [process.poll() for process in (idle, neighbour)] == [None, None]
            pod_labels = {"namespace": "default", "pod": "greedy"}
            assert agent.metrics()[sample("tegra_gpu_agent_over_limit_total", **pod_labels)] == 1
            assert agent.metrics()[sample("tegra_gpu_agent_ended_processes_total", **pod_labels)] == 2


def test_burst_share_is_unsupported_without_the_device(node: Node) -> None:
    with running(node, "--qos-policy=burst-share") as agent:
        line = agent.until_logged("GPU time is not divided by weights")
        assert f"{node.root}/dev/nvgpu/igpu0/sched: no scheduling API: Inappropriate ioctl for device" in line
        assert agent.metrics()[sample("tegra_gpu_agent_weights", state="unsupported")] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(node: Node, number: signal.Signals) -> None:
    with running(node, "--qos-policy=burst-share") as agent:
        agent.until_logged("GPU time is not divided by weights")
        agent.process.send_signal(number)
        assert agent.process.wait(3) == 0


def test_changed_settings_are_followed(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    with running(node, f"--config={file}") as agent:
        agent.until_logged("mode report")
        save(file, "version: v1\nflags: {plugin: {logFormat: json}}\n")
        agent.process.send_signal(signal.SIGHUP)
        agent.until_logged('"message": "configuration changed: restarting"')
        agent.until_logged('"message": "mode report, policy best-effort"')


def descriptors(agent: Running) -> int:
    return len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))


def resident(agent: Running) -> int:
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def test_clients_that_stay_take_bounded_descriptors_and_memory_and_delay_no_probe(node: Node) -> None:
    with running(node) as agent, ExitStack() as clients:
        assert agent.page("/healthz") == "ok\n"
        before, memory = descriptors(agent), resident(agent)
        for number in range(2000):
            client = clients.enter_context(closing(agent.connect()))
            client.sendall(b"GET /me" * (number % 2))  # idle, or half a request
            if number % 200 == 199:
                assert descriptors(agent) - before <= 64
                assert agent.page("/healthz") == "ok\n"
                assert "tegra_gpu_agent_info" in agent.page("/metrics")
        assert resident(agent) - memory <= 8


def test_an_agent_out_of_descriptors_logs_few_lines_and_recovers(node: Node) -> None:
    node.admits(Pod(1, "vision", units=4))
    node.process(10, 1)
    node.use_memory(p10=100)
    with running(node) as agent, ExitStack() as clients:
        agent.until_logged("mode report")
        agent.page("/healthz")
        limit = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        # Only its first three, which are open. Those that it has at this moment may be more than it keeps.
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (3, limit[1]))
        for _ in range(10):
            clients.enter_context(closing(agent.connect()))
        line = agent.until_logged("GPU memory is not watched")
        assert "Too many open files" in line
        assert "the process is out of file descriptors or memory" in line
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, limit)
        agent.until_logged("GPU memory is watched again")
        assert agent.page("/healthz") == "ok\n"
        agent.process.send_signal(signal.SIGTERM)
        assert agent.lines < 150


UNUSABLE = {
    "unknown key": ("version: v1\nfoo: 1\n", "foo is not known"),
    "no units": ("version: v1\n", "has no percents of the GPU's time"),
    # A program may then use all of its share as CUDA memory, and its context puts the pod over the share.
    "no overhead": ("version: v1\nsharing: {units: {memoryTotal: 4Gi}}\n", "--mode evict needs contextOv"),
    "overhead of nothing": (UNITS.replace("150Mi", "0Mi"), "--mode evict needs contextOverhead above 0Mi"),
}


@pytest.mark.parametrize(("text", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_settings_rejected_at_start_are_rejected_at_reload(
    text: str, reason: str, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    choice = ("--mode=evict", "--qos-policy=burst-share", f"--config={file}")
    file.write_text(UNITS)
    with running(node, *choice) as agent:
        agent.until_logged("mode evict")
        save(file, text)
        agent.process.send_signal(signal.SIGHUP)
        assert reason in agent.until_logged("configuration rejected, the old configuration stays in force")
        assert agent.page("/healthz") == "ok\n"
    assert main(["agent", "--host-root", str(node.root), *choice]) == 2
    assert reason in capsys.readouterr().err


def test_a_share_that_the_driver_cannot_enforce_is_rejected(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--host-root", str(node.root), "--qos-policy=fixed-share"]) == 2
    assert "nvgpu cannot limit a pod to its share while other pods are idle" in capsys.readouterr().err


def test_a_kernel_that_cannot_evict_fails_the_start(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    file = tmp_path / "config.yaml"
    file.write_text(UNITS)
    monkeypatch.setattr("os.pidfd_open", missing)
    assert main(["agent", "--host-root", str(node.root), "--mode", "evict", "--config", str(file)]) == 1
    assert "Use --mode report" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["pods", "containers"])
def test_healthz_names_logs_that_were_deleted_under_their_mount(
    lost: str, node: Node, tmp_path: Path
) -> None:
    mounted, source = node.root / "var/log" / lost, tmp_path / "source"
    with running(node, before=mounting({source: mounted})) as agent:
        assert agent.page("/healthz") == "ok\n"
        shutil.rmtree(source)
        source.mkdir()
        says = f"{mounted} was deleted on the host, and this container still mounts the deleted directory"
        assert says in agent.page("/healthz")
