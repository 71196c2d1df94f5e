# SPDX-License-Identifier: Apache-2.0
"""Paths on the controller: a person's are relative to the directory of the command, defaults to the checkout.

Each variable that is a path has a line in the tables below. The plays run on the oldest and the newest
ansible-core.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import controller_paths

from tests.ansible_core import CORES
from tests.docs import CHECKOUT
from tests.reports import samples
from tests.unit.roles.places import COLLECTION, ROLES
from tests.unit.roles.playing import Run, play_in, write_inventory

pytestmark = pytest.mark.timeout(600)

# Variable: the role's own variable with the absolute path, and the default below the checkout ('' for none).
ON_CONTROLLER = {
    "bundle_debs_keyrings": (
        "bundle",
        "__bundle_debs_keyring_paths",
        ["/usr/share/keyrings/ubuntu-archive-keyring.gpg"],
    ),
    "bundle_files": ("bundle", "__bundle_file_paths", []),
    "bundle_plugin_archive": (
        "bundle",
        "__bundle_plugin_archive_path",
        "dist/tegra-device-plugin-arm64.tar.gz",
    ),
    "bundle_release_signers": ("bundle", "__bundle_release_signers_path", ""),
    "gpu_job_artifacts": ("gpu_job", "__gpu_job_artifacts_path", ""),
    "gpu_job_manifest": ("gpu_job", "__gpu_job_manifest_path", ""),
    "gpu_status_file": ("gpu_status", "__gpu_status_path", ""),
    "gpu_verify_reports": ("gpu_verify", "__gpu_verify_reports_path", "reports"),
    "jetson_k3s_bundle": ("preflight", "__preflight_bundle", ""),
    "k3s_backup_directory": ("k3s_backup", "__k3s_backup_directory_path", "backups"),
    "k3s_backup_file": ("k3s_backup", "__k3s_backup_file_path", None),  # restore.yml needs it
    "k3s_backup_recipient": ("k3s_backup", "__k3s_backup_recipient_path", ""),
    "kubeconfig_file": ("kubeconfig", "__kubeconfig_path", "kubeconfig-localhost.yaml"),
    "snapshot_directory": ("snapshot", "__snapshot_directory_path", "snapshots"),
    "snapshot_file": ("snapshot", "__snapshot_file_path", None),  # preflight.yml with an archive needs it
}
# The callback plugin of drift.yml reads it: test_drift.py.
BY_CALLBACK = {"jetson_k3s_drift_file"}
# A filter reads it of all hosts: test_existing_cluster.py.
BY_FILTER = {"k3s_existing_kubeconfig"}
# Paths on the host that a playbook changes are absolute: test_monitoring.py.
ON_HOST = {
    "monitoring_dashboards_directory",
    "monitoring_rules_directory",
    "monitoring_targets_directory",
}
# Defaults that no variable of a user changes, or that have another name for one.
DEFAULTS = {
    "bundle": {"__bundle_directory": "bundle", "__bundle_k3s_pins": "k3s-releases.sha256"},
    "preflight": {"__preflight_built": "dist"},
}


def options() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in ROLES.glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            yield from entry["options"].items()


def test_each_variable_that_is_a_path_is_in_a_table() -> None:
    paths = {name for name, option in options() if "path" in (option["type"], option.get("elements"))}
    public = {name for name in paths if not name.startswith("_")}
    assert public == {*ON_CONTROLLER, *BY_CALLBACK, *BY_FILTER, *ON_HOST}


# What may be in an expression besides: is it set at all?
OTHER_USES = (" is defined", " is undefined", " | default('') else", " | default('') | length")
FILTERED = re.compile(r"(\s+\| default\(''\))?\s+\| jetson_k3s.cluster.controller_path\b")
EXPRESSION = re.compile(r"\{\{.*?\}\}", re.DOTALL)


def uses() -> Iterator[tuple[str, str, str]]:
    """Each use of such a variable in an expression: file, variable, and the text behind it."""
    names = re.compile(rf"\b({'|'.join(ON_CONTROLLER)})\b")
    for path in [*ROLES.glob("*/*/**/*.yml"), *CHECKOUT.glob("playbooks/**/*.yml")]:
        for expression in EXPRESSION.findall(path.read_text()):
            code = re.sub(r"""("[^"]*"|'[^']*')""", "''", expression)  # without texts
            for match in names.finditer(code):
                yield str(path.relative_to(CHECKOUT)), match[1], code[match.end() :]


def test_no_template_takes_such_a_path_as_it_was_typed() -> None:
    found = list(uses())
    assert {name for _, name, _ in found} == ON_CONTROLLER.keys()
    raw = [
        (path, name, behind[:40])
        for path, name, behind in found
        if not FILTERED.match(behind) and not " ".join(f"x{behind}".split())[1:].startswith(OTHER_USES)
    ]
    assert raw == []


def test_no_other_code_makes_a_path_on_the_controller() -> None:
    other = re.compile(r"playbook_dir|inventory_dir|\bPWD\b|\| *realpath")
    files = [*ROLES.glob("*/*/**/*.yml"), *CHECKOUT.glob("playbooks/**/*.yml")]
    found = {str(path.relative_to(CHECKOUT)) for path in files if other.search(path.read_text())}
    assert found == {
        "roles/gpu_device_plugin/vars/main.yml",  # the sources of the plugin's image
        "roles/k3s_backup/tasks/main.yml",  # two absolute paths are compared
    }


def test_paths_of_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("SITE", "north")
    given = ["key.asc", "./a/../b", "/srv/bundle/", "~/key.asc", "$SITE/key.asc", ""]
    here = str(tmp_path)
    expected = [f"{here}/key.asc", f"{here}/b", "/srv/bundle", "/home/anna/key.asc", f"{here}/north/key.asc"]
    assert controller_paths.controller_path(given) == [*expected, ""]


def test_defaults_of_a_checkout_and_of_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert controller_paths.checkout_path("reports") == str(CHECKOUT / "reports")
    code = tmp_path / "c/ansible_collections/jetson_k3s/cluster/plugins/plugin_utils/controller_paths.py"
    assert controller_paths.checkout_path("reports", code) == str(tmp_path / "reports")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, because defaults are written into it."""
    root = tmp_path / "checkout"
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in (".collections", "playbooks", "plugins", "roles", "plugin/deploy"):
        shutil.copytree(CHECKOUT / name, root / name, symlinks=True, ignore=unwanted)
    shutil.copy(CHECKOUT / "ansible.cfg", root)
    return root


def typed(checkout: Path, directory: Path, line: str, playbook: str, *arguments: str) -> Run:
    """Run a playbook of this checkout as it is typed in a directory, on this line of ansible-core."""
    return play_in(
        directory,
        checkout / "inventory.yml",
        playbook,
        *arguments,
        line=line,
        ANSIBLE_CONFIG=f"{checkout}/ansible.cfg",
    )


ROLES_WITH_PATHS = sorted({role for role, _, _ in ON_CONTROLLER.values()} | DEFAULTS.keys())
# The roles bring their variables to the play; none of their tasks runs.
SHOW = """\
- hosts: server
  gather_facts: false
  roles: %s
  tasks:
    - ansible.builtin.copy: {content: "{{ {%s} | to_json }}", dest: "{{ found }}/%s.json", mode: "0600"}
"""


@pytest.mark.parametrize("line", CORES)
def test_same_paths_wherever_the_playbook_is(checkout: Path, tmp_path: Path, line: str) -> None:
    write_inventory(checkout, {"server": ["localhost"]})
    directory = tmp_path / "typed here"
    directory.mkdir()

    def found(names: Iterable[str], *arguments: str) -> dict[str, Any]:
        """These variables, in a playbook and in another one that it imports from another directory."""
        roles = json.dumps([{"role": f"{COLLECTION}.{role}", "tags": ["never"]} for role in ROLES_WITH_PATHS])
        shown = ", ".join(f"'{name}': {name}" for name in names)
        (checkout / "playbooks/start/show.yml").write_text(SHOW % (roles, shown, "start"))
        text = SHOW % (roles, shown, "playbooks") + "- ansible.builtin.import_playbook: start/show.yml\n"
        (checkout / "playbooks/show.yml").write_text(text)
        arguments = (f"--extra-vars=found={tmp_path}", "--skip-tags=always", *arguments)
        ran = typed(checkout, directory, line, f"{checkout}/playbooks/show.yml", *arguments)
        assert ran.returncode == 0, ran.stdout
        one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("playbooks", "start"))
        assert one == other
        variables: dict[str, Any] = one
        return variables

    defaults = {variable: default for _, variable, default in ON_CONTROLLER.values() if default is not None}
    defaults |= {name: path for names in DEFAULTS.values() for name, path in names.items()}
    # A list has absolute paths, or none.
    expected = {
        name: f"{checkout}/{path}" if path and isinstance(path, str) else path
        for name, path in defaults.items()
    }
    assert found(defaults) == expected

    given = {
        name: ["a/b"] if isinstance(default, list) else "a/b"
        for name, (_, _, default) in ON_CONTROLLER.items()
    }
    absolute: dict[str, Any] = {
        variable: [f"{directory}/a/b"] if isinstance(default, list) else f"{directory}/a/b"
        for _, variable, default in ON_CONTROLLER.values()
    }
    absolute["__bundle_directory"] = f"{directory}/a/b"
    assert found(absolute, f"--extra-vars={json.dumps(given)}") == absolute


def test_displayed_path_is_relative_below_the_directory_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    paths = [f"{here}/reports/index.html", f"{tmp_path}/reports/index.html"]
    assert [controller_paths.displayed_path(path) for path in paths] == ["reports/index.html", paths[1]]


# Nobody listens on port 1.
OFF = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.mark.parametrize("line", CORES)
def test_board_that_is_off_leaves_a_report_that_is_not_ok(checkout: Path, line: str) -> None:
    groups: dict[str, dict[str, Any]] = {"server": {"jetson-1": OFF}, "k3s_cluster": {"jetson-1": None}}
    write_inventory(checkout, groups, jetson_k3s_bundle="/nonexistent")
    reports = checkout / "reports"
    reports.mkdir()
    (reports / "index.json").write_text('{"ok": true}')
    (reports / "jetson-1.json").write_text(json.dumps(samples.passed("jetson-1")))
    ran = typed(checkout, checkout, line, "playbooks/verify.yml")
    assert ran.returncode == 4, ran.stdout
    assert json.loads((reports / "index.json").read_text())["ok"] is False
    page = (reports / "index.html").read_text()
    assert "passed → not verified" in page
    assert "This is the first report" not in page
    assert sorted(path.parent for path in checkout.rglob("index.html")) == [reports]


def default_places() -> set[str]:
    """Files and directories in the checkout that the playbooks write unless a person names others."""
    places = {path for _, _, path in ON_CONTROLLER.values() if path and isinstance(path, str)} | {
        path for names in DEFAULTS.values() for path in names.values()
    }
    assert all(isinstance(place, str) for place in places)
    return {str(place) for place in places}


@pytest.mark.parametrize("place", sorted(default_places()))
def test_git_ignores_what_the_playbooks_write(place: str) -> None:
    inside = f"{place}/file" if "." not in place else place
    ignored = subprocess.run(["git", "-C", CHECKOUT, "check-ignore", "--quiet", inside], check=False)
    assert ignored.returncode == 0
    written = (CHECKOUT / "CONTRIBUTING.md").read_text().partition("## Generated files")[2]
    assert f"`{place.replace('localhost', '*').partition('/')[0]}" in written


def test_make_clean_leaves_what_a_person_may_need(tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    files = [f"{place}/file" if "." not in place else place for place in default_places()]
    files += ["dist/0.2.0/SHA256SUMS", "build/lib/module.py"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["make", "--silent", "clean"], cwd=tmp_path, check=True)
    assert [name for name in files if not (tmp_path / name).exists()] == ["build/lib/module.py"]
