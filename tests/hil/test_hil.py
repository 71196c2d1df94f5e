# SPDX-License-Identifier: Apache-2.0
"""playbooks/hil.py: its exit status, boards that are reset or kept, and jobs. Ansible is a stand-in.

The examples for CI systems fit those systems' schemas, and test the commit that they are run for.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.labels import node_labels

from tests import boards
from tests.hil import schemas
from tools.cache import CHECKOUT
from tools.process import run

HIL = CHECKOUT / "playbooks" / "hil.py"
# Stands in for the ansible-playbook beside hil.py's Python: writes down how it was called, then does what the
# file `site`, `verify` or `reset` beside it says.
STAND_IN = """#!/bin/sh
here=$(dirname "$0")
for word; do case $word in */playbooks/*) playbook=${word##*/}; playbook=${playbook%.yml};; esac; done
echo "$playbook $* in $PWD by $ANSIBLE_CONFIG" >> "$here/calls"
. "$here/$playbook"
"""


class Ansible:
    """The stand-in and its calls."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reports = directory / "reports"
        self.reports.mkdir()
        program = directory / "ansible-playbook"
        program.write_text(STAND_IN)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (directory / "python").symlink_to(sys.executable)
        (directory / "inventory").write_text("[server]\njetson-1\n")
        self.does("site", "true")
        self.does("verify", "true")
        self.does("test", "true")
        self.does("reset", "true")

    def does(self, playbook: str, script: str) -> None:
        (self.directory / playbook).write_text(script + "\n")

    def publishes(self, exit_code: int, then: str = "true", playbook: str = "verify") -> None:
        index = json.dumps({"exit_code": exit_code, "simulated": True})
        self.does(playbook, f"echo '{index}' > {self.reports}/index.json; {then}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        options = (f"--inventory={self.directory}/inventory", f"--reports={self.reports}")
        environment = {key: value for key, value in os.environ.items() if key != "ANSIBLE_CONFIG"}
        return subprocess.Popen(
            [self.directory / "python", HIL, *options, *arguments],
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def calls(self) -> list[str]:
        file = self.directory / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def playbooks(self) -> list[str]:
        return [call.partition(" ")[0] for call in self.calls]


@pytest.fixture
def ansible(tmp_path: Path) -> Ansible:
    return Ansible(tmp_path)


@pytest.mark.parametrize(
    ("published", "site", "expected"),
    [(0, "exit 0", 0), (1, "exit 2", 1), (2, "exit 2", 2), (0, "exit 4", 2), (7, "exit 0", 2)],
)
def test_exit_status_is_what_the_reports_say(
    ansible: Ansible, published: int, site: str, expected: int
) -> None:
    ansible.publishes(published, site)
    status, output = ansible.run()
    assert status == expected, output
    assert output.splitlines()[-1].endswith(" (SIMULATED boards)")
    assert ansible.playbooks == ["site", "verify", "reset"]


def test_a_board_that_was_not_provisioned_is_verified_all_the_same(ansible: Ansible) -> None:
    ansible.does("site", "exit 2")
    ansible.publishes(1, "exit 2")
    assert ansible.run()[0] == 1
    assert ansible.playbooks == ["site", "verify", "reset"]
    ansible.publishes(0)
    assert ansible.run()[0] == 2


def test_a_run_that_publishes_nothing_is_no_proof_whatever_lies_there_from_before(ansible: Ansible) -> None:
    (ansible.reports / "index.json").write_text('{"exit_code": 0}')
    (ansible.reports / "junit.xml").write_text("<testsuites/>")
    assert ansible.run()[0] == 2
    assert not (ansible.reports / "junit.xml").exists()
    assert ansible.playbooks == ["site", "verify", "reset"]


def test_name_of_the_cluster_that_ends_is_for_the_reset_alone(ansible: Ansible) -> None:
    ansible.publishes(0)
    assert ansible.run("--reset-cluster=jetson-1")[0] == 0
    assert ["k3s_reset_cluster=jetson-1" in call for call in ansible.calls] == [False, False, True]


def test_a_board_that_cannot_be_reset_is_no_success(ansible: Ansible) -> None:
    ansible.publishes(0)
    ansible.does("reset", "exit 2")
    assert ansible.run()[0] == 2
    ansible.publishes(1, "exit 2")
    assert ansible.run()[0] == 1


def test_arguments_reach_all_playbooks(ansible: Ansible) -> None:
    ansible.publishes(0)
    status, output = ansible.run(
        "--limit=jetson-1", f"--bundle={ansible.directory}", "--", "-e", "jetson_k3s_confirm=restore-docker"
    )
    assert status == 0, output
    site, verify, _ = ansible.calls
    for call in ansible.calls:
        for part in (
            f"--inventory={ansible.directory}/inventory",
            "--limit=jetson-1",
            f"--extra-vars=jetson_k3s_bundle={ansible.directory}",
            "-e jetson_k3s_confirm=restore-docker",
            # Relative paths in the arguments are those of the person; the settings are the checkout's.
            f" in {ansible.directory} by {CHECKOUT}/ansible.cfg",
        ):
            assert part in call
    assert "--skip-tags=gpu_verify" in site
    assert "gpu_verify_mode=full" in verify
    assert f"gpu_verify_reports={ansible.reports}" in verify


def test_reports_of_a_collections_user_are_in_the_current_directory(tmp_path: Path) -> None:
    collection = tmp_path / "collection/playbooks/hil.py"
    collection.parent.mkdir(parents=True)
    collection.write_bytes(HIL.read_bytes())
    for program, root in ((HIL, CHECKOUT), (collection, tmp_path)):
        said = run([sys.executable, program, "--help"], cwd=tmp_path, env={"COLUMNS": "300"}).stdout
        assert f"default: {root}/reports" in " ".join(said.split())


def test_boards_can_be_kept(ansible: Ansible) -> None:
    ansible.publishes(0)
    assert ansible.run("--keep")[0] == 0
    assert ansible.playbooks == ["site", "verify"]


def test_secrets_in_arguments_are_not_printed(ansible: Ansible) -> None:
    ansible.publishes(0)
    secret = json.dumps({"k3s_agent_token": "planted two"})
    _, output = ansible.run("--", "--extra-vars", "k3s_token=planted", f"--extra-vars={secret}")
    assert all("k3s_token=planted" in call and secret in call for call in ansible.calls)
    assert "planted" not in output


def test_a_wrong_inventory_is_told_before_anything_is_run(ansible: Ansible) -> None:
    (ansible.directory / "inventory").unlink()
    status, output = ansible.run()
    assert status == 2
    assert "there is no inventory" in output
    assert ansible.playbooks == []


def stopped(ansible: Ansible, number: signal.Signals, playbook: str = "site") -> tuple[int, str]:
    ready = ansible.directory / "ready"
    os.mkfifo(ready)
    # sh ends at SIGINT as ansible-playbook does; the sleep would outlive it.
    ansible.does(playbook, f"trap 'kill $!; exit 99' INT; sleep 60 & echo > {ready}; wait $!")
    with ansible.start() as process:
        ready.read_text()  # until the stand-in has opened it
        process.send_signal(number)
        begin = time.monotonic()
        output, _ = process.communicate(timeout=60)
    assert time.monotonic() - begin < 30, "the playbook was not ended"
    return process.returncode, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_boards_are_reset_when_the_run_is_stopped(ansible: Ansible, number: signal.Signals) -> None:
    status, output = stopped(ansible, number)
    assert status == 2, output
    assert f"stopped by {number.name}" in output
    assert ansible.playbooks == ["site", "reset"]


def test_a_signal_during_the_reset_ends_it(ansible: Ansible) -> None:
    ansible.publishes(0)
    assert stopped(ansible, signal.SIGTERM, "reset")[0] == 2


@pytest.fixture
def job(ansible: Ansible) -> str:
    """The option of a job whose manifest is there."""
    (ansible.directory / "job.yaml").write_text("kind: Job\n")
    return "--job=job.yaml"


@pytest.mark.parametrize(
    ("published", "playbook", "expected"),
    [(0, "exit 0", 0), (1, "exit 2", 1), (2, "exit 2", 2), (0, "exit 2", 2)],
)
def test_exit_status_of_a_job_is_what_the_reports_say(
    ansible: Ansible, job: str, published: int, playbook: str, expected: int
) -> None:
    ansible.publishes(published, playbook, "test")
    status, output = ansible.run(job)
    assert status == expected, output
    assert ansible.playbooks == ["test"], "the boards are nodes, and stay so"


def test_boards_are_provisioned_and_reset_for_a_job_if_somebody_says_so(ansible: Ansible, job: str) -> None:
    ansible.publishes(0, playbook="test")
    assert ansible.run(job, "--provision", "--reset")[0] == 0
    assert ansible.playbooks == ["site", "test", "reset"]
    assert "--skip-tags=gpu_verify" in ansible.calls[0]


def test_options_of_a_job_are_the_settings_of_its_role(ansible: Ansible, job: str) -> None:
    ansible.publishes(0, playbook="test")
    options = ("--artifacts=out", "--timeout=90m", "--wait=1h", "--disk=1Gi", "--artifacts-limit=1Gi")
    given = ("--boards=jetson-2", "--image=app.tar", "--", "-e", "gpu_verify_mode=undisturbed")
    assert ansible.run(job, *options, *given)[0] == 0
    (call,) = ansible.calls
    settings = json.loads(re.findall(r"--extra-vars=({.*?})", call)[0])
    assert settings == {
        "gpu_job_manifest": f"{ansible.directory}/job.yaml",
        "gpu_job_image": "app.tar",
        "gpu_job_artifacts": f"{ansible.directory}/out",
        "gpu_job_artifacts_limit": "1Gi",
        "gpu_job_disk_limit": "1Gi",
        "gpu_job_timeout": 5400,
        "gpu_job_wait": 3600,
    }
    assert "--limit=jetson-2" in call and "-e gpu_verify_mode=undisturbed" in call


def test_command_of_an_image_is_split_as_in_a_shell(ansible: Ansible) -> None:
    ansible.publishes(0, playbook="test")
    assert ansible.run("--image=app:1", "--command=sh -c 'pytest -q'")[0] == 0
    assert '"gpu_job_command": ["sh", "-c", "pytest -q"]' in ansible.calls[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--job=missing.yaml"], "there is no manifest missing.yaml"),
        (["--artifacts=out"], "an option of a job is given, and no job: add --job FILE or --image IMAGE"),
        (["--provision"], "an option of a job is given, and no job"),
        (["--image=a", "--timeout=soon"], "'soon' is no duration: write seconds, or such as 90s, 30m or 2h"),
    ],
)
def test_wrong_options_of_a_job_are_told_before_anything_is_run(
    ansible: Ansible, options: list[str], message: str
) -> None:
    status, output = ansible.run(*options)
    assert (status, message in output, ansible.playbooks) == (2, True, [])


def test_stopped_run_removes_its_job(ansible: Ansible, job: str) -> None:
    ready = ansible.directory / "ready"
    os.mkfifo(ready)
    run_test = f"trap 'kill $!; exit 99' INT; sleep 60 & echo > {ready}; wait $!"
    ansible.does("test", f'case "$*" in *=absent*) exit 0;; esac; {run_test}')
    with ansible.start(job, "--reset") as process:
        ready.read_text()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert ansible.playbooks == ["test", "test", "reset"]
    assert "gpu_job_state=absent --tags=gpu_job" in ansible.calls[1]


EXAMPLES = CHECKOUT / "docs" / "ci"
GITLAB = ("--builtin-schema=vendor.gitlab-ci", "--data-transform=gitlab-ci")
GITHUB = ("--builtin-schema=vendor.github-workflows",)
SCHEMAS = {
    "github-actions.yml": GITHUB,
    "own-image.yml": GITHUB,
    "gitlab-ci.yml": GITLAB,
    "github.yml": GITHUB,
    "gitlab.yml": GITLAB,
}


def check(path: Path, *schema: str) -> None:
    """Compare a file with a schema; raises ToolError with what does not fit."""
    run([Path(sys.executable).with_name("check-jsonschema"), *schema, path])


# Of systems that publish none as a file.
TRANSCRIBED = {"osmo-pool.yml": schemas.OSMO, "jumpstarter-exporter.yml": schemas.JUMPSTARTER}


def test_every_example_has_a_schema() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {*SCHEMAS, *TRANSCRIBED}


@pytest.mark.parametrize("name", TRANSCRIBED)
def test_example_fits_the_interface_of_its_system(name: str) -> None:
    jsonschema.validate(yaml.safe_load((EXAMPLES / name).read_text()), TRANSCRIBED[name])


def test_pool_of_osmo_names_its_own_templates_and_our_labels(tmp_path: Path) -> None:
    configs = yaml.safe_load((EXAMPLES / "osmo-pool.yml").read_text())["services"]["configs"]
    pool = configs["pools"]["jetson"]
    used = {*pool["common_pod_template"]}.union(
        *(one["override_pod_template"] for one in pool["platforms"].values())
    )
    assert used - {"default_user", "default_ctrl"} == set(configs["podTemplates"])
    assert pool["default_platform"] in pool["platforms"]
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    labels = node_labels(detect(tmp_path)) | {"kubernetes.io/arch": "arm64"}
    labels["jetson-k3s.github.io/device-plugin"] = "true"
    for template in configs["podTemplates"].values():
        assert template["spec"]["nodeSelector"].items() <= labels.items()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_fits_its_schema(name: str) -> None:
    check(EXAMPLES / name, *SCHEMAS[name])


OWN = {
    "workflows/*": "github-workflows",
    "dependabot.yml": "dependabot",
    "ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "ISSUE_TEMPLATE/[!c]*": "github-issue-forms",
}


@pytest.mark.parametrize("pattern", OWN)
def test_the_projects_own_files_for_github_fit_their_schema(pattern: str) -> None:
    files = sorted((CHECKOUT / ".github").glob(pattern))
    assert files
    for file in files:
        check(file, f"--builtin-schema=vendor.{OWN[pattern]}")


def commands(example: dict[str, Any]) -> list[str]:
    """The commands of an example's job, without those that only one of the two systems needs."""
    (job,) = example["jobs"].values() if "jobs" in example else [example["verify-boards"]]
    lines = job.get("script", []) + job.get("after_script", [])
    for step in job.get("steps", []):
        lines += step.get("run", "").replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if "reports &&" not in line]


def test_both_examples_for_other_repositories_run_the_same_commands() -> None:
    github = yaml.safe_load((EXAMPLES / "github.yml").read_text())["jobs"]["test"]["steps"]
    gitlab = yaml.safe_load((EXAMPLES / "gitlab.yml").read_text())["jetson"]["script"]
    commands = [step["run"].replace("\\\n", " ") for step in github if "run" in step]
    both = [[" ".join(one.split()) for one in lines] for lines in (commands, gitlab)]
    assert both[0] == both[1]


def test_command_of_the_examples_is_one_that_hil_py_takes(ansible: Ansible) -> None:
    (command,) = [
        one
        for one in yaml.safe_load((EXAMPLES / "gitlab.yml").read_text())["jetson"]["script"]
        if "jetson-k3s test" in one
    ]
    words = command.partition(" test ")[2].split()
    (ansible.directory / "jetson-test.yaml").touch()
    del words[: words.index("--job")]
    ansible.publishes(0, playbook="test")
    status, output = ansible.run(*words, f"--reports={ansible.reports}")
    assert status == 0, output


def test_both_examples_for_this_repository_test_the_commit_in_the_same_way() -> None:
    names = ("github-actions.yml", "gitlab-ci.yml")
    both = [commands(yaml.safe_load((EXAMPLES / name).read_text())) for name in names]
    assert both[0] == both[1]
    assert [re.findall(r"make .*|playbooks/\S+\.(?:py|yml)", command) for command in both[0]] == [
        ["make image"],
        ["playbooks/bundle.yml"],
        ["playbooks/hil.py"],
        ["playbooks/reset.yml"],
    ]
