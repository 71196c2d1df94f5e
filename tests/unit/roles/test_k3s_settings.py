# SPDX-License-Identifier: Apache-2.0
"""Settings of K3s on a board: what the inventory may say, what K3s will read, and what stops the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_services as services
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import redact
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_daemon_config
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_configuration, k3s_files
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_options as options
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_reading as reading
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_k3s as preflight

from tests.planted import COMMAND, EXEC_START
from tests.unit.roles.places import ROLES, Data
from tests.unit.roles.playing import play_text
from tests.unit.roles.preflight_facts import with_facts


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (None, {}),
        (
            "k3s server --docker --disable traefik --disable=servicelb --write-kubeconfig-mode 644",
            {"docker": True, "disable": ["traefik", "servicelb"], "write-kubeconfig-mode": "644"},
        ),
        ("k3s agent -s https://a:6443 -t secret", {"server": "https://a:6443", "token": "secret"}),
        ("k3s server --kubelet-arg=max-pods=50", {"kubelet-arg": "max-pods=50"}),
        (
            "k3s server -o /z -node-ip=10.0.0.1 -l=/x",
            {"write-kubeconfig": "/z", "node-ip": "10.0.0.1", "log": "/x"},
        ),
    ],
)
def test_flags_become_keys(command: str | None, expected: Data) -> None:
    assert reading.flags(command) == expected


@pytest.mark.parametrize(
    ("plan", "port"),
    [
        ({}, 6443),
        ({"settings": {"https-listen-port": None}}, 6443),
        ({"settings": {"https-listen-port": "7443"}}, 7443),
    ],
)
def test_own_url_has_the_servers_port(plan: Data, port: int) -> None:
    assert k3s_configuration.own_url(plan) == f"https://127.0.0.1:{port}"


@pytest.mark.parametrize(("shown", "command"), [(EXEC_START, COMMAND), ("ExecStart=\n", None)])
def test_units_command_is_found(shown: str, command: str | None) -> None:
    assert k3s_files.unit_command(shown) == command


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
def test_valid_settings_are_accepted(config: Data) -> None:
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
        (
            {"private-registry": "/etc/registries.yaml"},
            "private-registry: k3s_registries says it, or your own /etc/rancher/k3s/registries.yaml",
        ),
        ({"token": "x"}, "token: k3s_token says it"),
        ({"flannel-backend": True}, "flannel-backend: a value is needed, not true"),
        ({"selinux": "on"}, "selinux: true or false is needed, not 'on'"),
        ({"vpn-auth": {"a": 1}}, "vpn-auth: text, a number, true, false or a list of them is needed"),
        ({"disable": None}, "disable: text, a number, true, false or a list of them is needed, not None"),
        (
            {"kubelet-arg": "a=b", "kubelet-arg+": "c=d"},
            "kubelet-arg+: kubelet-arg is there as well; give one of the two",
        ),
    ],
)
def test_settings_that_k3s_refuses_are_named(config: Data, problem: str) -> None:
    assert options.problems(config, HELP, "server") == [problem]


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("k3s server --docker --disable traefik", []),
        ("k3s server --node-name gate", ["--node-name"]),
        ("k3s server -d /mnt/k3s", ["-d"]),
        ("k3s server -node-name=gate", ["-node-name"]),
        (None, []),
    ],
)
def test_flags_that_no_variable_replaces_are_named(command: str | None, flags: list[str]) -> None:
    assert options.not_taken_over(command) == flags


@pytest.mark.parametrize(
    ("config", "secret"),
    [({"debug": True, "token-file": "/x"}, False), ({"vpn-auth": "x"}, True), ({"token+": "x"}, True)],
)
def test_settings_with_a_secret_are_known(config: Data, secret: bool) -> None:
    assert options.has_secrets(config) is secret


def test_secrets_are_those_that_boards_hide() -> None:
    is_secret = redact.is_secret
    given = {*options.FREE, *options.REFUSED, *options.ELSEWHERE}
    assert {name for name in given if is_secret(name)} == options.SECRETS


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
def test_lists_of_inventory_and_role_are_merged(inventory: Data, both: Data) -> None:
    ours = {"docker": True, "tls-san": ["10.0.0.1"], "kubelet-arg+": ["system-reserved=memory=2Gi"]}
    assert k3s_configuration.merged(inventory, ours) == both


OURS = {"node-name": "jetson-1", "docker": True, "kubelet-arg+": ["system-reserved=memory=2Gi"]}
AGENT = {"node-name": "jetson-1", "server": "https://10.0.0.1:6443"}  # with containerd


def read(root: Path, files: dict[str, str], inventory: Data, ours: Data = OURS, **migrated: Any) -> Data:
    """What K3s reads with these files below /etc, and the plan that preflight judges by."""
    for name, text in files.items():
        path = root / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = {"files": services.k3s_files(str(root)), "environment": services.k3s_environment(str(root), {})}
    role = "agent" if ours is AGENT else "server"
    read = reading.reading(facts, role, inventory, k3s_configuration.merged(inventory, ours), migrated)
    refused = options.refused(read, inventory, ours, role)
    judged: Data = reading.judged(read["options"])
    return judged | {"unread": read["unread"], "refused": refused}


CONFIG, FRAGMENT = "rancher/k3s/config.yaml", "rancher/k3s/config.yaml.d/{}"
OWN = FRAGMENT.format("50-jetson-k3s.yaml")


@pytest.mark.parametrize(
    ("files", "inventory", "name", "value"),
    [
        ({}, {"flannel-backend": "host-gw"}, "flannel-backend", "host-gw"),
        ({CONFIG: "flannel-backend: none # Calico\n"}, {}, "flannel-backend", "none"),
        ({CONFIG: "flannel-backend: none\n"}, {"flannel-backend": "host-gw"}, "flannel-backend", "host-gw"),
        # The role's former file is not the owner's. A later file wins, also with another suffix.
        ({OWN: "flannel-backend: none\n"}, {}, "flannel-backend", None),
        (
            {FRAGMENT.format("60-site.YML"): "flannel-backend: none\n"},
            {"flannel-backend": "host-gw"},
            "flannel-backend",
            "none",
        ),
        ({FRAGMENT.format("60-site.txt"): "flannel-backend: none\n"}, {}, "flannel-backend", None),
        ({CONFIG: '{"i": ["10.0.0.1", "fd00::1"]}'}, {}, "node-ip", "10.0.0.1,fd00::1"),
        ({CONFIG: "disable-network-policy: yes\n"}, {}, "disable-network-policy", "true"),
    ],
)
def test_last_setting_wins(
    tmp_path: Path, files: dict[str, str], inventory: Data, name: str, value: str | None
) -> None:
    found = read(tmp_path, files, inventory)
    assert (found["settings"][name], found["refused"], found["unread"]) == (value, [], [])


@pytest.mark.parametrize(
    ("text", "inventory", "found"),
    [
        ("", {"kubelet-arg": ["fail-cgroupv1=false", "v=2", "fail-swap-on=true"]}, [None, "false", "true"]),
        ("kubelet-arg:\n- cgroup-driver=systemd # why\n", {}, ["systemd", None, None]),
        # The inventory's list replaces the owner's, unless its key ends in a plus.
        ("kubelet-arg: cgroup-driver=x\n", {"kubelet-arg": "fail-cgroupv1=false"}, [None, "false", None]),
        (
            "kubelet-arg: cgroup-driver=systemd\n",
            {"kubelet-arg+": ["feature-gates=A=true,B=false", "--feature-gates+=C=True"]},
            ["systemd", None, None, "A", "C"],
        ),
        ("kube-proxy-arg: [cgroup-driver=x]\n#kubelet-arg: [cgroup-driver=x]\n", {}, [None, None, None]),
    ],
)
def test_last_kubelet_argument_wins(
    tmp_path: Path, text: str, inventory: Data, found: list[str | None]
) -> None:
    plan = read(tmp_path, {CONFIG: text}, inventory)
    assert [*plan["kubelet_arguments"].values(), *plan["feature_gates"]["kubelet"]] == found


HERE = "/etc/rancher/k3s"
FIRST, LAST, LATER = f"{HERE}/config.yaml", f"{HERE}/config.yaml.d/60.yaml", FRAGMENT.format("60.yaml")
UNIT = "the environment of k3s.service"


@pytest.mark.parametrize(
    ("files", "inventory", "ours", "found"),
    [
        ({}, {"with-node-id": True}, OURS, ["with-node-id in k3s_server_config"]),
        ({}, {"data-dir+": "/x"}, AGENT, ["data-dir+ in k3s_agent_config"]),
        ({}, {"kubelet-arg": ["runonce=true"]}, OURS, ["kubelet-arg runonce in k3s_server_config"]),
        ({}, {"token": "x"}, OURS, ["token in k3s_server_config"]),
        ({CONFIG: "rootless: true\n"}, {}, OURS, [f"rootless in {FIRST}"]),
        ({CONFIG: "disable-apiserver: 'T'\n"}, {}, OURS, [f"disable-apiserver in {FIRST}"]),
        ({CONFIG: "d: /mnt/k3s\n"}, {}, OURS, [f"data-dir in {FIRST}"]),
        # The role's settings win over config.yaml, and not over a later file.
        ({CONFIG: "node-name: other\nserver: https://x:6443\n"}, {}, AGENT, []),
        ({LATER: "node-name: other\n"}, {}, OURS, [f"node-name in {LAST}"]),
        ({LATER: "node-name: Jetson-1\nkubelet-arg+: hostname-override=Jetson-1"}, {}, OURS, []),
        ({LATER: "kubelet-arg+: hostname-override=x"}, {}, OURS, [
            f"kubelet-arg hostname-override in {LAST}",
        ]),
        # The first server joins no other cluster.
        ({CONFIG: "server: https://x:6443\n"}, {}, OURS, [f"server in {FIRST}"]),
        ({CONFIG: "docker: true\n"}, {}, OURS, []),
        ({CONFIG: "docker: true\n"}, {}, AGENT, [f"docker in {FIRST}"]),
        ({LATER: "docker: false\n"}, {}, OURS, [f"docker in {LAST}"]),
        ({CONFIG: "container-runtime-endpoint: unix:///var/run/docker.sock\n"}, {}, OURS, []),
        ({CONFIG: "rootless: false\ndata-dir: /var/lib/rancher/k3s\n"}, {}, OURS, []),
        ({CONFIG: "kubelet-arg+: [root-dir=/x, v=2]\n"}, {}, OURS, [f"kubelet-arg root-dir in {FIRST}"]),
        ({"default/k3s": "K3S_CONFIG_FILE=/x\n"}, {}, OURS, [f"config in K3S_CONFIG_FILE in {UNIT}"]),
        ({"systemd/system/k3s-agent.service.env": "K3S_URL=https://x\nK3S_TOKEN=x\n"}, {}, AGENT, []),
        ({"systemd/system/k3s.service.env": "K3S_URL=https://x\n"}, {}, OURS, [
            f"server in K3S_URL in {UNIT}",
        ]),
    ],
)  # fmt: skip
def test_settings_of_another_node_are_refused(
    tmp_path: Path, files: dict[str, str], inventory: Data, ours: Data, found: list[str]
) -> None:
    problems = preflight.findings_of_settings(read(tmp_path, files, inventory, ours))
    assert [problem["found"] for problem in problems] == found
    assert all(problem["id"] == "k3s-option" for problem in problems)


@pytest.mark.parametrize(
    ("files", "inventory", "external"),
    [
        ({}, {}, False),
        ({}, {"datastore-endpoint": "postgres://planted"}, True),
        ({CONFIG: "datastore-endpoint: mysql://u:planted@tcp(db)/k3s\n"}, {}, True),
        ({CONFIG: "datastore-endpoint: ''\n"}, {}, False),
        ({CONFIG: "datastore-endpoint: a\n"}, {"datastore-endpoint": ""}, False),
        ({"default/k3s": "K3S_DATASTORE_ENDPOINT=https://etcd:2379\n"}, {}, True),
        ({"default/k3s-agent": "K3S_DATASTORE_ENDPOINT=https://etcd:2379\n"}, {}, False),
    ],
)
def test_database_elsewhere_is_known(
    tmp_path: Path, files: dict[str, str], inventory: Data, external: bool
) -> None:
    plan = read(tmp_path, files, inventory)
    assert (plan["external_datastore"], plan["refused"], "planted" in str(plan)) == (external, [], False)


def test_migrated_flags_come_before_the_roles_file(tmp_path: Path) -> None:
    old = {FRAGMENT.format("40-migrated.yaml"): "flannel-backend: none\n"}
    migrated: Data = {"flannel-backend": "host-gw", "rootless": True}
    found = read(tmp_path, old, {}, **migrated)
    assert found["settings"]["flannel-backend"] == "host-gw"
    assert [entry["source"] for entry in found["refused"]] == [f"{HERE}/config.yaml.d/40-migrated.yaml"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("node-ip: 1\n\tplanted: x\n", "line 2: "),
        ("[planted]", "not keys with values"),
        ("a: [", "line "),
        ("node-ip: " + "9" * 5000, "no YAML"),
        ("node-ip: 0x" + "f" * 5000, "Exceeds the limit"),
    ],
)
def test_file_that_is_not_understood_is_named_without_its_text(tmp_path: Path, text: str, error: str) -> None:
    (found,) = preflight.findings_of_settings(read(tmp_path, {CONFIG: text}, {}))
    assert found["id"] == "k3s-unread"
    assert f"{HERE}/config.yaml is not understood: {error}" in found["found"]
    assert "planted" not in found["found"]


def test_unsafe_text_of_an_older_ansible_core_is_understood() -> None:
    class AnsibleUnsafeText(str):
        """A subclass of str, as ansible-core has it up to 2.18."""

    assert reading.parse(AnsibleUnsafeText("node-name: a")) == {"node-name": "a"}


@pytest.mark.parametrize(
    "text",
    [
        "token: |\n  planted\n  planted\nnode-ip: 10.0.0.1\n",
        'node-ip: 10.0.0.1\ntoken: "planted \\" pla#nted"\n',
        "vpn-auth: name=tailscale,joinKey=planted\nnode-ip: 10.0.0.1\n",
        "{token: planted, node-ip: 10.0.0.1, datastore-endpoint: 'mysql://a:planted@tcp(b)/c'}\n",
        "etcd-s3-proxy: http://user:planted@proxy:1\nnode-ip: 10.0.0.1\n# password: planted\n",
        "kube-apiserver-arg: [oidc-client-secret=planted]\nnode-ip: 10.0.0.1\n",
    ],
)
def test_file_with_a_secret_is_understood_without_it(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, {CONFIG: text}, {})["settings"]["node-ip"] == "10.0.0.1"
    assert "planted" not in str(services.k3s_files(str(tmp_path)))


RULES = ("context", "compatibility", "inventory", "kernel", "etcd", "dockerd", "toolkit", "bad_releases")
OF_THE_RUN: Data = {"preflight_accepted": [], "__preflight_restores": False, "__preflight_upgrades": False}
PLAYBOOK = """\
- hosts: server,agent
  gather_facts: false
  vars_files: [CONTEXT]
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given | combine({'hostname': inventory_hostname}) }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {indexed: false, versions: {k3s_version: v1.36.2+k3s1}, files: {}}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.nvidia_docker, tasks_from: plan}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: plan}
    - ansible.builtin.debug:
        msg: "{{ inventory_hostname }}: {{ found | map(attribute='id') | join(' ') }};"
      vars:
        found: "{{ __preflight_compatibility }}"
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param(
            {
                "k3s_server_config": {"kubelet-arg": ["fail-cgroupv1=false"], "flannel-backend": "host-gw"},
                "nvidia_docker_daemon_config": {"proxies": {"http-proxy": "http://u:planted@p"}},
            },
            [
                "default-route docker-flags kernel-ip-set",
                "default-route docker-flags k3s-cgroup-v1 kernel-ip-set",
            ],
            marks=pytest.mark.acceptance,
        ),
        (
            {
                "k3s_container_runtime": "containerd",
                "k3s_server_config": {"disable-network-policy": True},
                "k3s_agent_config": {"node-ip": "10.0.0.1"},
            },
            ["default-route k3s-cgroup-v1 kernel-vxlan", "default-route-services k3s-cgroup-v1 kernel-vxlan"],
        ),
    ],
)
def test_preflight_uses_the_planned_settings(tmp_path: Path, variables: Data, said: list[str]) -> None:
    given = with_facts(
        cgroup_version=1,
        default_route=False,
        kernel_lacks={"vxlan": "no vxlan", "ip_set": "no sets"},
        docker__flags={"--default-runtime": "default-runtime"},
        docker__containers=1,
        docker__command=None,
    )
    context = ROLES / "preflight/vars/main"
    files = ", ".join(str(context / f"{name}.yml") for name in RULES)
    run = play_text(
        tmp_path,
        PLAYBOOK.replace("CONTEXT", files),
        "-vvv",
        groups={"server": ["one"], "agent": ["two"]},
        variables={"given": given} | OF_THE_RUN | variables,
    )
    for host, ids in zip(("one", "two"), said, strict=True):
        assert f"{host}: {ids};" in run.said, run.stdout
    assert "planted" not in run.stdout


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"log-driver": "journald", "exec-opts": ["a=b"]}, {"exec-opts": ["native.cgroupdriver=systemd"]}),
        (
            {"features": {"x": True}},
            {"features": {"containerd-snapshotter": False}, "min-api-version": "1.40"},
        ),
    ],
)
def test_planned_daemon_json_is_what_the_role_writes(tmp_path: Path, config: Data, wanted: Data) -> None:
    given = with_facts(docker__daemon_json__config=config, docker__containers=0, docker__command=None)
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ given }}", cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.nvidia_docker, tasks_from: plan}
    - ansible.builtin.copy:
        content: "{{ all | to_json }}"
        dest: "{{ there }}"
        mode: "0600"
      vars:
        all: "{{ [nvidia_docker_plan, __nvidia_docker_wanted_config, __nvidia_docker_log_config] }}"
"""
    there = tmp_path / "planned.json"
    variables = {
        "given": given, "there": str(there), "nvidia_docker_daemon_config": wanted,
        "preflight_bundle_info": {"versions": {}, "files": {}},
    }  # fmt: skip
    play_text(tmp_path, text, variables=variables)
    planned, ours, logs = json.loads(there.read_text())
    with_defaults = docker_daemon_config.with_defaults(ours, logs, config)
    written = docker_daemon_config.merge_config(config, with_defaults)
    assert sorted(planned["daemon_keys"]) == sorted(written)
    assert planned["daemon_json"] == {
        key: written[key]
        for key in written
        if key in ("exec-opts", "features", "log-driver", "min-api-version")
    }


STOCK = {"server": {"installed": True, "command": "/usr/local/bin/k3s server"}}


@pytest.mark.parametrize(
    ("k3s_facts", "runtime"),
    [
        (STOCK, "containerd"),
        (STOCK | {"files": {"config.yaml": "docker: true\n"}}, "docker"),
        *(
            ({"server": {"installed": True, "command": f"k3s server {flag}"}}, runtime)
            for flag, runtime in (
                ("--docker", "docker"),
                ("-docker=true --debug", "docker"),
                ("--docker=false", "containerd"),
            )
        ),
        # Installed by the role: the inventory has said so before.
        (STOCK | {"files": {"config.yaml.d/50-jetson-k3s.yaml": "docker: true\n"}}, ""),
        ({"server": {"installed": False, "command": None}}, ""),
    ],
)
def test_runtime_of_another_installation_is_known(k3s_facts: Data, runtime: str) -> None:
    assert reading.foreign_runtime(k3s_facts, "server") == runtime
