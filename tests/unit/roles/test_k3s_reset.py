# SPDX-License-Identifier: Apache-2.0
"""Pure parts of the modules that take K3s off a board and nodes out of service."""

from typing import Any

import pytest

from tests.unit.roles.loading import load

reset = load("k3s_reset/library/k3s_reset.py")
schedule = load("k3s/library/k3s_node_schedule.py")

MOUNTINFO = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
30 20 8:2 / /var/lib/rancher rw - ext4 /dev/sdb1 rw
31 20 0:40 / /var/lib/kubelet/pods/1/volumes/secret rw - tmpfs tmpfs rw
32 31 0:41 / /var/lib/kubelet/pods/1/volumes/secret/a\\040b rw - nfs nas:/home rw
33 20 0:42 / /var/lib/kubelets rw - tmpfs tmpfs rw
"""


def test_mounts_inside_the_trees_go_the_innermost_first() -> None:
    assert reset.mounts_below(["/var/lib/rancher/k3s", "/var/lib/kubelet"], MOUNTINFO) == [
        "/var/lib/kubelet/pods/1/volumes/secret/a b",
        "/var/lib/kubelet/pods/1/volumes/secret",
    ]


def test_a_tree_that_is_a_mount_is_its_owners() -> None:
    assert reset.mounts_below(["/var/lib/rancher"], MOUNTINFO) == []


def test_processes_go_with_their_descendants() -> None:
    assert reset.family([5], {1: 0, 5: 1, 6: 5, 7: 6, 8: 1}) == [5, 6, 7]


@pytest.mark.parametrize(
    ("pod", "drained"),
    [
        ({"metadata": {"ownerReferences": [{"kind": "DaemonSet"}]}, "status": {"phase": "Running"}}, True),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "status": {}}, True),
        ({"metadata": {}, "status": {"phase": "Succeeded"}}, True),
        ({"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}, "status": {"phase": "Running"}}, False),
        ({"metadata": {}, "status": {"phase": "Pending"}}, False),
    ],
)
def test_drained_is_a_node_without_pods_that_could_leave(pod: dict[str, Any], drained: bool) -> None:
    assert schedule.is_drained([pod]) is drained
