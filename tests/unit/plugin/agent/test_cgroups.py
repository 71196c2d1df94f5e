# SPDX-License-Identifier: Apache-2.0
"""From a process' control group to its pod."""

import pytest
from tegra_device_plugin.agent.pods import Member, member

UID = "0e0c5d0a-7f9c-4c1e-9a53-2d6f0f8a1b3c"
UNDERSCORED = UID.replace("-", "_")
STATIC = "3c9f1f5b8d3f0a4e6b7c8d9e0f1a2b3c"
ID = "b7d0f2c49d8e4f6a8b1c3d5e7f9a0b2c4d6e8f0a1b3c5d7e9f0a2b4c6d8e0f1a"


@pytest.mark.parametrize(
    ("uid", "text"),
    [
        # Version 1: Docker and cgroupfs, as K3s with Docker on JetPack 4; then both drivers of containerd.
        (UID, f"12:pids:/kubepods/besteffort/pod{UID}/{ID}\n11:memory:/kubepods/besteffort/pod{UID}/{ID}"),
        (UID, f"1:name=systemd:/kubepods/burstable/pod{UID}/{ID}"),
        (UID, f"4:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/"
              f"cri-containerd-{ID}.scope"),
        (UID, f"9:cpu,cpuacct:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope"),
        (UID, f"5:memory:/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:"
              f"cri-containerd:{ID}"),
        # A control group that systemd made for the process before it got into the pod's.
        (UID, f"13:misc:/\n2:cpuset:/kubepods/pod{UID}/{ID}\n1:name=systemd:/user.slice"),
        # Version 2.
        (UID, f"0::/kubepods/pod{UID}/{ID}"),
        (UID, f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/"
              f"docker-{ID}.scope"),
        (UID, f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope/init.scope"),
        (STATIC, f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/"
                 f"cri-containerd-{ID}.scope"),
        # Seen from a control group namespace of one's own.
        (UID, f"0::/../../kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"),
        (UID, f"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/"
              f"docker-{ID}.scope"),
        (UID, f"0::/../../pod{UID}/{ID}"),
    ],
)  # fmt: skip
def test_pod_and_container(uid: str, text: str) -> None:
    assert member(text, "0::/") == Member(uid, ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/init.scope",
        "0::/system.slice/nvargus-daemon.service",
        f"0::/system.slice/docker-{ID}.scope",
        f"5:memory:/docker/{ID}",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
        f"0::/user.slice/user-1000.slice/mypod{UID}/{ID}",
        *(
            f"{line}{delegated}{names}"
            for line in ("0::", "1:name=systemd:", "0::/../../../..", "0::/../..")
            for delegated in (
                "/user.slice/user-1000.slice/user@1000.service/app.slice",
                "/system.slice/some.service",
                f"/system.slice/docker-{ID}.scope",
                f"/docker/{ID}",
            )
            for names in (
                f"/pod{UID}/{ID}",
                f"/kubepods/burstable/pod{UID}/{ID}",
                f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope",
                f"/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
                f"/system.slice/containerd.service/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
            )
        ),
    ],
)
def test_not_in_a_pod(text: str) -> None:
    assert member(text, "0::/") is None


def test_a_container_cannot_pose_as_another_pod_by_groups_of_its_own() -> None:
    own = f"/kubepods/burstable/pod{UID}/{ID}"
    other = "ffffffff-1111-2222-3333-444455556666"
    assert member(f"0::{own}/kubepods/pod{other}/{ID[::-1]}", "0::/") == Member(UID, ID)


@pytest.mark.parametrize(
    "root",
    [f"/docker/{ID[::-1]}", f"/system.slice/docker-{ID[::-1]}.scope", "/user.slice/k3s-rootless.service"],
)
def test_a_kubelet_below_another_group_has_its_pods_beside_the_agents(root: str) -> None:
    agent = f"{root}/kubepods/besteffort/pod{UID[::-1]}/{ID[::-1]}"
    pod = f"0::{root}/kubepods/burstable/pod{UID}/{ID}"
    assert member(pod, f"0::{agent}") == Member(UID, ID)
    assert member(pod, f"12:pids:{agent}\n0::/") == Member(UID, ID)
    assert member(pod, f"0::{root}/system.slice/sshd.service") == Member(UID, ID)  # the agent by hand
    assert member(pod, f"0::{root}-2/kubepods/pod{UID[::-1]}/{ID[::-1]}") is None
