# SPDX-License-Identifier: Apache-2.0
"""The command `agent` as its users meet it: a process, its log, its pages, its end."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.cli import main

from tests.unit.plugin.agent.node import Node, Pod, uid

MIB = 2**20
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Running:
    """An agent process and what it says."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.lines = 0
        self._address = address

    def connect(self) -> socket.socket:
        """Connect to its pages."""
        host, _, port = self._address.partition(":")
        return socket.create_connection((host, int(port)), timeout=5)

    def says(self, text: str) -> str:
        """Wait for a line of the log."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines += 1
            if text in line:
                return line
        raise AssertionError(f"it ended without problem_log {text!r}")

    def page(self, path: str) -> str:
        """Give a page, as soon as the agent serves pages."""
        deadline = time.monotonic() + 10
        while True:
            try:
                with urllib.request.urlopen(f"http://{self._address}{path}", timeout=5) as answer:
                    return str(answer.read().decode())
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # nobody tells

    def metrics(self) -> Samples:
        """Give the metrics by name and labels."""
        families = text_string_to_metric_families(self.page("/metrics"))
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


@contextmanager
def running(node: Node, *arguments: str) -> Iterator[Running]:
    """Run the agent on a node."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = node.root / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {memoryTotal: 4Gi, contextOverhead: 150Mi}}\n")
    command = [sys.executable, "-m", "tegra_device_plugin", "agent", f"--config={config}"]
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
    """What a sample is found by."""
    return name, frozenset(labels.items())


def test_who_holds_what_is_told_in_the_names_of_other_systems(node: Node) -> None:
    node.admits(Pod(1, "vision", percent=30, units=4))
    node.process(10, 1)
    node.process(20, None)
    node.holds(p10=100, p20=20, p0=3)
    with running(node, "--mode=report") as agent:
        agent.says("mode report, policy best-effort")
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
        for owner, held in owners.items():
            assert found[sample("tegra_gpu_agent_memory_used_bytes", owner=owner)] == held
        assert "tegra_gpu_agent_weights" not in {name for name, _ in found}
        assert agent.page("/healthz") == "ok\n"


def test_evict_ends_the_offender_and_leaves_its_neighbour(node: Node) -> None:
    node.admits(Pod(1, "greedy", units=1))
    node.admits(Pod(2, "neighbour", units=1))
    with subprocess.Popen(["sleep", "600"]) as greedy, subprocess.Popen(["sleep", "600"]) as neighbour:
        try:
            node.process(greedy.pid, 1)
            node.process(neighbour.pid, 2)
            node.holds(**{f"p{greedy.pid}": 257, f"p{neighbour.pid}": 256})
            with running(node, "--mode=evict") as agent:
                line = agent.says("holds")
                assert f"pod default/greedy (uid {uid(1)}) holds 257 MiB" in line
                assert f"ended its processes {greedy.pid}" in line
                assert greedy.wait(5) == -signal.SIGKILL
                assert neighbour.poll() is None
                pod = {"namespace": "default", "pod": "greedy"}
                assert agent.metrics()[sample("tegra_gpu_agent_over_limit_total", **pod)] == 1
                assert agent.metrics()[sample("tegra_gpu_agent_ended_processes_total", **pod)] == 1
        finally:
            greedy.kill()
            neighbour.kill()


def test_burst_share_asks_the_real_kernel_which_has_no_such_device_here(node: Node) -> None:
    with running(node, "--qos-policy=burst-share") as agent:
        line = agent.says("GPU time is not divided by weights")
        assert f"{node.root}/dev/nvgpu/igpu0/sched: no scheduling API: Inappropriate ioctl for device" in line
        assert agent.metrics()[sample("tegra_gpu_agent_weights", state="unsupported")] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told(node: Node, number: signal.Signals) -> None:
    with running(node, "--qos-policy=burst-share") as agent:
        agent.says("GPU time is not divided by weights")
        agent.process.send_signal(number)
        assert agent.process.wait(3) == 0


def test_changed_settings_are_followed(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    with running(node, f"--config={file}") as agent:
        agent.says("mode report")
        file.write_text("version: v1\nflags: {plugin: {logFormat: json}}\n")
        agent.process.send_signal(signal.SIGHUP)
        agent.says('"message": "configuration changed: restarting"')
        agent.says('"message": "mode report, policy best-effort"')


def descriptors(agent: Running) -> int:
    """Descriptors that the agent has open."""
    return len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))


def resident(agent: Running) -> int:
    """The agent's memory in MiB."""
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


def test_an_agent_out_of_descriptors_says_so_in_few_lines_and_recovers(node: Node) -> None:
    node.admits(Pod(1, "vision", units=4))
    node.process(10, 1)
    node.holds(p10=100)
    with running(node) as agent, ExitStack() as clients:
        agent.says("mode report")
        agent.page("/healthz")
        limit = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (descriptors(agent) - 1, limit[1]))
        for _ in range(10):
            clients.enter_context(closing(agent.connect()))
        line = agent.says("GPU memory is not watched")
        assert "Too many open files" in line
        assert "the process is out of file descriptors or memory" in line
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, limit)
        agent.says("GPU memory is watched again")
        assert agent.page("/healthz") == "ok\n"
        agent.process.send_signal(signal.SIGTERM)
        assert agent.lines < 150


UNUSABLE = {
    "unknown key": ("version: v1\nfoo: 1\n", "foo is not known"),
    "no units": ("version: v1\n", "--qos-policy burst-share"),
    "no overhead": ("version: v1\nsharing: {units: {memoryTotal: 4Gi}}\n", "--mode evict needs contextOv"),
}


@pytest.mark.parametrize(("text", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_settings_that_a_start_refuses_are_refused_by_a_reload(
    text: str, reason: str, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    choice = ("--mode=evict", "--qos-policy=burst-share", f"--config={file}")
    file.write_text("version: v1\nsharing: {units: {memoryTotal: 4Gi, contextOverhead: 150Mi}}\n")
    with running(node, *choice) as agent:
        agent.says("mode evict")
        file.write_text(text)
        agent.process.send_signal(signal.SIGHUP)
        assert reason in agent.says("configuration refused, the old one stays in force")
        assert agent.page("/healthz") == "ok\n"
    assert main(["agent", "--host-root", str(node.root), *choice]) == 2
    assert reason in capsys.readouterr().err


def test_a_policy_that_the_driver_cannot_hold_is_refused(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--host-root", str(node.root), "--qos-policy", "fixed-share"]) == 2
    assert "nvgpu cannot limit a pod to its share while other pods are idle" in capsys.readouterr().err


def test_weights_need_a_resource_that_has_them(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--host-root", str(node.root), "--qos-policy", "burst-share"]) == 2
    assert "has no percents of the GPU's time" in capsys.readouterr().err


def test_a_kernel_that_cannot_evict_is_told_apart_at_once(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {units: {memoryTotal: 4Gi, contextOverhead: 150Mi}}\n")
    monkeypatch.setattr("os.pidfd_open", missing)
    assert main(["agent", "--host-root", str(node.root), "--mode", "evict", "--config", str(file)]) == 1
    assert "Use --mode report" in capsys.readouterr().err


def test_help_says_what_each_choice_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["agent", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in ("also the end of its GPU processes", "time slices by the pods' gpu-core", "capability KILL"):
        assert text in said
