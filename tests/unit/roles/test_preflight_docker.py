# SPDX-License-Identifier: Apache-2.0
"""Docker's configuration: each key is judged, and each finding names the place of the key."""

import re
import shutil
import subprocess
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_services as services
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    nvidia_docker,
    preflight_docker,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight

from tests.docs.test_troubleshooting import FINDINGS
from tests.unit.roles.places import ROLES
from tests.unit.roles.preflight_facts import DOCKERD, RULES, with_facts

# Flags of Docker 29, as keys: moby's daemon/command/config.go and config_unix.go.
KEYS_OF_29 = re.findall(
    r"\S+",
    """
allow-direct-routing authorization-plugins bip bip6 bridge bridge-accept-fwmark builder cdi-spec-dirs
cgroup-parent config-file containerd containerd-namespace containerd-plugins-namespace cpu-rt-period
cpu-rt-runtime cri-containerd data-root debug default-address-pools default-cgroupns-mode default-gateway
default-gateway-v6 default-ipc-mode default-network-opts default-runtime default-shm-size default-ulimits
dns dns-opts dns-search exec-opts exec-root experimental features firewall-backend fixed-cidr
fixed-cidr-v6 group host-gateway-ips hosts http-proxy https-proxy icc init init-path insecure-registries
ip ip-forward ip-forward-no-drop ip-masq ip6tables iptables ipv6 labels live-restore log-driver
log-format log-level log-opts max-concurrent-downloads max-concurrent-uploads max-download-attempts
metrics-addr min-api-version mtu network-control-plane-mtu network-diagnostic-port no-new-privileges
no-proxy node-generic-resources nri-opts pidfile proxies raw-logs registry-mirrors restart rootless
runtimes seccomp-profile selinux-enabled shutdown-timeout storage-driver storage-opts
swarm-default-advertise-addr tls tlscacert tlscert tlskey tlsverify userland-proxy userland-proxy-path
userns-remap
""",
)
# They end dockerd.
ENDS = {"help", "version", "validate"}


def test_every_key_of_docker_29_is_judged_once_and_none_is_invented() -> None:
    assert [key for key in KEYS_OF_29 if key not in DOCKERD] == []
    older = {key for key, entry in DOCKERD.items() if "removed" in entry}
    kept_without_effect = {"allow-nondistributable-artifacts", "host-gateway-ip"}
    assert set(DOCKERD) - set(KEYS_OF_29) == older | kept_without_effect
    for key, entry in DOCKERD.items():
        assert len(entry.keys() & {"harmless", "understood", "findings"}) == 1, key


@pytest.mark.skipif(not shutil.which("dockerd"), reason="no dockerd on this computer")
def test_every_flag_of_the_dockerd_here_is_in_the_table() -> None:
    said = subprocess.run(["dockerd", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    flags = {flag for pair in re.findall(r"^ +(?:-(\w), )? *--([\w-]+)", said, re.MULTILINE) for flag in pair}
    assert len(flags) > 80
    keys = {services.FLAG_KEYS.get(flag, flag) for flag in flags - ENDS - {"", "v"}}
    assert sorted(keys - set(DOCKERD)) == []


def test_what_is_understood_names_a_finding_or_a_role() -> None:
    for key, entry in DOCKERD.items():
        words = re.findall(r"[a-z0-9_]+(?:-[a-z0-9]+)*", entry.get("understood", ""))
        named = [word for word in words if word in FINDINGS or (ROLES / word).is_dir()]
        assert "understood" not in entry or named, key


def test_the_plan_has_the_values_that_the_rules_read() -> None:
    facts = {
        condition["fact"].split(".")[2]
        for rule in preflight_docker.rules(DOCKERD)
        for condition in [*rule["when"], rule["require"]]
        if condition["fact"].startswith("docker.settings.")
    }
    assert facts <= set(nvidia_docker.JUDGED)


def found(
    command: str, config: dict[str, Any], wanted: dict[str, Any] | None = None, version: str = "27.5.1"
) -> dict[str, dict[str, str]]:
    """Findings about a board whose dockerd has this command and daemon.json, after the role has merged."""
    words = command.split()
    facts = with_facts(
        docker__version=version,
        docker__daemon_json__config=config,
        docker__flags=services.daemon_flags(words),
        docker__flag_values=services.daemon_values(words),
    )
    merged = {**config, **(wanted or {})}
    plan = {
        "daemon_keys": [*merged],
        "daemon_json": {k: merged[k] for k in merged if k in nvidia_docker.JUDGED},
    }
    docker = facts["docker"] | preflight_docker.planned(facts["docker"], plan)
    facts["docker"] = docker | {"unknown_keys": preflight_docker.unknown_keys(docker, DOCKERD)}
    return {entry["id"]: entry for entry in preflight.findings_of_rules(facts, RULES)}


TCP = "tcp://0.0.0.0:2375"
FILE, UNIT, INVENTORY = "/etc/docker/daemon.json on", "systemctl edit docker", "in the inventory"


@pytest.mark.parametrize(
    ("command", "config", "wanted", "finding", "place"),
    [
        ("dockerd", {"log-driver": "journald"}, {}, "docker-log-driver", FILE),
        ("dockerd --log-driver local", {}, {}, "docker-log-driver", UNIT),
        ("dockerd", {}, {"log-driver": "local"}, "docker-log-driver", INVENTORY),
        ("dockerd", {"log-driver": "local"}, {"log-driver": "json-file"}, None, ""),
        ("dockerd -l debug", {"log-driver": "json-file"}, {}, None, ""),
        ("dockerd --userns-remap=default", {}, {}, "docker-userns-remap", UNIT),
        ("dockerd", {"userns-remap": "1000:1000"}, {}, "docker-userns-remap", FILE),
        ("dockerd", {"userns-remap": ""}, {}, None, ""),
        ("dockerd --rootless", {}, {}, "docker-rootless", UNIT),
        ("dockerd --no-new-privileges", {}, {}, "docker-no-new-privileges", UNIT),
        ("dockerd --no-new-privileges=false", {}, {}, None, ""),
        ("dockerd", {"seccomp-profile": "unconfined"}, {}, "docker-seccomp-profile", FILE),
        ("dockerd --authorization-plugin opa", {}, {}, "docker-authorization-plugins", UNIT),
        ("dockerd", {"authorization-plugins": []}, {}, None, ""),
        ("dockerd --default-ulimit nofile=512:1024", {}, {}, "docker-ulimit-nofile", UNIT),
        ("dockerd --default-ulimit=nofile=1024:4096", {}, {}, None, ""),
        (
            "dockerd",
            {"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 64000, "Soft": 100}}},
            {},
            "docker-ulimit-nofile",
            FILE,
        ),
        ("dockerd", {"default-ulimits": {"nproc": {"Hard": 100}}}, {}, "docker-ulimit-nproc", FILE),
        ("dockerd", {"default-ulimits": {"memlock": {"Hard": -1, "Soft": -1}}}, {}, None, ""),
        ("dockerd -s vfs", {}, {}, "docker-storage-driver", UNIT),
        ("dockerd", {"storage-driver": "aufs"}, {}, "docker-storage-driver-removed", FILE),
        ("dockerd", {"storage-driver": "devicemapper"}, {}, "docker-storage-driver-devicemapper", FILE),
        ("dockerd", {"storage-driver": "overlay2"}, {}, None, ""),
        ("dockerd --iptables=false", {}, {}, "docker-iptables", UNIT),
        ("dockerd", {"iptables": True, "ip-forward": False, "live-restore": True}, {}, None, ""),
        ("dockerd -H fd://", {}, {}, None, ""),
        ("dockerd", {"hosts": ["unix:///run/docker.sock"]}, {}, None, ""),
        ("dockerd", {"hosts": ["unix:///run/other.sock"]}, {}, "docker-hosts-socket", FILE),
        (f"dockerd -H fd:// -H {TCP}", {}, {}, "docker-hosts-tcp", UNIT),
        ("dockerd -H fd:// -H tcp://127.0.0.1:2375", {}, {}, None, ""),
        (f"dockerd -H fd:// -H {TCP} --tlsverify", {}, {}, None, ""),
        ("dockerd", {"hosts": ["fd://", TCP]}, {"tlsverify": True}, None, ""),
        ("dockerd --config-file /etc/docker/own.json", {}, {}, "docker-config-file", UNIT),
        ("dockerd", {"graph": "/data"}, {}, "docker-keys", "Take graph out"),
        ("dockerd", {"log-drivers": "local"}, {}, "docker-keys", "Take log-drivers out"),
        ("dockerd --firewall-backend nftables", {}, {}, "docker-keys", "Take firewall-backend out"),
    ],
)
def test_setting_that_kubernetes_cannot_live_with_is_found_alone_and_its_place_named(
    command: str, config: dict[str, Any], wanted: dict[str, Any], finding: str | None, place: str
) -> None:
    entries = found(command, config, wanted)
    if finding == "docker-keys":
        entries.pop("docker-firewall-backend", None)
    assert [*entries] == ([finding] if finding else [])
    if finding:
        assert place in entries[finding]["fix"]


def test_what_dockerd_knows_depends_on_its_release() -> None:
    config = {"graph": "/data", "cluster-store": "x", "api-cors-header": "*", "oom-score-adjust": -500}
    assert found("dockerd", config, version="20.10.24+dfsg1") == {}
    assert found("dockerd", config, version="29.0.1")["docker-keys"]["found"] == (
        "Docker 29.0.1 does not know api-cors-header, cluster-store, graph, oom-score-adjust"
    )
    nftables = {"firewall-backend": "nftables"}
    assert [*found("dockerd", nftables, version="29.0.1")] == ["docker-firewall-backend"]
    assert found("dockerd", {"storage-driver": "aufs"}, version="20.10.24") == {}
    # Nobody can know the keys of a later release.
    assert found("dockerd", {"later": 1}, version="30.0.0") == {}


def test_containerd_mode_leaves_docker_as_it_is() -> None:
    facts = with_facts(container_runtime="containerd")
    facts["docker"] |= {"settings": {"log-driver": "local"}, "places": {"log-driver": INVENTORY}}
    assert preflight.findings_of_rules(facts, RULES) == []


def test_finding_has_the_value_its_effect_and_one_that_works() -> None:
    assert found("dockerd", {"log-driver": "local"})["docker-log-driver"] == {
        "id": "docker-log-driver",
        "level": "error",
        "url": page("docs/troubleshooting.md#docker-log-driver"),
        "found": "`log-driver` is local in /etc/docker/daemon.json: the kubelet finds no log files: "
        "`kubectl logs` and the verification of the GPU read nothing",
        "expected": "`log-driver: json-file`, or dockerd's default",
        "fix": "Take `log-driver` out of /etc/docker/daemon.json on the board, or set "
        "`log-driver: json-file` in nvidia_docker_daemon_config.",
    }
