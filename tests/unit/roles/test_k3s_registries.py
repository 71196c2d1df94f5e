# SPDX-License-Identifier: Apache-2.0
"""Registries of the inventory: what is wrong with them, what K3s gets of them, and whose file it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import Run, play_text, run_module

module = load("k3s/filter_plugins/k3s_registries.py")

PASSWORD = "planted-registry-password"
REGISTRIES = {
    "mirrors": {
        "docker.io": {
            "endpoint": ["https://registry.site.example:5000", "http://[fd00::1]:5000/v2"],
            "rewrite": {"^library/(.*)": "mirrored/$1"},
        },
        "registry.k8s.io": None,
    },
    "configs": {
        "registry.site.example:5000": {
            "auth": {"username": "site", "password": PASSWORD},
            "tls": {"ca_file": "/etc/ssl/site.pem", "insecure_skip_verify": False},
        }
    },
}
HEADER = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())["__k3s_registries_header"]
DOCKER = {"container_runtime": "docker", "k3s": {"registries": None}}
CONTAINERD = DOCKER | {"container_runtime": "containerd"}
NO_ADDRESSES = ("a.example:5000", "ftp://a.example", "https://", "http://a:port", "//a", "", 7, None)


@pytest.mark.parametrize("registries", [{}, REGISTRIES, {"mirrors": None}, {"configs": {"a.example": None}}])
def test_what_k3s_reads_is_right(registries: dict[str, Any]) -> None:
    assert module.problems(registries) == []


@pytest.mark.parametrize(
    ("registries", "problem"),
    [
        ([], "k3s_registries: a mapping is needed"),
        ({"mirror": {}}, "k3s_registries: K3s knows no mirror here, but mirrors, configs"),
        ({"mirrors": ["docker.io"]}, "mirrors: a mapping is needed"),
        ({"mirrors": {"docker.io": ["https://a"]}}, "mirrors: docker.io: a mapping is needed"),
        (
            {"mirrors": {"docker.io": {"endpoints": []}}},
            "mirrors: docker.io: K3s knows no endpoints here, but endpoint, rewrite",
        ),
        (
            {"mirrors": {"docker.io": {"endpoint": "https://a"}}},
            "mirrors: docker.io: endpoint: a list of addresses is needed",
        ),
        *(
            (
                {"mirrors": {"docker.io": {"endpoint": ["https://a", address]}}},
                "mirrors: docker.io: endpoint: number 2 is not http://HOST or https://HOST",
            )
            for address in NO_ADDRESSES
        ),
        (
            {"mirrors": {"docker.io": {"rewrite": {"^a": 1}}}},
            "mirrors: docker.io: rewrite: ^a: text is needed",
        ),
        ({"configs": {"a:5000": {"login": {}}}}, "configs: a:5000: K3s knows no login here, but auth, tls"),
        (
            {"configs": {"a": {"auth": {"user": "x"}}}},
            "configs: a: auth: K3s knows no user here, but username, password, auth, identity_token",
        ),
        ({"configs": {"a": {"auth": {"password": 12345}}}}, "configs: a: auth: password: text is needed"),
        ({"configs": {"a": {"tls": {"cafile": "/a"}}}}, "configs: a: tls: K3s knows no cafile here, but "),
        (
            {"configs": {"a": {"tls": {"insecure_skip_verify": "yes"}}}},
            "configs: a: tls: insecure_skip_verify: true or false is needed",
        ),
        (
            {"configs": {"a": {"tls": {"cert_file": "/a"}}}},
            "configs: a: tls: cert_file and key_file are needed together",
        ),
    ],
)
def test_what_k3s_would_not_read_is_named(registries: Any, problem: str) -> None:
    (found,) = module.problems(registries)
    assert found.startswith(problem)


def test_no_problem_repeats_what_may_be_a_secret() -> None:
    wrong = {
        "mirrors": {"a": {"endpoint": [f"user:{PASSWORD}@a:5000"]}},
        "configs": {"a": {"auth": [PASSWORD], "tls": {"key_file": [PASSWORD]}}},
    }
    problems = module.problems(wrong)
    assert len(problems) == 4
    assert PASSWORD not in str(problems)


@pytest.mark.parametrize(
    ("facts", "given", "problems", "ids"),
    [
        (DOCKER, False, [], []),
        (CONTAINERD, True, [], []),
        (CONTAINERD | {"k3s": {"registries": "role"}}, True, [], []),
        (CONTAINERD | {"k3s": {"registries": "owner"}}, False, [], []),
        (CONTAINERD | {"k3s": {"registries": "owner"}}, True, [], ["registries-foreign"]),
        (CONTAINERD, True, ["a", "b"], ["registries", "registries"]),
        (DOCKER, True, ["a"], ["registries-docker"]),
    ],
)
def test_preflight_says_what_k3s_would_not_go_by(
    facts: dict[str, Any], given: bool, problems: list[str], ids: list[str]
) -> None:
    preflight = load("preflight/filter_plugins/preflight_k3s.py")
    found = preflight.findings_of_registries(facts, given, problems)
    assert [entry["id"] for entry in found] == ids
    assert ids != ["registries-docker"] or "nvidia_docker_daemon_config" in found[0]["fix"]


@pytest.mark.parametrize(
    ("text", "whose"),
    [(None, None), ("", "owner"), ("mirrors: {}\n", "owner"), (HEADER + "mirrors: {}\n", "role")],
)
def test_facts_and_reset_know_whose_file_it_is(tmp_path: Path, text: str | None, whose: str | None) -> None:
    file = tmp_path / "etc/rancher/k3s/registries.yaml"
    if text is not None:
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert load("jetson_facts/module_utils/jetson_services.py").registries(str(tmp_path)) == whose
    reset = load("k3s_reset/library/k3s_reset.py")
    written = reset.WRITTEN["/etc/rancher/k3s/registries.yaml"]
    assert reset.begins(str(file), written) is (whose == "role")


PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: configure.yml}
    - ansible.builtin.copy:
        content: "{{ __k3s_configured | to_json }}"
        dest: "{{ there }}/result.json"
        mode: "0600"
      check_mode: false
      diff: false
"""


def configure(
    there: Path, registries: dict[str, Any], whose: str | None, *arguments: str
) -> tuple[Run, dict[str, Any]]:
    """Run the k3s role's configuration with these registries: the run, and what file_set has said."""
    unit = {"installed": True, "active": False, "enabled": True, "command": None}
    k3s: dict[str, Any] = {
        "server": unit,
        "agent": unit,
        "kubectl": "/usr/bin/kubectl",
        "version": None,
        "registries": whose,
        "certificates": {"files": [], "started": None, "valid_days": 365},
    }
    variables = {
        "facts": {"hostname": "a", "arch": "aarch64", "k3s": k3s},
        "there": str(there),
        "k3s_source": "download",
        "k3s_version": "v1.33.5+k3s1",
        "k3s_container_runtime": "containerd",
        "k3s_registries": registries,
        "__k3s_files": [],
        "__k3s_config_path": str(there / "config.yaml"),
        "__k3s_registries_path": str(there / "registries.yaml"),
        "__k3s_marker": str(there / "run/restart"),
    }
    ran = play_text(there, PLAYBOOK, *arguments, variables=variables)
    return ran, json.loads((there / "result.json").read_text())


def test_k3s_gets_them_as_a_file_of_root_that_nobody_sees(tmp_path: Path) -> None:
    ran, result = configure(tmp_path, REGISTRIES, None, "--diff", "-vvv")
    file = tmp_path / "registries.yaml"
    assert yaml.safe_load(file.read_text()) == REGISTRIES
    assert file.read_text().startswith(HEADER)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (result["changed"], result["restart_due"]) == (True, True)
    assert (tmp_path / "run/restart").exists()
    assert f"{file} (mode 0600)" in ran.stdout
    assert PASSWORD not in ran.stdout + json.dumps(result)
    _, again = configure(tmp_path, REGISTRIES, "role")
    assert again["changed"] is False


@pytest.mark.parametrize(("whose", "stays"), [("role", False), ("owner", True)])
def test_file_goes_with_the_variable_if_it_is_the_roles(tmp_path: Path, whose: str, stays: bool) -> None:
    file = tmp_path / "registries.yaml"
    file.write_text(f"configs: {{a: {{auth: {{password: {PASSWORD}}}}}}}\n")
    ran, result = configure(tmp_path, {}, whose, "--diff", "-vvv")
    assert file.exists() is stays
    assert (str(file) in result["paths"]) is not stays
    assert PASSWORD not in ran.stdout + json.dumps(result)


def test_boards_log_does_not_have_them(tmp_path: Path) -> None:
    file = tmp_path / "registries.yaml"
    text = HEADER + yaml.safe_dump(REGISTRIES)
    arguments = {
        "files": [{"path": str(file), "secret": True, "mode": "0600"}],
        "secrets": {str(file): text},
        "marker": str(tmp_path / "run/restart"),
    }
    ran = run_module("k3s", "file_set", arguments)
    assert file.read_text() == text
    assert ran.stderr.startswith("Invoked with ")
    assert str(file) in ran.stderr
    assert PASSWORD not in ran.stderr + ran.stdout
