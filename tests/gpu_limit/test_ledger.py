# SPDX-License-Identifier: Apache-2.0
"""Processes that share a limit: they start, fork, exec, are killed, and may not trust the file."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests import ledgers
from tests.gpu_limit.rig import PRELUDE, Rig
from tests.ledgers import MIB, SLOTS

CLOCK_NANOSLEEP = 230
"""The number of the system call on x86-64."""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def shared(rig: Rig, ledger: Path) -> Rig:
    return rig.but(ledger=ledger)


def holding(rig: Rig, mib: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return rig.standing(f"assert alloc({mib})\nprint('there', flush=True)\nsys.stdin.read()")


def test_processes_share_one_limit(shared: Rig) -> None:
    with holding(shared, 60):
        shared.run("assert info() == (40, 100) and alloc(50) is None and alloc(40) is not None")
        shared.run("assert info() == (40, 100)")


def test_the_memory_of_a_killed_process_is_free(shared: Rig, ledger: Path) -> None:
    with holding(shared, 60) as process:
        assert ledgers.found(ledger) == {process.pid: 60 * MIB}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert ledgers.found(ledger) == {}
        shared.run("assert info() == (100, 100) and alloc(100) is not None")


def test_freed_memory_is_free_for_others(shared: Rig, ledger: Path) -> None:
    with shared.standing("""
        first, second = alloc(60), alloc(40)
        free(first); free(second); alloc(10)
        print("there", flush=True); sys.stdin.read()
    """) as process:
        assert ledgers.found(ledger) == {process.pid: 10 * MIB}
        shared.run("assert info() == (90, 100) and alloc(91) is None and alloc(90) is not None")


def test_a_forked_child_starts_without_memory(shared: Rig) -> None:
    shared.run("""
        pointer = alloc(60)
        child = os.fork()
        if child == 0:
            start()
            ok = info() == (40, 100) and alloc(50) is None and alloc(40) is not None
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert info() == (40, 100) and alloc(50) is None
        free(pointer)
        assert alloc(100) is not None
    """)


def test_a_fork_while_another_thread_has_the_lock_does_not_hang(shared: Rig, ledger: Path) -> None:
    # The ledger is locked, so the thread waits for it (clock_nanosleep) with the lock of the process.
    ledgers.write(ledger)
    shared.run(f"""
        import threading
        from tests import ledgers
        def work():
            start()
            assert alloc(60)
        with ledgers.counting("{ledger}"):
            thread = threading.Thread(target=work)
            thread.start()
            at = f"/proc/self/task/{{thread.native_id}}/syscall"
            while open(at).read().split()[0] != "{CLOCK_NANOSLEEP}": pass
            child = os.fork()
        if child == 0:
            start()
            os._exit(0 if alloc(30) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        thread.join()
        assert info() == (40, 100)
    """)


def test_a_child_with_the_process_id_of_its_parent_starts_without_memory(shared: Rig) -> None:
    # The first process of a container that makes a namespace of its own: both have process id 1.
    code = """
        CLONE_NEWPID = 0x20000000
        assert alloc(60) and os.getpid() == 1
        assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
        child = os.fork()
        if child == 0:
            start()
            ok = os.getpid() == 1 and info() == (40, 100) and alloc(50) is None and alloc(40) is not None
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert info() == (40, 100) and alloc(50) is None
    """
    mapped = ["--map-root-user"] if os.geteuid() else []
    command = ["unshare", *mapped, "--pid", "--fork", sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    ran = subprocess.run(command, env=shared.environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_exec_releases_the_memory_of_the_earlier_program(shared: Rig, ledger: Path) -> None:
    # A program without CUDA, so nothing of the library runs in it but dlsym: the kernel ends the lock.
    with shared.standing("alloc(60); os.execvp('sh', ['sh', '-c', 'echo there; read line'])"):
        assert ledgers.found(ledger) == {}


def test_the_65th_process_is_rejected_with_a_reason(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger)
    with ledgers.used_by(ledger, *[MIB] * SLOTS):
        ran = shared.run("assert alloc(1) is None and info() == (36, 100)")
        assert f"{ledger} has no free slot for another process: it gets no memory" in ran.stderr
    with ledgers.used_by(ledger, *[MIB] * (SLOTS - 1)):
        shared.run("assert alloc(1) is not None and info() == (36, 100)")


def test_a_lock_of_any_other_form_counts_and_ends_no_process(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger)
    with shared.standing("""
        import fcntl
        file = os.open(os.environ["TEGRA_GPU_LIMIT_LEDGER"], os.O_RDONLY)
        fcntl.lockf(file, fcntl.LOCK_SH)  # all of it, without an end
        print("there", flush=True); sys.stdin.read()
    """):
        shared.run("assert alloc(1) is None and info() == (0, 100)")
    shared.run("assert alloc(100) is not None")


def test_the_ledgers_limit_applies_without_an_environment(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger, limit=50 * MIB)
    shared.but(limit=None).run("assert info() == (50, 50) and alloc(60) is None and alloc(50) is not None")
    shared.run("assert info() == (50, 50)")


def test_each_process_costs_the_overhead(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger, limit=100 * MIB, overhead=20 * MIB)
    with holding(shared, 30):
        shared.run("assert alloc(31) is None and alloc(30) is not None and info() == (0, 100)")


@pytest.mark.parametrize("content", [b"x" * 5000, b"TGLEDGR2 short", b"TGLEDGR1" + bytes(2104)])
def test_a_file_that_is_no_ledger_is_named_and_each_process_limited(
    shared: Rig, ledger: Path, content: bytes
) -> None:
    ledger.write_bytes(content)
    ran = shared.run("assert alloc(101) is None and alloc(100) is not None")
    assert f"tegra-gpu-limit: {ledger} is not a ledger: each process is limited by itself\n" in ran.stderr
    assert ledger.read_bytes() == content


def test_a_ledger_that_cannot_be_opened_is_reported(shared: Rig, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "ledger"):
        ran = shared.but(ledger=path).run("assert alloc(101) is None and alloc(100) is not None")
        assert f"tegra-gpu-limit: {path} cannot be opened: each process is limited by itself\n" in ran.stderr


def test_a_truncated_ledger_ends_no_process(shared: Rig, ledger: Path) -> None:
    with shared.standing("""
        first = alloc(60); print("there", flush=True); sys.stdin.readline()
        assert alloc(50) is None and alloc(40) is not None
        free(first)
        assert alloc(60) is not None
    """) as process:
        os.truncate(ledger, 0)
        _, error = process.communicate("go on\n")
    assert process.returncode == 0, error


def test_a_stopped_process_with_the_lock_stops_no_other(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger)
    with shared.standing(f"""
        from tests import ledgers
        with ledgers.counting("{ledger}"):
            print("there", flush=True); sys.stdin.read()
    """) as process:
        process.send_signal(signal.SIGSTOP)
        ran = shared.run("assert alloc(101) is None and alloc(100) is not None")
    assert "is locked by a process that does not go on: each process is limited by itself" in ran.stderr


def test_the_child_of_a_process_killed_while_it_counted_stops_no_other(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger)
    # Many others, so that most of the time is spent with counting.
    with ledgers.used_by(ledger, *[0] * (SLOTS - 2)):
        for _ in range(5):
            with shared.standing("""
                assert alloc(1)
                child = os.fork()
                if child == 0:
                    sys.stdin.read()
                    os._exit(0)
                print("there", flush=True)
                for _ in range(10):
                    for _ in range(10): free(alloc(60))
                    print("again", flush=True)
                while True: free(alloc(60))
            """) as process:
                for _ in range(10):
                    assert process.stdout and process.stdout.readline() == "again\n"
                process.kill()
                process.wait()
                ran = shared.run("assert info() == (100, 100) and alloc(100) and alloc(1) is None")
                assert "each process is limited by itself" not in ran.stderr


def test_processes_that_count_at_the_same_time_get_what_fits(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger)
    with ExitStack() as stack:
        work = """
            for _ in range(400):
                pointer = alloc(12.5)
                assert pointer
                free(pointer)
        """
        running = [stack.enter_context(shared.start(work)) for _ in range(8)]
        errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * 8, errors
    assert errors == [""] * 8


def test_the_programs_own_file_with_the_number_of_the_ledger_is_left_alone(
    shared: Rig, ledger: Path, tmp_path: Path
) -> None:
    ledgers.write(ledger, limit=100 * MIB)
    with shared.standing(f"""
        import fcntl
        pointer = alloc(10)
        number = next(one for one in range(3, 64) if os.path.exists(f"/proc/self/fd/{{one}}")
                      and os.readlink(f"/proc/self/fd/{{one}}") == "{ledger}")
        os.closerange(3, 64)
        own = os.open("{tmp_path}/own", os.O_RDWR | os.O_CREAT)
        assert os.dup2(own, number) == number
        fcntl.flock(number, fcntl.LOCK_EX)
        assert alloc(20)
        try:
            fcntl.flock(os.open("{tmp_path}/own", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            child = os.fork()
            if child == 0:
                assert info() == (70, 100)
                os.write(number, b"still there")
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("there", flush=True); sys.stdin.read()
    """) as process:
        # The ledger is opened again, and all that the process has is counted again.
        assert ledgers.found(ledger) == {process.pid: 30 * MIB}
        assert (tmp_path / "own").read_bytes() == b"still there"
        shared.run("assert info() == (70, 100) and alloc(71) is None and alloc(70) is not None")


def test_a_fifo_as_ledger_does_not_block_a_program(shared: Rig, ledger: Path) -> None:
    os.mkfifo(ledger)
    with shared.start("assert alloc(101) is None and alloc(100) is not None") as process:
        try:
            _, error = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    assert f"{ledger} is not a ledger: each process is limited by itself" in error


def test_the_limit_of_a_ledger_outlasts_it(shared: Rig, ledger: Path) -> None:
    ledgers.write(ledger, limit=100 * MIB, overhead=10 * MIB)
    alone = shared.but(limit=None)
    code = "assert alloc(91) is None and alloc(90) is not None and info() == (0, 100)"
    with ledgers.counting(ledger):
        assert "is locked by a process that does not go on" in alone.run(code).stderr
    # In a child, the ledger is not there any more.
    alone.run(f"""
        os.unlink("{ledger}")
        child = os.fork()
        if child == 0:
            start()
            {code}
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)


def test_together_they_never_exceed_the_limit_though_many_are_killed(shared: Rig, ledger: Path) -> None:
    """In rounds: all allocate and free as they like, some are killed meanwhile, then all stand still."""
    work = """
        import random
        chance, mine = random.Random(os.getpid()), []
        for line in sys.stdin:
            for _ in range(60):
                if mine and chance.random() < 0.5: free(mine.pop())
                elif (pointer := alloc(chance.choice((1, 5, 20)))) is not None: mine.append(pointer)
            print(int(used()), flush=True)
    """
    chance, fullest = random.Random(7), 0  # noqa: S311
    with ExitStack() as stack:
        running = []
        for _ in range(16):
            process = stack.enter_context(shared.start(work))
            stack.callback(process.kill)
            running.append(process)
        for _ in range(6):
            for process in running:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
            for victim in chance.sample(running, 2):
                victim.kill()
                victim.wait()
                running.remove(victim)
            sizes = {one.pid: int(one.stdout.readline()) for one in running if one.stdout}
            noted = {pid: size // MIB for pid, size in ledgers.found(ledger).items() if size}
            assert noted == {pid: size for pid, size in sizes.items() if size}
            fullest = max(fullest, sum(sizes.values()))
            assert sum(sizes.values()) <= 100
        assert fullest > 80, "otherwise nothing was tried"
    shared.run("assert info() == (100, 100)")
