# SPDX-License-Identifier: Apache-2.0
"""The collection: built and installed without network, it brings all its plugins and its playbooks run."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from release import collection
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
    - ansible.builtin.import_role: {{name: {collection.NAME}.gpu_verify, tasks_from: report}}
"""
PLAYBOOKS = sorted(path.stem for path in (CHECKOUT / "playbooks").glob("*.yml"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory with the collection in it and an inventory, far from the checkout."""
    directory = tmp_path_factory.mktemp("site")
    archive = collection.build(directory / "dist")
    (directory / "inventory").write_text(INVENTORY)
    install = ("collection", "install", "--offline", f"--collections-path={directory}/c")
    installed = run(directory, "ansible-galaxy", *install, archive)
    assert installed.returncode == 0, installed.stdout
    return directory


@pytest.fixture(scope="module")
def installed(site: Path) -> Path:
    return site / "c/ansible_collections" / collection.NAME.replace(".", "/")


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
    checked = run(
        site, "ansible-playbook", "-i", "inventory", "--syntax-check", f"{collection.NAME}.{playbook}"
    )
    assert checked.returncode == 0, checked.stdout


def test_preflight_of_the_collection_runs_with_its_modules_and_filters(site: Path) -> None:
    ran = run(site, "ansible-playbook", "-i", "inventory", f"{collection.NAME}.preflight")
    assert "localhost: preflight found" in ran.stdout, ran.stdout
    assert "[error] bundle-unusable" in ran.stdout


def test_drift_of_the_collection_has_its_callback_plugin(site: Path) -> None:
    ran = run(site, "ansible-playbook", "-i", "inventory", f"{collection.NAME}.drift")
    assert ran.returncode == 2, ran.stdout
    assert "localhost  not compared: localhost: preflight found" in ran.stdout


def test_report_of_the_collection_is_written(site: Path) -> None:
    (site / "found.json").write_text(json.dumps(samples.passed("localhost")))
    (site / "end.yml").write_text(END_OF_VERIFICATION)
    ran = run(site, "ansible-playbook", "-i", "inventory", "end.yml")
    assert ran.returncode == 0, ran.stdout
    assert "localhost: PASSED" in ran.stdout
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


def shipped(place: Path) -> dict[str, bytes]:
    """Files by name; what Ansible makes of galaxy.yml is left out."""
    made = ("FILES.json", "MANIFEST.json")
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in made and "__pycache__" not in path.parts
    }


TOP = {
    "CHANGELOG.md",
    "LICENSE",
    "SECURITY.md",
    "docs",
    "inventory.example",
    "meta",
    "playbooks",
    "plugin",
    "plugins",
    "roles",
}


def test_the_collection_has_the_files_of_the_checkout_unchanged(installed: Path) -> None:
    files = shipped(installed)
    assert {name.split("/")[0] for name in files} == TOP
    # Manifests that the roles render or read, and the values that a finding of preflight names.
    names = ("agent", "base", "dra", "existing-cluster", "nvidia", "throttle-taint")
    parts = tuple(f"plugin/deploy/{name}/" for name in names)
    assert {name for name in files if name.startswith("plugin/")} == {
        name for name in files if name.startswith(parts)
    }
    assert {
        name: content for name, content in files.items() if content != (CHECKOUT / name).read_bytes()
    } == {}


def test_a_users_own_files_in_the_checkout_are_not_in_the_collection(tmp_path: Path) -> None:
    """Also if somebody builds it with Ansible's own command, between inventories, backups and bundles."""
    checkout = tmp_path / "checkout"
    collection.copy_tracked(checkout)
    (checkout / ".venv/lib").mkdir(parents=True)
    private = (
        *("inventory", "inventory.ini", "inventory.yml", "group_vars/all.yml", "host_vars/jetson-1.yml"),
        *("backups/a.tar.gz", "bundle/k3s-arm64", "reports/a.json", "kubeconfig-jetson-1.yaml"),
        *("jetson-k3s.kubeconfig", ".venv/lib/a.py", ".lab/key", "dist/a.tar.gz"),
    )
    for name in private:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("secret")
    built = run(checkout, "ansible-galaxy", "collection", "build", f"--output-path={tmp_path}")
    assert built.returncode == 0, built.stdout
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {member.name for member in tar}
    assert names & set(private) == set()
    assert {name.split("/")[0] for name in names} == TOP | {"FILES.json", "MANIFEST.json"}


def test_module_of_the_collection_runs_with_what_it_shares_with_others(site: Path) -> None:
    link = {"path": str(site / "links/k3s"), "link": "k3s-v1"}
    text = {"path": str(site / "etc/k3s.yaml"), "content": "docker: true\n", "mode": "0600"}
    arguments = json.dumps({"files": [link, text], "marker": str(site / "run/k3s.restart")})
    ran = run(
        site, "ansible", "--inventory=inventory", "server", f"-m{collection.NAME}.file_set", f"-a{arguments}"
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
    ran = run(site, "ansible-playbook", inventory, "--check", f"{collection.NAME}.{playbook}")
    assert ran.returncode == 0, ran.stdout
    assert "failed=0" in ran.stdout
