# SPDX-License-Identifier: Apache-2.0
"""What K3s is told on each board: one server, several with embedded etcd, agents, both container runtimes."""

from typing import Any

import jinja2
import pytest
import yaml

from tests.planted import COMMAND, EXEC_START
from tests.unit.roles.loading import ROLES, load

module = load("k3s/filter_plugins/k3s.py")
options = load("k3s/filter_plugins/k3s_options.py")

URL = "https://10.0.0.1:6443"
TOKEN, AGENT_TOKEN = "/etc/rancher/k3s/a.token", "/etc/rancher/k3s/b.token"


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


def test_single_server_needs_no_token_and_no_etcd() -> None:
    assert module.configuration(board(), server_url=URL) == {
        "docker": True,
        "node-name": "jetson-1",
        "pause-image": "pause:1",
        "tls-san": ["10.0.0.1"],
    }


@pytest.mark.parametrize("role", ["server", "agent"])
def test_what_the_gpus_units_sell_is_added_to_the_owners_kubelet_arguments(role: str) -> None:
    config = module.configuration(board(role=role, reserved_memory="2Gi"), server_url=URL)
    assert config["kubelet-arg+"] == ["system-reserved=memory=2Gi"]
    assert "kubelet-arg" not in config


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
        ("k3s agent -i 10.0.0.1 -l=/x -c /y", {"node-ip": "10.0.0.1", "log": "/x", "config": "/y"}),
        ("k3s server -o /z -node-ip=10.0.0.1", {"write-kubeconfig": "/z", "node-ip": "10.0.0.1"}),
    ],
)
def test_flags_become_keys(command: str | None, expected: dict[str, Any]) -> None:
    assert module.flags(command) == expected


@pytest.mark.parametrize(
    ("plan", "port"),
    [
        ({}, 6443),
        ({"settings": {"https-listen-port": None}}, 6443),
        ({"settings": {"https-listen-port": "7443"}}, 7443),
    ],
)
def test_server_is_asked_on_its_own_port_and_not_on_its_load_balancers(
    plan: dict[str, Any], port: int
) -> None:
    url = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())["__k3s_own_url"]
    variables = {"k3s_plan": plan, "k3s_server_url": "https://balancer:8443"}
    assert jinja2.Template(url).render(variables) == f"https://127.0.0.1:{port}"


@pytest.mark.parametrize(("shown", "command"), [(EXEC_START, COMMAND), ("ExecStart=\n", None)])
def test_units_command_is_found(shown: str, command: str | None) -> None:
    assert module.unit_command(shown) == command


# As K3s 1.19 and 1.33 print it.
HELP = """
OPTIONS:
   --config FILE, -c FILE                     (config) Load configuration from FILE (default: "/etc") [$K3S]
   --debug                                    (logging) Turn on debug logs [$K3S_DEBUG]
   -v value                                   (logging) Number for the log level verbosity (default: 0)
   --tls-san value [ --tls-san value ]        (listener) Add additional hostnames
   --token value, -t value                    (cluster) Shared secret [$K3S_TOKEN]
   --node-ip value, -i value [ --node-ip value, -i value ]  (agent/networking) Addresses
   --flannel-backend value                    (networking) Backend (valid values: 'none', 'vxlan')
   --kubelet-arg value                        (agent/flags) Customized flag for kubelet process
   --vpn-auth value                           (agent/networking) Credentials for the VPN provider
   --selinux                                  (agent/node) Enable SELinux in containerd [$K3S_SELINUX]
   --lb-server-port value                     (agent/node) Local port (default: 6444) [$K3S_LB_SERVER_PORT]
   --disable value [ --disable value ]        (components) Do not deploy packaged components
"""


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"debug": True, "v": 4, "selinux": False, "lb-server-port": 6445, "flannel-backend": "host-gw"},
        {"kubelet-arg": ["max-pods=40"], "disable": "traefik", "node-ip": ["10.0.0.1", "fd00::1"]},
        {"kubelet-arg+": ["max-pods=40"]},
    ],
)
def test_settings_that_k3s_takes_are_taken(config: dict[str, Any]) -> None:
    assert options.problems(config, HELP, "server") == []


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"kublet-arg": ["a=b"]},
            "kublet-arg: this K3s has no such option of `k3s server`; is kubelet-arg meant?",
        ),
        ({"xyzzy": 1}, "xyzzy: this K3s has no such option of `k3s server`"),
        ({"docker": True}, "docker: k3s_container_runtime says it"),
        ({"token": "x"}, "token: k3s_token says it"),
        (
            {"private-registry": "/etc/registries.yaml"},
            "private-registry: k3s_registries says it, or your own /etc/rancher/k3s/registries.yaml",
        ),
        ({"flannel-backend": True}, "flannel-backend: a value is needed, not true"),
        ({"selinux": "on"}, "selinux: true or false is needed, not 'on'"),
        (
            {"vpn-auth": {"a": 1}},
            "vpn-auth: text, a number, true, false or a list of them is needed",
        ),
        ({"disable": None}, "disable: text, a number, true, false or a list of them is needed, not None"),
        (
            {"disable": {"a": 1}},
            "disable: text, a number, true, false or a list of them is needed, not {'a': 1}",
        ),
        (
            {"kubelet-arg": "a=b", "kubelet-arg+": "c=d"},
            "kubelet-arg+: kubelet-arg is there as well; give one of the two",
        ),
    ],
)
def test_what_k3s_would_not_do_is_said(config: dict[str, Any], problem: str) -> None:
    assert options.problems(config, HELP, "server") == [problem]


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        ({}, False),
        ({"debug": True, "token-file": "/x"}, False),
        ({"vpn-auth": "x"}, True),
        ({"token+": "x"}, True),
    ],
)
def test_settings_with_a_secret_are_known(config: dict[str, Any], secret: bool) -> None:
    assert options.has_secrets(config) is secret


def test_secrets_are_those_that_boards_hide() -> None:
    assert set(load("redact/module_utils/redact.py").K3S_OPTIONS) == options.SECRETS


@pytest.mark.parametrize(
    ("inventory", "both"),
    [
        ({}, {"docker": True, "tls-san": ["10.0.0.1"], "kubelet-arg+": ["system-reserved=memory=2Gi"]}),
        (
            {"kubelet-arg": "max-pods=40", "tls-san+": ["fleet.example"], "debug": True},
            {
                "docker": True,
                "debug": True,
                "tls-san+": ["fleet.example", "10.0.0.1"],
                "kubelet-arg": ["max-pods=40", "system-reserved=memory=2Gi"],
            },
        ),
    ],
)
def test_lists_of_the_inventory_and_the_roles_own_are_added_up(
    inventory: dict[str, Any], both: dict[str, Any]
) -> None:
    ours = {"docker": True, "tls-san": ["10.0.0.1"], "kubelet-arg+": ["system-reserved=memory=2Gi"]}
    assert module.merged(inventory, ours) == both
