# SPDX-License-Identifier: Apache-2.0
"""Release 0.1.0 makes a cluster, this checkout upgrades it, and is rolled back and upgraded again.

Pods with a share of the GPU run through all of it. Both revisions have a checkout, an environment, a bundle
and an image of their own. docs/upgrade.md has the steps.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.acceptance import site
from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.playbook import PlaybookRun, cluster_status, reports_dir, run_playbook
from tests.docs import commands, markdown
from tests.lab import bundle, inventory, lab_dir
from tests.lab.board import Board, set_toolkit
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.worktree import RELEASE_0_1_0, skip_without, worktree
from tools.cache import CHECKOUT
from tools.process import run, step

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "own-upgrade"
NAMES = ("jetson-1", "jetson-2")
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
NEXT_TAG = "0.2.0"
SETTINGS = {
    # The toolkit of JetPack 6 ignores strict mode, so each board has a newer one.
    "nvidia_docker_strict": True,
    "gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}},
}
HOLDERS = tuple(f"holder-{name}" for name in NAMES)
HOLDERS_LINE = f"40 {CORE}, 2 {MEMORY}, weight 40 %, limit 512 MiB, used 512 MiB"
LATER, LATER_LINE = "later", f"10 {CORE}, 1 {MEMORY}, weight 10 %, limit 256 MiB, used 256 MiB"
POD_SECONDS = 90
# The verification is a part of one run.
QUICK = "--skip-tags=gpu_verify"


@pytest.fixture(scope="module")
def release() -> Iterator[Path]:
    """A checkout of 0.1.0, with the environment and the image that it makes itself."""
    skip_without(RELEASE_0_1_0)
    with worktree(RELEASE_0_1_0) as tree:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with step("making the environment and the image of 0.1.0"):
            for what in ("ansible", "image"):
                run(["sh", "tools/bootstrap.sh", what], cwd=tree, env=environment, timeout=None)
            build = [".venv/bin/python", "-m", "images.arm64.build", f"--only={ARCH}"]
            run(build, cwd=tree, env=environment, timeout=None)
        yield tree


@pytest.fixture(scope="module")
def old_bundle(release: Path, boards: list[Board]) -> Path:
    """The lab's bundle with the image of 0.1.0. In the lab's own, the image gets the next release's tag."""
    own = inventory.bundle_path(LAB)
    old = own.with_name("bundle-0.1.0")
    shutil.copytree(own, old)
    name = f"tegra-device-plugin-{ARCH}.tar.gz"
    (old / name).unlink()
    shutil.copy(release / "dist" / name, old / name)
    described = yaml.safe_load((old / "bundle.yml").read_text())
    (old / "bundle.yml").write_text(
        yaml.safe_dump(described | {"plugin_image": "tegra-device-plugin:0.1.0"}, sort_keys=False)
    )
    (old / bundle.CHECKSUMS).write_text(bundle.checksums(old))
    site.bring_plugin(LAB, NEXT_TAG)
    for board in boards:
        set_toolkit(board, "1.18.0")
    return old


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    return Cluster(boards)


def next_run(playbook: str, *arguments: str) -> PlaybookRun:
    return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(SETTINGS)}", *arguments)


def old_run(release: Path, old_bundle: Path, playbook: str, *arguments: str) -> PlaybookRun:
    settings = json.dumps({**SETTINGS, "jetson_k3s_bundle": str(old_bundle)})
    return run_playbook(LAB, playbook, f"--extra-vars={settings}", *arguments, checkout=release)


def use_gpu(cluster: Cluster, pod: str, node: str, *, core: int, memory: int) -> None:
    """Create a pod that allocates its share of GPU memory and keeps it."""
    mib = str(memory * 256)
    settings = {
        "command": ["python3.11", "-m", "tegra_device_plugin", "allocate", mib, "--hold"],
        "resources": {"limits": {CORE: core, MEMORY: memory}},
    }
    cluster.create_sleeper(pod, node, settings)
    said = f"allocated {mib} of {mib} MiB"
    wait_until(lambda: said in cluster.kubectl("logs", pod), f"{pod} has its GPU memory", POD_SECONDS)


def assert_new_pods_get_their_share(cluster: Cluster) -> None:
    for node in NAMES:
        pod = f"new-{node}"
        use_gpu(cluster, pod, node, core=30, memory=3)
        cluster.kubectl("delete", "pod", pod)


def allocations(cluster: Cluster, node: str) -> set[str]:
    """What the plugin of a node says of its pods."""
    pod = cluster.plugin_pod(node)
    assert pod
    command = ("python3.11", "-m", "tegra_device_plugin", "allocations")
    return set(cluster.kubectl("--namespace=kube-system", "exec", pod, "--", *command).splitlines())


def stand_by(boards: list[Board]) -> list[bool]:
    """Whether each board has the instance of the plugin that stands by, and its unit."""
    there = (
        "docker inspect tegra-device-plugin && test -e /etc/systemd/system/tegra-device-plugin-boot.service"
    )
    return ["Id" in one.exec("sh", "-c", there, check=False) for one in boards]


def docker_processes(boards: list[Board]) -> list[str]:
    return [one.exec("systemctl", "show", "--property=MainPID", "docker") for one in boards]


def plugins(cluster: Cluster) -> list[str]:
    """The image of the plugin's pod on each node."""
    pods = [cluster.get("pod", str(cluster.plugin_pod(name)), "--namespace=kube-system") for name in NAMES]
    return [pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods]


@pytest.fixture(scope="module")
def holders(release: Path, old_bundle: Path, cluster: Cluster) -> dict[str, object]:
    old_run(release, old_bundle, "site.yml", QUICK).checked()
    for pod, node in zip(HOLDERS, NAMES, strict=True):
        use_gpu(cluster, pod, node, core=40, memory=2)
    return {pod: cluster.started(pod) for pod in HOLDERS}


def assert_holders_run(cluster: Cluster, holders: dict[str, object]) -> None:
    """Check that the pods of 0.1.0 were not restarted, and keep device, limit and ledger."""
    assert {pod: cluster.started(pod) for pod in holders} == holders
    for pod, node in zip(HOLDERS, NAMES, strict=True):
        assert f"default/{pod} main: {HOLDERS_LINE}" in allocations(cluster, node)
        assert (cluster.allocatable(CORE)[node], cluster.allocatable(MEMORY)[node]) == (100, 8)


def test_0_1_0_makes_a_cluster(cluster: Cluster, holders: dict[str, object]) -> None:
    assert plugins(cluster) == ["0.1.0", "0.1.0"]
    assert_holders_run(cluster, holders)


def test_one_board_is_upgraded_before_the_other(
    boards: list[Board], cluster: Cluster, holders: dict[str, object]
) -> None:
    before, one = starts(boards), f"--limit={NAMES[1]}"
    assert next_run("site.yml", QUICK, one, "--check", "--diff").checked().recap[NAMES[1]].changed
    assert starts(boards) == before
    next_run("site.yml", QUICK, one).checked()
    assert plugins(cluster) == ["0.1.0", NEXT_TAG]
    assert_holders_run(cluster, holders)
    assert_new_pods_get_their_share(cluster)


def test_site_yml_upgrades_the_rest(
    boards: list[Board], cluster: Cluster, holders: dict[str, object], tmp_path: Path
) -> None:
    docker = docker_processes(boards)
    next_run("site.yml").checked()
    assert docker_processes(boards) == docker
    assert plugins(cluster) == [NEXT_TAG, NEXT_TAG]
    assert stand_by(boards) == [True, True]
    assert_holders_run(cluster, holders)
    assert_new_pods_get_their_share(cluster)
    for name in NAMES:
        report = json.loads((reports_dir(LAB) / f"{name}.json").read_text())
        assert (report["ok"], report["failures"]) == (True, [])
    found = cluster_status(LAB, tmp_path)
    assert found["agents_join_with"] == "servers"  # K3s can add no token for agents later
    nodes = found["nodes"]
    assert [node["differences"] for node in nodes] == [[], []]
    assert [holder["pod"] for node in nodes for holder in node["holders"]] == [*HOLDERS]
    use_gpu(cluster, LATER, NAMES[1], core=10, memory=1)
    next_run("drift.yml").checked()


def remove_what_the_release_does_not_know(release: Path) -> None:
    """Run the commands of the handbook, in the old checkout."""
    page = markdown.read(CHECKOUT / "docs/upgrade-jetson-k3s.md")
    typed = [text for text in commands.of(page) if text.startswith("ansible ")]
    assert len(typed) == 2
    program = release / ".venv/bin/ansible"
    for command in typed:
        here = command.replace("ansible -i inventory", f"{program} -i {lab_dir(LAB)}/inventory.ini", 1)
        run(["bash", "-c", here], cwd=release)


def test_0_1_0_takes_the_cluster_back(
    release: Path,
    old_bundle: Path,
    boards: list[Board],
    cluster: Cluster,
    holders: dict[str, object],
) -> None:
    remove_what_the_release_does_not_know(release)
    assert stand_by(boards) == [False, False]
    assert_holders_run(cluster, holders)
    old_run(release, old_bundle, "site.yml", QUICK).checked()
    assert plugins(cluster) == ["0.1.0", "0.1.0"]
    assert_holders_run(cluster, holders)
    # The library of its memory limit is that of the later release.
    assert f"default/{LATER} main: {LATER_LINE}" in allocations(cluster, NAMES[1])
    assert_new_pods_get_their_share(cluster)


def test_site_yml_upgrades_it_again(
    boards: list[Board], cluster: Cluster, holders: dict[str, object]
) -> None:
    next_run("site.yml", QUICK).checked()
    assert plugins(cluster) == [NEXT_TAG, NEXT_TAG]
    assert stand_by(boards) == [True, True]
    assert_holders_run(cluster, holders)
    assert_new_pods_get_their_share(cluster)
    next_run("site.yml", QUICK).unchanged()
