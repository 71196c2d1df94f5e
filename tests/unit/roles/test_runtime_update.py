# SPDX-License-Identifier: Apache-2.0
"""What a role installs is judged: an NVIDIA runtime before it is replaced, an engine once it is there."""

from pathlib import Path

import pytest

from tests.unit.roles.loading import ROLES
from tests.unit.roles.playing import play_text
from tests.unit.roles.preflight_facts import with_facts

PLAYBOOK = """\
- hosts: server
  gather_facts: false
  vars_files: [CONTEXT]
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {versions: {}, files: "{{ files }}"}
    - ansible.builtin.import_role: {name: nvidia_docker, tasks_from: plan.yml}
    - ansible.builtin.debug:
        msg: >-
          due={{ nvidia_docker_plan.due }}, judged={{ __preflight_facts_then.nvidia_runtime.version }},
          {{ nvidia_docker_plan | preflight_update | map(attribute='found') | join }}.
          held={{ nvidia_docker_plan | preflight_holds(ansible_facts.jetson.packages, 'docker')
                  | map(attribute='found') | join }};
"""
ARCHIVE = "debs-jetpack6-arm64.tar"
HAS = {"nvidia-container-toolkit": "1.18.0-1", "libnvidia-container1": "1.18.0-1"}
REFUSED = (
    "jetson_k3s_confirm has update-runtime, and no nvidia-container-toolkit in the bundle's "
    "debs-jetpack6-arm64.tar."
)


@pytest.mark.parametrize(
    ("asked", "installed", "files", "said"),
    [
        (False, "1.16.2", {ARCHIVE: {"packages": HAS}}, "due=False, judged=1.16.2, ."),
        (True, "1.16.2", {ARCHIVE: {"packages": HAS}}, "due=True, judged=1.18.0, ."),
        (True, "1.19.0", {ARCHIVE: {"packages": HAS}}, "due=False, judged=1.19.0, ."),
        (True, None, {ARCHIVE: {"packages": HAS}}, "due=False, judged=, ."),
        (True, "1.16.2", {}, f"due=False, judged=1.16.2, {REFUSED}"),
    ],
)
def test_update_that_is_asked_for_counts(
    tmp_path: Path, asked: bool, installed: str | None, files: dict[str, object], said: str
) -> None:
    text = PLAYBOOK.replace("CONTEXT", str(ROLES / "preflight/vars/main/context.yml"))
    given = with_facts(nvidia_runtime__version=installed)
    variables = {"given": given, "files": files, "jetson_k3s_confirm": ["update-runtime"] * asked}
    filters = str(ROLES / "preflight/filter_plugins")
    run = play_text(tmp_path, text, variables=variables, ANSIBLE_FILTER_PLUGINS=filters)
    assert said in run.said, run.stdout


FAMILY = (
    "libnvidia-container-tools, libnvidia-container1, nvidia-container-toolkit, nvidia-container-toolkit-base"
)


@pytest.mark.parametrize(
    ("changes", "asked", "held"),
    [
        ({"packages__held": ["docker.io", "vim"]}, False, ""),
        ({"packages__held": ["libnvidia-container1"]}, False, ""),
        (
            {"packages__held": ["libnvidia-container1"]},
            True,
            f"this run installs {FAMILY}, and apt holds libnvidia-container1",
        ),
        ({"packages__held": ["libnvidia-container1"], "packages__ours": ["libnvidia-container1"]}, True, ""),
        (
            {
                "packages__held": ["docker.io"],
                "packages__installed": ["containerd"],
                "docker__installed": False,
            },
            False,
            "this run installs docker.io, runc, and apt holds docker.io",
        ),
    ],
    ids=["nothing to install", "no update", "owner's hold", "role's own hold", "Docker"],
)
def test_hold_that_an_installation_would_meet_is_found(
    tmp_path: Path, changes: dict[str, object], asked: bool, held: str
) -> None:
    text = PLAYBOOK.replace("CONTEXT", str(ROLES / "preflight/vars/main/context.yml"))
    variables = {
        "given": with_facts(**changes),
        "files": {ARCHIVE: {"packages": HAS}},
        "jetson_k3s_confirm": ["update-runtime"] * asked,
    }
    filters = str(ROLES / "preflight/filter_plugins")
    run = play_text(tmp_path, text, variables=variables, ANSIBLE_FILTER_PLUGINS=filters)
    assert f"held={held};" in run.said, run.stdout


INSTALLED = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {versions: "{{ bundled }}"}
    - ansible.builtin.import_role: {name: preflight, tasks_from: installed.yml}
"""


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("1.24", []),
        (
            "1.44",
            ["it was just installed, and nothing else was changed", "k3s-docker-api-dropped", "below 29"],
        ),
    ],
)
def test_engine_that_does_not_fit_is_refused_once_it_is_there(
    tmp_path: Path, version: str, told: list[str]
) -> None:
    given = with_facts(docker__min_api_version=version, bundle__k3s_version="v1.27.16+k3s1")
    variables = {"given": given, "bundled": given["bundle"]}
    run = play_text(tmp_path, INSTALLED, variables=variables, fails=bool(told))
    assert [words for words in told if words not in run.said] == []
