# SPDX-License-Identifier: Apache-2.0
"""nvmap's list of clients: lines of real boards, and what a process can put into its own name."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tegra_device_plugin.agent.memory import parse_clients

from tests.unit.plugin.agent.node import HEADER

KIB = 1024


@pytest.mark.parametrize(
    ("line", "pid", "size"),
    [
        # Of boards with R35 and R36, as their users have posted them.
        ("user                         gpu_burn     7979   23525644K", 7979, 23525644 * KIB),
        ("user                  VLLM::EngineCor  1792595   14617792K", 1792595, 14617792 * KIB),
        ("user                   nvargus-daemon     1012          0K", 1012, 0),
        # Forms that the same printf gives.
        ("user                   Isolated Web Co     4711       2048K", 4711, 2048 * KIB),
        ("user                     kworker/0:1-x        9          1K", 9, KIB),
        ("nvhost                         kernel        0       1024K", 0, 1024 * KIB),
        ("a-client-with-a-name-of-over-18             python3     4242         12M", 4242, 12 * 2**20),
        ("user                          python3     4242          3G", 4242, 3 * 2**30),
        # Early 4.9: 3 GiB, 2 GiB and 4 GiB less a page, summed in a signed int.
        ("user                          python3     4242 4293918720K", 4242, 3 * 2**30),
        ("user                          python3     4242 4292870144K", 4242, 2 * 2**30),
        ("user                          python3     4242 4294967292K", 4242, 4 * 2**30 - 4096),
    ],
)
def test_a_row(line: str, pid: int, size: int) -> None:
    total = "total                                                23549320K\n"
    assert parse_clients(f"{HEADER}{line}\n{total}") == {pid: size}


def test_rows_of_one_process_add_up_and_notes_are_no_rows() -> None:
    page = (
        HEADER
        + "user                          python3     4242       1024K\n"
        + "user                          python3     4242       2048K\n"
        + "user                             Xorg      900        512K\n"
        + "total                                                    3584K\n"
        + "Note: total memory is precise account of pages allocated by NvMap.\n"
        + 'It doesn\'t match with all clients "SIZE" accumulated as shared memory \n'
        + 'is accounted in full in each clients "SIZE" that shared memory.\n'
    )
    assert parse_clients(page) == {4242: 3072 * KIB, 900: 512 * KIB}


@pytest.mark.parametrize("page", ["", HEADER, "no such format\n" * 3])
def test_nothing_to_read(page: str) -> None:
    assert parse_clients(page) == {}


NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=15) | st.sampled_from(
    ["\nu 1 2 99999999K", "7   99999999K\nx", "K\n", "\n\n\n", "77   9999999K\nx", "1          9K\n"]
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.lists(st.tuples(NAMES, st.integers(1, 4194304), st.integers(0, 99_999_999)), max_size=6))
def test_no_name_makes_up_or_hides_a_row(processes: list[tuple[str, int, int]]) -> None:
    rows = (f"{'user':<18} {name:>18} {pid:>8} {kib:>10}K\n" for name, pid, kib in processes)
    truth: dict[int, int] = {}
    for _, pid, kib in processes:
        truth[pid] = truth.get(pid, 0) + kib * KIB
    total = f"{'total':<18} {'':>18} {'':>8} {sum(kib for _, _, kib in processes):>10}K\n"
    assert parse_clients(HEADER + "".join(rows) + total) == truth
