# SPDX-License-Identifier: Apache-2.0
"""What is charged and freed, and the sizes a program reads: on a simulated driver of each CUDA."""

import re

import pytest

from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda


@pytest.fixture(params=["11.4", "12.6", "13.0"])
def pooled(request: pytest.FixtureRequest, rig: Rig) -> Rig:
    """Each release that has pools."""
    return rig.but(driver=libcuda(request.param))


@pytest.mark.parametrize(
    "allocate",
    [
        "make('cuMemAlloc_v2', c_size_t(60 * MIB))",
        "make('cuMemAllocPitch_v2', byref(c_size_t()), c_size_t(MIB), c_size_t(60), 4)",
        "make('cuMemAllocManaged', c_size_t(60 * MIB), 1)",
        "make('cuMemAllocHost_v2', c_size_t(60 * MIB))",
        "make('cuMemHostAlloc', c_size_t(60 * MIB), 0)",
        "make('cuMemCreate', c_size_t(60 * MIB), None, c_uint64(0))",
        "make('cuArray3DCreate_v2', byref(Array(MIB, 60, 0, 1, 1, 0)))",
        "make('cuArray3DCreate_v2', byref(Array(MIB, 5, 3, 0x20, 1, 0)))",
        "make('cuMipmappedArrayCreate', byref(Array(MIB, 40, 0, 1, 1, 0)), 3)",
    ],
)
def test_each_way_to_allocate_counts(each: Rig, allocate: str) -> None:
    ran = each.run(f"assert {allocate}\nprint(alloc(50), alloc(40) is not None)")
    assert ran.stdout == "None True\n"
    assert re.fullmatch(
        "tegra-gpu-limit: out of memory: of this container's limit of 100 MiB (52|60) MiB are used\n",
        ran.stderr,
    )


def test_freed_memory_can_be_allocated_again(each: Rig) -> None:
    each.run("""
        physical = c_uint64()
        for _ in range(3):
            pointer = alloc(90); assert alloc(20) is None; free(pointer)
            host = make("cuMemHostAlloc", c_size_t(90 * MIB), 0)
            assert alloc(20) is None; call("cuMemFreeHost", c_void_p(host))
            array = make("cuArray3DCreate_v2", byref(Array(MIB, 90, 0, 1, 1, 0)))
            assert alloc(20) is None; call("cuArrayDestroy", c_void_p(array))
            levels = make("cuMipmappedArrayCreate", byref(Array(MIB, 64, 0, 1, 1, 0)), 2)
            assert alloc(25) is None; call("cuMipmappedArrayDestroy", c_void_p(levels))
        assert info() == (100, 100)
    """)


def test_a_rejected_allocation_takes_nothing(each: Rig) -> None:
    each.run("""
        for _ in range(100): assert alloc(101) is None
        assert used() == 0 and alloc(100) is not None and used() == 100
    """)


def test_sizes_that_overflow_are_rejected(each: Rig) -> None:
    each.run("""
        assert make("cuMemAlloc_v2", c_size_t(2**64 - 1)) is None
        assert make("cuMemAllocPitch_v2", byref(c_size_t()), c_size_t(2**40), c_size_t(2**40), 4) is None
        assert make("cuArray3DCreate_v2", byref(Array(2**40, 2**40, 2**40, 1, 4, 0))) is None
        assert alloc(100) is not None
    """)


def test_longer_rows_than_requested_count(each: Rig) -> None:
    # 1 byte wide rows are 512 bytes long: 102,400 rows are 50 MiB, twice that are too much.
    each.run("""
        assert make("cuMemAllocPitch_v2", byref(c_size_t()), c_size_t(1), c_size_t(102_400), 4)
        assert info() == (50, 100)
        assert make("cuMemAllocPitch_v2", byref(c_size_t()), c_size_t(1), c_size_t(204_800), 4) is None
        assert info() == (50, 100) and used() == 50
    """)


def test_the_drivers_own_failure_is_passed_on_and_takes_nothing(each: Rig) -> None:
    each.but(device_mib=50).run("assert alloc(60) is None and alloc(50) is not None")


def test_an_unknown_pointer_is_the_drivers_business(each: Rig) -> None:
    each.run("""
        assert driver.cuMemFree_v2(c_uint64(12345)) == 1
        free(0)
        pointer = alloc(60); free(pointer)
        assert driver.cuMemFree_v2(c_uint64(pointer)) == 1
        assert alloc(100) is not None and alloc(1) is None
    """)


def test_registered_memory_is_the_programs_own(each: Rig) -> None:
    each.run("call('cuMemHostRegister_v2', None, c_size_t(500 * MIB), 0); assert info() == (100, 100)")


def test_a_sparse_array_gets_its_memory_later(each: Rig) -> None:
    each.run("make('cuArray3DCreate_v2', byref(Array(MIB, 900, 0, 1, 1, 0x40))); assert info() == (100, 100)")


def test_programs_see_their_share(each: Rig) -> None:
    each.run("""
        total = c_size_t()
        call("cuDeviceTotalMem_v2", byref(total), 0)
        assert total.value == 100 * MIB and info() == (100, 100)
        alloc(30)
        assert info() == (70, 100)
    """)
    each.but(device_mib=80).run("alloc(30); assert info() == (50, 80)")


def test_without_a_limit_nothing_changes(each: Rig) -> None:
    ran = each.but(limit=None).run("""
        total = c_size_t()
        call("cuDeviceTotalMem_v2", byref(total), 0)
        assert total.value == 4096 * MIB and alloc(2000) and info() == (2096, 4096)
    """)
    assert ran.stderr == ""


@pytest.mark.parametrize("limit", ["0", "-5", "1.5", "100Mi", "lots", "99999999999999999999999"])
def test_a_limit_that_is_none_is_named_and_limits_nothing(rig: Rig, limit: str) -> None:
    ran = rig.but(limit=limit).run("assert alloc(500)")
    assert ran.stderr == (
        f"tegra-gpu-limit: NVIDIA_GPU_MEMORY_LIMIT={limit}: an integer of MiB above 0 is needed; "
        "memory is not limited by it\n"
    )


def test_a_destroyed_context_releases_its_memory(each: Rig) -> None:
    each.run("""
        context = c_void_p()
        call("cuCtxCreate_v2", byref(context), 0, 0)
        alloc(40); alloc(40); assert alloc(40) is None
        call("cuCtxDestroy_v2", context)
        start()
        assert info() == (100, 100) and alloc(100) is not None
    """)


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease"])
def test_the_primary_context_releases_its_memory_too(each: Rig, end: str) -> None:
    each.run(f"""
        for number in range(2000): assert make("cuMemAlloc_v2", c_size_t(1024))
        alloc(90); assert alloc(40) is None
        for version in ("", "_v2"):
            if hasattr(driver, "{end}" + version): call("{end}" + version, 0)
        assert info() == (100, 100)
    """)


def test_a_context_that_others_still_use_keeps_its_memory(each: Rig) -> None:
    each.run("start(); alloc(60); call('cuDevicePrimaryCtxRelease', 0); assert info() == (40, 100)")


def test_physical_memory_lives_as_long_as_its_last_mapping(each: Rig) -> None:
    each.run("""
        handle = make("cuMemCreate", c_size_t(60 * MIB), None, c_uint64(0))
        address = 1 << 44
        for part in (0, 1):
            at = c_uint64(address + part * 60 * MIB)
            call("cuMemMap", at, c_size_t(60 * MIB), c_size_t(0), c_uint64(handle), c_uint64(0))
        call("cuMemRelease", c_uint64(handle))
        assert alloc(50) is None and used() == 60
        call("cuMemUnmap", c_uint64(address), c_size_t(120 * MIB))
        assert alloc(100) is not None and used() == 100
    """)


def test_a_retained_handle_keeps_it_too(pooled: Rig) -> None:
    pooled.run("""
        handle, address = make("cuMemCreate", c_size_t(60 * MIB), None, c_uint64(0)), 1 << 44
        call("cuMemMap", c_uint64(address), c_size_t(60 * MIB), c_size_t(0), c_uint64(handle), c_uint64(0))
        call("cuMemRetainAllocationHandle", byref(c_uint64()), c_void_p(address + MIB))
        call("cuMemUnmap", c_uint64(address), c_size_t(60 * MIB))
        call("cuMemRelease", c_uint64(handle))
        assert alloc(50) is None
        call("cuMemRelease", c_uint64(handle))
        assert alloc(100) is not None
    """)


@pytest.mark.parametrize("variant", ["", "_ptsz"])
def test_pools_count_by_their_memory(variant: str, pooled: Rig) -> None:
    # The simulated pool takes steps of 32 MiB.
    pooled.run(f"""
        pointer = make("cuMemAllocAsync{variant}", c_size_t(40 * MIB), None)
        assert pointer and info() == (36, 100) and used() == 64
        assert make("cuMemAllocAsync{variant}", c_size_t(40 * MIB), None) is None and used() == 64
        small = make("cuMemAllocAsync{variant}", c_size_t(20 * MIB), None)
        assert small and info() == (36, 100), "within what the pool has"
        call("cuMemFreeAsync{variant}", c_uint64(pointer), None)
        free(small)
        call("cuStreamSynchronize{variant}", None)
        assert info() == (100, 100) and alloc(100) is not None
    """)


def test_a_pool_that_takes_too_much_is_undone(pooled: Rig) -> None:
    pooled.run("""
        pointer = alloc(90)
        assert make("cuMemAllocAsync", c_size_t(5 * MIB), None) is None and used() == 90
        free(pointer)
        assert make("cuMemAllocAsync", c_size_t(5 * MIB), None)
    """)


def test_a_pool_of_the_program(pooled: Rig) -> None:
    pooled.run("""
        pool = make("cuMemPoolCreate", None)
        pointer = make("cuMemAllocFromPoolAsync", c_size_t(60 * MIB), c_void_p(pool), None)
        assert pointer and alloc(50) is None
        call("cuMemFreeAsync", c_uint64(pointer), None)
        assert alloc(50) is not None, "the pool frees its unused memory"
        call("cuMemPoolDestroy", c_void_p(pool))
        assert info() == (50, 100)
    """)


def test_freed_pool_memory_is_used_before_an_allocation_is_rejected(pooled: Rig) -> None:
    pooled.run("""
        pointer = make("cuMemAllocAsync", c_size_t(90 * MIB), None)
        call("cuMemFreeAsync", c_uint64(pointer), None)
        assert used() == 96
        assert make("cuMemAllocAsync", c_size_t(64 * MIB), None), "the pool has it"
    """)


@pytest.mark.parametrize("how", ["node", "capture", "generic"])
def test_memory_of_graphs_counts_once_it_is_there(how: str, pooled: Rig) -> None:
    if how == "generic" and pooled.driver == libcuda("11.4"):
        pytest.skip("cuGraphAddNode is of CUDA 12.2")
    pooled.run(f"""
        graph = c_void_p()
        if "{how}" == "node":
            call("cuGraphCreate", byref(graph), 0)
            call("cuGraphAddMemAllocNode", None, graph, None, c_size_t(0), byref(c_size_t(150 * MIB)))
        elif "{how}" == "generic":
            call("cuGraphCreate", byref(graph), 0)
            parameters = (c_size_t * 2)(10, 150 * MIB)
            call("cuGraphAddNode_v2", None, graph, None, None, c_size_t(0), byref(parameters))
        else:
            stream = c_void_p(make("cuStreamCreate", 0))
            call("cuStreamBeginCapture_v2", stream, 0)
            assert make("cuMemAllocAsync", c_size_t(75 * MIB), stream)
            assert make("cuMemAllocAsync", c_size_t(75 * MIB), stream)
            call("cuStreamEndCapture", stream, byref(graph))
        assert info() == (100, 100)
        runnable = c_void_p(make("cuGraphInstantiate", graph))
        assert call("cuGraphLaunch", runnable, None) == 0, "it cannot be known before"
        assert info() == (0, 100) and alloc(1) is None
        call("cuDeviceGraphMemTrim", 0)
        assert info() == (100, 100)
    """)


def test_a_synchronization_does_not_read_the_allocations(pooled: Rig) -> None:
    # The kernel notes which memory is read. The table has 512 Ki places of 40 bytes, or 20 MiB.
    ran = pooled.run("""
        import re
        count = 200_000
        assert make("cuMemAllocAsync", c_size_t(MIB), None)
        allocate, size = driver.cuMemAlloc_v2, c_size_t(1)
        pointers = [c_uint64() for _ in range(count)]
        assert not any(allocate(byref(pointer), size) for pointer in pointers)
        open("/proc/self/clear_refs", "w").write("1")
        call("cuStreamSynchronize", None)
        read = re.findall("^Referenced: *(.*) kB$", open("/proc/self/smaps").read(), re.MULTILINE)
        print(sum(map(int, read)) / 1024)
    """)
    assert float(ran.stdout) < 10


def test_threads_never_have_more_than_the_limit_together(each: Rig) -> None:
    each.run("""
        import random, threading
        worst = 0
        def work(seed):
            global worst
            start()
            chance, mine = random.Random(seed), []
            for _ in range(400):
                if mine and chance.random() < 0.5: free(mine.pop())
                elif (pointer := alloc(chance.choice((1, 5, 20)))) is not None: mine.append(pointer)
                worst = max(worst, used())
            for pointer in mine: free(pointer)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert 80 < worst <= 100, worst
        assert info() == (100, 100)
    """)
