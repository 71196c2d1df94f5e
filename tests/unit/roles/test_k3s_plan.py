# SPDX-License-Identifier: Apache-2.0
"""What role k3s decides for a board: its own settings of K3s, the files, and which of them are secret."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_configuration as configuring
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_files as planning
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_restart, k3s_supply, k3s_version
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_tokens as tokens

from tests.unit.roles.places import ROLES, Data

CONSTANTS = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())
PATHS = CONSTANTS["__k3s_paths"]
URL = "https://10.0.0.1:6443"
BUNDLE: Data = {
    "indexed": True,
    "versions": {"k3s_version": "v1.34.1+k3s1", "pause_image": "pause:1"},
    "files": {},
}
DOWNLOAD: Data = {"indexed": False, "versions": {"k3s_version": "v1.33.5+k3s1"}, "files": {}}
CONFIG: Data = {
    "role": "server",
    "first": True,
    "servers": ["jetson-1"],
    "node": "jetson-1",
    "address": "10.0.0.1",
    "server_url": URL,
    "container_runtime": "docker",
    "token_file": "/etc/token",
    "has_token": False,
    "agent_token_file": "/etc/agent-token",
    "has_agent_token": False,
    "config": {},
    "device_plugin": {},
    "migrates": False,
}
AGENT: Data = {"role": "agent", "first": False, "node": "jetson-2", "address": "10.0.0.2"}
THREE: Data = {"servers": ["jetson-1", "jetson-2", "jetson-3"]}
UNITS: Data = {"sharing": {"units": {"memoryTotal": "2Gi"}}}


@pytest.mark.parametrize(
    ("bundle", "configured", "expected"),
    [
        # A bundle has one K3s, also where the inventory names another one.
        (BUNDLE, "", "v1.34.1+k3s1"),
        (BUNDLE, "v1.30.0+k3s1", "v1.34.1+k3s1"),
        # Without a bundle: that of the inventory, else the newest that this release knows.
        (DOWNLOAD, "", "v1.33.5+k3s1"),
        (DOWNLOAD, "v1.30.0+k3s1", "v1.30.0+k3s1"),
    ],
)
def test_version_of_k3s_is_the_bundles_or_the_inventorys(
    bundle: Data, configured: str, expected: str
) -> None:
    assert k3s_version.wanted_version(bundle, configured) == expected
    others = bundle["versions"].keys() - {"k3s_version"}
    found = k3s_version.wanted_versions(bundle, configured)
    assert found == {name: bundle["versions"][name] for name in others} | {"k3s_version": expected}


def test_damaged_bundle_has_no_versions() -> None:
    """Preflight names what is wrong with it."""
    damaged = {"indexed": True, "versions": {}, "files": {}}
    assert k3s_version.wanted_versions(damaged, "v1.30.0+k3s1") == {}


def config(**changes: Any) -> Any:
    return CONFIG | changes


@pytest.mark.parametrize(
    ("bundle", "settings", "expected"),
    [
        # A single server needs no token and no etcd.
        (BUNDLE, {}, {"docker": True, "pause-image": "pause:1", "tls-san": ["10.0.0.1"]}),
        # K3s' own image where the board downloads it.
        (DOWNLOAD, {}, {"docker": True, "tls-san": ["10.0.0.1"]}),
        (DOWNLOAD, {"container_runtime": "containerd"}, {"tls-san": ["10.0.0.1"]}),
        # By which agents reach it, not by which Ansible does.
        (
            DOWNLOAD,
            {"server_url": "https://[fd00::1]:6443", "container_runtime": "containerd"},
            {"tls-san": ["fd00::1"]},
        ),
        (
            DOWNLOAD,
            {"has_token": True, "has_agent_token": True},
            {
                "docker": True,
                "tls-san": ["10.0.0.1"],
                "agent-token-file": "/etc/agent-token",
                "token-file": "/etc/token",
            },
        ),
        (DOWNLOAD, THREE, {"docker": True, "tls-san": ["10.0.0.1"], "cluster-init": True}),
        # Others join the first one, always with a token, and have their own address.
        (
            DOWNLOAD,
            THREE | {"first": False, "address": "10.0.0.3"},
            {"docker": True, "tls-san": ["10.0.0.3"], "server": URL, "token-file": "/etc/token"},
        ),
        (
            DOWNLOAD,
            AGENT | {"has_agent_token": True},
            {"docker": True, "server": URL, "token-file": "/etc/token"},
        ),
        # The owner's kubelet arguments stay.
        (
            DOWNLOAD,
            {"device_plugin": UNITS},
            {"docker": True, "tls-san": ["10.0.0.1"], "kubelet-arg+": ["system-reserved=memory=2Gi"]},
        ),
    ],
)
def test_role_says_what_makes_the_board_a_node_of_its_cluster(
    bundle: Data, settings: Data, expected: Data
) -> None:
    wanted = expected | {"node-name": (CONFIG | settings)["node"]}
    assert configuring.configuration(bundle, config(**settings), 8 << 30) == wanted


@pytest.mark.parametrize(
    ("device_plugin", "memory"),
    [
        (UNITS, "2Gi"),
        ({"sharing": {"units": {"memoryTotal": "75%"}}}, "5859Mi"),
        ({"sharing": {"dra": {"mode": "capacity", "memoryTotal": "100%"}}}, "7812Mi"),
        ({"sharing": {"dra": {"mode": "capacity", "memoryTotal": "4Gi"}}}, "4Gi"),
        ({"sharing": {"dra": {"mode": "replicas", "memoryTotal": "4Gi"}}}, ""),
        ({"sharing": {"dra": {"memoryTotal": "4Gi"}}}, ""),
        ({"sharing": {"replicas": 4}}, ""),
        ({}, ""),
        # Preflight refuses these in its own words.
        ([], ""),
        ({"sharing": None}, ""),
        ({"sharing": {"units": [1]}}, ""),
    ],
)
def test_gpu_memory_in_units_is_reserved(device_plugin: Any, memory: str) -> None:
    assert configuring.reserved_memory(device_plugin, 8_000_000 << 10) == memory


LAN = [{"device": "eth0", "address": "10.0.0.2/24"}]
JETSON: Data = {
    "memory_bytes": 8 << 30,
    "network": {"addresses": [], "routes": [], "towards_server": None},
    "k3s": {
        "server": {"installed": False, "command": None},
        "agent": {"installed": False, "command": "k3s agent --docker --flannel-backend none"},
        "node_ip": {"owner": [], "role": None},
        "kubectl": None,
        "registries": None,
        "credentials": None,
    },
}
ROUTED: Data = JETSON | {"network": {"addresses": LAN, "routes": [], "towards_server": "10.0.0.2"}}


def test_file_of_a_board_with_a_percentage_reserves_it_of_its_own_memory() -> None:
    units = {"sharing": {"units": {"memoryTotal": "25%"}}}
    text = planning.config(JETSON, BUNDLE, config(device_plugin=units))
    assert yaml.safe_load(text)["kubelet-arg+"] == ["system-reserved=memory=2048Mi"]


FILES: Data = {
    "paths": PATHS,
    "binary": "/usr/local/bin/k3s-v1.33.5+k3s1",
    "registries": {},
    "proxy": {},
    "no_proxy": [],
}
PASSWORD = "planted-password"
REGISTRIES = {"configs": {"r.example": {"auth": {"username": "a", "password": PASSWORD}}}}
PROXY, SECRET_PROXY = ({"http_proxy": f"http://{login}proxy:1"} for login in ("", f"u:{PASSWORD}@"))


def facts(**k3s: Any) -> Data:
    return JETSON | {"k3s": JETSON["k3s"] | k3s}


def files(jetson: Data = JETSON, of_k3s: Data = CONFIG, **settings: Any) -> dict[str, planning.File]:
    """The files by the names of their paths, without the ones of every board."""
    given: Any = CONFIG | of_k3s, FILES | settings
    found = planning.files(jetson, DOWNLOAD, *given)
    kinds = {path: kind for kind, path in PATHS.items()}
    return {kinds[one["path"]]: one for one in found}


def secrets(jetson: Data = JETSON, of_k3s: Data = CONFIG, **settings: Any) -> dict[str, str]:
    given: Any = CONFIG | of_k3s, FILES | settings
    found = planning.secrets(jetson, DOWNLOAD, *given)
    return {kind: found[path] for kind, path in PATHS.items() if path in found}


def test_every_board_gets_configuration_unit_and_links() -> None:
    found = files()
    assert list(found) == ["config", "unit", "k3s", "environment", "kubectl"]
    assert (found["config"]["mode"], found["unit"]["mode"]) == ("0600", "0644")
    assert yaml.safe_load(found["config"]["content"])["node-name"] == "jetson-1"
    # Beside the binary with its version, so that going back is one link.
    assert (found["k3s"]["link"], found["kubectl"]["link"]) == ("k3s-v1.33.5+k3s1", "k3s")
    assert found["environment"]["absent"]
    assert secrets() == {}


@pytest.mark.parametrize(("role", "runtime"), [("server", "docker"), ("agent", "containerd")])
@pytest.mark.parametrize("proxied", [False, True])
def test_unit_is_of_the_role_and_reads_the_proxy_last(role: str, runtime: str, proxied: bool) -> None:
    lines = files(of_k3s={"role": role, "container_runtime": runtime}, proxy=PROXY if proxied else {})[
        "unit"
    ]["content"].splitlines()
    assert f"ExecStart=/usr/local/bin/k3s {role}" in lines
    wanted = "Wants=network-online.target docker.service"
    assert (wanted if runtime == "docker" else wanted.removesuffix(" docker.service")) in lines
    read = [line.removeprefix("EnvironmentFile=-") for line in lines if line.startswith("EnvironmentFile=")]
    assert read == ["/etc/default/%N", "/etc/sysconfig/%N", "/etc/systemd/system/%N.service.env"] + (
        [PATHS["environment"]] if proxied else []
    )
    assert lines[-2:] == ["[Install]", "WantedBy=multi-user.target"]


@pytest.mark.parametrize(
    ("kubectl", "link"), [(None, True), (PATHS["kubectl"], True), ("/usr/bin/kubectl", False)]
)
def test_kubectl_of_the_owner_stays(kubectl: str | None, link: bool) -> None:
    assert ("kubectl" in files(facts(kubectl=kubectl))) is link


@pytest.mark.parametrize(
    ("runtime", "registries", "written", "secret", "removed"),
    [
        ("containerd", {}, (None, None), [], []),
        ("containerd", REGISTRIES, (None, None), ["registries"], []),
        ("docker", REGISTRIES, (None, None), ["credentials"], []),
        # With Docker, mirrors alone make no file.
        ("docker", {"mirrors": {"docker.io": None}}, (None, None), [], []),
        # The role's files go with their reason, and an owner's stay.
        ("containerd", {}, ("role", "role"), [], ["registries", "credentials"]),
        ("containerd", {}, ("owner", "owner"), [], []),
        ("docker", REGISTRIES, ("role", "role"), ["credentials"], ["registries"]),
        ("containerd", REGISTRIES, ("role", "role"), ["registries"], ["credentials"]),
    ],
)
def test_credentials_of_registries_are_where_the_runtime_reads_them(
    runtime: str,
    registries: Data,
    written: tuple[str | None, str | None],
    secret: list[str],
    removed: list[str],
) -> None:
    jetson, of_k3s = facts(registries=written[0], credentials=written[1]), {"container_runtime": runtime}
    found = files(jetson, of_k3s, registries=registries)
    assert [kind for kind, one in found.items() if one.get("secret")] == secret
    assert [kind for kind, one in found.items() if one.get("absent") and kind != "environment"] == removed
    texts = secrets(jetson, of_k3s, registries=registries)
    assert list(texts) == secret
    assert all(found[kind]["mode"] == "0600" for kind in secret)
    assert PASSWORD not in str(found)


@pytest.mark.parametrize(
    ("settings", "of_k3s", "secret"),
    [
        ({}, {}, []),
        ({}, {"config": {"debug": True}}, []),
        ({}, {"config": {"vpn-auth": PASSWORD}}, ["config"]),
        ({"proxy": PROXY}, {}, []),
        ({"proxy": SECRET_PROXY}, {}, ["environment"]),
        (
            {"proxy": SECRET_PROXY, "registries": REGISTRIES},
            {"config": {"token": PASSWORD}, "container_runtime": "containerd"},
            ["config", "environment", "registries"],
        ),
    ],
)
def test_text_with_a_secret_is_apart_from_what_is_shown(
    settings: Data, of_k3s: Data, secret: list[str]
) -> None:
    found, texts = files(of_k3s=of_k3s, **settings), secrets(of_k3s=of_k3s, **settings)
    assert sorted(kind for kind, one in found.items() if one.get("secret")) == sorted(texts) == secret
    assert all("content" not in found[kind] for kind in secret)
    assert PASSWORD not in str(found)
    assert all(PASSWORD in text for text in texts.values())


def test_proxy_is_an_environment_file() -> None:
    found = files(proxy=PROXY, no_proxy=["localhost", ".svc"])["environment"]
    *_, first, second, third = found["content"].splitlines()
    assert (first, second) == ("HTTP_PROXY=http://proxy:1", "HTTPS_PROXY=http://proxy:1")
    assert (third, found["mode"]) == ("NO_PROXY=localhost,.svc", "0600")


@pytest.mark.parametrize(
    ("jetson", "of_k3s", "address"),
    [
        (JETSON, AGENT, {}),
        (ROUTED, AGENT, {"node-ip": "10.0.0.2", "flannel-iface": "eth0"}),
        (ROUTED, AGENT | {"config": {"node-ip": "10.9.0.2"}}, {"node-ip": "10.9.0.2"}),
    ],
)
def test_address_that_the_role_chooses_has_a_comment(jetson: Data, of_k3s: Data, address: Data) -> None:
    text = files(jetson, of_k3s)["config"]["content"]
    written = yaml.safe_load(text)
    assert {key: written[key] for key in ("node-ip", "flannel-iface") if key in written} == address
    assert (planning.ADDRESS_HEADER in text) is ("flannel-iface" in address)
    # What K3s will read is what the file says.
    given: Any = CONFIG | of_k3s
    planned = configuring.plan(jetson, DOWNLOAD, given)["settings"]
    assert (planned["node-ip"], planned["node-name"]) == (address.get("node-ip"), written["node-name"])


@pytest.mark.parametrize(("migrates", "backend"), [(True, "none"), (False, None)])
def test_flags_of_the_stock_script_are_planned_where_they_are_taken_over(
    migrates: bool, backend: str | None
) -> None:
    planned = configuring.plan(JETSON, DOWNLOAD, config(**AGENT, migrates=migrates))
    assert planned["settings"]["flannel-backend"] == backend


def test_plan_of_a_board_has_no_secret() -> None:
    planned = configuring.plan(JETSON, DOWNLOAD, config(config={"datastore-endpoint": PASSWORD}))
    assert planned["external_datastore"] is True
    assert PASSWORD not in str(planned)


def test_flags_of_a_unit_become_a_file() -> None:
    shown = f"{{ path=/k3s ; argv[]=/k3s agent --docker --token {PASSWORD} --debug ; ignore_errors=no }}"
    (found,) = planning.migrated_file(shown, PATHS["migrated"])
    assert (found["path"], found["mode"]) == (PATHS["migrated"], "0600")
    assert yaml.safe_load(found["content"]) == {"debug": True}


MIRROR = f"https://me:{PASSWORD}%2F@mirror.example/k3s"
SUPPLY: Data = {"version": "v1.30.0+k3s1", "sha256": {}, "release_url": "https://github.example/releases"}
BUNDLED: Data = BUNDLE | {"path": "/bundle", "files": {"k3s-arm64": {"sha256": "ab"}}}


@pytest.mark.parametrize(
    ("bundle", "arch", "settings", "expected"),
    [
        (BUNDLED, "aarch64", {}, ("bundle", "v1.34.1+k3s1", "/bundle/k3s-arm64", "ab")),
        # The inventory's digest is that of a download.
        (
            BUNDLED,
            "aarch64",
            {"sha256": {"arm64": "cd"}},
            ("bundle", "v1.34.1+k3s1", "/bundle/k3s-arm64", "ab"),
        ),
        (DOWNLOAD, "aarch64", {}, ("download", "v1.30.0+k3s1", "", "")),
        (DOWNLOAD, "aarch64", {"version": ""}, ("download", "v1.33.5+k3s1", "", "")),
        (
            DOWNLOAD,
            "x86_64",
            {"sha256": {"amd64": "ef", "arm64": "cd"}},
            ("download", "v1.30.0+k3s1", "", "ef"),
        ),
        (DOWNLOAD, "x86_64", {"sha256": {"arm64": "cd"}}, ("download", "v1.30.0+k3s1", "", "")),
    ],
)
def test_binary_is_the_bundles_or_a_download(
    bundle: Data, arch: str, settings: Data, expected: tuple[str, str, str, str]
) -> None:
    given: Any = SUPPLY | settings
    found = k3s_supply.supply(bundle, arch, given)
    assert (found["source"], found["version"], found["file"], found["sha256"]) == expected


@pytest.mark.parametrize(
    ("arch", "name", "sums"),
    [("aarch64", "k3s-arm64", "sha256sum-arm64.txt"), ("x86_64", "k3s", "sha256sum-amd64.txt")],
)
def test_addresses_of_a_mirror_have_no_password(arch: str, name: str, sums: str) -> None:
    given: Any = SUPPLY | {"release_url": MIRROR}
    found, release = k3s_supply.supply(DOWNLOAD, arch, given), "https://mirror.example/k3s/v1.30.0%2Bk3s1"
    assert (found["url"], found["checksums"]) == (f"{release}/{name}", f"{release}/{sums}")
    assert PASSWORD not in str(found)
    assert k3s_supply.login(MIRROR) == {"username": "me", "password": f"{PASSWORD}/"}
    assert k3s_supply.login(SUPPLY["release_url"]) == {"username": "", "password": ""}


def test_images_are_known_by_the_names_that_containerd_gives_them() -> None:
    bundled = {"images": {"rancher/pause:1": "a", "busybox:1": "b", "r.example/x:1": "c", "new:1": "d"}}
    listed = ["docker.io/rancher/pause:1", "docker.io/library/busybox:1", "r.example/x:1"]
    assert k3s_supply.missing_images(bundled, listed) == ["new:1"]


RUNS: Data = {"active": True, "enabled": True}
OFF: Data = {"active": False, "enabled": True}
RESTART: Data = {
    "role": "agent",
    "staged": True,
    "configured": {"restart_due": False, "postponed": False},
    "docker_waits": False,
    "node": {"cordoned": False},
    "version": "v1.33.5+k3s1",
}
DUE: Data = {"configured": {"restart_due": True, "postponed": False}}
POSTPONED: Data = {"configured": {"restart_due": False, "postponed": True}}


def decided(
    unit: Data = RUNS, installed: str | None = "v1.33.5+k3s1", **settings: Any
) -> k3s_restart.Restart:
    given: Any = RESTART | settings
    return k3s_restart.restart({"agent": unit, "server": {}, "version": installed}, given)


@pytest.mark.parametrize(
    ("unit", "settings", "true"),
    [
        (RUNS, {}, ["postpones"]),
        (RUNS, {"staged": False}, []),
        # Before its tasks have run.
        (RUNS, {"configured": {}, "node": {}}, ["postpones"]),
        # Role rolling_restart restarts a running K3s.
        (RUNS, DUE, ["due", "postpones", "waits", "gated"]),
        (RUNS, POSTPONED, ["postpones", "waits", "gated"]),
        (RUNS, {"docker_waits": True}, ["postpones", "waits", "gated"]),
        (RUNS, {"docker_waits": "True", "staged": "yes"}, ["postpones", "waits", "gated"]),
        (RUNS, {"node": {"cordoned": True}}, ["postpones", "gated"]),
        # That role itself, and every other run.
        (RUNS, DUE | {"staged": False}, ["due", "starts"]),
        (RUNS, {"configured": {"restart_due": True}, "staged": False}, ["due", "starts"]),
        (RUNS, {"docker_waits": True, "staged": False}, []),
        (RUNS, {"node": {"cordoned": True}, "staged": False}, []),
        # A K3s that does not run has no pods to disturb.
        (OFF, {}, ["starts"]),
        (OFF, DUE, ["due", "starts"]),
        (OFF, {"docker_waits": True}, ["starts"]),
        (RUNS | {"enabled": False}, {}, ["starts"]),
    ],
)
def test_running_k3s_restarts_where_its_pods_can_leave(unit: Data, settings: Data, true: list[str]) -> None:
    assert [name for name, value in decided(unit, **settings).items() if value] == true


@pytest.mark.parametrize(
    ("installed", "settings", "upgrades"),
    [
        ("v1.33.5+k3s1", DUE, False),
        ("v1.33.1+k3s1", DUE, False),
        ("v1.32.9+k3s1", DUE, True),
        ("v1.3.5+k3s1", DUE, True),
        (None, DUE, False),
        ("v1.32.9+k3s1", {}, False),
        ("v1.32.9+k3s1", DUE | {"staged": False}, False),
    ],
)
def test_pending_restart_with_another_minor_version_is_known(
    installed: str | None, settings: Data, upgrades: bool
) -> None:
    assert decided(installed=installed, **settings)["upgrades"] is upgrades


HASH = "K10" + "0a" * 32


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["", ""], False),
        (["plain", "also:plain"], False),
        ([f"{HASH}::server:x", ""], True),
        (["", f" {HASH}::x"], True),
        (["abcdef.0123456789abcdef", ""], True),
        (["abcdef.0123456789abcdef0", ""], False),
    ],
)
def test_token_that_a_change_of_cas_ends_is_known(given: list[str], named: bool) -> None:
    assert tokens.names_ca(given) is named


@pytest.mark.parametrize(
    ("text", "found"), [(f"{HASH}::server:x\n", HASH), ("", ""), ("K10ab", ""), ("plain", "")]
)
def test_hash_of_the_ca_is_that_of_the_servers_token(text: str, found: str) -> None:
    assert tokens.cluster({"texts": {"token": text}})["ca_hash"] == found


TOKENS = ["agent-token", "jetson-k3s.agent-token", "token"]


@pytest.mark.parametrize(
    ("read", "answered", "unread"),
    [
        ({}, True, []),
        ({"skipped": True}, True, []),
        ({"unreachable": True, "msg": "no route"}, False, []),
        ({"failed": True, "msg": "MODULE FAILURE"}, True, TOKENS),
        ({"texts": ["token"]}, True, TOKENS),
        ({"texts": {}, "unread": {"token": "Permission denied"}}, True, ["token"]),
    ],
)
def test_answer_that_is_missing_is_no_token_that_is_missing(
    read: Data, answered: bool, unread: list[str]
) -> None:
    found = tokens.cluster(read)
    assert (found["answered"], found["unread"]) == (answered, unread)
    assert (found["ca"], found["server"], found["agent"], found["own"]) == ("", "", "", False)


@pytest.mark.parametrize(
    ("own", "given", "first", "expected"),
    [
        (False, False, {}, False),
        (True, False, {}, True),
        (False, True, {}, True),
        (False, False, {"own": True}, True),
        (False, False, {"skipped": True}, False),
    ],
)
def test_token_of_agents_is_the_clusters_the_inventorys_or_new(
    own: bool, given: bool, first: Data, expected: bool
) -> None:
    assert tokens.has_agent_token({"own": own}, given, first) is expected
