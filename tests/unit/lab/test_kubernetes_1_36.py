# SPDX-License-Identifier: Apache-2.0
"""The node with plain Kubernetes: what differs between machines, of which a lab run sees one."""

import pytest

from tests.lab import kubernetes_1_36


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        ("0::/init.scope\n", ""),
        ("9:memory:/docker/4f1c/init.scope\n1:name=systemd:/docker/4f1c/init.scope\n", "/docker/4f1c"),
        ("9:memory:/docker/4f1c\n1:name=systemd:/docker/4f1c/init.scope\n0::/\n", "/docker/4f1c"),
    ],
    ids=["v2", "v1", "hybrid"],
)
def test_pods_are_below_the_boards_own_cgroup(text: str, cgroup: str) -> None:
    assert kubernetes_1_36.cgroup(text) == cgroup
