# SPDX-License-Identifier: Apache-2.0
"""What K3s is told on each board: one server, several with embedded etcd, agents, both container runtimes."""

from types import ModuleType
from typing import Any

import pytest

from tests.planted import COMMAND, EXEC_START
from tests.unit.roles.conftest import Load

URL = "https://10.0.0.1:6443"
TOKEN, AGENT_TOKEN = "/etc/rancher/k3s/a.token", "/etc/rancher/k3s/b.token"


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("k3s/filter_plugins/k3s.py")


def board(**changes: Any) -> dict[str, Any]:
    return {
        "role": "server",
        "first": True,
        "servers": 1,
        "node": "jetson-1",
        "address": "10.0.0.1",
        "container_runtime": "docker",
        "pause_image": "pause:1",
        "reserved_memory": "",
    } | changes


def test_single_server_needs_no_token_and_no_etcd(module: ModuleType) -> None:
    assert module.configuration(board(), server_url=URL) == {
        "docker": True,
        "node-name": "jetson-1",
        "pause-image": "pause:1",
        "tls-san": ["10.0.0.1"],
    }


@pytest.mark.parametrize("role", ["server", "agent"])
def test_what_the_gpus_units_sell_is_added_to_the_owners_kubelet_arguments(
    module: ModuleType, role: str
) -> None:
    config = module.configuration(board(role=role, reserved_memory="2Gi"), server_url=URL)
    assert config["kubelet-arg+"] == ["system-reserved=memory=2Gi"]
    assert "kubelet-arg" not in config


def test_three_servers_share_an_embedded_etcd(module: ModuleType) -> None:
    first = module.configuration(board(servers=3), server_url=URL)
    other = module.configuration(
        board(servers=3, first=False, node="jetson-2", address="10.0.0.2"), server_url=URL, token_file=TOKEN
    )
    assert first["cluster-init"] is True
    assert "server" not in first
    assert other == {
        "docker": True,
        "node-name": "jetson-2",
        "pause-image": "pause:1",
        "server": URL,
        "tls-san": ["10.0.0.2"],
        "token-file": TOKEN,
    }


def test_agent_gets_a_server_and_a_token_file_and_nothing_of_a_server(module: ModuleType) -> None:
    config = module.configuration(
        board(role="agent", first=False, servers=3),
        server_url=URL,
        token_file=TOKEN,
        agent_token_file=AGENT_TOKEN,
    )
    assert config.keys() == {"docker", "node-name", "pause-image", "server", "token-file"}


def test_agent_token_is_the_servers_to_know(module: ModuleType) -> None:
    config = module.configuration(board(), server_url=URL, agent_token_file=AGENT_TOKEN)
    assert config["agent-token-file"] == AGENT_TOKEN


@pytest.mark.parametrize("role", ["server", "agent"])
def test_containerd_is_what_k3s_does_without_docker(module: ModuleType, role: str) -> None:
    config = module.configuration(
        board(role=role, container_runtime="containerd", pause_image=None), server_url=URL
    )
    assert not {"docker", "pause-image"} & config.keys()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (None, {}),
        ("/usr/local/bin/k3s server", {}),
        ("/usr/local/bin/k3s server --docker", {"docker": True}),
        (
            "k3s server --docker --disable traefik --disable=servicelb --write-kubeconfig-mode 644",
            {"docker": True, "disable": ["traefik", "servicelb"], "write-kubeconfig-mode": "644"},
        ),
        ("k3s agent -s https://a:6443 -t secret", {"server": "https://a:6443", "token": "secret"}),
        ("k3s server --kubelet-arg=max-pods=50", {"kubelet-arg": "max-pods=50"}),
    ],
)
def test_flags_become_keys(module: ModuleType, command: str | None, expected: dict[str, Any]) -> None:
    assert module.flags(command) == expected


@pytest.mark.parametrize(("shown", "command"), [(EXEC_START, COMMAND), ("ExecStart=\n", None)])
def test_units_command_is_found(module: ModuleType, shown: str, command: str | None) -> None:
    assert module.unit_command(shown) == command


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("fd00::11", "[fd00::11]"),
        ("[fd00::11]", "[fd00::11]"),
        ("10.0.0.1", "10.0.0.1"),
        ("jetson-1", "jetson-1"),
    ],
)
def test_ipv6_stands_in_brackets_in_a_url(module: ModuleType, address: str, host: str) -> None:
    assert module.url_host(address) == host


def test_tokens_and_the_roles_own_keys_are_not_migrated(module: ModuleType) -> None:
    command = "k3s server --docker --token=secret --agent-token other --node-label a=b --node-name x"
    assert module.migrated(command) == {"node-label": "a=b"}
