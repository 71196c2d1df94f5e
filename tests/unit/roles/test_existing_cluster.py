# SPDX-License-Identifier: Apache-2.0
"""A cluster that exists already: the inventory, the rights of a kubeconfig, the CA, the versions."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_kubectl as kubectl
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_owner
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_nodes
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import existing_cluster as existing
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_tokens
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_existing as preflight

from tests.docs import CHECKOUT

Data = dict[str, Any]
HASH = "a" * 64
AGENTS, SERVERS = f"K10{HASH}::node:of-agents", f"K10{HASH}::server:of-servers"
URL = "https://192.0.2.1:6443"
BOARDS = ("jetson-1", "jetson-2")
BY_SSH: Data = {"agent": list(BOARDS), "k3s_cluster": list(BOARDS), "existing_server": ["nas"]}
MANIFEST = CHECKOUT / existing.MANIFEST


def inventory(groups: Data, **settings: Any) -> tuple[Data, Data]:
    """Groups, and variables of all hosts of them; a setting is one value, or those of the boards by name."""
    hosts = {name for members in groups.values() for name in members}
    given = {"k3s_server_url": URL, "k3s_agent_token": AGENTS} | settings

    def variables(host: str) -> Data:
        found = {name: one.get(host) if isinstance(one, dict) else one for name, one in given.items()}
        return {name: one for name, one in found.items() if one is not None}

    names = {host: [group for group, members in groups.items() if host in members] for host in hosts}
    return groups, {host: variables(host) | {"group_names": names[host]} for host in hosts}


def without(group: str) -> Data:
    return {name: hosts for name, hosts in BY_SSH.items() if name != group}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A kubeconfig on the controller."""
    (tmp_path / "kubeconfig").touch()
    return str(tmp_path / "kubeconfig")


def test_inventory_of_an_existing_cluster_names_one_way_to_its_api(path: str) -> None:
    assert preflight.findings(*inventory(BY_SSH)) == []
    assert preflight.findings(*inventory(without("existing_server"), k3s_existing_kubeconfig=path)) == []
    # In the second play the host of the controller is there.
    added = BY_SSH | {"existing_server": [existing.CONTROLLER]}
    assert preflight.findings(*inventory(added, k3s_existing_kubeconfig=path)) == []
    # Nothing is asked of an inventory with servers of its own.
    own = without("existing_server") | {"server": ["jetson-1"]}
    assert preflight.findings(*inventory(own, k3s_agent_token=None, k3s_server_url=None)) == []


@pytest.mark.parametrize(
    ("groups", "settings", "found"),
    [
        (BY_SSH | {"server": ["jetson-1"]}, {}, "existing-and-own"),
        (BY_SSH | {"existing_server": ["nas", "other"]}, {}, "existing-ways"),
        (BY_SSH, {"k3s_existing_kubeconfig": "/nonexistent"}, "existing-ways"),
        (without("existing_server"), {"k3s_existing_kubeconfig": "/nonexistent"}, "existing-kubeconfig"),
        (
            without("existing_server") | {"server": ["jetson-1"]},
            {"k3s_existing_kubeconfig": "/x"},
            "existing-and-own",
        ),
        (BY_SSH | {"k3s_cluster": [*BOARDS, "nas"]}, {}, "existing-member"),
        (BY_SSH, {"k3s_server_url": None}, "existing-url"),
        (BY_SSH, {"k3s_server_url": {"jetson-1": URL, "jetson-2": "https://192.0.2.9:6443"}}, "existing-url"),
        (BY_SSH, {"k3s_server_url": {"jetson-1": URL}}, "existing-url"),
        (BY_SSH, {"k3s_agent_token": None}, "existing-token"),
        (BY_SSH, {"k3s_agent_token": SERVERS}, "existing-token"),
        (BY_SSH, {"k3s_token": "0123456789abcdef"}, "existing-token"),
    ],
)
def test_finding_names_what_is_wrong_in_the_inventory(groups: Data, settings: Data, found: str) -> None:
    (finding,) = preflight.findings(*inventory(groups, **settings))
    assert finding["id"] == found
    assert "of-" not in "".join(finding.values()), "no token is shown"


def test_server_token_is_refused_with_the_command_that_makes_another() -> None:
    (finding,) = preflight.findings(*inventory(BY_SSH, k3s_agent_token=SERVERS))
    assert "is a token of servers" in finding["found"]
    assert "sudo k3s token create" in finding["fix"]


def test_api_is_that_of_the_servers_of_the_inventory_before_any_other() -> None:
    assert existing.api_host({"server": ["a", "b"]}) == "a"
    assert (existing.api_host(BY_SSH), existing.is_existing(BY_SSH)) == ("nas", True)
    assert (existing.api_host({}), existing.is_existing({"server": ["a"]})) == ("", False)


def test_playbooks_for_servers_are_refused_and_only_for_an_existing_cluster(path: str) -> None:
    said = existing.refusal(*inventory(BY_SSH), "Rotate the CAs", "")
    assert "Rotate the CAs there, with the tools that made the cluster" in said
    assert existing.refusal(*inventory(BY_SSH), "", "A job of your own") == ""
    by_kubeconfig = inventory(without("existing_server"), k3s_existing_kubeconfig=path)
    assert existing.refusal(*by_kubeconfig, "", "A job of your own").startswith("A job of your own needs")
    own = inventory(without("existing_server") | {"server": ["jetson-1"]})
    assert existing.refusal(*own, "Rotate the CAs", "A job of your own") == ""


def test_host_of_the_api_takes_the_place_of_the_group_server() -> None:
    wanted = ["k3s_cluster", "server"]
    groups, hostvars = inventory(BY_SSH)
    assert existing.missing_groups(wanted, groups, [*BOARDS, "nas"], hostvars, False) == []
    assert existing.missing_groups(wanted, groups, BOARDS, hostvars, True) == ["server"]
    added, variables = inventory(BY_SSH | {"existing_server": [existing.CONTROLLER]})
    assert existing.missing_groups(wanted, added, BOARDS, variables, False) == []
    assert existing.missing_groups(wanted, added, BOARDS, variables, True) == ["server"]


ANSWER: Data = {"installed": True, "nodes": [{}], "problem": "", "denied": [], "ca": "CA"}
DENIED: Data = {
    "verb": "create",
    "group": "apps",
    "resource": "daemonsets",
    "subresource": "",
    "namespace": "kube-system",
}


@pytest.mark.parametrize(
    ("answer", "host", "found", "says"),
    [
        (None, "nas", "existing-unreachable", "nas of the group [existing_server]: no answer"),
        (ANSWER | {"installed": False, "nodes": []}, "nas", "existing-unreachable", "is not a server there"),
        (ANSWER | {"nodes": [], "ca": ""}, "nas", "existing-unreachable", "does not run there"),
        (ANSWER | {"problem": "refused"}, existing.CONTROLLER, "existing-unreachable", "refused"),
        (ANSWER | {"ca": ""}, "nas", "existing-ca", "kube-root-ca.crt"),
        (
            ANSWER | {"denied": [DENIED], "problem": "forbidden", "nodes": []},
            existing.CONTROLLER,
            "existing-rights",
            "may not: create daemonsets.apps in kube-system",
        ),
    ],
)
def test_finding_names_why_the_api_is_of_no_use(answer: Data, host: str, found: str, says: str) -> None:
    (finding,) = preflight.access_findings(answer, host, [])
    assert finding["id"] == found
    assert says in finding["found"]


def test_control_plane_without_a_node_answers() -> None:
    assert preflight.access_findings(ANSWER | {"nodes": []}, "nas", []) == []


def test_settings_that_need_more_rights_need_a_server() -> None:
    assert preflight.access_findings(ANSWER, "nas", ["gpu_device_plugin_api: dra"]) == []
    (finding,) = preflight.access_findings(ANSWER, existing.CONTROLLER, ["gpu_device_plugin_api: dra"])
    assert finding["id"] == "existing-rights-setting"


@pytest.mark.parametrize(
    ("wanted", "server", "refused"),
    [
        ("v1.34.1+k3s1", "v1.33.9+k3s1", True),
        ("v1.33.9+k3s1", "v1.33.1+k3s1", False),
        ("v1.33.9+k3s1", "v1.34.1+k3s1", False),
        (None, "v1.33.1+k3s1", False),
        ("v1.34.1+k3s1", "", False),
    ],
)
def test_agents_are_not_newer_than_their_server(wanted: str | None, server: str, refused: bool) -> None:
    found = preflight.skew_findings(wanted, server, "download")
    assert [one["id"] for one in found] == ["existing-skew"] * refused
    assert all(f"Set k3s_version to {server}" in one["fix"] for one in found)


def test_manifest_gives_no_right_to_secrets_and_no_wildcard() -> None:
    rights = existing.rights_of_text(MANIFEST.read_text())
    assert {"verb": "patch", "group": "", "resource": "nodes", "subresource": "", "namespace": ""} in rights
    assert not any("*" in one.values() or one["resource"] == "secrets" for one in rights)
    assert preflight.spoken(rights[0]) == "get nodes in all namespaces"
    evict = {"verb": "create", "group": "", "resource": "pods", "subresource": "eviction", "namespace": ""}
    assert preflight.spoken(evict) == "create pods/eviction in all namespaces"


PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


def test_hash_of_the_ca_is_that_of_the_file_or_of_the_root_that_the_token_names() -> None:
    one, two = PEM.format("b25l"), PEM.format("dHdv")
    assert k3s_tokens.ca_hash(one, "") == "K10" + hashlib.sha256(one.encode()).hexdigest()
    of_one, of_two = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert k3s_tokens.ca_hash(one + two, f"K10{of_one}::node:x") == f"K10{of_one}"
    assert k3s_tokens.ca_hash(one + two, AGENTS) == f"K10{of_two}"
    assert k3s_tokens.ca_hash("", AGENTS) == ""


def test_boards_know_an_existing_cluster_by_what_its_api_says() -> None:
    ca = PEM.format("b25l")
    found = k3s_tokens.existing_cluster([{"ca": ""}, {"ca": ca}], AGENTS)
    assert (found["ca"], found["ca_hash"]) == (ca, k3s_tokens.ca_hash(ca, ""))
    assert k3s_tokens.agents_token(found, AGENTS, "") == AGENTS


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl on the controller that notes its arguments and answers with the file `said`."""
    found = tmp_path / "kubectl"
    found.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat > {tmp_path}/input\ncat {tmp_path}/said\n'
    )
    found.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(kubectl, "_kubeconfig", ["/home/me/rights"])
    return tmp_path


def test_rights_are_reviewed_in_one_call_and_the_missing_ones_are_named(program: Path) -> None:
    (program / "said").write_text("true\nfalse\n")
    rights = [DENIED | {"verb": "get"}, DENIED]
    assert k3s_nodes.denied(rights) == [DENIED]
    reviews = json.loads((program / "input").read_text())["items"]
    assert [one["kind"] for one in reviews] == ["SelfSubjectAccessReview"] * 2
    assert [one["spec"]["resourceAttributes"] for one in reviews] == rights
    assert (program / "calls").read_text().startswith("--kubeconfig=/home/me/rights create ")
    (program / "said").write_text("true\n")
    with pytest.raises(kubectl.KubectlError, match="answers 1 of 2 reviews"):
        k3s_nodes.denied(rights)


def test_kubeconfig_reads_no_secret_and_a_node_is_known_by_name_or_address(program: Path) -> None:
    assert (k3s_owner.records(), k3s_owner.password("jetson-1")) == ({}, None)
    assert not (program / "calls").exists()
    other = {
        "metadata": {"name": "orin"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.5"}]},
    }
    params = {"name": "orin", "board": "jetson-1", "boards": {"jetson-1": ["192.0.2.5"]}}
    k3s_owner.check_owner(other, None, params)
    with pytest.raises(kubectl.KubectlError, match="set jetson_k3s_address of jetson-1"):
        k3s_owner.check_owner(other, None, params | {"boards": {"jetson-1": []}})


def test_missing_kubectl_is_said_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kubectl, "_kubeconfig", ["/home/me/rights"])
    with pytest.raises(kubectl.KubectlAbsentError, match="k3s_existing_kubeconfig needs it") as caught:
        kubectl.run("get", "nodes")
    assert "Install kubectl" in caught.value.fix


def test_networks_of_an_existing_cluster_are_those_of_its_servers_arguments() -> None:
    def of(*words: str) -> Data:
        return {"metadata": {"annotations": {k3s_nodes.ARGUMENTS: json.dumps(words)}}}

    nodes = [
        of("agent", "--cluster-cidr", "10.1.0.0/16"),
        of("server", "--cluster-cidr", "10.50.0.0/16"),
        {"metadata": {}},
    ]
    assert k3s_nodes.ranges_of(nodes) == {"cluster-cidr": "10.50.0.0/16"}
