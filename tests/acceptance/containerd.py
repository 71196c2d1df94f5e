# SPDX-License-Identifier: Apache-2.0
"""Labs whose K3s has containerd and the Kubernetes of this year."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.lab import bundle, gomodules, inventory, kubernetes, lab
from tests.lab.board import Board

CONTAINERD = "--extra-vars=k3s_container_runtime=containerd"
# Kubernetes 1.35 and newer refuse cgroup v1 unless they are told; machines that run the lab may have either.
_OWNERS = (
    "mkdir -p /etc/rancher/k3s; echo 'kubelet-arg: [fail-cgroupv1=false]' > /etc/rancher/k3s/config.yaml"
)
_BUILD = partial(kubernetes.k3s_standin, kubernetes=kubernetes.CONTAINERD)


def skip_without_go(build: Callable[[], object] = _BUILD) -> None:
    """Skip the test where no Go builds this Kubernetes, or another: Debian 12 has none so new. CI has."""
    try:
        build()
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
    """Boards that take this Kubernetes whatever `LAB_K3S` says, and the bundle; both go at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LAB_K3S", raising=False)
        with lab.fresh(name, types) as up:
            bundle.write(bundle_path(name), kubernetes=kubernetes.CONTAINERD)
            for each in up:
                each.exec("sh", "-c", _OWNERS)
            yield up
