# SPDX-License-Identifier: Apache-2.0
"""Rules for every task, by its kind: secrets, the controller, services, temporary files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.modules import run_lock

from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, Data

FOLDERS = ("roles/*/tasks", "roles/*/handlers", "playbooks/**")
FILES = sorted(path for folder in FOLDERS for path in CHECKOUT.glob(f"{folder}/*.yml"))
SECTIONS = ("block", "rescue", "always")
MODULE = "ansible.builtin."
CLEAR = ("True", "true", "yes")


@dataclass(frozen=True)
class Task:
    """A task with the keywords and variables of the blocks around it."""

    file: Path
    text: Data
    keywords: Data
    always: tuple[Data, ...] = field(default=())
    """Tasks of the `always` sections of the blocks around it."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(CHECKOUT)}: {self.text.get('name', '')}"

    def arguments(self, module: str) -> Data | None:
        """Arguments of a module, None for another task."""
        found = self.text.get(f"{COLLECTION}.{module}", self.text.get(MODULE + module))
        return found if isinstance(found, dict) else None


def walk(file: Path, items: list[Data], around: Data, always: tuple[Data, ...] = ()) -> Iterator[Task]:
    """Yield each task, those of blocks with the keywords of their blocks."""
    for item in items:
        keywords = around | item | {"vars": {**around.get("vars", {}), **item.get("vars", {})}}
        if "block" not in item:
            yield Task(file, item, keywords, always)
            continue
        inner = {key: value for key, value in keywords.items() if key not in (*SECTIONS, "name", "when")}
        cleared = tuple(one.text for one in walk(file, item.get("always", []), {}))
        yield from walk(file, item["block"], inner, always + cleared)
        for section in SECTIONS[1:]:
            yield from walk(file, item.get(section, []), inner, always)


def tasks() -> Iterator[Task]:
    """Yield every task of roles and playbooks, with the keywords of its play."""
    for file in FILES:
        for item in yaml.safe_load(file.read_text()) or []:
            if "hosts" in item:
                around = {key: value for key, value in item.items() if key not in ("tasks", "roles", "name")}
                yield from walk(file, item.get("tasks", []), around)
            else:
                yield from walk(file, [item], {})


ALL = list(tasks())


def calls(module: str) -> list[tuple[Task, Data]]:
    found = [(task, arguments) for task in ALL if (arguments := task.arguments(module)) is not None]
    assert found, f"no task has {module}"
    return found


# Files of which everybody may know the content: certificates, and the number of a boot.
PUBLIC_FILES = {
    "{{ __image_supply_certificate }}",
    "/proc/sys/kernel/random/boot_id",
}
# Units of the roles, which have no secret in their environment.
OWN_UNITS = {"{{ __image_supply_unit }}", "{{ __power_mode_unit }}", "jtop", "jtop-relay.socket"}


def test_files_that_may_have_a_secret_are_read_without_a_log() -> None:
    read = [*calls("slurp"), *calls("file_texts")]
    unlogged = {str(task) for task, given in read if task.keywords.get("no_log") is not True}
    public = {str(task) for task, given in calls("slurp") if given["src"] in PUBLIC_FILES}
    assert unlogged - public == set()


def test_keys_and_units_are_read_without_a_log() -> None:
    """A command line in a unit of an owner, and the key of a backup."""
    shown = [task for task, given in calls("command") if "--property=ExecStart" in given.get("argv", [])]
    shown += [task for task, given in calls("k3s_backup_record") if given.get("key")]
    assert len(shown) >= 2
    assert [str(task) for task in shown if task.keywords.get("no_log") is not True] == []


def test_state_of_units_of_others_is_not_shown_at_v() -> None:
    """Ansible's module returns a unit's environment, in which K3s and Docker may have secrets."""
    told = [
        str(task)
        for task, given in calls("systemd_service")
        if "name" in given and given["name"] not in OWN_UNITS
        if task.keywords.get("no_log") not in (True, "{{ ansible_verbosity > 0 }}")
    ]
    assert told == []


def test_tasks_on_the_controller_are_the_users_own_with_his_python() -> None:
    """A task that is delegated keeps the board's sudo, connection and Python, unless it says others."""
    own = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    found = [task for task in ALL if task.keywords.get("delegate_to") == "localhost"]
    assert len(found) > 10
    wrong = [
        str(task)
        for task in found
        if task.keywords.get("become") is not False
        or {name: task.keywords["vars"].get(name) for name in own} != own
    ]
    assert wrong == []


# The verification in mode `full` shows that pods keep the GPU through a reload.
RELOADS = {"roles/gpu_verify/tasks/checks.yml"}


def test_systemd_is_reloaded_only_for_a_changed_unit() -> None:
    """A reload can take the GPU from running containers."""
    always = {
        str(task.file.relative_to(CHECKOUT))
        for task, given in calls("systemd_service")
        if str(given.get("daemon_reload")) in CLEAR and "state" in given
    }
    assert always == RELOADS


def test_servers_restart_one_at_a_time() -> None:
    """A task that restarts the server's K3s on all servers of a play."""
    restarts = [
        task
        for task, given in calls("systemd_service")
        if (given.get("name"), given.get("state")) == ("k3s", "restarted")
    ]
    assert restarts
    assert [str(task) for task in restarts if task.keywords.get("throttle") != 1] == []


def removes(task: Data, register: str) -> bool:
    """Whether a task removes the directory of which an earlier task has registered the path."""
    for module in (f"{MODULE}file", f"{COLLECTION}.upload_directory"):
        given = task.get(module, {})
        if given.get("path") == f"{{{{ {register}.path }}}}" and given.get("state") == "absent":
            return True
    return False


@pytest.mark.parametrize("module", ["tempfile", "upload_directory"])
def test_directory_for_a_moment_is_removed_also_after_a_failure(module: str) -> None:
    made = [
        task
        for task, given in calls(module)
        if given.get("state") in ("directory", "present") and task.file.parent.parent.name != "upload"
    ]
    assert made
    kept = [task for task in made if not any(removes(one, task.text["register"]) for one in task.always)]
    # restore.yml records a failure on each server, so its last task runs after one, too.
    recorded = (
        "roles/k3s_backup/tasks/check_first.yml: Make a directory on the server that only root can reach"
    )
    assert [str(task) for task in kept if str(task) != recorded] == []


# They copy, install or load what is large, or wait for the cluster or the board.
LONG = (
    "apt", "fetch", "get_url", "gpu_checks", "k3s_backup", "k3s_download", "k3s_node", "k3s_node_schedule",
    "reboot", "supplied_images", "unarchive",
)  # fmt: skip


@pytest.mark.parametrize("module", LONG)
def test_task_that_may_take_long_has_a_limit_of_its_own(module: str) -> None:
    """All others have that of ansible.cfg."""
    assert [str(task) for task, _ in calls(module) if "timeout" not in task.keywords] == []


# What they run on is the controller.
WITHOUT_LOCK = {"roles/bundle/tasks/main.yml", "roles/gpu_device_plugin/tasks/build_here.yml"}


def renews(task: Task) -> bool:
    """Whether a task renews the lock of the board on the way, or its file does before it."""
    sent = task.arguments("image_blobs")
    if sent is not None:
        return "lock" in sent
    before = task.file.read_text().partition(f"- name: {task.text['name']}\n")[0]
    return "tasks_from: renew\n" in before


def test_lock_is_renewed_for_a_step_that_may_take_longer_than_it_lasts() -> None:
    long = [task for task in ALL if str(task.keywords.get("timeout", 0)).isdigit()]
    long = [task for task in long if int(task.keywords.get("timeout", 0)) > run_lock.LOCK_SECONDS]
    on_boards = [task for task in long if str(task.file.relative_to(CHECKOUT)) not in WITHOUT_LOCK]
    assert on_boards
    assert [str(task) for task in on_boards if not renews(task)] == []


def test_no_job_is_polled_by_ansible_itself() -> None:
    """Its polling has no time limit: a board that stops answering would keep the run without end."""
    jobs = [task for task in ALL if "async" in task.keywords]
    assert jobs
    assert [str(task) for task in jobs if task.keywords.get("poll") != 0] == []


def test_task_that_only_shows_something_says_so() -> None:
    """A task that is called "Check" can fail."""
    shown = [str(task) for task, _ in calls("debug")]
    assert [one for one in shown if one.partition(": ")[2].split()[0] not in ("Show", "Log", "Explain")] == []
