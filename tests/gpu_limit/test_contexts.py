# SPDX-License-Identifier: Apache-2.0
"""A CUDA context costs the ledger's overhead from the moment that it is made, until it ends."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests import ledgers
from tests.gpu_limit.rig import Rig
from tests.ledgers import MIB

LIMIT, OVERHEAD = 100, 30
STAND = "print('there', flush=True); sys.stdin.read()"


@pytest.fixture
def charged(each: Rig, tmp_path: Path) -> Rig:
    """Programs of this rig have made one context when their own code begins."""
    ledger = tmp_path / "ledger"
    ledgers.write(ledger, limit=LIMIT * MIB, overhead=OVERHEAD * MIB)
    return each.but(limit=None, ledger=ledger)


def test_a_process_that_only_makes_a_context_has_it_charged(charged: Rig) -> None:
    with charged.standing(STAND), charged.standing(STAND):
        charged.run("assert info() == (10, 100) and alloc(11) is None and alloc(10) is not None")
    charged.run("assert info() == (70, 100)")


@pytest.mark.parametrize("create", ["cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"])
def test_a_second_context_costs_as_much_until_it_is_destroyed(charged: Rig, create: str) -> None:
    charged.run(f"""
        more = {{"cuCtxCreate_v2": (), "cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}}["{create}"]
        if not hasattr(driver, "{create}"): sys.exit()
        context = c_void_p()
        call("{create}", byref(context), *more, 0, 0)
        assert info() == (40, 100)
        assert alloc(40) and call("{create}", byref(c_void_p()), *more, 0, 0) == OUT_OF_MEMORY
        call("cuCtxDestroy_v2", context)
        start()
        assert info() == (70, 100)
    """)


def test_a_context_that_does_not_fit_is_refused(charged: Rig) -> None:
    with charged.standing(f"assert alloc(41); {STAND}"):
        ran = charged.run("""
            context = c_void_p()
            assert call("cuDevicePrimaryCtxRetain", byref(context), 0) == OUT_OF_MEMORY and not context
            assert info() == (29, 100)
        """)
    assert "out of memory: of this container's limit of 100 MiB 71 MiB are used" in ran.stderr


def test_retained_again_it_costs_nothing(charged: Rig) -> None:
    charged.run("""
        alloc(60)
        for _ in range(3): assert call("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0) == 0
        assert info() == (10, 100)
    """)


def test_threads_that_retain_it_at_the_same_time_reserve_it_once(charged: Rig) -> None:
    charged.run("""
        import threading
        call("cuDevicePrimaryCtxRelease", 0)
        holder = c_void_p()
        call("cuCtxCreate_v2", byref(holder), 0, 0); alloc(40)
        barrier, answers = threading.Barrier(4), []
        def work():
            for _ in range(200):
                barrier.wait()
                answers.append(call("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0))
                barrier.wait()
                call("cuDevicePrimaryCtxRelease", 0)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert answers == [0] * 800 and info() == (30, 100)
    """)


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease"])
def test_the_primary_context_is_charged_until_it_ends(charged: Rig, end: str) -> None:
    charged.run(f"""
        alloc(10)
        call("{end}", 0)
        call("cuCtxSetCurrent", None)
        assert info() == (100, 100)
        start()
        assert info() == (70, 100)
    """)


# As CUDA's runtime makes its context.
UNSEEN = """
call("cuDevicePrimaryCtxRelease", 0)
call("cuCtxSetCurrent", None)
context = c_void_p()
call("simulated_private_retain", byref(context), 0)
"""


@pytest.mark.parametrize("use", ["cuCtxSetCurrent", "cuCtxPushCurrent_v2"])
def test_a_context_that_was_made_unseen_counts_from_its_first_use(charged: Rig, use: str) -> None:
    charged.run(
        UNSEEN
        + dedent(f"""
            assert info() == (100, 100)
            call("{use}", context)
            assert info() == (70, 100)
            call("{use}", context); call("cuDevicePrimaryCtxRetain", byref(context), 0)
            assert info() == (70, 100)
            call("cuDevicePrimaryCtxReset", 0); call("cuCtxSetCurrent", None)
            assert info() == (100, 100)
        """)
    )


@pytest.mark.parametrize("use", ["cuCtxSetCurrent", "cuCtxPushCurrent_v2"])
def test_and_its_first_use_is_refused_if_it_does_not_fit(charged: Rig, use: str) -> None:
    with charged.standing(f"assert alloc(60); {STAND}"):
        charged.run(
            UNSEEN
            + dedent(f"""
                assert call("{use}", context) == OUT_OF_MEMORY
                current = c_void_p(1)
                call("cuCtxGetCurrent", byref(current))
                assert not current
            """)
        )


def test_green_contexts_cost_as_much_as_their_primary_context(charged: Rig) -> None:
    charged.run("""
        if not hasattr(driver, "cuGreenCtxCreate"): sys.exit()
        call("cuDevicePrimaryCtxRelease", 0); call("cuCtxSetCurrent", None)
        assert info() == (100, 100)
        greens = [c_void_p() for _ in range(5)]
        for green in greens:
            call("cuGreenCtxCreate", byref(green), None, 0, 0)
            context = c_void_p()
            call("cuCtxFromGreenCtx", byref(context), green)
            call("cuCtxSetCurrent", context)
        assert info() == (70, 100)
        start()
        assert info() == (70, 100)
        call("cuDevicePrimaryCtxRelease", 0)
        for green in greens: call("cuGreenCtxDestroy", green)
        call("cuCtxSetCurrent", None)
        assert info() == (100, 100)
    """)


def test_a_forked_child_has_no_context(charged: Rig) -> None:
    charged.run("""
        child = os.fork()
        if child == 0:
            call("cuCtxSetCurrent", None)
            os._exit(0 if info() == (70, 100) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)
