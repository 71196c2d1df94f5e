# SPDX-License-Identifier: Apache-2.0
"""What a process does at a signal, in each of its states. Each test is a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tegra_device_plugin.signals import END_SECONDS

PLUGIN = Path(__file__).parents[3] / "plugin"
BEGIN = "import signal, time; from tegra_device_plugin import signals; signals_ = signals.Signals()\n"
HANG = """\
print('ready', flush=True)
while not signals_.ended:
    time.sleep(0.01)
print('received', flush=True)
while True:
    time.sleep(60)
"""


def start(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program],
        cwd=PLUGIN,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_process_that_ignores_the_first(number: signal.Signals) -> None:
    # On a busy machine the second signal can come after the limit, which ends the process in another way.
    process = start("signals.END_SECONDS = 60\n" + HANG)
    process.send_signal(signal.SIGTERM)
    # Two signals of a process that gets no CPU meanwhile are one.
    assert process.stdout is not None
    assert process.stdout.readline() == "received\n"
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == 128 + number


def test_a_process_that_hangs_is_ended_with_its_stacks() -> None:
    process = start("signals.END_SECONDS = 0.2\n" + HANG)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "Timeout" in error and "time.sleep" not in error and 'File "<string>"' in error


@pytest.mark.parametrize(
    ("sent", "received"), [("SIGTERM", "True False"), ("SIGINT", "True False"), ("SIGHUP", "False True")]
)
@pytest.mark.parametrize("listens_first", [True, False])
def test_a_signal_arrives_before_and_after_the_loop_listens(
    sent: str, received: str, listens_first: bool
) -> None:
    raise_it, listen = f"signal.raise_signal(signal.{sent})", "signals_.listen(received.set)"
    steps = (listen, raise_it) if listens_first else (raise_it, listen)
    program = f"""
import asyncio
async def main():
    received = asyncio.Event()
    {steps[0]}
    {steps[1]}
    await received.wait()
    print(signals_.ended, signals_.reload)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        cwd=PLUGIN,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert done.stdout.strip() == received


def test_released_signals_are_sent_again() -> None:
    program = (
        "signal.raise_signal(signal.SIGTERM); print('ready', flush=True); signals_.release(); time.sleep(60)"
    )
    assert start(program).wait(10) == -signal.SIGTERM


def test_the_manifest_allows_more_time_than_an_end_takes() -> None:
    manifest = (PLUGIN / "deploy/base/daemonset.yaml").read_text()
    spec = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > END_SECONDS
