# SPDX-License-Identifier: Apache-2.0
"""Registries of the inventory: what is wrong with them, what K3s gets of them, and whose file it is."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import run_module

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
