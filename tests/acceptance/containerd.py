# SPDX-License-Identifier: Apache-2.0
"""Labs whose K3s has containerd and the Kubernetes of this year."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import bundle, gomodules, inventory, kubernetes, lab
from tests.lab.board import Board

CONTAINERD = "--extra-vars=k3s_container_runtime=containerd"
# Kubernetes 1.35 and newer refuse cgroup v1 unless they are told; machines that run the lab may have either.
_OWNERS = (
    "mkdir -p /etc/rancher/k3s; echo 'kubelet-arg: [fail-cgroupv1=false]' > /etc/rancher/k3s/config.yaml"
)


def skip_without_go() -> None:
    """Skip the test where no Go builds this Kubernetes: Debian 12 has none so new. CI has."""
    try:
        kubernetes.k3s_standin()
    except gomodules.NoGoError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))


def bundle_path(name: str) -> Path:
    """Return where a lab's bundle with this Kubernetes is."""
    return inventory.bundle_path(name).with_name("containerd")


def bundle_argument(name: str) -> str:
    """Return the argument that makes a playbook use it."""
    return f"--extra-vars=jetson_k3s_bundle={bundle_path(name)}"


@contextmanager
def fresh(name: str, types: Sequence[str]) -> Iterator[list[Board]]:
    """Boards, and a bundle with this Kubernetes; both go at the end."""
    with lab.fresh(name, types) as up:
        bundle.write(bundle_path(name), which=str(kubernetes.k3s_standin()))
        for each in up:
            each.exec("sh", "-c", _OWNERS)
        yield up
