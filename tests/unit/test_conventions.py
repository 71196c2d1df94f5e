# SPDX-License-Identifier: Apache-2.0
"""Conventions of the checkout that no linter knows."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.filter.cluster import FilterModule

from tests.unit.roles.places import COLLECTION, PLUGINS, ROLES
from tests.unit.roles.playing import play, write_inventory
from tools.cache import CHECKOUT
from tools.docs.settings import specs

FOLDERS = ("images", "playbooks", "plugin", "plugins", "release", "roles", "tools")


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_but_tests_imports_tests(folder: str) -> None:
    def imported(file: Path) -> set[str]:
        found = ast.walk(ast.parse(file.read_text()))
        modules = [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
        return {name for name in modules if name.split(".")[0] == "tests"}

    assert {file: names for file in (CHECKOUT / folder).rglob("*.py") if (names := imported(file))} == {}


ALL_ROLES = sorted(path.parent.name for path in ROLES.glob("*/tasks"))


def test_every_role_is_in_the_list_of_roles() -> None:
    listed = re.findall(r"\[(\w+)\]\(\1\)", (ROLES / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in ROLES.iterdir() if path.is_dir())


def specified(role: str) -> dict[str, Any]:
    """Every variable in a role's argument_specs, without the settings of other roles that it reads."""
    return {name: option for entry in specs(role).values() for name, option in entry["options"].items()}


def entry_points() -> set[tuple[str, str]]:
    """(role, entry point) of everything that another role or a playbook imports by `tasks_from`."""
    found = set()
    for path in (*CHECKOUT.glob("playbooks/**/*.yml"), *ROLES.glob("*/tasks/*.yml")):
        text = path.read_text()
        imported = re.findall(rf"name: {COLLECTION}\.(\w+)\n +tasks_from: (\w+)$", text, re.MULTILINE)
        found.update(imported)
        given = text.count('tasks_from: "{{ __run_lock_tasks')  # by the roles that lock boards
        assert len(imported) + given == text.count("tasks_from:"), path
        run = re.findall(rf"__\w+_role: {COLLECTION}\.(\w+)\n +__\w+_tasks: (\w+)$", text, re.MULTILINE)
        found.update(run)
        assert len(run) == len(re.findall(r"__\w+_tasks: \w", text)), path
    return found


@pytest.mark.parametrize(("role", "entry"), sorted(entry_points()))
def test_every_entry_point_is_specified(role: str, entry: str) -> None:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    assert specs[entry]["short_description"]


@pytest.mark.parametrize("role", ALL_ROLES)
def test_every_variable_is_specified_with_a_type_a_description_and_the_name_of_its_role(role: str) -> None:
    path = ROLES / role / "defaults/main.yml"
    defaults = (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    assert {name for name in defaults if not name.startswith("_")} <= specified(role).keys()
    # Several roles read the variables with this prefix. The first play of each playbook checks them.
    shared = ("jetson_",) if role == "preflight" else ()
    for name, option in specified(role).items():
        assert name.lstrip("_").startswith((role + "_", *shared))
        assert option["type"]
        assert option["description"]


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_fact_that_others_read_is_in_the_description_of_its_entry_point(role: str) -> None:
    own = "".join(path.read_text() for path in (ROLES / role / "tasks").glob("*.yml"))
    facts = set(re.findall(rf"(?:^ {{4,8}}|register: )({role}_\w+)(?::|$)", own, re.MULTILINE))
    facts -= {path.stem for path in PLUGINS.glob("modules/*.py")}
    elsewhere = "".join(
        path.read_text()
        for path in (*CHECKOUT.glob("playbooks/**/*.yml"), *ROLES.glob("*/[tv]a*/**/*.yml"))
        if path.relative_to(ROLES.parent).parts[1] != role
    )
    specs = (ROLES / role / "meta/argument_specs.yml").read_text()
    read = {fact for fact in facts - specified(role).keys() if re.search(rf"\b{fact}\b", elsewhere)}
    assert {fact for fact in read if f"C({fact})" not in specs} == set()


def test_no_public_variable_is_refused_as_a_removed_one() -> None:
    public = {name for role in ALL_ROLES for name in specified(role)}
    removed = yaml.safe_load((ROLES / "preflight/vars/main/removed_variables.yml").read_text())
    names = removed["__preflight_removed_variables"]
    assert names.keys() & public == set()
    assert set(re.findall(r"\w+_\w+", " ".join(names.values()))) <= public


def test_each_role_has_the_documented_timeout() -> None:
    description = specified("preflight")["jetson_k3s_timeout"]["description"]
    (documented,) = re.findall(r"The default is (\d+)", description)
    text = "".join(path.read_text() for path in ROLES.glob("*/*/**/*.yml"))
    assert set(re.findall(r"jetson_k3s_timeout \| default\((\d+)\)", text)) == {documented}


def test_no_two_variables_differ_by_their_underscores_alone() -> None:
    """Those of a role's defaults and specs, which a user sets, and the internal ones of its vars."""
    internal = {
        name.lstrip("_")
        for path in ROLES.glob("*/vars/**/*.yml")
        for name in yaml.safe_load(path.read_text()) or {}
    }
    assert internal & {name for role in ALL_ROLES for name in specified(role)} == set()


@pytest.mark.parametrize("playbook", sorted(CHECKOUT.glob("playbooks/*.yml")), ids=lambda path: path.name)
def test_extra_variables_of_a_playbook_are_specified(playbook: Path) -> None:
    lines = [line for line in playbook.read_text().splitlines() if line.startswith("#")]
    named = re.findall(r"-e (?:'\{\")?([a-z]\w+)", "\n".join(lines))
    assert set(named) <= {name for role in ALL_ROLES for name in specified(role)}


@pytest.mark.parametrize("place", ["inventory", "command"])
def test_a_removed_variable_is_refused_with_its_successors(tmp_path: Path, place: str) -> None:
    removed = {"jetson_k3s_output": "/tmp/a"}
    inventory = write_inventory(tmp_path, {"server": {"a": removed if place == "inventory" else {}, "b": {}}})
    playbook = tmp_path / "play.yml"
    playbook.write_text("- import_playbook: " + str(CHECKOUT / "playbooks/start/checks.yml\n"))
    extra = [f"--extra-vars={json.dumps(removed)}"] if place == "command" else []
    ran = play(inventory, playbook, *extra)
    words = "set jetson_k3s_drift_file, gpu_status_file or kubeconfig_file instead of jetson_k3s_output."
    assert (ran.returncode, words in ran.said) == (2, True), ran.stdout


ON_THE_CONTROLLER = {
    PLUGINS / "modules/bundle_info.py",
    PLUGINS / "modules/debs_verified.py",
    PLUGINS / "modules/gpu_report.py",
    PLUGINS / "modules/kubeconfig.py",
    PLUGINS / "module_utils/signed_index.py",
    *PLUGINS.glob("module_utils/report_*.py"),
}


@pytest.mark.parametrize(
    "path",
    sorted({*PLUGINS.glob("modules/*.py"), *PLUGINS.glob("module_utils/*.py")} - ON_THE_CONTROLLER),
    ids=lambda path: path.stem,
)
def test_code_for_boards_is_python_3_6(path: Path) -> None:
    assert "from __future__" not in path.read_text()
    ast.parse(path.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("path", sorted((PLUGINS / "modules").glob("*.py")), ids=lambda path: path.stem)
def test_what_ansible_doc_shows_of_a_module_is_yaml(path: Path) -> None:
    """ansible-lint and Ansible itself pass over documentation that they cannot read."""
    texts = {
        node.targets[0].id: yaml.safe_load(ast.literal_eval(node.value))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    }
    assert texts["DOCUMENTATION"]["module"] == path.stem
    options = texts["DOCUMENTATION"].get("options") or {}
    assert [name for name, one in options.items() if not one.get("description")] == []


SHARED = re.compile(r"(?<![\w.-])/(?:var/)?tmp\b|/dev/shm\b")
# mkdtemp's names, for what is encrypted: the user who logs in fetches it.
EXCUSED = {"plugins/modules/k3s_backup.py"}


def test_nothing_that_runs_on_boards_has_a_name_in_a_directory_of_all_users() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for place in ("roles", "playbooks", "plugins", "plugin/deploy")
        for path in (CHECKOUT / place).rglob("*")
        if path.suffix in {".py", ".yml", ".yaml", ".j2", ".sh"} and SHARED.search(path.read_text())
    }
    assert found - EXCUSED == set()


KEYWORDS = {"delegate_to", "run_once", "throttle"}


def tasks(items: list[dict[str, Any]], inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each task, those of blocks with the block's keywords."""
    for item in items:
        parts = [part for key in ("block", "rescue", "always") for part in item.get(key, ())]
        task = inherited | item
        yield from tasks(parts, {key: task[key] for key in task.keys() & KEYWORDS}) if parts else [task]


MAX_SESSIONS = 10  # sshd_config(5): the default


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_task_that_many_boards_delegate_to_one_leaves_its_sshd_sessions(role: str) -> None:
    for path in (ROLES / role / "tasks").glob("*.yml"):
        for task in tasks(yaml.safe_load(path.read_text()) or [], {}):
            if task.get("delegate_to", "localhost") != "localhost" and not task.get("run_once"):
                assert 0 < task.get("throttle", 0) < MAX_SESSIONS, f"{path.name}: {task['name']}"


SET_FILTER = re.compile(r"\| (?:symmetric_difference|difference|intersect|union)\(")
# Sorted, counted, or searched for one element.
NO_ORDER_AFTER = re.compile(r"(?:\)| \| map\('first'\))* \| (?:sort|length|difference|intersect)\b")
NO_ORDER_BEFORE = re.compile(r"\bin \(?[\w.'\[\]]+ $")


def closing(text: str, opening: int) -> int:
    """The index after the parenthesis that ends the one at `opening`."""
    depth = 0
    for index in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError(text[opening:])


def test_no_list_comes_from_a_filter_that_loses_its_order() -> None:
    """Ansible's filters for sets order servers, and names in a message, differently in each run."""
    files = [path for folder in ("roles", "playbooks") for path in (CHECKOUT / folder).rglob("*.yml")]
    found = []
    for path in files:
        text = " ".join(path.read_text().split())
        for used in SET_FILTER.finditer(text):
            after = text[closing(text, used.end() - 1) :]
            if not NO_ORDER_AFTER.match(after) and not NO_ORDER_BEFORE.search(text[: used.start()]):
                found.append(f"{path.relative_to(CHECKOUT)}: {text[used.start() - 40 : used.end() + 40]}")
    assert found == []


def own_filters() -> set[str]:
    """Names of the collection's filters."""
    return set(FilterModule().filters())


def test_own_filters_modules_and_roles_have_their_full_names() -> None:
    """A bare name of a filter is found nowhere; that of a role or module depends on who imports it."""
    modules = "|".join(path.stem for path in PLUGINS.glob("modules/*.py"))
    bare = re.compile(
        rf"\|\s*(?:{'|'.join(own_filters())})\b(?!\.)|^ *(?:- )?(?:{modules}):(?=$| [{{*&])"
        rf"|_role:(?: \{{|\n *)name: (?:{'|'.join(ALL_ROLES)})\b",
        re.MULTILINE,
    )
    assert bare.search("{{ a | proxy_apt }}")
    assert bare.search("- k3s_node:\n")
    files = [
        *ROLES.glob("*/[!m]*/**/*.yml"),
        *ROLES.glob("*/templates/*.j2"),
        *CHECKOUT.glob("playbooks/**/*.yml"),
    ]
    found = {
        str(path.relative_to(CHECKOUT)): match[0]
        for path in files
        if (match := bare.search(path.read_text()))
    }
    assert found == {}
