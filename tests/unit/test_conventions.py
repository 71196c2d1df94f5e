# SPDX-License-Identifier: Apache-2.0
"""Conventions of the checkout that no linter knows."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES
from tools.cache import CHECKOUT
from tools.docs import generated

FOLDERS = ("collection", "images", "playbooks", "plugin", "release", "roles", "tools")


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_but_tests_imports_tests(folder: str) -> None:
    def imported(file: Path) -> set[str]:
        found = ast.walk(ast.parse(file.read_text()))
        modules = [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
        return {name for name in modules if name.split(".")[0] == "tests"}

    assert {file: names for file in (CHECKOUT / folder).rglob("*.py") if (names := imported(file))} == {}


# Roles without tasks are for modules to share; nobody gives them variables.
ALL_ROLES = sorted(path.parent.name for path in ROLES.glob("*/tasks"))


@pytest.mark.parametrize("path", generated(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_generated_document_is_current(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text() == generated()[path], "run `make docs`"


def specified(role: str) -> dict[str, Any]:
    """Every variable in a role's argument_specs."""
    entries = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for entry in entries.values() for name, option in (entry["options"] or {}).items()}


def entry_points() -> set[tuple[str, str]]:
    """(role, entry point) of everything that another role or a playbook imports by `tasks_from`."""
    found = set()
    for path in (*CHECKOUT.glob("playbooks/**/*.yml"), *ROLES.glob("*/tasks/*.yml")):
        text = path.read_text()
        imported = re.findall(r"name: (\w+)\n +tasks_from: (\w+)\.yml", text)
        found.update(imported)
        assert len(imported) == text.count("tasks_from:"), path
    return found


@pytest.mark.parametrize(("role", "entry"), sorted(entry_points()))
def test_every_entry_point_is_specified(role: str, entry: str) -> None:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    assert specs[entry]["short_description"]


@pytest.mark.parametrize("role", ALL_ROLES)
def test_every_variable_is_specified_with_a_type_a_description_and_the_name_of_its_role(role: str) -> None:
    path = ROLES / role / "defaults/main.yml"
    defaults = (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    assert defaults.keys() <= specified(role).keys()
    for name, option in specified(role).items():
        assert name.startswith(role + "_")
        assert option["type"]
        assert option["description"]


@pytest.mark.parametrize("role", sorted({path.parents[1].name for path in ROLES.glob("*/library/*.py")}))
def test_roles_whose_modules_share_files_depend_on_them(role: str) -> None:
    places = (ROLES / role / "library", ROLES / role / "module_utils")
    modules = "".join(path.read_text() for place in places for path in place.glob("*.py"))
    tasks = "".join(path.read_text() for path in (ROLES / role / "tasks").glob("*.yml"))
    meta = ROLES / role / "meta/main.yml"
    shared = {"atomic_files": "atomic_files", "image_content": "image_content", "redact": "redact"}
    shared["upload"] = "uploads"
    own = {path.stem for path in (ROLES / role / "module_utils").glob("*.py")}
    needed = [
        {"role": name}
        for name, file in shared.items()
        if file not in own
        and (
            re.search(rf"ansible\.module_utils\.{file}\b", modules)
            or any(f" {module.stem}:\n" in tasks for module in (ROLES / name / "library").glob("*.py"))
        )
    ]
    assert (yaml.safe_load(meta.read_text())["dependencies"] if meta.exists() else []) == needed


ON_THE_CONTROLLER = {
    ROLES / "preflight/library/bundle_info.py",
    ROLES / "kubeconfig/library/kubeconfig.py",
    *ROLES.glob("gpu_report/*/*.py"),
}


@pytest.mark.parametrize(
    "path",
    sorted({*ROLES.glob("*/library/*.py"), *ROLES.glob("*/module_utils/*.py")} - ON_THE_CONTROLLER),
    ids=lambda path: str(path.relative_to(ROLES)),
)
def test_code_for_boards_is_python_3_6(path: Path) -> None:
    assert "from __future__" not in path.read_text()
    ast.parse(path.read_text(), feature_version=(3, 6))


SHARED = re.compile(r"(?<![\w.-])/(?:var/)?tmp\b|/dev/shm\b")
# mkdtemp's names, for what is encrypted: the user who logs in fetches it.
EXCUSED = {"roles/k3s_backup/library/k3s_backup.py"}


def test_nothing_that_runs_on_boards_has_a_name_in_a_directory_of_all_users() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for place in ("roles", "playbooks", "collection", "plugin/deploy")
        for path in (CHECKOUT / place).rglob("*")
        if path.suffix in {".py", ".yml", ".yaml", ".j2", ".sh"} and SHARED.search(path.read_text())
    }
    assert found - EXCUSED == set()
