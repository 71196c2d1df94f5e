# SPDX-License-Identifier: Apache-2.0
"""Steps of the module gpu_job on a server: how it calls a SIMULATED kubectl, and reads the answers."""

from __future__ import annotations

import base64
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_job_pods, k3s_kubectl
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import KubectlError
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_job

Data = dict[str, Any]
# Writes down how it is called and what it reads, and answers with the first file whose name is in the call.
KUBECTL = """\
#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
case "$*" in *--filename=-*) cat >> "$here/created"; echo >> "$here/created";; esac
for answer in "$here"/answers/*; do
    words=$(basename "$answer" | tr +@ ' /')
    case "$*" in *"$words"*) . "$answer"; exit;; esac
done
"""
NODE: Data = {
    "metadata": {"name": "jetson-1"},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"bootID": "boot 1", "kubeletVersion": "v1"},
    },
}
PLUGIN = {"metadata": {"name": "p"}, "spec": {"containers": [{"image": "tegra-device-plugin:1"}]}}
PARAMS: Data = {
    "node": "jetson-1", "timeout": 5, "objects": [], "job": "mine", "containers": ["main"], "cursors": {},
    "seconds": 0, "pod": "mine-x", "companion": "beside", "script": "pass", "bytes": 1000, "path": "",
    "offset": 0, "force": False,
}  # fmt: skip


@dataclass
class Kubectl:
    root: Path

    def answers(self, words: str, script: str) -> None:
        (self.root / "answers" / words.replace(" ", "+")).write_text(script)

    def says(self, words: str, *items: Data, one: bool = False) -> None:
        text = json.dumps(items[0] if one else {"items": list(items)})
        self.answers(words, f"cat <<'END'\n{text}\nEND\n")

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().replace("kubectl ", "").splitlines()

    def step(self, state: str, **given: Any) -> Data:
        return gpu_job.STATES[state](PARAMS | {"uploads": str(self.root / "uploads")} | given)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    program = tmp_path / "k3s"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    (tmp_path / "answers").mkdir()
    for module in (k3s_kubectl, gpu_job_pods):
        monkeypatch.setattr(module, "K3S", str(program))
    found = Kubectl(tmp_path)
    found.says("node jetson-1", NODE, one=True)
    found.says("tegra-dra-driver)", PLUGIN)
    found.says("get --watch", {"metadata": {"name": "default"}}, one=True)
    return found


def test_job_is_created_in_a_new_namespace_with_the_plugins_image_beside_it(kubectl: Kubectl) -> None:
    job = {
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "main"}, {"name": "beside"}]}}},
    }
    begun = kubectl.step("started", objects=[{"kind": "Secret"}, job])
    assert begun["node"] == {"known": True, "ready": True, "boot_id": "boot 1", "reason": ""}
    created = [json.loads(line) for line in (kubectl.root / "created").read_text().splitlines()]
    assert [one["kind"] for one in created] == ["Secret", "Job"]
    beside = created[1]["spec"]["template"]["spec"]["containers"][1]
    assert beside["image"] == "tegra-device-plugin:1"
    calls = kubectl.calls
    removed = next(place for place, call in enumerate(calls) if call.startswith("delete jobs"))
    assert "--namespace=gpu-test-jetson-1" in calls[removed]
    assert removed < calls.index("create namespace gpu-test-jetson-1"), (
        "objects of an interrupted run go first"
    )


@pytest.mark.parametrize(
    ("words", "answer", "message"),
    [
        ("node jetson-1", "", "jetson-1 takes no pods: the cluster has no node jetson-1"),
        ("tegra-dra-driver)", "echo '{\"items\": []}'", "the device plugin does not run on jetson-1"),
        ("create --namespace", "echo 'unknown field \"spec.x\"' >&2; exit 1", 'unknown field "spec.x"'),
    ],
)
def test_job_that_cannot_be_created_is_an_error(
    kubectl: Kubectl, words: str, answer: str, message: str
) -> None:
    kubectl.answers(words, answer)
    job = {"kind": "Job", "spec": {"template": {"spec": {"containers": []}}}}
    with pytest.raises(KubectlError, match=message):
        kubectl.step("started", objects=[job])


def pod(phase: str, **states: Data) -> Data:
    statuses = [{"name": name, "containerID": "docker://x", "state": state} for name, state in states.items()]
    conditions = [{"type": "PodScheduled", "status": "True"}]
    status = {"phase": phase, "containerStatuses": statuses, "conditions": conditions}
    return {"kind": "Pod", "metadata": {"name": "mine-x", "labels": {"job-name": "mine"}}, "status": status}


def test_observation_has_states_new_output_and_warnings(kubectl: Kubectl) -> None:
    ended = {"terminated": {"exitCode": 3, "reason": "Error"}}
    events: list[Data] = [
        {"kind": "Event", "type": "Warning", "reason": "BackOff", "message": "again"},
        {"kind": "Event", "type": "Normal", "reason": "Pulled", "message": "done"},
    ]
    job = {"kind": "Job", "status": {"conditions": [{"type": "Failed", "reason": "DeadlineExceeded"}]}}
    mine = pod("Running", main=ended, beside={"running": {}})
    kubectl.says("pods,jobs,events --namespace=gpu-test-jetson-1", mine, job, *events)
    agent = {
        "metadata": {"namespace": "n", "name": "a", "labels": {"app.kubernetes.io/name": "tegra-gpu-agent"}}
    }
    kubectl.says("tegra-gpu-agent)", agent)
    page = 'tegra_gpu_agent_container_memory_used_bytes{namespace="gpu-test-jetson-1",pod="mine-x"} 5'
    kubectl.answers("pods@a:9401@proxy", f"echo '{page}'")
    kubectl.answers("logs mine-x", "printf '2026-01-02T03:04:05.1Z a\\n2026-01-02T03:04:05.2Z b\\n'")
    seen = kubectl.step("observed")["seen"]
    assert seen["output"] == {"main": "a\nb\n"}
    assert (seen["pod"]["phase"], seen["pod"]["containers"][0]["exit_code"]) == ("Running", 3)
    assert (seen["warnings"], seen["job_failed"]) == (["BackOff: again"], "DeadlineExceeded")
    assert seen["gpu_memory"] == {"mine-x": 5}
    again = kubectl.step("observed", cursors=seen["cursors"])["seen"]
    assert again["output"] == {"main": ""}
    assert any("--since-time=2026-01-02T03:04:05Z" in call for call in kubectl.calls)


def test_board_that_does_not_answer_is_not_asked_for_its_output(kubectl: Kubectl) -> None:
    gone = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    kubectl.says("node jetson-1", {**NODE, "status": NODE["status"] | {"conditions": [gone]}}, one=True)
    kubectl.says("pods,jobs,events", pod("Running", main={"running": {}}))
    seen = kubectl.step("observed")["seen"]
    assert (seen["node"]["ready"], seen["node"]["reason"]) == (False, "Kubelet stopped posting node status.")
    assert not any(call.startswith("logs") for call in kubectl.calls)


def packing(kubectl: Kubectl, status: int = 0, files: int = 1, size: int = 5000) -> None:
    content = kubectl.root / "content"
    with tarfile.open(kubectl.root / "content", "w") as tar:
        member = tarfile.TarInfo("a")
        tar.addfile(member)
    content.write_bytes(content.read_bytes()[:size])
    said = json.dumps({"files": files, "bytes": 7})
    kubectl.answers("exec mine-x", f"cat {content}; echo '{said}' >&2; exit {status}")


def test_files_are_packed_on_the_server_and_read_in_parts(kubectl: Kubectl) -> None:
    (kubectl.root / "uploads").mkdir(mode=0o755)
    packing(kubectl)
    packed = kubectl.step("packed")
    assert (packed["listing"], packed["too_large"]) == ({"files": 1, "bytes": 7}, False)
    parts = [kubectl.step("read", path=packed["path"], offset=offset, bytes=3000) for offset in (0, 3000)]
    read = b"".join(base64.b64decode(part["content"]) for part in parts)
    assert read == (kubectl.root / "content").read_bytes()[: len(read)] and len(read) == packed["size"]
    kubectl.step("absent", path=packed["path"])
    assert not Path(packed["path"]).exists()
    assert "delete namespace gpu-test-jetson-1 --ignore-not-found --timeout=5s" in kubectl.calls
    assert not any("--force" in call for call in kubectl.calls)


def test_files_above_the_limit_are_no_failure_of_the_step(kubectl: Kubectl) -> None:
    (kubectl.root / "uploads").mkdir(mode=0o755)
    packing(kubectl, status=3, files=9)
    packed = kubectl.step("packed")
    assert (packed["too_large"], packed["listing"]["files"]) == (True, 9)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("echo 'container not found' >&2; exit 1", "container not found"),
        ("head -c 40000000 /dev/zero", "the board sent more than"),
    ],
)
def test_files_that_cannot_be_packed_leave_nothing_on_the_server(
    kubectl: Kubectl, answer: str, error: str
) -> None:
    (kubectl.root / "uploads").mkdir(mode=0o755)
    kubectl.answers("exec mine-x", answer)
    with pytest.raises((KubectlError, ValueError), match=error):
        kubectl.step("packed")
    assert list((kubectl.root / "uploads").rglob("results.tar")) == []


def test_pod_of_a_board_that_is_gone_is_not_waited_for(kubectl: Kubectl) -> None:
    kubectl.step("absent", force=True)
    assert "delete pods --all --namespace=gpu-test-jetson-1 --grace-period=0 --force" in kubectl.calls
