# SPDX-License-Identifier: Apache-2.0
"""What role preflight decides: the server for kubectl, the node, hosts without a proxy, and all findings."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    k3s_reading,
    nvidia_docker,
    preflight_board,
    preflight_fleet,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight as planning
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_rules import findings_of_rules

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import RULES, data, with_facts
from tests.unit.roles.test_nvidia_docker_plan import FAMILY
from tests.unit.roles.test_nvidia_docker_plan import SETTINGS as DOCKER_SETTINGS

SETTINGS: Data = {
    "ansible_core": "2.19.4",
    "accepted": [],
    "addresses": ["10.0.0.1", ""],
    "bundle": False,
    "confirmed": [],
    "host_kind": "board",
    "container_runtime": "docker",
    "strict": False,
    "api": "device-plugin",
    "config": {},
    "throttle_taint": {},
    "image": "",
    "jtop": False,
    "labels": {},
    "supply_host": "",
    "k3s_version": "v1.36.5+k3s1",
    "server_config": {},
    "agent_config": {},
    "board_config": {},
    "server_url": "",
    "token": "",
    "token_given": False,
    "registries": {},
    "proxy": {},
    "release_url": "https://",
    "sha256": {},
    "renames": False,
    "restores": False,
    "upgrades": False,
}
TABLES: Any = {
    "rules": data("compatibility")["__preflight_rules"],
    "inventory": data("inventory")["__preflight_inventory_rules"],
    "kernel": data("kernel")["__preflight_kernel"],
    "kernel_fix": data("kernel")["__preflight_kernel_fix"],
    "dockerd": data("dockerd")["__preflight_dockerd"],
    "etcd": data("etcd")["__preflight_etcd"],
    "releases": data("bad_releases")["__preflight_bad_releases"],
    "toolkit": data("toolkit")["__preflight_toolkit"],
}
BUNDLE: Data = {"indexed": False, "path": "dist", "files": {}, "versions": {}, "errors": []}
SERVER, AGENT = "jetson-1", "jetson-2"
NOW = 1_000_000.0
NODE: Data = {"name": SERVER, "board": SERVER, "machine_id": "aa", "addresses": []}


def groups(servers: list[str], agents: list[str]) -> dict[str, list[str]]:
    boards = [*servers, *agents]
    return {"server": servers, "agent": agents, "k3s_cluster": boards, "all": boards}


def run_of(host: str = SERVER, **changes: Any) -> preflight_fleet.Run:
    boards = [SERVER, AGENT]
    run: preflight_fleet.Run = {
        "host": host,
        "groups": groups([SERVER], [AGENT]),
        "hosts": boards,
        "reached": boards,
        "fleet": "",
    }
    return run | changes  # type: ignore[return-value]


def k3s_plan(**options: str) -> Data:
    given = {name.replace("_", "-"): [[value, ""]] for name, value in options.items()}
    return {**k3s_reading.judged(given), "unread": [], "refused": []}


def jetson(host: str, **changes: Any) -> Data:
    given = {"hostname": host, "machine_id": host, "docker__containers": 0, "docker__command": None}
    return with_facts(**given | changes)


def board(
    host: str = SERVER,
    *,
    run: preflight_fleet.Run | None = None,
    facts: dict[str, Data] | None = None,
    variables: dict[str, Data] | None = None,
    files: Data | None = None,
    found: Data | None = None,
    **settings: Any,
) -> preflight_board.Board:
    """A board of a run; `facts` and `variables` are changes by board, and the plans those of the roles."""
    of_boards = {name: jetson(name, **(facts or {}).get(name, {})) for name in (SERVER, AGENT)}
    hostvars: dict[str, Data] = {
        name: {
            "inventory_hostname": name,
            "ansible_facts": {"jetson": one},
            "k3s_plan": k3s_plan(),
            **(variables or {}).get(name, {}),
        }
        for name, one in of_boards.items()
    }
    mine, bundle = of_boards[host], BUNDLE | (files or {})
    given: Any = SETTINGS | settings
    docker: Any = DOCKER_SETTINGS | {
        "confirmed": given["confirmed"],
        "with_engine": given["container_runtime"] == "docker",
        "with_runtime": given["host_kind"] == "board",
    }
    results: Any = {
        "server": SERVER,
        "nodes": [],
        "k3s_plan": hostvars[host]["k3s_plan"],
        "docker_plan": nvidia_docker.plan(mine, bundle, docker),
        "requests": "",
        "token": {},
    }
    return preflight_board.Board(mine, bundle, run or run_of(host), hostvars, results | (found or {}), given)


def ids(found: list[planning.Finding]) -> list[str]:
    return [one["id"] for one in found]


PINGED: list[Data] = [{"item": "b"}, {"item": "c", "ping": "pong"}]
EVERYONE = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("hosts", "reached", "pinged", "expected"),
    [
        # All servers are in the run.
        (EVERYONE, EVERYONE, [], ("a", [], ["a"])),
        # The one that boards join is down: another one that runs.
        (EVERYONE, ["b", "c", "d"], [], ("b", [], ["b"])),
        # Only an agent is in the run: a server that answers.
        (["d"], ["d"], [], ("a", ["a", "b", "c"], ["a"])),
        (["d"], ["d"], PINGED, ("c", ["a", "b", "c"], ["c"])),
        (["a", "d"], ["d"], PINGED, ("c", ["b", "c"], ["c"])),
        # The first server alone does not run K3s yet: the others may be a cluster.
        (["a"], ["a"], [], ("a", [], ["b", "c"])),
    ],
)
def test_a_server_that_answers_is_used_for_kubectl(
    hosts: list[str], reached: list[str], pinged: list[Data], expected: tuple[str, list[str], list[str]]
) -> None:
    installed = hosts != ["a"]
    server = {"k3s": {"server": {"active": installed, "installed": installed}}}
    hostvars: dict[str, Data] = {name: {"ansible_facts": {"jetson": server}} for name in EVERYONE}
    run = run_of("d", groups=groups(["a", "b", "c"], ["d"]), hosts=hosts, reached=reached)
    found = preflight_fleet.servers(run, hostvars, pinged)
    assert found["joined"] == "a"
    assert (found["kubectl"], found["outside"], found["asked"]) == expected
    assert found["answering"] == [one["item"] for one in pinged if "ping" in one]


def test_a_single_server_outside_of_the_run_is_not_pinged() -> None:
    assert (
        preflight_fleet.servers(run_of(AGENT, hosts=[AGENT], reached=[AGENT]), {AGENT: {}}, [])["outside"]
        == []
    )


@pytest.mark.parametrize(
    ("staying", "server", "nodes"),
    [(["a", "b"], "b", [NODE]), (["a"], "", []), ([], "", [])],
)
def test_a_server_that_stays_and_has_nodes_is_used_for_kubectl(
    staying: list[str], server: str, nodes: list[Data]
) -> None:
    answered: list[Data] = [
        {"item": "a", "installed": False, "nodes": []},
        {"item": "b", "installed": True, "nodes": [NODE]},
        {"item": "c", "msg": "unreachable"},
    ]
    found = preflight_fleet.remaining(answered, ["a", "b", "c"], staying)
    assert found == {"server": server, "nodes": nodes, "installed": ["b"]}


INSTALLED: Data = {
    "k3s__server": {"installed": True, "active": True, "command": "k3s server"},
    "k3s__version": "v1.33.5+k3s1",
    "k3s__files": {k3s_reading.OWN: "docker: true"},
}
NEW: Data = {"k3s__server": {"installed": False, "active": False, "command": None}}


@pytest.mark.parametrize(
    ("server", "nodes", "settings", "new"),
    [
        (INSTALLED, [NODE], {}, True),
        (INSTALLED, [NODE | {"name": AGENT, "board": AGENT}], {}, False),
        # A cluster that does not answer may have it.
        (INSTALLED, [], {}, False),
        (NEW, [], {}, True),
        (NEW, [], {"restores": True}, False),
    ],
)
def test_a_node_is_new_where_the_cluster_is_known_to_have_none(
    server: Data, nodes: list[Data], settings: Data, new: bool
) -> None:
    found = {"nodes": [{"item": SERVER, "installed": True, "nodes": nodes}]}
    planned = planning.plan(board(AGENT, facts={SERVER: server}, found=found, **settings))
    assert planned["node_new"] is new


def test_the_servers_version_is_that_of_its_facts_or_of_its_answer() -> None:
    here = board(AGENT, facts={SERVER: INSTALLED})
    assert planning.plan(here)["server_k3s"] == "v1.33.5+k3s1"
    outside = run_of(AGENT, hosts=[AGENT], reached=[AGENT])
    answer = {"item": SERVER, "installed": True, "nodes": [], "version": "v1.32.1+k3s1", "ranges": {}}
    assert planning.plan(board(AGENT, run=outside, found={"nodes": [answer]}))["server_k3s"] == "v1.32.1+k3s1"
    assert planning.plan(board(AGENT, run=outside))["server_k3s"] == ""


UNITS = {"sharing": {"units": {"memoryTotal": "2Gi"}}}
CAPACITY = {"sharing": {"dra": {"mode": "capacity", "memoryTotal": "3Gi"}}}


@pytest.mark.parametrize(
    ("config", "server", "nodes", "reads", "left"),
    [
        ({}, INSTALLED, [], False, None),
        (UNITS, INSTALLED, [], True, 5 << 30),
        (CAPACITY, INSTALLED, [], True, 4 << 30),
        ({"sharing": {"dra": {"mode": "shared", "memoryTotal": "3Gi"}}}, INSTALLED, [], False, None),
        ({"sharing": "wrong"}, INSTALLED, [], False, None),
        (UNITS, NEW, [], False, 5 << 30),
        # The node with this name is another board's.
        (UNITS, INSTALLED, [NODE | {"board": "jetson-9"}], False, 5 << 30),
    ],
)
def test_the_pods_requests_count_where_the_gpus_memory_is_reserved(
    config: Data, server: Data, nodes: list[Data], reads: bool, left: int | None
) -> None:
    found = {"nodes": [{"item": SERVER, "installed": True, "nodes": nodes}], "requests": "1Gi"}
    given = board(facts={SERVER: server | {"memory_bytes": 8 << 30}}, found=found, config=config)
    assert planning.plan(given)["reads_requests"] is reads
    assert planning.compatibility_facts(given, TABLES)["memory_left_bytes"] == left


TWO_ROUTES: Data = {
    "network": {
        "addresses": [{"device": "eth0", "address": "10.0.0.1/24"}],
        "routes": [],
        "towards_server": "10.0.0.1",
    }
}
CHOSEN = {"node-ip": "10.0.0.1", "flannel-iface": "eth0"}


@pytest.mark.parametrize(
    ("facts", "settings", "address"),
    [
        (TWO_ROUTES, {}, CHOSEN),
        (TWO_ROUTES | {"k3s__node_ip__role": "10.0.0.1"}, {}, {}),
        (TWO_ROUTES, {"server_config": {"node-ip": "10.0.0.9"}}, {}),
        (TWO_ROUTES, {"board_config": {"flannel-iface": "eth1"}}, {}),
        (
            TWO_ROUTES,
            {"agent_config": {"node-ip": "10.0.0.9"}},
            {"node-ip": "10.0.0.1", "flannel-iface": "eth0"},
        ),
        ({}, {}, {}),
    ],
)
def test_an_address_that_the_role_chooses_is_shown_once(facts: Data, settings: Data, address: Data) -> None:
    assert planning.plan(board(facts={SERVER: facts}, **settings))["address"] == address


def test_no_host_is_without_a_proxy_that_is_not_there() -> None:
    assert planning.plan(board())["no_proxy"] == {"k3s": [], "docker": []}


BUNDLED: Data = {"files": {"debs-jetpack6-arm64.tar": {"packages": {"nvidia-container-toolkit": "1.18.0-1"}}}}
UPDATE = {"confirmed": ["update-runtime"]}
HELD = {"packages__held": [FAMILY[3]]}


@pytest.mark.parametrize(
    ("changes", "settings", "bundle", "version", "expected"),
    [
        ({}, {}, BUNDLED, "1.16.2", {}),
        (HELD, {}, BUNDLED, "1.16.2", {}),
        (HELD, UPDATE, BUNDLED, "1.18.0", {"packages-held": "apt holds libnvidia-container1,"}),
        (HELD | {"packages__ours": HELD["packages__held"]}, UPDATE, BUNDLED, "1.18.0", {}),
        ({"nvidia_runtime__version": "1.19.0"}, UPDATE, BUNDLED, "1.19.0", {}),
        # Refused by a rule of the matrix, not by an error of the plan.
        ({"arch": "armv7l"}, {}, BUNDLED, "1.16.2", {}),
        (
            *({}, UPDATE, {}, "1.16.2"),
            {"runtime-update": "no nvidia-container-toolkit in the bundle's debs-jetpack6-arm64.tar"},
        ),
        (
            {
                "packages__held": ["docker.io"],
                "packages__installed": [],
                "docker__installed": False,
                "docker__engine__origin": None,
            },
            *({}, {}, "1.16.2", {"packages-held": "apt holds docker.io,"}),
        ),
        (
            {
                "k3s__server": {"installed": True, "command": "k3s server -d /mnt --docker"},
                "k3s__agent__installed": True,
                "k3s__registries": "owner",
            },
            {
                "container_runtime": "containerd",
                "registries": {"mirror": {}},
                "token": "K10" + "0" * 64 + "::server:short",
                "token_given": True,
                "image": "a:1",
                "supply_host": "gone",
            },
            *({}, "1.16.2"),
            dict.fromkeys(["k3s-other-role", "k3s-foreign-unit", "k3s-runtime"], "")
            | {"join-token": "of no use"}
            | dict.fromkeys(["join-token-weak", "registries", "registries-foreign", "plugin-image"], "")
            | dict.fromkeys(["image-supply-host", "image-supply-containerd"], ""),
        ),
    ],
)
def test_rules_know_the_inventory_and_the_plans(
    changes: Data, settings: Data, bundle: Data, version: str, expected: dict[str, str]
) -> None:
    found = {"token": {"reason": "refused", "msg": "of no use"}} if "token" in settings else {}
    given = board(facts={SERVER: changes}, found=found, files=bundle, **settings)
    facts = planning.inventory_facts(given, planning.compatibility_facts(given, TABLES))
    refused = findings_of_rules(facts, TABLES["inventory"])
    assert (ids(refused), facts["nvidia_runtime"]["version"]) == ([*expected], version)
    assert all(said in one["found"] for one, said in zip(refused, expected.values(), strict=True))


@pytest.mark.parametrize(
    ("jtop", "python", "indexed", "versions", "lacks"),
    [
        (True, "3.10.12", True, {}, True),
        ("true", "3.8.10", True, {}, True),
        (True, "3.6.9", True, {}, False),  # JetPack 4
        (True, "3.10.12", True, {"jtop": {"version": "7.2.2", "wheels": ["a.whl"]}}, False),
        (True, "3.10.12", False, {}, False),  # site.yml downloads them
        (False, "3.10.12", True, {}, False),
        ("false", "3.10.12", True, {}, False),
    ],
)
def test_a_bundle_without_the_wheels_of_jtop_is_found(
    jtop: Any, python: str, indexed: bool, versions: Data, lacks: bool
) -> None:
    facts_of_board = {SERVER: {"python": python}}
    given = board(facts=facts_of_board, jtop=jtop, files={"indexed": indexed, "versions": versions})
    facts = planning.inventory_facts(given, planning.compatibility_facts(given, TABLES))
    assert ("jtop-wheels" in ids(findings_of_rules(facts, TABLES["inventory"]))) is lacks


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"release_url": "https://u:p@mirror/k3s"}, {"release_url": "https://mirror/k3s"}),
        ({"sha256": {"arm64": "00"}}, {"release_pinned": True}),
        ({"sha256": {"amd64": "00"}}, {"release_pinned": False}),
        (
            {"bundle": True, "files": {"indexed": True}},
            {"release_pinned": True, "bundle": {}, "k3s_source": "bundle"},
        ),
        (
            {},
            {
                "release_pinned": False,
                "bundle": {"k3s_version": "v1.36.5+k3s1"},
                "k3s_source": "download",
                "token_length": None,
            },
        ),
        ({"token": "K10aa::server:long", "token_given": True}, {"token_length": 4}),
        ({"confirmed": ["migrate"]}, {"migrates": True, "takes_over": True}),
        ({"restores": True}, {"datastore": {"external": False, "servers": 1, "restores": True}}),
        ({"strict": "yes"}, {"strict": True, "groups": ["server"], "joined": SERVER}),
    ],
)
def test_rules_know_the_settings(settings: Data, facts: Data) -> None:
    given = board(**settings)
    found = planning.inventory_facts(given, planning.compatibility_facts(given, TABLES))
    assert {name: found[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("runtime", "flags", "config", "places"),
    [
        ("docker", {}, {}, 0),
        ("docker", {"--https-proxy": "https-proxy"}, {"proxies": {"http-proxy": "http://p"}}, 2),
        ("containerd", {"--https-proxy": "https-proxy"}, {"proxies": {"http-proxy": "http://p"}}, 0),
    ],
)
def test_another_proxy_of_docker_is_known(runtime: str, flags: Data, config: Data, places: int) -> None:
    changes = {"docker__flags": flags, "docker__daemon_json__config": config}
    given = board(facts={SERVER: changes}, container_runtime=runtime)
    assert len(planning.other_proxies(given)) == places


@pytest.mark.parametrize(
    ("reached", "options", "backend", "policy"),
    [
        ([SERVER, AGENT], {}, "vxlan", True),
        ([SERVER, AGENT], {"flannel_backend": "host-gw", "disable_network_policy": "true"}, "host-gw", False),
        # A server that is not in this run.
        ([AGENT], {"flannel_backend": "host-gw", "disable_network_policy": "true"}, None, True),
    ],
)
def test_the_network_is_that_of_the_server(
    reached: list[str], options: dict[str, str], backend: str | None, policy: bool
) -> None:
    given = board(
        AGENT, run=run_of(AGENT, reached=reached), variables={SERVER: {"k3s_plan": k3s_plan(**options)}}
    )
    facts = planning.compatibility_facts(given, TABLES)
    assert (facts["flannel_backend"], facts["network_policy"]) == (backend, policy)


RANGE = {"network__addresses": [{"device": "eth0", "address": "10.42.7.1/24"}]}
# A change of a good board, and the findings that it makes among all.
FINDINGS: list[tuple[str, Data, Data, list[str]]] = [
    (SERVER, {}, {}, []),
    (AGENT, {}, {}, []),
    (SERVER, {"arch": "armv7l"}, {}, ["architecture"]),
    (SERVER, {"hostname": AGENT}, {}, ["hostname-duplicate"]),
    (SERVER, {"hostname": AGENT}, {"renames": True}, []),
    (SERVER, {"machine_id": AGENT}, {}, ["machine-id-duplicate"]),
    (SERVER, {"machine_id": AGENT}, {"accepted": ["machine-id-duplicate"]}, []),
    (SERVER, {}, {"accepted": ["machine"]}, ["accepted-unknown"]),
    (SERVER, RANGE, {}, ["network-range"]),
    (SERVER, {"firewalls__ufw": []}, {}, ["firewall-ufw"]),
    (SERVER, {"disks__k3s__type": "tmpfs"}, {}, ["disk-volatile"]),
    (SERVER, {"clock__board": NOW + 10**6}, {}, ["clock"]),
    (AGENT, {"clock__board": NOW + 600}, {}, ["clock-server"]),
    (SERVER, {"k3s__unfinished_restore": ""}, {}, ["restore-unfinished"]),
    (SERVER, {"k3s__unfinished_restore": ""}, {"restores": True}, []),
    (SERVER, INSTALLED, {}, ["k3s-upgrade"]),
    (SERVER, INSTALLED, {"upgrades": True}, []),
    (SERVER, INSTALLED | {"k3s__etcd": True}, {"upgrades": True}, ["k3s-etcd"]),
]


@pytest.mark.parametrize(("host", "changes", "settings", "expected"), FINDINGS)
def test_each_part_of_preflight_is_among_the_findings(
    host: str, changes: Data, settings: Data, expected: list[str]
) -> None:
    facts = {host: changes, SERVER if host == AGENT else AGENT: {}}
    variables = {host: {"jetson_set_hostname": settings.get("renames", False)}}
    found = planning.findings(board(host, facts=facts, variables=variables, **settings), TABLES, NOW)
    assert ids([one for one in found if one["level"] != "accepted"]) == expected


def test_a_first_server_begins_no_second_cluster() -> None:
    agent = {AGENT: {"k3s__agent": {"installed": True, "active": True, "command": "k3s agent"}}}
    found = planning.findings(board(facts=agent | {SERVER: NEW}), TABLES, NOW)
    assert ids(found) == ["server-new"]
    assert planning.findings(board(facts=agent | {SERVER: NEW}, restores=True), TABLES, NOW) == []


def test_a_wrong_bundle_and_refused_settings_are_among_the_findings() -> None:
    refused = {"name": "docker", "source": "k3s_server_config", "changes": "it", "reason": "why"}
    found = {"k3s_plan": k3s_plan() | {"refused": [refused]}}
    bundle = {"indexed": True, "errors": ["SHA256SUMS is missing"]}
    assert ids(planning.findings(board(found=found, files=bundle), TABLES, NOW)) == [
        "bundle-unusable",
        "k3s-option",
    ]


def test_the_matrix_has_the_rules_of_the_kernel() -> None:
    assert planning.matrix(TABLES) + TABLES["inventory"] == [
        *TABLES["rules"],
        *RULES[len(TABLES["rules"]) + len(TABLES["inventory"]) :],
        *TABLES["inventory"],
    ]


@pytest.mark.parametrize(
    ("owner", "expected"), [(SERVER, []), ("jetson-9", ["hostname-duplicate"]), ("", ["hostname-duplicate"])]
)
def test_the_node_of_another_board_is_not_drained(owner: str, expected: list[str]) -> None:
    answered = [{"item": SERVER, "installed": True, "nodes": [NODE | {"board": owner}]}]
    hostvars: dict[str, Data] = {
        SERVER: {"ansible_facts": {"jetson": jetson(SERVER)}},
        AGENT: {"ansible_facts": {}},
    }
    found = planning.node_findings(run_of(), hostvars, answered)
    assert ids(found) == expected
    assert all(one["level"] == "error" and one["url"] for one in found)


@pytest.mark.parametrize(
    ("renames", "name"), [(False, "jetson-x"), ("yes", "jetson-1"), (True, "jetson-1"), ("false", "jetson-x")]
)
def test_the_node_has_the_hostname_or_the_inventory_name(renames: Any, name: str) -> None:
    assert preflight_board.node_name({"hostname": "Jetson-X"}, "Jetson-1", renames) == name
