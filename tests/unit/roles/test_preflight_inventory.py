# SPDX-License-Identifier: Apache-2.0
"""Settings of which one host's value is used for all have one value, and each board has its own address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_inventory as of_inventory

from tests.ansible_core import CORES
from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, ROLES
from tests.unit.roles.playing import Run, play, write_inventory

pytestmark = pytest.mark.timeout(600)

VARIABLES = yaml.safe_load((ROLES / "preflight/vars/main/common.yml").read_text())
TABLE: list[dict[str, Any]] = VARIABLES["__preflight_common"]
COMMAND_ONLY: list[str] = VARIABLES["__preflight_command_only"]
USERS = {entry["of"] for entry in TABLE}
GROUPS = {
    "all": ["a", "b", "c", "d"],
    "server": ["a"],
    "agent": ["b", "c"],
    "cameras": ["b", "d"],
    "k3s_cluster": ["a", "b", "c"],
}


def differing(name: str, **values: Any) -> list[dict[str, str]]:
    """The findings about one variable; a board without a value does not have the variable."""
    hostvars = {host: ({name: values[host]} if host in values else {}) for host in GROUPS["all"]}
    found: list[dict[str, str]] = of_inventory.findings_of_common(TABLE, USERS, GROUPS, hostvars)
    return found


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["name"])
def test_two_values_are_refused_and_one_is_not(entry: dict[str, Any]) -> None:
    groups = GROUPS | {"server": ["a", "b", "c"]}
    pairs: dict[type, list[Any]] = {bool: [True, False], dict: [{"x": 1}, {"y": 1}]}
    values = pairs.get(type(entry["default"]), ["x", "y"])
    name = entry["name"]

    def findings(*given: Any) -> list[dict[str, str]]:
        hostvars = {host: {name: value} for host, value in zip("abc", given, strict=True)}
        found: list[dict[str, str]] = of_inventory.findings_of_common(TABLE, USERS, groups, hostvars)
        return found

    assert findings(values[0], values[0], values[0]) == []
    (finding,) = findings(values[0], values[0], values[1])
    assert finding["id"] == "setting-differs"
    assert finding["found"].startswith(f"{name}: ")
    assert finding["expected"].startswith(f"one value for all hosts of [{entry['group']}]: ")
    assert findings(entry["default"], entry["default"], entry["default"]) == []


def test_hosts_and_groups_of_each_value_are_named() -> None:
    (finding,) = differing("k3s_container_runtime", b="containerd", d="docker")
    # `d` is no board of the cluster.
    assert finding["found"] == (
        "k3s_container_runtime: the default on a, c (in the group server); containerd on b "
        "(in the group cameras)"
    )
    assert finding["fix"] == (
        "Set k3s_container_runtime for the group k3s_cluster, and nowhere else. "
        "If a host is no Jetson, set jetson_k3s_host_kind=plain for it."
    )


def test_value_that_may_be_long_or_a_secret_is_not_shown() -> None:
    groups = GROUPS | {"server": ["a", "b", "c"], "first": ["a"]}
    hostvars: dict[str, Any] = {"a": {}, "b": {"k3s_token": "hunter2"}, "c": {"k3s_token": "hunter3"}}
    (finding,) = of_inventory.findings_of_common(TABLE, USERS, groups, hostvars)
    assert finding["found"] == (
        "k3s_token: the default on a (in the group first); value 2 on b (in the group cameras); value 3 on c"
    )
    assert not {"k3s_token", "k3s_agent_token"} & {entry["name"] for entry in TABLE if entry.get("shown")}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gpu_device_plugin_metrics_on_host", {"a": True, "b": "true", "c": "yes"}),
        ("gpu_device_plugin_metrics_on_host", {"a": False, "b": "False"}),
        ("k3s_container_runtime", {"a": "docker"}),
        # Agents may have a token that expires.
        ("k3s_token", {"a": "one", "b": "two"}),
    ],
)
def test_same_value_in_another_form_is_no_difference(name: str, values: dict[str, Any]) -> None:
    assert differing(name, **values) == []


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}, []),
        ({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1"}}, ["a and b"]),
        ({"a": {"ansible_host": "B"}, "b": {}}, ["a and b"]),
        ({"a": {"ansible_host": "x", "ansible_port": 1}, "b": {"ansible_host": "x", "ansible_port": 2}}, []),
        ({"a": {"ansible_connection": "local"}, "b": {"ansible_connection": "local"}}, []),
        (
            {
                "a": {"ansible_host": "x", "ansible_ssh_common_args": "-J one"},
                "b": {"ansible_host": "x", "ansible_ssh_common_args": "-J two"},
            },
            [],
        ),
    ],
)
def test_two_boards_with_one_address(variables: dict[str, dict[str, Any]], found: list[str]) -> None:
    findings = of_inventory.findings_of_addresses([*variables], variables)
    assert [entry["found"].partition(" have ")[0] for entry in findings] == found


# The table beside the roles.
def test_defaults_of_the_table_are_those_of_the_roles() -> None:
    defaults: dict[str, Any] = {}
    for path in ROLES.glob("*/defaults/main.yml"):
        defaults |= yaml.safe_load(path.read_text()) or {}
    own = {entry["name"]: entry["default"] for entry in TABLE if entry["name"] in defaults}
    templates = {name for name in own if "{{" in str(defaults[name])}
    assert {name: defaults[name] for name in own.keys() - templates} == {
        name: own[name] for name in own.keys() - templates
    }
    assert {own[name] for name in templates} == {""}


def public() -> set[str]:
    found: set[str] = set()
    for path in ROLES.glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            found.update(entry["options"] or {})
    return {name for name in found if not name.startswith("_")}


PARTS = ("block", "rescue", "always", "tasks")
TASKS = [*ROLES.glob("*/tasks/*.yml"), *CHECKOUT.glob("playbooks/**/*.yml")]


def passed_on(value: Any) -> Iterator[tuple[str, Any]]:
    """Variables that tasks and plays set for others."""
    for one in value if isinstance(value, list) else []:
        yield from one.get("vars", {}).items()
        for part in PARTS:
            yield from passed_on(one.get(part))


def internal() -> dict[str, str]:
    """The templates in each variable of a role, and in those that tasks set; defaults of public ones, too."""
    found: dict[str, str] = {}
    variables = [
        entry
        for path in [*ROLES.glob("*/vars/**/*.yml"), *ROLES.glob("*/defaults/main.yml")]
        for entry in (yaml.safe_load(path.read_text()) or {}).items()
    ]
    variables += [entry for path in TASKS for entry in passed_on(yaml.safe_load(path.read_text()))]
    for name, value in variables:
        text = yaml.safe_dump(value, width=10**6)
        words = " ".join(re.sub("'[^']*'", "", part) for part in re.findall("{{.*?}}", text))
        found[name] = f"{found.get(name, '')} {words}"
    return found


WORD = re.compile(r"\b[a-z_][a-z0-9_]*\b")


def read(text: str, texts: dict[str, str]) -> set[str]:
    """Public variables that a text reads, also by other variables."""
    seen: set[str] = set()
    queue = [text]
    while queue:
        words = set(WORD.findall(queue.pop())) - seen
        seen |= words
        queue += [texts[word] for word in words if word in texts]
    return seen & public()


def once() -> Iterator[tuple[str, str]]:
    """Each task that runs once for all hosts, without its messages: where it is, and its text.

    A role that is imported so is all of its tasks.
    """

    def walk(file: Path, items: Any, where: str, inherited: bool) -> Iterator[tuple[str, str]]:
        for item in items or []:
            is_once = inherited or bool(item.get("run_once"))
            for part in PARTS:
                yield from walk(file, item.get(part), where, is_once)
            if not is_once:
                continue
            plain = {key: value for key, value in item.items() if key not in ("name", "register", *PARTS)}
            for module in ("ansible.builtin.assert", "ansible.builtin.fail", "ansible.builtin.debug"):
                if module in plain:
                    plain[module] = {key: value for key, value in plain[module].items() if "msg" not in key}
            yield where, yaml.safe_dump(plain)
            if role := item.get("ansible.builtin.import_role"):
                tasks = (
                    ROLES
                    / role["name"].removeprefix(f"{COLLECTION}.")
                    / "tasks"
                    / f"{role.get('tasks_from', 'main')}.yml"
                )
                yield from walk(tasks, yaml.safe_load(tasks.read_text()), f"{where} > {role['name']}", True)
            elif name := item.get("ansible.builtin.import_tasks"):
                yield from walk(file, yaml.safe_load((file.parent / name).read_text()), where, True)

    for path in TASKS:
        yield from walk(path, yaml.safe_load(path.read_text()), str(path.relative_to(CHECKOUT)), False)


# Variables that a task reads once although hosts may have different values, and why that is right.
FOR_EACH_HOST = {
    "bundle_debs_keyrings": "of this computer, which alone makes a bundle",
    "bundle_plugin_archive": "of this computer, which alone makes a bundle",
    "gpu_device_plugin_api": "of the first board; the run of a job reads that of its own board again",
    **dict.fromkeys(
        (
            "gpu_job_artifacts",
            "gpu_job_artifacts_limit",
            "gpu_job_command",
            "gpu_job_disk_limit",
            "gpu_job_image",
            "gpu_job_manifest",
            "gpu_job_resource",
            "gpu_job_state",
            "gpu_job_timeout",
        ),
        "given with -e, for one run; read again on each board",
    ),
    "jetson_k3s_confirm": "given with -e, for one run",
    "jetson_k3s_host_kind": "of each host, from hostvars",
    "k3s_reset_cluster": "given with -e, for one run",
    "k3s_backup_accepted_sha256": "given with -e, for one run",
    "k3s_backup_file": "given with -e, for one run",
    "k3s_server_url": "of the server that makes the kubeconfig",
    "k3s_version": "of the first server, from hostvars; or of this computer, for a bundle",
    "user_images_check": "given with -e, for one run",
    "kubeconfig_server": "of the server that makes the kubeconfig",
}


def test_what_runs_once_reads_only_settings_that_all_hosts_share() -> None:
    texts = internal()
    found: dict[str, set[str]] = {}
    for where, text in once():
        for name in read(text, texts):
            found.setdefault(name, set()).add(where)
    known = {entry["name"] for entry in TABLE} | FOR_EACH_HOST.keys() | set(COMMAND_ONLY)
    assert {name: places for name, places in found.items() if name not in known} == {}
    assert FOR_EACH_HOST.keys() <= found.keys()


# In a play, on the oldest and the newest ansible-core.
CHECKS = """\
- hosts: k3s_cluster
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: jetson_k3s.cluster.preflight, tasks_from: controller}
    - ansible.builtin.include_role: {name: jetson_k3s.cluster.preflight, tasks_from: inventory}
    - ansible.builtin.ping:
"""
SSH = {"ansible_connection": "ssh", "ansible_host": "10.0.0.1"}


@pytest.fixture(params=CORES)
def checked(request: pytest.FixtureRequest, tmp_path: Path) -> Any:

    def run(variables: dict[str, dict[str, Any]], *arguments: str) -> Run:
        boards = {name: variables.get(name, {}) for name in ("a", "b", "c")}
        groups = {"server": {"a": boards["a"]}, "agent": {"b": boards["b"], "c": boards["c"]}}
        inventory = write_inventory(tmp_path, groups | {"k3s_cluster": boards, "cameras": {"c": {}}})
        (tmp_path / "play.yml").write_text(CHECKS)
        return play(inventory, tmp_path / "play.yml", *arguments, line=request.param)

    return run


def test_preflight_refuses_them_also_for_boards_outside_of_the_run(checked: Any) -> None:
    same = {"gpu_device_plugin_image": "{{ 'plugin' }}@sha256:0"}
    good = checked(dict.fromkeys("abc", same) | {"c": {"gpu_device_plugin_image": "plugin@sha256:0"}})
    assert good.returncode == 0, good.stdout
    ran = checked({"c": {"gpu_device_plugin_image": "other"}}, "--limit=a,b")
    assert ran.returncode == 2, ran.stdout
    assert (
        "gpu_device_plugin_image: the default on a, b (in the group server); other on c "
        "(in the group cameras)"
    ) in ran.said
    assert "[error] setting-differs" in ran.said
    ran = checked({"c": {"k3s_container_runtime": "{{ no_such_variable }}"}})
    assert ran.returncode == 2, ran.stdout
    assert "a template that cannot be evaluated on c" in ran.said

    name = {"gpu_device_plugin_config_name": "units"}
    config = {"gpu_device_plugin_config": {"version": "{{ 'v1' }}"}}
    good = checked({"b": name | config, "c": name | {"gpu_device_plugin_config": {"version": "v1"}}})
    assert good.returncode == 0, good.stdout
    ran = checked({"b": name, "c": name | {"gpu_device_plugin_config": {"key": "hunter2"}}}, "--limit=a")
    assert ran.returncode == 2, ran.stdout
    assert "[error] configuration-differs" in ran.said
    assert "the name units: that of b; that of c (in the group cameras)" in ran.said
    assert "hunter2" not in ran.stdout
    ran = checked({"c": {"nvidia_docker_strict": "{{ no_such_variable }}"}})
    assert ran.returncode == 2, ran.stdout
    assert "[error] configuration-unreadable" in ran.said

    ran = checked({"b": SSH, "c": SSH}, "--limit=a")
    assert (ran.returncode, "b and c have the same address, 10.0.0.1" in ran.said) == (2, True), ran.stdout


@pytest.mark.acceptance
def test_variable_of_the_command_line_is_refused_in_the_inventory(checked: Any) -> None:
    ran = checked({"b": {"jetson_k3s_serial": [3]}})
    words = "The inventory sets jetson_k3s_serial, which Ansible reads before any host's variables"
    assert (ran.returncode, words in ran.said) == (2, True), ran.stdout
    ran = checked({}, '--extra-vars={"jetson_k3s_serial": [3]}')
    assert ran.returncode == 0, ran.stdout
