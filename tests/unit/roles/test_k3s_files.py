# SPDX-License-Identifier: Apache-2.0
"""Files that role k3s writes on a board: its configuration, registries, and hostname."""

import base64
import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_network, jetson_services
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_reset
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_files
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_registries as registries

from tests.unit.roles.places import Data, k3s_paths
from tests.unit.roles.playing import Run, answer, play_text, run_module
from tests.unit.roles.preflight_facts import GOOD

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
HEADER = k3s_files.REGISTRIES_HEADER
NO_ADDRESSES = ("a.example:5000", "ftp://a.example", "https://", "http://a:port", "", 7)


@pytest.mark.parametrize("given", [{}, REGISTRIES, {"mirrors": None}, {"configs": {"a.example": None}}])
def test_registries_that_k3s_reads_have_no_problem(given: Data) -> None:
    assert [*registries.problems(given)] == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "k3s_registries: a mapping is needed"),
        ({"mirror": {}}, "k3s_registries: K3s knows no mirror here, but mirrors, configs"),
        ({"mirrors": ["docker.io"]}, "k3s_registries: mirrors: a mapping is needed"),
        (
            {"mirrors": {"docker.io": {"endpoint": "https://a"}}},
            "k3s_registries: mirrors: docker.io: endpoint: a list of addresses is needed",
        ),
        *(
            (
                {"mirrors": {"docker.io": {"endpoint": ["https://a", address]}}},
                "k3s_registries: mirrors: docker.io: endpoint: number 2 is not http://HOST or https://HOST",
            )
            for address in NO_ADDRESSES
        ),
        (
            {"mirrors": {"docker.io": ["https://a"]}},
            "k3s_registries: mirrors: docker.io: a mapping is needed",
        ),
        (
            {"mirrors": {"docker.io": {"endpoints": []}}},
            "k3s_registries: mirrors: docker.io: K3s knows no endpoints here, but endpoint, rewrite",
        ),
        (
            {"mirrors": {"docker.io": {"rewrite": {"^a": 1}}}},
            "k3s_registries: mirrors: docker.io: rewrite: ^a: text is needed",
        ),
        (
            {"configs": {"a:5000": {"login": {}}}},
            "k3s_registries: configs: a:5000: K3s knows no login here, but auth, tls",
        ),
        (
            {"configs": {"a": {"auth": {"user": "x"}}}},
            "k3s_registries: configs: a: auth: K3s knows no user here, but username, password, auth, "
            "identity_token",
        ),
        (
            {"configs": {"a": {"tls": {"cafile": "/a"}}}},
            "k3s_registries: configs: a: tls: K3s knows no cafile here, but ",
        ),
        (
            {"configs": {"a": {"auth": {"password": 12345}}}},
            "k3s_registries: configs: a: auth: password: text is needed",
        ),
        (
            {"configs": {"a": {"tls": {"insecure_skip_verify": "yes"}}}},
            "k3s_registries: configs: a: tls: insecure_skip_verify: true or false is needed",
        ),
    ],
)
def test_registries_that_k3s_does_not_read_are_named(given: Any, problem: str) -> None:
    (found,) = registries.problems(given)
    assert found.startswith(problem)


AUTHS = {
    "registry.site.example:5000": {"auth": {"username": "site", "password": PASSWORD}},
    "docker.io": {"auth": {"auth": base64.b64encode(b"hub:x:y").decode()}},
    "public.example": None,
}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"configs": AUTHS}, None),
        ({}, None),
        ({"mirrors": {}, "configs": {"a": {"auth": None}}}, None),
        # Named as K3s' problem already.
        ({"mirror": {}}, None),
        (REGISTRIES, "k3s_registries: mirrors: Docker does not read them; give registry-mirrors in"),
        (
            {"configs": {"a": {"tls": {"ca_file": "/a"}}}},
            "k3s_registries: configs: a: tls: Docker does not read it; put certificates into /etc/docker/",
        ),
        (
            {"configs": {"a": {"auth": {"identity_token": PASSWORD}}}},
            "k3s_registries: configs: a: auth: the kubelet does not read identity_token",
        ),
        *(
            (
                {"configs": {"a": {"auth": auth}}},
                "k3s_registries: configs: a: auth: username and password are needed, or auth with both in",
            )
            for auth in ({"username": "a"}, {"password": PASSWORD}, {"auth": PASSWORD}, {"auth": "YQ=="})
        ),
        *(
            (
                {"configs": {name: {"auth": {"username": "a", "password": PASSWORD}}}},
                f"k3s_registries: configs: {name}: Docker needs a registry as HOST or HOST:PORT",
            )
            for name in ("*", "https://a.example")
        ),
    ],
)
def test_registries_that_docker_cannot_use_are_named(given: Data, problem: str | None) -> None:
    found = [*registries.docker_problems(given)]
    assert [one.startswith(str(problem)) for one in found[:1]] == ([True] if problem else [])
    assert PASSWORD not in str(found)


def test_docker_and_the_kubelet_know_the_registries_by_their_names() -> None:
    written = json.loads(registries.docker_credentials({"configs": AUTHS}))
    decoded = {name: base64.b64decode(one["auth"]).decode() for name, one in written["auths"].items()}
    assert decoded == {
        "registry.site.example:5000": f"site:{PASSWORD}",
        "https://index.docker.io/v1/": "hub:x:y",
    }
    for given in ({}, None, {"mirrors": {"a": None}}, {"configs": {"a": {"auth": [PASSWORD]}}}):
        assert registries.docker_credentials(given) == ""


def test_no_problem_repeats_a_secret() -> None:
    wrong = {
        "mirrors": {"a": {"endpoint": [f"user:{PASSWORD}@a:5000"]}},
        "configs": {"a": {"auth": [PASSWORD], "tls": {"key_file": [PASSWORD]}}},
    }
    problems = [*registries.problems(wrong)]
    assert len(problems) == 3
    assert PASSWORD not in str(problems)


@pytest.mark.parametrize(
    ("text", "whose"),
    [(None, None), ("", "owner"), ("mirrors: {}\n", "owner"), (HEADER + "mirrors: {}\n", "role")],
)
def test_facts_and_reset_know_the_author_of_the_file(
    tmp_path: Path, text: str | None, whose: str | None
) -> None:
    file = tmp_path / "etc/rancher/k3s/registries.yaml"
    if text is not None:
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert jetson_services.registries(str(tmp_path)) == whose
    assert jetson_services.credentials(str(tmp_path)) is None
    written = k3s_reset.WRITTEN["/etc/rancher/k3s/registries.yaml"]
    assert k3s_reset.begins(str(file), written) is (whose == "role")


def test_log_of_the_board_does_not_have_the_registries(tmp_path: Path) -> None:
    file, marker = str(tmp_path / "registries.yaml"), str(tmp_path / "run/restart")
    files = [{"path": file, "secret": True, "mode": "0600"}]
    secrets = {file: HEADER + yaml.safe_dump(REGISTRIES)}
    ran = run_module("file_set", {"files": files, "secrets": secrets, "marker": marker})
    assert ran.stderr.startswith("Invoked with ")
    assert PASSWORD not in ran.stderr + ran.stdout


def test_directories_without_a_restart(tmp_path: Path) -> None:
    new, other, link = tmp_path / "a/new", tmp_path / "other", tmp_path / "link"
    other.mkdir(mode=0o700)
    link.symlink_to(other)  # such as one to another disk
    files = [{"path": str(one), "directory": True, "mode": "0755"} for one in (new, link)]
    first, again = answer("file_set", {"files": files}), answer("file_set", {"files": files})
    assert (first["paths"], again["changed"]) == ([str(new), str(link)], False)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (new, other)] == [0o755, 0o755]
    assert link.is_symlink()
    assert not first["restart_due"]


def test_file_where_a_directory_should_be_is_an_error_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a person's")
    ran = run_module("file_set", {"files": [{"path": str(file), "directory": True, "mode": "0755"}]})
    assert ran.returncode
    assert str(file) in ran.stdout + ran.stderr
    assert file.read_text() == "a person's"


CONFIGURE = """\
- hosts: server,agent
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: inventory}
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: configure}
    - ansible.builtin.copy:
        content: "{{ __k3s_configured | to_json }}"
        dest: "{{ there }}/{{ inventory_hostname }}.json"
        mode: "0600"
      check_mode: false
      diff: false
"""
UNIT = {"installed": True, "active": False, "enabled": True, "command": None}
K3S: Data = {
    "server": UNIT,
    "agent": UNIT,
    "kubectl": "/usr/bin/kubectl",
    "version": None,
    "credentials": None,
    "node_ip": {"owner": [], "role": None},
    "certificates": {"files": [], "started": None, "valid_days": 365},
}


def configure(
    there: Path,
    *arguments: str,
    groups: Mapping[str, Iterable[str]] | None = None,
    written_by: str | None = None,
    credentials_by: str | None = None,
    fails: bool = False,
    network: Data = GOOD["network"],
    **variables: Any,
) -> Run:
    """Run the role's configuration of boards that are this machine, each with files of its own."""
    given = {
        "facts": {
            "hostname": "{{ inventory_hostname }}",
            "arch": "aarch64",
            "memory_bytes": 8 << 30,
            "network": network,
            "k3s": K3S | {"registries": written_by, "credentials": credentials_by},
        },
        "there": str(there),
        "k3s_version": "v1.33.5+k3s1",
        "k3s_container_runtime": "containerd",
        "preflight_bundle_info": {"indexed": False, "versions": {}, "files": {}},
        "__k3s_paths": k3s_paths(there, config="{{ inventory_hostname }}.yaml", k3s="link"),
        "__k3s_marker": str(there / "run/restart"),
    }
    return play_text(there, CONFIGURE, *arguments, groups=groups, variables=given | variables, fails=fails)


def result(there: Path) -> Data:
    answer: Data = json.loads((there / "localhost.json").read_text())
    return answer


def test_registries_are_for_root_alone_and_not_shown(tmp_path: Path) -> None:
    ran = configure(tmp_path, "--diff", "-vvv", k3s_registries=REGISTRIES)
    file, found = tmp_path / "registries.yaml", result(tmp_path)
    assert yaml.safe_load(file.read_text()) == REGISTRIES
    assert file.read_text().startswith(HEADER)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (found["changed"], found["restart_due"]) == (True, True)
    assert (tmp_path / "run/restart").exists()
    assert f"{file} (mode 0600)" in ran.stdout
    assert PASSWORD not in ran.stdout + json.dumps(found)
    configure(tmp_path, k3s_registries=REGISTRIES, written_by="role")
    assert result(tmp_path)["changed"] is False


@pytest.mark.acceptance
@pytest.mark.parametrize(("written_by", "stays"), [("role", False), ("owner", True)])
def test_only_the_roles_registries_are_removed(tmp_path: Path, written_by: str, stays: bool) -> None:
    file = tmp_path / "registries.yaml"
    file.write_text(f"configs: {{a: {{auth: {{password: {PASSWORD}}}}}}}\n")
    ran = configure(tmp_path, "--diff", "-vvv", written_by=written_by)
    assert file.exists() is stays
    assert (str(file) in result(tmp_path)["paths"]) is not stays
    assert PASSWORD not in ran.stdout + json.dumps(result(tmp_path))


def test_passwords_of_registries_go_to_the_kubelet_for_docker(tmp_path: Path) -> None:
    file, given = tmp_path / "config.json", {"configs": AUTHS}
    (tmp_path / "registries.yaml").write_text("of containerd, before\n")
    docker: Data = {"k3s_container_runtime": "docker", "k3s_registries": given}
    ran = configure(tmp_path, "--diff", "-vvv", written_by="role", **docker)
    found = result(tmp_path)
    assert file.read_text() == registries.docker_credentials(given)
    assert file.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "registries.yaml").exists()
    assert (found["changed"], found["restart_due"]) == (True, True)
    secrets = [one["auth"] for one in json.loads(file.read_text())["auths"].values()]
    assert [one for one in [PASSWORD, *secrets] if one in ran.stdout + json.dumps(found)] == []
    configure(tmp_path, credentials_by="role", **docker)
    assert result(tmp_path)["changed"] is False
    # As the facts know it again.
    place = tmp_path / "root/var/lib/kubelet/config.json"
    place.parent.mkdir(parents=True)
    for text, author in ((file.read_text(), "role"), ('{"auths": {}}', "owner")):
        place.write_text(text)
        assert jetson_services.credentials(str(tmp_path / "root")) == author
    # An owner's file stays, and the role's goes, also with the other runtime.
    configure(tmp_path, credentials_by="owner", k3s_container_runtime="docker")
    assert file.exists()
    configure(tmp_path, credentials_by="role", k3s_registries=given)
    assert (file.exists(), (tmp_path / "registries.yaml").exists()) == (False, True)


@pytest.mark.acceptance
def test_boards_join_the_first_server_by_its_address(tmp_path: Path) -> None:
    boards: list[dict[str, Data]] = [
        {f"jetson-{number}": {"ansible_host": f"fd00::{number}"}} for number in range(1, 5)
    ]
    boards[3]["jetson-4"]["k3s_board_config"] = {"node-ip": "fd00::14", "kubelet-arg": ["v=4"]}
    groups = {"server": boards[0] | boards[1] | boards[2], "agent": boards[3]}
    k3s = tmp_path / "k3s"
    k3s.write_text(
        "#!/bin/sh\necho '   --vpn-auth value  (agent/networking) Credentials for the VPN provider\n"
        "   --kubelet-arg value  (agent/flags) Customized flag for kubelet process\n"
        "   --node-ip value, -i value  (agent/networking) IPv4/IPv6 addresses to advertise for node'\n"
    )
    k3s.chmod(0o755)
    settings: Data = {
        "k3s_agent_config": {"vpn-auth": "planted-vpn-key", "kubelet-arg": ["v=2"]},
        "__k3s_binary": str(k3s),
    }
    ran = configure(tmp_path, "--diff", groups=groups, **settings)
    files = [yaml.safe_load((tmp_path / f"{name}.yaml").read_text()) for one in boards for name in one]
    first, other, _, agent = files
    # Of files that are shown, and of the one with a secret.
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("jetson-*.yaml")} == {0o600}
    assert (first["cluster-init"], first["tls-san"], "server" in first) == (True, ["fd00::1"], False)
    assert (other["server"], other["tls-san"]) == ("https://[fd00::1]:6443", ["fd00::2"])
    assert (agent["server"], "tls-san" in agent) == ("https://[fd00::1]:6443", False)
    assert "cluster-init: true" in ran.stdout
    # Another setting of the inventory is a secret, so the file is not shown.
    assert agent["vpn-auth"] == "planted-vpn-key"
    # The board's own settings leave those of its group, but for a key that both have.
    assert (agent["node-ip"], agent["kubelet-arg"][0]) == ("fd00::14", "v=4")
    assert "planted-vpn-key" not in ran.stdout


@pytest.mark.acceptance
def test_address_that_the_role_chooses_is_known_from_the_inventorys(tmp_path: Path) -> None:
    lan = {"device": "eth0", "address": "192.168.1.12/24"}
    network = {"addresses": [lan], "routes": [], "towards_server": "192.168.1.12"}
    # The server runs already, and keeps its address.
    configure(tmp_path, network=network, groups={"server": ["a"], "agent": ["b"]})
    first, agent = ((tmp_path / f"{name}.yaml").read_text() for name in "ab")
    assert "node-ip" not in yaml.safe_load(first)
    written = yaml.safe_load(agent)
    assert (written["node-ip"], written["flannel-iface"]) == ("192.168.1.12", "eth0")
    facts, root = jetson_network, tmp_path / "root"
    file = root / (facts.DIRECTORY + facts.ROLE_CONFIG)
    file.parent.mkdir(parents=True)
    file.write_text(agent)
    found = facts.node_ip(str(root), {facts.ROLE_CONFIG: agent}, {}, None)
    assert found == {"owner": [], "role": "192.168.1.12"}


def test_two_servers_are_refused(tmp_path: Path) -> None:
    ran = configure(tmp_path, groups={"server": ["a", "b"]}, fails=True)
    assert "[server] has 2 boards; it must have one, or an odd number" in ran.said


BINARY = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: binary}
"""


@pytest.mark.parametrize(
    "arrives",
    [
        pytest.param(True, id="as it was", marks=pytest.mark.acceptance),
        pytest.param(False, id="changed on its way"),
    ],
)
def test_binary_of_the_bundle_is_used_only_with_its_sha256(tmp_path: Path, arrives: bool) -> None:
    (tmp_path / "k3s-arm64").write_text("K3s")
    digest = hashlib.sha256(b"K3s" if arrives else b"K3s as the bundle's list has it").hexdigest()
    files = {"k3s-arm64": {"sha256": digest}}
    variables = {
        "jetson_k3s_bundle": str(tmp_path),
        "preflight_bundle_info": {
            "path": str(tmp_path), "indexed": True, "versions": {"k3s_version": "v1"}, "files": files,
        },
        "__k3s_binary": str(tmp_path / "k3s"),
        "__k3s_marker": str(tmp_path / "run/restart"),
    }  # fmt: skip
    run = play_text(tmp_path, BINARY, variables=variables, fails=not arrives)
    assert ("It was not made the active K3s." in run.said) is not arrives
