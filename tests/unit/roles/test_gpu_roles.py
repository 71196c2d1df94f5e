# SPDX-License-Identifier: Apache-2.0
"""The rendered manifest, and the judgement of the scene's pods."""

import json
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import ROLES, Load

RESOURCE = "nvidia.com/gpu"
PASSED = """\
Detected 1 CUDA Capable device(s)

Device 0: "Orin"
  CUDA Capability Major/Minor version number:    8.7
  (016) Multiprocessors, (128) CUDA Cores/MP:    2048 CUDA Cores
Result = PASS
"""
FAILED = "cudaGetDeviceCount returned 100\n-> no CUDA-capable device is detected\nResult = FAIL\n"


@pytest.fixture
def scene(load: Load) -> ModuleType:
    return load("gpu_verify/library/gpu_scene.py")


def test_daemonset_gets_image_and_its_id_and_is_never_pulled(load: Load) -> None:
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    daemonset = next(
        document
        for document in map(
            json.loads, render(plain, "plugin:9", "sha256:ab", "docker", False).split("---\n")[1:]
        )
        if document["kind"] == "DaemonSet"
    )
    template = daemonset["spec"]["template"]
    assert {container["image"] for container in template["spec"]["containers"]} == {"plugin:9"}
    assert {container["imagePullPolicy"] for container in template["spec"]["containers"]} == {"Never"}
    assert template["metadata"]["annotations"]["jetson-k3s.github.io/image-id"] == "sha256:ab"
    # Docker mode: K3s refuses any runtimeClassName there.
    assert "runtimeClassName" not in template["spec"]


def rendered(load: Load, container_runtime: str, strict: bool) -> dict[str, dict[str, Any]]:
    """Rendered objects by kind."""
    plain = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
    render = load("gpu_device_plugin/filter_plugins/gpu_device_plugin.py").rendered
    texts = render(plain, "plugin:9", "sha256:ab", container_runtime, strict).split("---\n")[1:]
    return {document["kind"]: document for document in map(json.loads, texts)}


def test_containerd_gets_the_runtime_class_that_docker_has_not(load: Load) -> None:
    assert set(rendered(load, "docker", False)) == {"DaemonSet"}
    assert rendered(load, "containerd", False)["RuntimeClass"]["handler"] == "nvidia"


def test_strict_mode_hands_out_volume_mounts(load: Load) -> None:
    def arguments(strict: bool) -> list[str]:
        spec = rendered(load, "docker", strict)["DaemonSet"]["spec"]["template"]["spec"]
        found: list[str] = spec["containers"][0]["args"]
        return found

    assert set(arguments(True)) - set(arguments(False)) == {"--device-list-strategy=volume-mounts"}


def test_pods_name_the_runtime_in_containerd_mode_only(scene: ModuleType) -> None:
    params = {"node": "a", "image": "b", "resource": RESOURCE, "runtime_class": None}
    assert "runtimeClassName" not in scene.pod("p", params, ["x"])["spec"]
    assert (
        scene.pod("p", {**params, "runtime_class": "nvidia"}, ["x"])["spec"]["runtimeClassName"] == "nvidia"
    )


@pytest.mark.parametrize(
    ("text", "result", "device", "multiprocessors"),
    [(PASSED, "PASS", "Orin", 16), (FAILED, "FAIL", None, None), ("", None, None, None)],
)
def test_device_query_is_read(
    scene: ModuleType, text: str, result: str | None, device: str | None, multiprocessors: int | None
) -> None:
    found = scene.parse_device_query(text)
    assert (found["result"], found["device"], found["multiprocessors"]) == (result, device, multiprocessors)
    assert found["simulated"] is False


def test_simulated_output_is_marked(scene: ModuleType) -> None:
    assert scene.parse_device_query(PASSED + "SIMULATED board\n")["simulated"] is True


def test_gpu_nodes_are_told_from_other_devices(scene: ModuleType) -> None:
    others = ["/dev/null", "/dev/nvme0", "/dev/tty", "ready"]
    nodes = ["/dev/nvgpu/igpu0/as", "/dev/nvhost-ctrl-gpu", "/dev/nvidia0", "/dev/nvmap"]
    assert scene.gpu_nodes("\n".join(others + nodes[::-1])) == nodes


def unschedulable(message: str) -> dict[str, Any]:
    return {
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": message}],
        }
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), True),
        (unschedulable("0/1 nodes are available: 1 Insufficient cpu."), False),
        ({"status": {"phase": "Pending"}}, False),
        ({"status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}}, False),
    ],
)
def test_only_the_schedulers_word_about_this_resource_is_a_refusal(
    scene: ModuleType, item: dict[str, Any], expected: bool
) -> None:
    assert scene.refused(RESOURCE)(item) is expected


@pytest.mark.parametrize(
    ("phase", "limits", "count"),
    [
        ("Running", {RESOURCE: "1"}, 1),
        ("Pending", {RESOURCE: "2"}, 2),
        ("Succeeded", {RESOURCE: "1"}, 0),
        ("Running", {}, 0),
    ],
)
def test_finished_pods_hold_nothing(
    scene: ModuleType, phase: str, limits: dict[str, str], count: int
) -> None:
    item = {"status": {"phase": phase}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    assert scene.requested(item, RESOURCE) == count


def test_why_names_the_waiting_containers_reason(scene: ModuleType) -> None:
    item = {
        "status": {
            "phase": "Pending",
            "containerStatuses": [
                {"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}}
            ],
        }
    }
    assert scene.why(item) == "Pending: ErrImageNeverPull: not there"


class FakeCluster:
    """Answers of kubectl: a scheduler with one GPU that may be broken."""

    def __init__(
        self,
        *,
        exclusive: bool = True,
        log: str = "/dev/nvmap\nready\n",
        allocatable: int = 1,
        uninvited_log: str = "",
    ) -> None:
        self.uninvited_log = uninvited_log
        self.manifests: dict[str, Any] = {}
        self.exclusive, self.log, self.allocatable = exclusive, log, allocatable
        self.pods: dict[str, str] = {}
        self.namespaces: set[str] = set()
        self.users: list[dict[str, Any]] = []

    def run(self, *argv: str, stdin: str = "", accept: tuple[int, ...] = (0,)) -> str:
        match argv:
            case ("create", "namespace", name):
                self.namespaces.add(name)
            case ("delete", "namespace", name, *_):
                self.namespaces.discard(name)
            case ("create", *_):
                manifest = json.loads(stdin)
                self.manifests[manifest["metadata"]["name"]] = manifest
                self.pods[manifest["metadata"]["name"]] = "new"
            case ("exec", name, *_):
                self.pods[name] = "ended"
            case ("delete", "pod", name, *_):
                del self.pods[name]
            case ("logs", "uninvited", *_):
                return self.uninvited_log
            case ("logs", "devicequery", *_):
                return PASSED
            case ("logs", *_):
                return self.log
        return ""

    def get(self, kind: str, *argv: str) -> dict[str, Any]:
        if kind == "node":
            return {"status": {"allocatable": {RESOURCE: str(self.allocatable)}}}
        return {"items": self.users} if kind == "pods" else self.pod(argv[0])

    def wait_until(self, satisfied: Any, what: str, _timeout: int, *argv: str) -> dict[str, Any]:
        _, kind, name = argv
        item = self.pod(name) if kind == "pod" else {}
        assert satisfied(item), f"would wait for ever: {what}"
        return item

    def pod(self, name: str) -> dict[str, Any]:
        if name in ("devicequery", "uninvited"):
            return {"status": {"phase": "Succeeded"}}
        if self.pods[name] == "ended":
            return {"status": {"phase": "Succeeded"}}
        holders = [other for other, state in self.pods.items() if state == "running" and other != name]
        if self.exclusive and len(holders) >= self.allocatable:
            return unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
        self.pods[name] = "running"
        return {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def play(
    scene: ModuleType, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, strict: bool = False
) -> dict[str, Any]:
    for name in ("run", "get", "wait_until"):
        monkeypatch.setattr(scene, name, getattr(cluster, name))
    params = {
        "node": "jetson-1",
        "image": "dq:1",
        "command": ["deviceQuery"],
        "resource": RESOURCE,
        "runtime_class": None,
        "strict": strict,
        "timeout": 5,
    }
    played = scene.Scene(params)
    try:
        played.play()
    finally:
        played.close()
    report: dict[str, Any] = played.report
    return report


@pytest.mark.parametrize("allocatable", [1, 2])
def test_scene_is_played_with_one_pod_more_than_gpus(
    scene: ModuleType, monkeypatch: pytest.MonkeyPatch, allocatable: int
) -> None:
    cluster = FakeCluster(allocatable=allocatable)
    events = [event["event"] for event in play(scene, cluster, monkeypatch)["scene"]]
    waiter = f"pod{allocatable + 1}"
    pending = next(index for index, event in enumerate(events) if event.startswith(f"{waiter} Pending"))
    assert (
        events.index("pod1 Running")
        < pending
        < events.index("pod1 ended: Succeeded")
        < events.index(f"{waiter} Running")
    )
    assert cluster.namespaces == set()


def test_strict_mode_is_proven_by_a_pod_that_has_not_asked(
    scene: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(uninvited_log="/dev/null\nready\n")
    report = play(scene, cluster, monkeypatch, strict=True)
    assert report["uninvited_device_nodes"] == []
    assert "resources" not in cluster.manifests["uninvited"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("log", "words"), [("/dev/nvmap\nready\n", "strict mode is not in force"), ("", "could not look")]
)
def test_strict_mode_without_effect_fails_the_board(
    scene: ModuleType, monkeypatch: pytest.MonkeyPatch, log: str, words: str
) -> None:
    with pytest.raises(scene.SceneError, match=words):
        play(scene, FakeCluster(uninvited_log=log), monkeypatch, strict=True)


def test_second_pod_that_need_not_wait_fails_the_board(
    scene: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(scene.SceneError, match="pod2 did not have to wait"):
        play(scene, FakeCluster(exclusive=False), monkeypatch)


def test_pod_without_device_nodes_fails_the_board(scene: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(scene.SceneError, match="no GPU device node"):
        play(scene, FakeCluster(log="/dev/null\nready\n"), monkeypatch)


def test_node_without_gpu_fails(scene: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(scene.SceneError, match=r"offers no nvidia\.com/gpu"):
        play(scene, FakeCluster(allocatable=0), monkeypatch)


def test_gpu_in_use_is_left_to_its_user(scene: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    cluster.users = [
        {
            "metadata": {"namespace": "default", "name": "train"},
            "status": {"phase": "Running"},
            "spec": {"containers": [{"resources": {"limits": {RESOURCE: "1"}}}]},
        }
    ]
    report = play(scene, cluster, monkeypatch)
    assert report["in_use_by"] == ["default/train"]
    assert "device_query" not in report
