# SPDX-License-Identifier: Apache-2.0
"""The collection: built and installed without network, it brings all its plugins and its playbooks run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collection import build
from tests.acceptance.playbook import run_in
from tests.docs import CHECKOUT
from tests.lab import lab, lab_dir
from tests.reports import samples

LAB = "collection"

INVENTORY = f"""\
[server]
localhost ansible_connection=local ansible_python_interpreter={sys.executable} ansible_become=false
[agent]
[k3s_cluster:children]
server
agent
[k3s_cluster:vars]
jetson_k3s_bundle=/nonexistent
"""
END_OF_VERIFICATION = f"""\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        __gpu_verify_report: "{{{{ lookup('ansible.builtin.file', 'found.json') | from_json }}}}"
    - ansible.builtin.import_role: {{name: {build.NAME}.gpu_verify, tasks_from: report}}
"""
PLAYBOOKS = sorted(path.stem for path in (CHECKOUT / "playbooks").glob("*.yml"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory with the collection in it and an inventory, far from the checkout."""
    directory = tmp_path_factory.mktemp("site")
    archive = build.build(directory / "dist")
    (directory / "inventory").write_text(INVENTORY)
    install = ("collection", "install", "--offline", f"--collections-path={directory}/c")
    installed = run(directory, "ansible-galaxy", *install, archive)
    assert installed.returncode == 0, installed.stdout
    return directory


@pytest.fixture(scope="module")
def installed(site: Path) -> Path:
    return site / "c/ansible_collections" / build.NAME.replace(".", "/")


def run(directory: Path, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs with that collection only, and the setting that its README requires."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment |= {
        "ANSIBLE_COLLECTIONS_PATH": f"{directory}/c",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_INJECT_FACT_VARS": "False",
    }
    return run_in(directory, environment, Path(sys.executable).with_name(program), *arguments)


@pytest.mark.parametrize(
    "playbook",
    [name if name == "site" else pytest.param(name, marks=pytest.mark.acceptance) for name in PLAYBOOKS],
)
def test_playbook_of_the_collection_is_understood(site: Path, playbook: str) -> None:
    checked = run(site, "ansible-playbook", "-i", "inventory", "--syntax-check", f"{build.NAME}.{playbook}")
    assert checked.returncode == 0, checked.stdout


def test_preflight_of_the_collection_runs_with_its_modules_and_filters(site: Path) -> None:
    ran = run(site, "ansible-playbook", "-i", "inventory", f"{build.NAME}.preflight")
    assert "localhost: preflight found" in ran.stdout, ran.stdout
    assert "[error] bundle-unusable" in ran.stdout


def test_drift_of_the_collection_has_its_callback_plugin(site: Path) -> None:
    ran = run(site, "ansible-playbook", "-i", "inventory", f"{build.NAME}.drift")
    assert ran.returncode == 2, ran.stdout
    assert "localhost  not compared: localhost: preflight found" in ran.stdout


def test_report_of_the_collection_is_written(site: Path) -> None:
    (site / "found.json").write_text(json.dumps(samples.passed("localhost")))
    (site / "end.yml").write_text(END_OF_VERIFICATION)
    ran = run(site, "ansible-playbook", "-i", "inventory", "end.yml")
    assert ran.returncode == 0, ran.stdout
    assert "1 of 1 boards have passed" in ran.stdout
    assert {"localhost.json", "index.html", "junit.xml"} < {
        path.name for path in (site / "reports").iterdir()
    }


def test_list_of_wheels_is_in_the_collection_as_a_file(installed: Path) -> None:
    wheels = installed / "roles/bundle/files/requirements-jtop.txt"
    assert not wheels.is_symlink()
    assert wheels.read_text() == (CHECKOUT / "roles/bundle/files/requirements-jtop.txt").read_text()


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in (place.rglob("*") if place.is_dir() else [place])}


def test_files_that_roles_take_from_elsewhere_are_in_the_collection(installed: Path) -> None:
    elsewhere = re.compile(r"/\.\./\.\./([\w./-]+)")
    named = [
        name for path in installed.glob("roles/**/*.yml") for name in elsewhere.findall(path.read_text())
    ]
    assert len(named) >= 3
    assert [name for name in named if files(installed / name) != files(CHECKOUT / name)] == []


def test_every_plugin_of_the_roles_is_in_the_collection(installed: Path) -> None:
    for inside, place in build.PLUGINS.items():
        expected = {path.name for path in (CHECKOUT / "roles").glob(f"*/{inside}/*.py")}
        assert {path.name for path in (installed / place).glob("*.py")} == expected
        assert not list(installed.glob(f"roles/*/{inside}"))


def test_no_own_filter_is_left_without_its_full_name(installed: Path) -> None:
    names = [
        name for path in (installed / "plugins/filter").glob("*.py") for name in build.filter_names(path)
    ]
    bare = re.compile(rf"\|\s*({'|'.join(names)})\b")
    texts = [*installed.glob("roles/**/*.yml"), *installed.glob("playbooks/**/*.yml")]
    assert texts
    assert [str(path) for path in texts if bare.search(path.read_text())] == []


def test_modules_import_nothing_that_only_the_checkout_has(installed: Path) -> None:
    utils = {path.stem for path in (installed / "plugins/module_utils").glob("*.py")}
    for module in installed.glob("plugins/*/*.py"):
        imported = set(re.findall(r"\bansible\.module_utils\.(\w+)", module.read_text()))
        assert not imported & utils, module


def test_module_of_the_collection_runs_with_what_it_shares_with_others(site: Path) -> None:
    link = {"path": str(site / "links/k3s"), "link": "k3s-v1"}
    text = {"path": str(site / "etc/k3s.yaml"), "content": "docker: true\n", "mode": "0600"}
    arguments = json.dumps({"files": [link, text], "marker": str(site / "run/k3s.restart")})
    ran = run(
        site, "ansible", "--inventory=inventory", "server", f"-m{build.NAME}.file_set", f"-a{arguments}"
    )
    assert ran.returncode == 0, ran.stdout
    assert (site / "etc/k3s.yaml").read_text() == text["content"]
    assert (site / "links/k3s").readlink() == Path("k3s-v1")
    assert (site / "run/k3s.restart").exists()


@pytest.fixture(scope="module")
def _board() -> Iterator[None]:
    with lab.fresh(LAB, ("orinnano-jp6",)):
        yield


@pytest.mark.lab
@pytest.mark.acceptance
@pytest.mark.usefixtures("_board")
@pytest.mark.parametrize("playbook", ["site", "power_mode", "reset"])
def test_check_of_a_bare_board_finds_every_module_of_the_collection(site: Path, playbook: str) -> None:
    inventory = f"--inventory={lab_dir(LAB)}/inventory.ini"
    ran = run(site, "ansible-playbook", inventory, "--check", f"{build.NAME}.{playbook}")
    assert ran.returncode == 0, ran.stdout
    assert "failed=0" in ran.stdout
