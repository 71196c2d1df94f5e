#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hardware in the loop: provision boards, verify them to the full, publish reports, reset the boards.

Runs site.yml, verify.yml in mode full, and reset.yml, each also when one before it has failed. Ctrl-C or
SIGTERM goes straight to the reset; a second one ends it, too. The reset takes K3s off: use boards for tests.

Exit status: 0 every board has passed; 1 a check has failed; 2 a board could not be verified, or not be reset.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
SETTINGS = HERE.parent / "ansible.cfg"
# As in plugins/plugin_utils/controller_paths.py: the collection has no ansible.cfg, and no files of its user.
REPORTS = (HERE.parent if SETTINGS.exists() else Path.cwd()) / "reports"
INDEX = "index.json"
# What a run publishes; of an earlier run nothing may be left, should this one not come so far.
PUBLISHED = (INDEX, "index.html", "junit.xml")
PASSED, FAILED, UNVERIFIED = 0, 1, 2
MEANING = {
    PASSED: "every board has passed",
    FAILED: "a check has failed",
    UNVERIFIED: "not every board could be verified",
}
# ansible-playbook ends its connections within this; a task on a board goes on to its own end.
STOP_SECONDS = 30


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(Exception):
    """Somebody wants the run to end."""


def stop(number: int, _frame: FrameType | None) -> None:
    """End the run at a signal; the next signal ends this program as usual."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_DFL)
    raise StoppedError(signal.Signals(number).name)


def say(text: str) -> None:
    """Tell what is being done, in order with what the playbooks say."""
    sys.stdout.write(f"hil: {text}\n")
    sys.stdout.flush()


def ansible_playbook() -> str:
    """The ansible-playbook beside this Python, else the one in the PATH."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    found = str(beside) if beside.exists() else shutil.which("ansible-playbook")
    if found is None:
        raise SystemExit("hil: there is no ansible-playbook: run `make venv`, or use the Python that has it")
    return found


def play(playbook: str, arguments: Sequence[str]) -> int:
    """Run a playbook to its end; when a signal comes, it is ended before the signal goes on."""
    say(f"ansible-playbook {playbook}")  # its arguments may have secrets
    command = [ansible_playbook(), str(HERE / playbook), *arguments]
    # Paths in the arguments are relative to this directory, so it stays. The checkout's ansible.cfg counts.
    environment = {"ANSIBLE_CONFIG": str(SETTINGS), **os.environ}
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except StoppedError:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def published(reports: Path, key: str) -> object:
    """What the published reports say; None if they do not say it."""
    try:
        found: object = json.loads((reports / INDEX).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError):
        return None
    return found


def result(reports: Path) -> int:
    """The exit status that the reports say."""
    status = published(reports, "exit_code")
    return status if isinstance(status, int) and status in MEANING else UNVERIFIED


def verify(reports: Path, arguments: Sequence[str]) -> int:
    """Provision and verify; return the exit status.

    What was not provisioned to the end is verified all the same: the reports say what is wrong.
    """
    for name in PUBLISHED:
        (reports / name).unlink(missing_ok=True)
    settings = (f"--extra-vars=gpu_verify_reports={reports}", "--extra-vars=gpu_verify_mode=full")
    provisioned = play("site.yml", [*arguments, "--skip-tags=gpu_verify"])
    verified = play("verify.yml", [*arguments, *settings])
    status = result(reports)
    if status == PASSED and (provisioned, verified) != (0, 0):
        say("a playbook has failed although the reports are good: read its output")
        return UNVERIFIED
    return status


def confirmation(names: str | None) -> list[str]:
    """The argument by which reset.yml may end the cluster of these servers."""
    return [f"--extra-vars=k3s_reset_cluster={names}"] if names else []


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what comes after `--` is ansible-playbook's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inventory", "-i", type=Path, required=True, help="the boards, a file")
    parser.add_argument("--limit", "-l", metavar="PATTERN", help="only these boards of the inventory")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="default: the one of the inventory")
    parser.add_argument("--reports", type=Path, metavar="DIR", default=REPORTS, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="do not reset the boards afterwards")
    parser.add_argument(
        "--reset-cluster", metavar="NAMES", help="servers whose cluster ends with the reset, such as jetson-1"
    )
    example = (
        "for ansible-playbook in the checkout, such as: -- --extra-vars jetson_k3s_confirm=restore-docker"
    )
    parser.add_argument("ansible", nargs="*", metavar="-- ARGUMENT", help=example)
    options = parser.parse_args(argv)
    if not options.inventory.exists():
        parser.error(f"there is no inventory {options.inventory}")
    arguments = [f"--inventory={options.inventory.resolve()}"]
    if options.limit:
        arguments.append(f"--limit={options.limit}")
    if options.bundle:
        arguments.append(f"--extra-vars=jetson_k3s_bundle={options.bundle.resolve()}")
    return options, [*arguments, *options.ansible]


def main(argv: Sequence[str] | None = None) -> int:
    """Do it all; return the exit status."""
    options, arguments = parse(argv)
    reports = options.reports.resolve()
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        status = verify(reports, arguments)
    except StoppedError as signalled:
        say(f"stopped by {signalled}")
        status = UNVERIFIED
    if options.keep:
        say("the boards are kept as they are")
    elif play("reset.yml", [*arguments, *confirmation(options.reset_cluster)]) != 0:
        say("reset.yml has failed: the boards are not as they were")
        status = status or UNVERIFIED
    for name in PUBLISHED:
        if (reports / name).exists():
            say(f"published {reports / name}")
    virtual = " (SIMULATED boards)" if published(reports, "simulated") else ""
    say(f"exit status {status}: {MEANING[status]}{virtual}")
    return status


if __name__ == "__main__":
    with suppress(StoppedError):
        sys.exit(main())
    sys.exit(UNVERIFIED)
