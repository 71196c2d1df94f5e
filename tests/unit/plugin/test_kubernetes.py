# SPDX-License-Identifier: Apache-2.0
"""Quantities of bytes as Kubernetes writes them."""

import pytest
from tegra_device_plugin.system.kubernetes import parse_quantity, render_quantity


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("256Mi", 256 << 20),
        ("6Gi", 6 << 30),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1e9", 10**9),
        ("1Ti", 1 << 40),
        ("-1Gi", -(1 << 30)),
        ("+2Mi", 2 << 20),
        ("1073741824", 1 << 30),
    ],
)
def test_quantities_that_kubernetes_takes(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text", ["", "Mi", "1 Gi", "1gi", "1K", "6GiB", "6Gi\n", "1e", "0x10", "½Gi", "1" * 99]
)
def test_an_invalid_quantity_gets_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 256Mi"):
        parse_quantity(text)


def test_half_a_byte_is_rejected() -> None:
    with pytest.raises(ValueError, match="an integer of bytes"):
        parse_quantity("0.5")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1000, "1000"), (1024, "1Ki"), (3 << 29, "1536Mi"), (6 << 30, "6Gi")]
)
def test_the_largest_unit_that_is_whole_is_shown(size: int, text: str) -> None:
    assert render_quantity(size) == text
    assert parse_quantity(text) == size
