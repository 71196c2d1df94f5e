# SPDX-License-Identifier: Apache-2.0
"""Kubernetes prints 2000 as 2k, also where units of GPU memory are counted."""

from __future__ import annotations

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    gpu_verify_node,
    gpu_verify_pods,
    k3s_offers,
    k3s_quantities,
)

MEMORY = "jetson-k3s.github.io/gpu-memory"


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("0", 0),
        ("8", 8),
        ("2k", 2000),
        ("24k", 24000),
        ("1Ki", 1024),
        ("4Gi", 4 << 30),
        ("3e3", 3000),
        ("1M", 10**6),
    ],
)
def test_a_quantity_is_a_number_wherever_it_is_read(quantity: str, number: int) -> None:
    node = {"status": {"allocatable": {MEMORY: quantity, "kubernetes.io/batch-cpu": "500m", "cpu": "4"}}}
    assert k3s_offers.extended(node) == ({MEMORY: number} if number else {})
    assert gpu_verify_node.counted(node, "allocatable", MEMORY) == number
    pod = {
        "spec": {"containers": [{"resources": {"limits": {MEMORY: quantity}}}, {}]},
        "status": {"phase": "Running"},
    }
    assert gpu_verify_pods.requested(pod, MEMORY) == number


def test_a_fraction_of_an_extended_resource_is_refused() -> None:
    with pytest.raises(ValueError, match="500m is not the quantity of an extended resource"):
        k3s_quantities.integer("500m")
