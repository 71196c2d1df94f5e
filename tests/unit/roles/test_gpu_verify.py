# SPDX-License-Identifier: Apache-2.0
"""The checks of role gpu_verify against a simulated kubectl, stage by stage as the role calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    gpu_verify_claims,
    gpu_verify_node,
    k3s_kubectl,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_device_query as query
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_pods as pods
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed, Record
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import KubectlError
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_board
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_checks as module
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_verify as filters
from tegra_device_plugin.cli import main as plugin
from tegra_device_plugin.config import settings
from tegra_device_plugin.config.units import PRESETS

from tests.reports.schema import validate
from tests.unit.roles.fake_cluster import FAILED, REFUSED, FakeCluster
from tests.unit.roles.places import ROLES, Data

CATALOGUE = yaml.safe_load((ROLES / "gpu_verify/vars/main.yml").read_text())["__gpu_verify_checks"]
MEMORY_BYTES = 8 << 30
BOARD = {
    "name": "jetson-1",
    "node": "jetson-1",
    "model": "NVIDIA Jetson Orin Nano",
    "module": None,
    "soc": "tegra234",
    "l4t": "36.4.3",
    "jetpack": "6.2",
    "memory_bytes": MEMORY_BYTES,
}
ENGINE = {
    "ServerVersion": "20.10.24",
    "DefaultRuntime": "nvidia",
    "Runtimes": {"nvidia": {"path": "/usr/bin/x"}},
}


DRIVER = "gpu.jetson-k3s.github.io"


@dataclass
class Board(FakeCluster):
    """A board's cluster, with the role's stages run in order against it."""

    lab: bool = False
    engine: Data = field(default_factory=lambda: ENGINE)
    strict: bool = False
    image: str | None = None  # the owner's, with NVIDIA's deviceQuery
    restart_error: str = ""
    results: Data = field(default_factory=dict)

    def but(self, **faults: Any) -> Board:
        vars(self).update(faults)
        return self

    def state(self) -> Any:
        return filters.state_after(self.results, CATALOGUE, "", self.api)

    def stage(self, name: str) -> None:
        """One call of the module; an error of kubectl is the module's failure."""
        known = self.state()
        pod_settings = {"node": "jetson-1", "own_image": self.image, "own_command": ["deviceQuery"]}
        given = {
            "stage": name,
            "checks": filters.of_stage(CATALOGUE, name, known),
            "known": known,
            "pods": {**pod_settings, "api": self.api, "runtime_class": None, "timeout": 5},
            "engine": self.engine,
            "video_group": 44,
            "memory_bytes": MEMORY_BYTES,
            "strict": self.strict,
            "restart_error": self.restart_error,
        }
        params = module.settings(given)
        part = {"started": "2026-11-21T01:00:00.000Z", "checks": [], "gpu": params["gpu"]}
        try:
            module.STAGES[name](pods.Namespace(params), part)
        except (KubectlError, OSError) as error:
            self.results[name] = {"msg": str(error), "fix": getattr(error, "fix", ""), "part": part}
            return
        part["ended"] = "2026-11-21T01:00:01.500Z"
        self.results[name] = {"part": part}

    def report(self, *stages: str) -> Any:
        for name in stages or ("node", "access", "sharing", "close"):
            self.stage(name)
        report = filters.report(
            self.state(),
            CATALOGUE,
            mode="standard",
            board=BOARD,
            software={"k3s": None, "device_plugin": None, "docker": "20.10.24", "default_runtime": "nvidia"},
            simulated=self.lab,
            now="2026-11-21T01:00:00.000Z",
        )
        validate(report)
        return report


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    made.install(monkeypatch)
    return made


def checks(report: Any) -> Data:
    return {check["id"]: check for check in report["checks"]}


def statuses(report: Any) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


def failed(report: Any) -> list[str]:
    return [check["id"] for check in report["checks"] if check["status"] == "failed"]


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("jetson-1.local", "gpu-verify-jetson-1-local"),
        ("a" * 52, "gpu-verify-" + "a" * 52),
        ("a" * 63, "gpu-verify-" + "a" * 43 + "-7d3e74a0"),
    ],
)
def test_namespace_of_a_node_is_no_longer_than_a_name_may_be(node: str, name: str) -> None:
    made = pods.Namespace({"node": node}).name
    assert (made, len(made) <= 63) == (name, True)


def test_good_board_passes_all_checks_but_the_restart(board: Board) -> None:
    report = board.report()
    assert (report["ok"], report["exit_code"], report["failures"]) == (True, 0, [])
    names = {check["id"] for check in CATALOGUE} - {"limits", "node-ready", "time-slicing"}
    restarts = dict.fromkeys(("kubelet-restart", "reboot"), "skipped")
    assert statuses(report) == dict.fromkeys(names, "passed") | restarts
    assert report["simulated"] is False
    assert report["gpu"]["device_nodes"] == ["/dev/nvmap"]
    said = "computed 65536 numbers on Orin in 1.5 ms, all are right"
    assert report["gpu"]["kernel"] == {"said": said, "simulated": False}
    assert report["seconds"] == 1.5
    security = board.manifests["nonroot"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["supplementalGroups"]) == (1000, [44])
    assert report["software"] == {
        "k3s": "v1.33.5+k3s1",
        "container_runtime": "docker://27.5.1",
        "device_plugin": "plugin:1",
        "docker": "20.10.24",
        "default_runtime": "nvidia",
    }


def test_output_of_a_stage_names_its_checks(board: Board) -> None:
    board.plugin = None
    board.stage("node")
    state = board.state()
    said = filters.progress(state, filters.of_stage(CATALOGUE, "node", state)).split("; ")
    assert said[0].startswith("default-runtime passed (0.")
    assert "plugin-registered failed (0.0 s): no pod of the device plugin" in said[1]
    assert said[2].endswith("needs plugin-registered, which failed")


def test_checks_need_earlier_ones() -> None:
    names = [check["id"] for check in CATALOGUE]
    assert len(set(names)) == len(names)
    for position, check in enumerate(CATALOGUE):
        assert set(check["needs"]) <= set(names[:position]), check["id"]
        assert check["fix"] and check["title"] and check["failure"]


def test_pods_name_the_runtime_in_containerd_mode_only() -> None:
    params = {"node": "a", "image": "b", "resource": "nvidia.com/gpu", "share": 1, "api": "device-plugin"}
    assert "runtimeClassName" not in pods.pod("p", params | {"runtime_class": None}, ["x"])["spec"]
    named = pods.pod("p", params | {"runtime_class": "nvidia"}, ["x"])["spec"]
    assert named["runtimeClassName"] == "nvidia"


Units = Callable[[str], None]


@pytest.fixture
def configure(board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Units:
    def offer(units: str) -> None:
        config = tmp_path / "config.yaml"
        config.write_text(f"version: v1\nsharing: {{units: {{{units}}}}}\n")
        assert plugin(["config", "check", str(config)]) == 0
        configured = settings.load_plugin(config, {}, {}).units
        assert configured
        board.allocate_units(
            capsys.readouterr().out,
            configured.memory.name,
            configured.memory_ids,
            configured.memory_total >> 20,
            configured.context_overhead >> 20,
        )

    return offer


@pytest.mark.parametrize("preset", PRESETS)
def test_memory_units_are_tried_with_two_pods(preset: str, board: Board, configure: Units) -> None:
    configure(f"preset: {preset}, memoryTotal: 5Gi")
    board.memory_bytes = 5 << 29
    report = board.report()
    assert report["failures"] == []
    assert report["gpu"]["resource"] == board.resource
    assert (report["gpu"]["replicas"], report["gpu"]["limited"]) == (2, True)
    assert report["gpu"]["memory_bytes"] == 5 << 30
    share = 2 << 10 if board.allocatable == 5 else 5 << 9
    neighbour, greedy, runs = checks(report)["limits"]["evidence"]
    assert f"neighbour: allocated {share * 3 // 4} of {share * 3 // 4} MiB" in neighbour
    assert f"greedy, whose share is {share} MiB: allocated {share} of {2 * share} MiB" in greedy
    assert runs == "neighbour still runs"
    shared = checks(report)["time-slicing"]["evidence"][1]
    assert f"pod1, pod2 ran at the same instant, pod3 was Pending (Insufficient {board.resource})" in shared
    assert "its own share" in checks(report)["unified-memory"]["evidence"][-1]


def test_single_unit_is_exclusive(board: Board, configure: Units) -> None:
    configure("preset: qgpu, memoryTotal: 1Gi")
    assert statuses(board.report())["concurrency"] == "passed"


LIMITED = "memoryTotal: 2Gi"  # a share is 1024 MiB
NO_DRIVER = "tegra-device-plugin: no CUDA driver in this container"
# A fault of a board with memory in units, and words of the reason why `limits` fails.
GREED = [
    ({"unlimited": True}, "greedy got 2048 MiB, expected at most its share of 1024 MiB"),
    ({"free_mib": {"greedy": 767}}, "greedy was out of memory at 752 MiB, expected about its share of 1024"),
    ({"free_mib": {"neighbour": 767}}, "neighbour got 752 MiB, expected the requested 768 MiB of its share"),
    ({"fatal_greed": True}, "neighbour does not run any more since greedy was out of memory"),
    (
        {"dies_saying": {"neighbour": f"warning\n{NO_DRIVER}\n"}},
        f'neighbour could not allocate (Failed): it says: "{NO_DRIVER}"',
    ),
    ({"dies_saying": {"greedy": ""}}, "greedy could not allocate (Failed): it says nothing"),
    ({"mute": "greedy"}, "greedy could not allocate (Running): it says nothing"),
]


@pytest.mark.parametrize(("fault", "words"), GREED)
def test_missing_or_wrong_memory_limit_fails(board: Board, configure: Units, fault: Data, words: str) -> None:
    configure(LIMITED)
    report = board.but(**fault).report("node", "access", "sharing")
    assert failed(report) == ["limits"]
    assert words in checks(report)["limits"]["reason"]
    assert board.pods == {}


def test_program_that_does_not_start_fails(board: Board, configure: Units) -> None:
    configure(LIMITED)
    board.stage("node")
    board.stage("access")
    board.refuses = "ErrImageNeverPull"
    check = checks(board.report("sharing"))["limits"]
    assert check["status"] == "failed"
    assert f"neighbour does not start: Pending: ErrImageNeverPull; Failed: {REFUSED}" in check["reason"]


@pytest.mark.parametrize(("free", "status"), [(1024 - 300, "passed"), (500, "failed")])
def test_memory_of_contexts_is_left_out(board: Board, configure: Units, free: int, status: str) -> None:
    configure(f"{LIMITED}, contextOverhead: 300Mi")
    board.free_mib = {"greedy": free}
    report = board.report()
    assert report["gpu"]["context_bytes"] == 300 << 20
    assert checks(report)["limits"]["status"] == status


@pytest.mark.parametrize(
    ("units", "half"),
    [
        ("memoryTotal: 1Gi, memoryUnit: 1Gi", 0),
        ("preset: hami, memoryTotal: 100Mi", 50),
        ("memoryTotal: 1Gi, contextOverhead: 600Mi", 0),
    ],
)
def test_small_shares_are_not_tried(board: Board, configure: Units, units: str, half: int) -> None:
    configure(units)
    check = checks(board.report())["limits"]
    assert check["status"] == "skipped"
    assert check["reason"].endswith(f"64 MiB or more each, and half of the offered memory is {half} MiB")
    assert "neighbour" not in board.manifests


# A broken board, the check that must fail, and words of its reason.
BROKEN = [
    (
        {"engine": {**ENGINE, "DefaultRuntime": "runc"}},
        "default-runtime",
        "Docker's default runtime is runc, not nvidia",
    ),
    ({"engine": {"error": "permission denied"}}, "default-runtime", "permission denied"),
    ({"plugin": None}, "plugin-registered", "no pod of the device plugin"),
    ({"plugin": "broken"}, "plugin-registered", "is not Ready"),
    ({"ready": False}, "plugin-registered", "node jetson-1 is not Ready: kubelet"),
    ({"capacity": 0, "allocatable": 0}, "plugin-registered", "knows no nvidia.com/gpu"),
    ({"allocatable": 0}, "allocatable", "offers no nvidia.com/gpu to pods, not 1, the plugin says: hung"),
    ({"allocatable": 2}, "allocatable", "offers 2 nvidia.com/gpu to pods, not 1"),
    ({"query": "failed"}, "device-query", "CUDA error 100: no CUDA-capable device is detected"),
    ({"refuses": "RunContainerError"}, "device-query", "RunContainerError; Failed: unsupported device id: X"),
    ({"refuses": "ContainerCannotRun"}, "device-query", "ContainerCannotRun: unsupported device id: X"),
    ({"refuses": "ContainerCreating"}, "device-query", "ContainerCreating; Failed: unsupported device id: X"),
    ({"detected": 0}, "device-query", "did not pass"),
    (
        {"wrong": True},
        "cuda-kernel",
        'compute on the GPU (Failed): it says: "tegra-device-plugin: 7 of 65536 numbers came back wrong',
    ),
    ({"root_only": True}, "non-root", "CUDA error 100"),
    (
        {"user_nodes": "node /dev/nvmap 0:44 660 \nnode /dev/fb0 0:44 660 Operation not permitted"},
        "non-root",
        "the container's device rules refuse nodes of the group video: /dev/fb0",
    ),
    ({"blind": True}, "uninvited", "did not list its devices"),
    ({"exclusive": False}, "concurrency", "pod2 was not Pending although pod1 had every GPU"),
    ({"holders_end": True}, "concurrency", "pod1 ended before pod2 was seen waiting"),
    ({"nodes": "/dev/null"}, "concurrency", "no GPU device node is inside"),
    ({"integrated": "No"}, "unified-memory", "CUDA reports no integrated GPU"),
    ({"memory_bytes": MEMORY_BYTES // 2}, "unified-memory", "of the board's 8192 MiB"),
]


@pytest.mark.parametrize(("fault", "failing", "words"), BROKEN)
def test_fault_of_a_board_fails_one_check(board: Board, fault: Data, failing: str, words: str) -> None:
    report = board.but(**fault).report()
    assert failed(report) == [failing]
    check = checks(report)[failing]
    assert words in check["reason"]
    known = next(one for one in CATALOGUE if one["id"] == failing)
    assert {key: check[key] for key in ("failure", "fix")} == {key: known[key] for key in ("failure", "fix")}
    assert check["url"] == page(f"docs/troubleshooting.md#{failing}")
    assert any(source["source"] == "node jetson-1" for source in check["diagnosis"])
    assert (report["ok"], report["exit_code"]) == (False, 1)
    assert report["failures"] == [f"{failing}: {check['reason']}"]
    assert (board.namespaces, board.pods) == (set(), {})


@pytest.mark.parametrize(("ending", "ok"), [({"deletionTimestamp": "2026"}, True), ({"name": "a"}, False)])
def test_stuck_namespace_is_no_failure(board: Board, ending: dict[str, str], ok: bool) -> None:
    board.report("node", "access", "sharing")
    report = board.but(ending=ending).report("close")
    assert report["ok"] is ok
    assert board.pods == {}


@pytest.mark.parametrize("fault", [{"ready": None}, {"late": True}])
def test_restarted_kubelet_is_waited_for(board: Board, fault: Data) -> None:
    found = statuses(board.but(**fault).report())
    assert (found["plugin-registered"], found["allocatable"]) == ("passed", "passed")


def test_check_is_skipped_after_a_failed_one(board: Board) -> None:
    board.plugin = None
    report = checks(board.report())
    assert report["allocatable"]["reason"] == "needs plugin-registered, which failed"
    assert report["device-query"]["reason"] == "needs plugin-registered, which failed"
    assert report["concurrency"]["reason"] == "needs cuda-kernel, which was skipped"


@pytest.mark.parametrize(("strict", "status"), [(False, "passed"), (True, "failed")])
def test_gpu_without_request_fails_in_strict_mode(board: Board, strict: bool, status: str) -> None:
    board.uninvited_nodes = "/dev/nvhost-gpu\n/dev/nvmap"
    board.strict = strict
    check = checks(board.report())["uninvited"]
    assert check["status"] == status
    assert "has 2 GPU device nodes: /dev/nvhost-gpu, /dev/nvmap" in check["evidence"][0]
    assert "resources" not in board.manifests["uninvited"]["spec"]["containers"][0]


@pytest.mark.parametrize("root_only", [False, True])
def test_closed_device_nodes_are_named(board: Board, root_only: bool) -> None:
    board.root_only = root_only
    board.user_nodes = "\n".join(
        (
            "node /dev/tty 0:5 666 No such device or address",
            "node /dev/nvmap 0:44 660 ",
            "node /dev/dri/renderD128 0:108 660 Permission denied",
            "node /dev/tegra_dc_0 0:44 660 Device or resource busy",
            "node /dev/nvgpu/igpu0/dbg 0:999 660 Operation not permitted",
        )
    )
    check = checks(board.report())["non-root"]
    assert check["status"] == ("failed" if root_only else "passed")
    assert check["evidence"][:4] == [
        "opens 1 of 4 device nodes",
        "closed to this user: /dev/dri/renderD128 (owner 0, group 108, mode 660): Permission denied",
        "closed to this user: /dev/tegra_dc_0 (owner 0, group 44, mode 660): Device or resource busy",
        "closed to this user: /dev/nvgpu/igpu0/dbg (owner 0, group 999, mode 660): Operation not permitted",
    ]
    assert board.manifests["nonroot"]["spec"]["securityContext"]["supplementalGroups"] == [44]


@pytest.mark.parametrize(
    ("nodes", "fix"),
    [
        (
            "node /dev/dri/renderD128 0:993 660 Permission denied\nnode /dev/nvmap 0:44 660 ",
            "/dev/dri/renderD128 belong to the group 993: list it in the pod, `supplementalGroups: [44, 993]",
        ),
        (
            "node /dev/nvmap 0:0 600 Permission denied",
            "/dev/nvmap (mode 600) are for 0:0 alone: give them to the group 44 (video) with the mode 660",
        ),
        ("node /dev/nvmap 0:44 660 ", "The evidence names each closed device node"),
    ],
)
def test_fix_for_a_user_who_is_not_root_has_the_groups_of_the_nodes(
    board: Board, nodes: str, fix: str
) -> None:
    check = checks(board.but(root_only=True, user_nodes=nodes).report())["non-root"]
    assert check["status"] == "failed"
    assert check["fix"].startswith(fix)


FULL = ("node", "access", "sharing", "before_restart", "restarted", "close")


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ({}, "failed", "did not register again"),
        ({"registers_again": True, "restarts_holder": True}, "failed", "was restarted"),
        ({"restart_error": "Unit k3s.service not found"}, "error", "Unit k3s.service not found"),
    ],
)
def test_disturbing_restart_fails(board: Board, fault: Data, status: str, words: str) -> None:
    check = checks(board.but(**fault).report(*FULL))["kubelet-restart"]
    assert (check["status"], words in check["reason"]) == (status, True), check["reason"]
    # The holder runs on beside pods that have ended, and must not outlive the namespace.
    assert board.orphaned == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"users": ["thief"]}, "expected one pod with the GPU, found default/thief, default/holder"),
        ({"allocatable": 0}, "the node does not offer it again"),
        ({"holder_phase": "Failed"}, "does not run any more: Failed"),
        (
            {"taken_away": True},
            'holder cannot compute on the GPU any more: it says: "kubectl exec: tegra-device',
        ),
        ({"mute": "holder"}, "holder cannot compute on the GPU any more: it says nothing"),
        ({"failing_exec": 99}, "holder cannot compute on the GPU any more"),
        ({"exclusive": False}, "waiter was not Pending although holder had every GPU"),
    ],
)
def test_wrong_state_after_the_restart_fails(board: Board, fault: Data, words: str) -> None:
    board.registers_again = True
    board.report(*FULL[:4])
    check = checks(board.but(**fault).report("restarted", "close"))["kubelet-restart"]
    assert (check["status"], words in check["reason"]) == ("failed", True), check["reason"]


def test_connection_to_a_restarted_kubelet_is_retried(board: Board) -> None:
    board.registers_again, board.failing_exec = True, 2
    check = checks(board.report(*FULL))["kubelet-restart"]
    assert check["status"] == "passed", check["reason"]
    assert "a new process in it, after the restart: computed 65536 numbers" in check["evidence"][1]


REBOOT = (*FULL, "before_reboot", "rebooted", "close")
# A kubelet's words (1.36, pkg/kubelet/cm/devicemanager/manager.go).
REFUSAL = (
    "Allocate failed due to no healthy devices present; "
    "cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"
)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ({}, "passed", ""),
        ({"refuses_after_boot": REFUSAL}, "failed", f"UnexpectedAdmissionError: {REFUSAL}"),
        ({"boots": 0}, "failed", "survivor running again did not happen (Running)"),
        ({"restart_error": "Timed out waiting"}, "error", "the board was not rebooted: Timed out"),
    ],
)
def test_pod_comes_back_after_a_reboot(board: Board, fault: Data, status: str, words: str) -> None:
    board.registers_again = True
    board.report(*REBOOT[:-2])
    assert board.manifests["survivor"]["spec"]["restartPolicy"] == "Always"
    report = board.but(**{"boots": 1, **fault}).report(*REBOOT[-2:])
    check = checks(report)["reboot"]
    assert (check["status"], words in check["reason"]) == (status, True), check["reason"]
    assert board.pods == {} and board.namespaces == set()
    if status == "passed":
        told = [event["event"] for event in check["events"]]
        assert told.index("survivor Running") < told.index("the board was rebooted")
        assert "the kubelet refused nothing: the same pod runs again" in check["evidence"][0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"users": ["train"]}, "the GPU is in use by default/train"),
        ({"wrong": True}, "needs cuda-kernel, which failed"),
    ],
)
def test_board_in_use_or_broken_is_not_rebooted(board: Board, fault: Data, reason: str) -> None:
    report = board.but(**fault).report("node", "access", "sharing", "close", "before_reboot", "close")
    assert board.state()["before_reboot"] is None
    assert (checks(report)["reboot"]["status"], checks(report)["reboot"]["reason"]) == ("skipped", reason)
    assert "survivor" not in board.manifests


@pytest.mark.parametrize(
    ("owners", "image", "word"), [(None, "plugin:1", "device-query"), ("dq:1", "dq:1", "deviceQuery")]
)
def test_image_of_device_query_may_be_the_owners(
    board: Board, owners: str | None, image: str, word: str
) -> None:
    assert board.but(image=owners).report()["ok"]
    (container,) = board.manifests["devicequery"]["spec"]["containers"]
    assert (container["image"], container["command"][-1]) == (image, word)
    for name in ("nonroot", "uninvited"):
        (container,) = board.manifests[name]["spec"]["containers"]
        assert container["image"] == "plugin:1"


def test_restarted_plugin_registers_once(board: Board) -> None:
    board.report(*FULL[:4])
    board.plugin_container = "docker://another"
    check = checks(board.report("restarted", "close"))["kubelet-restart"]
    assert check["status"] == "passed", check["reason"]


def test_lab_is_always_simulated(board: Board) -> None:
    board.lab = True
    assert board.report("node")["simulated"] is True


def test_error_of_a_stage_is_no_failed_check(board: Board) -> None:
    board.results["node"] = {"unreachable": True, "msg": "Failed to connect to the host via ssh"}
    report = board.report("access", "sharing", "close")
    assert report["exit_code"] == 2
    assert checks(report)["default-runtime"]["reason"] == "Failed to connect to the host via ssh"
    assert checks(report)["concurrency"]["status"] == "skipped"
    report = board.but(results={}, engine={"unasked": "ssh: connect to host jetson-1 port 22"}).report()
    assert (checks(report)["default-runtime"]["status"], report["exit_code"]) == ("error", 2)


def test_cluster_that_does_not_answer_is_not_verified(board: Board) -> None:
    board.silent = True
    report = board.report()
    assert (report["ok"], report["exit_code"]) == (False, 2)
    assert report["failures"] == ["default-runtime: connection refused"]
    assert [name for name, status in statuses(report).items() if status != "skipped"] == ["default-runtime"]
    assert (
        checks(report)["plugin-registered"]["reason"] == "not tried, for the same reason as default-runtime"
    )


@pytest.mark.parametrize("api", ["device-plugin", "dra"])
def test_board_without_k3s_is_one_finding_with_its_fix(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    monkeypatch.setattr(k3s_kubectl, "K3S", "/nonexistent/k3s")
    report = Board(api=api).report()
    (failure,) = report["failures"]
    assert "K3s is not on" in failure
    assert (report["exit_code"], "Errno" in json.dumps(report)) == (2, False)
    (found,) = [check for check in report["checks"] if check["status"] != "skipped"]
    assert (found["status"], found["fix"]) == ("error", "Run playbooks/site.yml: it installs K3s.")


def test_remaining_pods_are_an_error(board: Board) -> None:
    board.report("node", "access", "sharing")
    board.silent = True
    report = board.report("close")
    assert (report["ok"], report["exit_code"]) == (False, 2)
    assert report["failures"] == ["cleaning up: connection refused"]


def test_gpu_device_nodes_are_recognized() -> None:
    others = ["/dev/null", "/dev/nvme0", "/dev/tty", "ready"]
    nodes = ["/dev/nvgpu/igpu0/as", "/dev/nvhost-ctrl-gpu", "/dev/nvidia0", "/dev/nvmap"]
    assert pods.gpu_nodes("\n".join(others + nodes[::-1])) == nodes


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", True),
        ("0/1 nodes are available: 1 Insufficient cpu.", False),
    ],
)
def test_refusal_names_the_resource(message: str, expected: bool) -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "message": message}
    item = {"status": {"phase": "Pending", "conditions": [scheduled]}}
    assert pods.refused("Insufficient nvidia.com/gpu")(item) is expected


@pytest.mark.parametrize(
    ("phase", "limits", "count"),
    [("Running", {"nvidia.com/gpu": "1"}, 1), ("Succeeded", {"nvidia.com/gpu": "1"}, 0), ("Running", {}, 0)],
)
def test_finished_pods_use_no_gpu(phase: str, limits: dict[str, str], count: int) -> None:
    item = {"status": {"phase": phase}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    assert pods.requested(item, "nvidia.com/gpu") == count


@pytest.mark.parametrize(("sharing", "limited"), [("exclusive", False), ("capacity", True)])
def test_driver_is_registered_with_the_devices_of_its_slice(
    monkeypatch: pytest.MonkeyPatch, sharing: str, limited: bool
) -> None:
    devices: list[Data] = [{"name": "igpu-0", "attributes": {"sharing": {"string": sharing}}}]
    monkeypatch.setattr(gpu_verify_node, "plugin_ready", lambda *_: None)
    monkeypatch.setattr(gpu_verify_claims, "wait_for_devices", lambda *_: devices)
    params, gpu = {"node": "jetson-1", "timeout": 1}, Data()
    record = Record({"id": "registered", "title": "Registered"})
    gpu_verify_node.driver_registered(params, gpu, record)
    assert (gpu["devices"], gpu["limited"]) == (1, limited)
    assert record.entry["evidence"] == ["ResourceSlice of gpu.jetson-k3s.github.io: igpu-0"]
    monkeypatch.setattr(gpu_verify_claims, "devices", lambda _: devices)
    devices[0]["taints"] = [{"key": "example.com/unhealthy", "value": "hung", "effect": "NoSchedule"}]
    with pytest.raises(CheckFailed, match=r"igpu-0: .*hung \(NoSchedule\)"):
        gpu_verify_node.devices_offered(params, gpu, record)
    devices.clear()
    with pytest.raises(CheckFailed, match="jetson-1 has no ResourceSlice of gpu"):
        gpu_verify_node.driver_registered(params, gpu, record)


def test_docker_info_with_an_error_is_no_engine() -> None:
    engine = gpu_board.engine
    assert engine(1, '{"ServerErrors": ["Cannot connect to the Docker daemon"]}', "") == {
        "error": "Cannot connect to the Docker daemon"
    }
    assert engine(1, "", "permission denied\n") == {"error": "permission denied"}
    assert engine(0, '{"ServerVersion": "20.10", "DefaultRuntime": "runc", "Images": 3}', "") == {
        "ServerVersion": "20.10",
        "DefaultRuntime": "runc",
        "Runtimes": None,
    }


# Of NVIDIA's sample; the lines between tell nothing that is read.
OUTPUT = """\
Detected 1 CUDA Capable device(s)

Device 0: "{}"
  CUDA Capability Major/Minor version number:    {}
  Total amount of global memory:                 {} MBytes ({} bytes)
  {} Multiprocessors, ({}) CUDA Cores/MP:     128 CUDA Cores
  Integrated GPU sharing Host Memory:            Yes

Result = PASS
"""


@pytest.mark.parametrize(
    ("device", "capability", "mebibytes", "processors", "cores"),
    [
        ("NVIDIA Tegra X1", "5.3", 3956, "( 1)", "128"),  # CUDA 10 pads with blanks
        ("Xavier", "7.2", 7764, "(006)", "064"),
        ("NVIDIA Thor", "11.0", 125517, "(020)", "128"),
    ],
)
def test_output_of_device_query_is_read(
    device: str, capability: str, mebibytes: int, processors: str, cores: str
) -> None:
    text = OUTPUT.format(device, capability, mebibytes, mebibytes << 20, processors, cores)
    assert query.parse(text) == {
        "result": "PASS",
        "detected": 1,
        "device": device,
        "compute_capability": capability,
        "multiprocessors": int(processors.strip("()")),
        "cores_per_multiprocessor": int(cores),
        "memory_bytes": mebibytes << 20,
        "integrated": True,
        "simulated": False,
    }
    assert query.parse("SIMULATED deviceQuery\n" + text)["simulated"] is True


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FAILED, "CUDA error 100: no CUDA-capable device is detected"),
        (
            'checkCudaErrors() Driver API error = 0100 "no CUDA-capable device is detected" from file <a>',
            "CUDA error 100: no CUDA-capable device is detected",
        ),
        ("sh: deviceQuery: not found\n", "its output ends with 'sh: deviceQuery: not found'"),
    ],
)
def test_failure_is_reported_in_the_words_of_cuda(text: str, complaint: str) -> None:
    assert query.parse(text)["result"] != "PASS"
    assert query.complaint(text) == complaint


@pytest.fixture
def claiming(board: Board) -> Board:
    """A board whose GPU is offered by the DRA driver; Docker's default runtime does not matter."""
    return board.but(api="dra", registers_again=True, engine={"unasked": "no Docker here"})


def test_board_passes_by_claims(claiming: Board) -> None:
    report = claiming.report()
    assert report["failures"] == []
    assert "default-runtime" not in statuses(report)
    assert (report["gpu"]["resource"], report["gpu"]["allocatable"]) == (DRIVER, 1)
    proof = checks(report)["concurrency"]["evidence"]
    assert any("cannot allocate all claims" in line for line in proof)


def test_pods_have_claims_and_name_no_runtime(claiming: Board) -> None:
    claiming.report()
    spec = claiming.manifests["pod1"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu-1"}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert "runtimeClassName" not in spec
    uninvited = claiming.manifests["uninvited"]["spec"]
    assert "resourceClaims" not in uninvited
    assert "resources" not in uninvited["containers"][0]


@pytest.mark.parametrize(
    ("fault", "failing", "words"),
    [
        ({"capacity": 0}, "plugin-registered", f"jetson-1 has no ResourceSlice of {DRIVER}"),
        ({"taint": "hung"}, "allocatable", "hung (NoSchedule)"),
    ],
)
def test_fault_of_a_board_with_claims_fails_one_check(
    claiming: Board, fault: Data, failing: str, words: str
) -> None:
    report = claiming.but(**fault).report()
    assert failed(report) == [failing]
    assert words in checks(report)[failing]["reason"]


def test_pod_with_a_claim_is_not_disturbed(claiming: Board) -> None:
    check = checks(claiming.but(users=["train"]).report())["device-query"]
    assert check["status"] == "skipped"
    assert "the GPU is in use by default/train" in check["reason"]


def test_claim_outlives_the_kubelet(claiming: Board) -> None:
    claiming.report(*REBOOT[:-2])
    report = claiming.but(boots=1).report(*REBOOT[-2:])
    assert statuses(report)["kubelet-restart"] == "passed", report["failures"]
    assert statuses(report)["reboot"] == "passed", report["failures"]
    assert "the DRA driver has registered again" in str(checks(report)["kubelet-restart"]["events"])
