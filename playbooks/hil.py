#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hardware in the loop: provision boards, verify them, run your own job on them, publish reports, reset them.

Without a job it runs site.yml, verify.yml in mode full, and reset.yml, each also when one before it has
failed. The reset takes K3s off: use boards for tests. With --job or --image it runs your job by test.yml, on
boards that are nodes already, and leaves them as they are, unless --provision or --reset says otherwise.
Ctrl-C or SIGTERM removes the job and goes straight to the reset; a second one ends it, too.

Exit status: 0 every board has passed; 1 a check or a job has failed; 2 a board could not be verified, or not
be reset.
"""

import argparse
import json
import os
import re
import shlex
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


# Options of a job, and the settings of role gpu_job that they stand for.
DURATION = re.compile(r"([0-9]+)\s*(s|m|min|h)?$")
SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}

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


def test(reports: Path, arguments: Sequence[str], job: dict[str, object], *, provision: bool) -> int:
    """Run the job on each board and verify the board; return the exit status."""
    for name in PUBLISHED:
        (reports / name).unlink(missing_ok=True)
    provisioned = play("site.yml", [*arguments, "--skip-tags=gpu_verify"]) if provision else 0
    settings = [f"--extra-vars={json.dumps(job)}", f"--extra-vars=gpu_verify_reports={reports}"]
    tested = play("test.yml", [*settings, *arguments])
    status = result(reports)
    if status == PASSED and (provisioned, tested) != (0, 0):
        say("a playbook has failed although the reports are good: read its output")
        return UNVERIFIED
    return status


def remove_job(arguments: Sequence[str]) -> None:
    """Remove what a run that was stopped has left of its job."""
    if play("test.yml", ["--extra-vars=gpu_job_state=absent", "--tags=gpu_job", *arguments]) != 0:
        say("the job may still be on the boards: the next test removes it, and it ends after its timeout")


def duration(text: str) -> int:
    """Seconds of a duration such as 90, 90s, 30m or 2h."""
    found = DURATION.match(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write seconds, or such as 90s, 30m or 2h")
    return int(found[1]) * SECONDS[found[2]]


def job_settings(options: argparse.Namespace) -> dict[str, object]:
    """The settings of role gpu_job, {} without a job. Raises ValueError with what is wrong."""
    given = {
        "gpu_job_timeout": options.timeout,
        "gpu_job_wait": options.wait,
        "gpu_job_artifacts": options.artifacts and str(options.artifacts.absolute()),
        "gpu_job_artifacts_limit": options.artifacts_limit,
        "gpu_job_disk_limit": options.disk,
        "gpu_job_resource": options.resource,
        "gpu_job_command": options.command and shlex.split(options.command),
        "gpu_job_keep_image": options.keep_image or None,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if not (options.job or options.image):
        if found or options.provision or options.reset:
            raise ValueError("an option of a job is given, and no job: add --job FILE or --image IMAGE")
        return {}
    if options.job and not options.job.is_file():
        raise ValueError(f"there is no manifest {options.job}")
    return found | {
        **({"gpu_job_manifest": str(options.job.absolute())} if options.job else {}),
        **({"gpu_job_image": options.image} if options.image else {}),
    }


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """The options of a job."""
    group = parser.add_argument_group("your own job", "docs/hardware-in-the-loop.md describes it")
    group.add_argument("--job", type=Path, metavar="FILE", help="a manifest with one Job of Kubernetes")
    group.add_argument("--image", metavar="IMAGE", help="its image: a name, or an archive of `docker save`")
    group.add_argument("--command", metavar="TEXT", help="of an image without a manifest, as in a shell")
    group.add_argument("--resource", metavar="NAME", help="that it asks for; default: nvidia.com/gpu")
    group.add_argument(
        "--artifacts", type=Path, metavar="DIR", help="fetch the files that the job writes to /results"
    )
    group.add_argument("--artifacts-limit", metavar="SIZE", help="of these files; default: 256Mi")
    group.add_argument("--disk", metavar="SIZE", help="that a container may write; default: 2Gi")
    group.add_argument(
        "--timeout", type=duration, metavar="TIME", help="of the job, such as 90s or 2h; default: 30m"
    )
    group.add_argument(
        "--wait", type=duration, metavar="TIME", help="for boards that another run has locked; default: 0"
    )
    group.add_argument("--keep-image", action="store_true", help="leave an archive's image on the boards")
    group.add_argument("--provision", action="store_true", help="run site.yml on the boards first")
    group.add_argument("--reset", action="store_true", help="take K3s off the boards afterwards")


def confirmation(names: str | None) -> list[str]:
    """The argument by which reset.yml may end the cluster of these servers."""
    return [f"--extra-vars=k3s_reset_cluster={names}"] if names else []


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what comes after `--` is ansible-playbook's."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=os.environ.get("JETSON_K3S_COMMAND"),
    )
    parser.add_argument("--inventory", "-i", type=Path, required=True, help="the boards, a file")
    parser.add_argument(
        "--limit", "-l", "--boards", metavar="PATTERN", help="only these boards of the inventory"
    )
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="default: the one of the inventory")
    parser.add_argument("--reports", type=Path, metavar="DIR", default=REPORTS, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="do not reset the boards afterwards")
    parser.add_argument(
        "--reset-cluster", metavar="NAMES", help="servers whose cluster ends with the reset, such as jetson-1"
    )
    add_job_options(parser)
    example = (
        "for ansible-playbook in the checkout, such as: -- --extra-vars jetson_k3s_confirm=restore-docker"
    )
    parser.add_argument("ansible", nargs="*", metavar="-- ARGUMENT", help=example)
    options = parser.parse_args(argv)
    if not options.inventory.exists():
        parser.error(f"there is no inventory {options.inventory}")
    try:
        options.settings = job_settings(options)
    except ValueError as error:
        parser.error(str(error))
    arguments = [f"--inventory={options.inventory.resolve()}"]
    if options.limit:
        arguments.append(f"--limit={options.limit}")
    if options.bundle:
        arguments.append(f"--extra-vars=jetson_k3s_bundle={options.bundle.resolve()}")
    return options, [*arguments, *options.ansible]


def main(argv: Sequence[str] | None = None) -> int:
    """Do it all; return the exit status."""
    options, arguments = parse(argv)
    reports, job = options.reports.resolve(), options.settings
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        status = (
            test(reports, arguments, job, provision=options.provision) if job else verify(reports, arguments)
        )
    except StoppedError as signalled:
        say(f"stopped by {signalled}")
        status = UNVERIFIED
        if job:
            remove_job(arguments)
    if options.keep or (job and not options.reset):
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
