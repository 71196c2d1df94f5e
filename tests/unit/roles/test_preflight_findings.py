# SPDX-License-Identifier: Apache-2.0
"""Findings of preflight that are functions: boards beside each other, bundle, identity, K3s, networks."""

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_content as bundle_module
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_owner
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import (
    BundleError,
    parse_sums,
    sha256,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s as address
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_configuration
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_boards as of_boards
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_etcd as of_etcd
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_identity as of_identity
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_k3s as of_k3s
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_network as of_network

from tests.lab import archive
from tests.unit.roles.places import Data
from tests.unit.roles.playing import play_text
from tests.unit.roles.preflight_facts import GOOD, data, with_facts


@pytest.mark.parametrize(
    ("units", "requests", "left"),
    [
        ("", "1Gi", None),
        ("2Gi", "", 2 << 30),
        ("2Gi", "70Mi 170Mi 1G", (2 << 30) - (240 << 20) - 10**9),
        ("2Gi", "1500m 128974848 0.5Gi", (2 << 30) - 2 - 128974848 - (1 << 29)),
        ("5Gi", "", -(1 << 30)),
        ("much", "5Mim", 4 << 30),  # refused elsewhere
    ],
)
def test_memory_for_the_system_is_computed(units: str, requests: str, left: int | None) -> None:
    assert of_boards.memory_left(4 << 30, units, requests) == left


def disks(**changes: Data) -> Data:
    """The good board's disks, some of them others."""
    return {name: disk | changes.get(name, {}) for name, disk in GOOD["disks"].items()}


SMALL = {"total_bytes": 16 * 10**9, "free_bytes": 2 * 10**9}
EVERYWHERE = dict.fromkeys(GOOD["disks"], SMALL)
NEARLY_FULL = dict.fromkeys(GOOD["disks"], SMALL | {"free_bytes": 7 * 10**8})
THERE = {"k3s__version": GOOD["bundle"]["k3s_version"]}


@pytest.mark.parametrize(
    ("changed", "more", "ids"),
    [
        ({}, {}, []),
        (NEARLY_FULL, {}, ["disk-full"]),
        # 16 GB: 1.5 GB are taken, and 0.5 GB are less than 5 %.
        (EVERYWHERE, {}, ["disk-eviction"]),
        (EVERYWHERE, THERE, []),
        (NEARLY_FULL, THERE, ["disk-eviction"]),
        # Docker's data on an SSD: what matters is what lies on the small disk.
        (EVERYWHERE | {"docker": {"filesystem": 2}}, {}, []),
        ({"k3s": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}}, {}, ["disk-full"]),
        ({"uploads": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 2 * 10**8}}, {}, ["disk-full"]),
        # The kubelet does not evict pods because of uploads.
        ({"uploads": {"filesystem": 2, "total_bytes": 10**10, "free_bytes": 4 * 10**8}}, {}, []),
        ({"docker": {"filesystem": 2, "free_bytes": 0}}, {"container_runtime": "containerd"}, []),
        ({"k3s": {"type": "overlay"}, "kubelet": {"type": "overlay"}}, {}, ["disk-volatile"]),
        ({"docker": {"read_only": True}}, {}, ["disk-volatile"]),
        ({"docker": {"type": "tmpfs"}}, {"container_runtime": "containerd"}, []),
        ({"docker": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 10**8}}, THERE, []),
        # The first images of the user, where K3s is there already.
        (EVERYWHERE, THERE | {"user_images": {"stored": 13 * 10**8, "sent": 0}}, ["disk-eviction"]),
        (EVERYWHERE, THERE | {"user_images": {"stored": 10**9, "sent": 10**9 + 1}}, ["disk-full"]),
        (
            {"docker": {"filesystem": 2} | SMALL},
            THERE | {"user_images": {"stored": 3 * 10**9, "sent": 0}},
            ["disk-full"],
        ),
        (
            {"k3s": {"filesystem": 2} | SMALL},
            THERE | {"container_runtime": "containerd", "user_images": {"stored": 3 * 10**9, "sent": 0}},
            ["disk-full"],
        ),
    ],
)
def test_disk_space_is_checked(changed: Data, more: Data, ids: list[str]) -> None:
    facts = with_facts(disks=disks(**changed), **more)
    assert [entry["id"] for entry in of_boards.findings_of_disks(facts)] == ids


def test_full_disk_is_named_by_its_directory() -> None:
    facts = with_facts(disks=disks(k3s={"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}))
    (found,) = of_boards.findings_of_disks(facts)
    assert found["found"] == "0.3 of 1.0 GB free on the disk with /var/lib/rancher/k3s"
    assert found["fix"].endswith("mount a larger disk on /var/lib/rancher/k3s.")


NOW = 1_000_020.0  # facts were gathered 20 s ago
HOUR = 3600


def clocks(**ahead: float) -> dict[str, Data]:
    asked = NOW - 20
    return {
        name: with_facts(clock={"board": asked + 10 + seconds, "controller": asked})
        for name, seconds in ahead.items()
    }


@pytest.mark.parametrize(
    ("board", "server", "ids", "fix"),
    [
        (0, 0, [], ""),
        (55, 0, [], ""),
        (-HOUR, -HOUR, [], ""),
        (-90, 0, ["clock-server-drift"], "On jetson-2: "),
        (90, 0, ["clock-server-drift"], "On jetson-2: "),
        (0, HOUR, ["clock-server"], "On jetson-1: "),
        (-400, 0, ["clock-server"], "On jetson-2: "),
        (40 * 24 * HOUR, 40 * 24 * HOUR, ["clock"], "On jetson-2: "),
    ],
)
def test_clocks_are_compared(board: float, server: float, ids: list[str], fix: str) -> None:
    fleet = clocks(**{"jetson-1": server, "jetson-2": board})
    found = of_boards.findings_of_clock("jetson-2", fleet, "jetson-1", NOW)
    assert [entry["id"] for entry in found] == ids
    for entry in found:
        assert entry["fix"].startswith(fix)
        assert "this computer has 1970-01-12 13:47:00 (all UTC)" in entry["found"]


def test_clock_of_a_slow_board_or_of_a_server_without_facts_is_not_compared() -> None:
    fleet = clocks(**{"jetson-1": 0, "jetson-2": 0})
    assert of_boards.findings_of_clock("jetson-2", fleet, "jetson-1", NOW + 600) == []
    assert of_boards.findings_of_clock("jetson-2", clocks(**{"jetson-2": -HOUR}), "jetson-1", NOW) == []
    late = clocks(**{"jetson-1": -HOUR * 24 * 300})
    assert [one["id"] for one in of_boards.findings_of_clock("jetson-1", late, "jetson-1", NOW)] == ["clock"]


def bundle() -> Data:
    names = ("bundle.yml", "k3s-arm64", "k3s-airgap-images-arm64.tar.gz", "tegra-device-plugin-arm64.tar.gz")
    files = {name: {"error": None} for name in names}
    return {"path": "/bundle", "indexed": True, "errors": [], "files": files}


DAMAGED = {"error": "damaged"}
PULLED = f"registry.example/tegra-device-plugin@sha256:{'0' * 64}"
OWN_IMAGE = "device-query-l4t36-arm64.tar.gz"


@pytest.mark.parametrize(
    ("arch", "files", "source", "image", "found"),
    [
        ("aarch64", {}, "bundle", "", []),
        ("aarch64", {"k3s-amd64": DAMAGED, "device-query-amd64.tar.gz": DAMAGED}, "bundle", "", []),
        ("aarch64", {"k3s-arm64": DAMAGED}, "bundle", "", ["k3s-arm64: damaged"]),
        ("aarch64", {OWN_IMAGE: DAMAGED}, "bundle", "", [f"{OWN_IMAGE}: damaged"]),
        ("aarch64", {"k3s-arm64": DAMAGED, "k3s-airgap-images-arm64.tar.gz": None}, "download", "", []),
        ("aarch64", {"tegra-device-plugin-arm64.tar.gz": None}, "bundle", PULLED, []),
        ("x86_64", {"tegra-device-plugin-amd64.tar.gz": {"error": None}}, "bundle", "", [
            "k3s-amd64: not listed in SHA256SUMS",
            "k3s-airgap-images-amd64.tar.gz: not listed in SHA256SUMS",
        ]),
    ],
)  # fmt: skip
def test_files_of_the_bundle_are_checked(
    arch: str, files: Data, source: str, image: str, found: list[str]
) -> None:
    content = {name: entry for name, entry in (bundle()["files"] | files).items() if entry}
    findings = of_k3s.findings_of_bundle(bundle() | {"files": content}, arch, source, image)
    assert [entry["found"] for entry in findings] == found


def test_unusable_bundle_is_one_finding() -> None:
    broken = bundle() | {"errors": ["no such directory"], "files": {}}
    assert [entry["id"] for entry in of_k3s.findings_of_bundle(broken, "aarch64")] == ["bundle-unusable"]


@pytest.mark.parametrize(
    ("files", "image", "found"),
    [
        ({}, "", []),
        ({"tegra-device-plugin-amd64.tar.gz": "damaged"}, "", []),
        ({"tegra-device-plugin-arm64.tar.gz": "damaged"}, PULLED, []),
        (
            {"tegra-device-plugin-arm64.tar.gz": "damaged"},
            "",
            ["/dist/tegra-device-plugin-arm64.tar.gz: damaged"],
        ),
    ],
)
def test_downloading_boards_need_no_bundle(
    files: dict[str, str | None], image: str, found: list[str]
) -> None:
    built = {"path": "/dist", "indexed": False, "errors": []}
    built["files"] = {name: {"error": error} for name, error in files.items()}
    findings = of_k3s.findings_of_bundle(built, "aarch64", "download", image)
    assert [entry["found"] for entry in findings] == found


def test_state_of_a_damaged_file(tmp_path: Path) -> None:
    versions = {"version": 1, "k3s_version": "v1", "plugin_image": "a:1", "pause_image": "c:1"}
    (tmp_path / "bundle.yml").write_text(yaml.safe_dump(versions))
    (tmp_path / "k3s-arm64").write_text("k3s")
    sums = [f"{sha256(str(path))}  {path.name}" for path in sorted(tmp_path.iterdir())]
    (tmp_path / "SHA256SUMS").write_text("\n".join([*sums, "0" * 64 + "  gone", ""]))
    (tmp_path / "k3s-arm64").write_text("K3s")
    facts = bundle_module.inspect(str(tmp_path))
    assert facts["errors"] == []
    assert facts["versions"] == versions
    assert facts["files"]["bundle.yml"]["error"] is None
    assert "SHA256SUMS says" in facts["files"]["k3s-arm64"]["error"]
    assert facts["files"]["gone"]["error"] == "missing"


def test_state_of_an_archive_of_packages(tmp_path: Path) -> None:
    debs = tmp_path / "debs-jetpack6-arm64.tar"
    names = ("./nvidia-container-toolkit_1.18.0-1_arm64.deb", "tzdata_1%3a2025b-0_all.deb", "./README")
    with tarfile.open(debs, "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    state = bundle_module.check_file(str(debs), sha256(str(debs)))
    assert (state["error"], state["packages"]) == (
        None,
        {"nvidia-container-toolkit": "1.18.0-1", "tzdata": "1:2025b-0"},
    )
    debs.write_text("no debs")
    state = bundle_module.check_file(str(debs), sha256(str(debs)))
    assert (state["packages"], "not an archive of Debian packages" in state["error"]) == ({}, True)


VERSIONS = "version: 1\nk3s_version: v1\nplugin_image: a:1\npause_image: c:1\n"


def test_state_of_built_images(tmp_path: Path) -> None:
    (tmp_path / "tegra-device-plugin.oci.tar").write_text("of no interest")
    nothing = bundle_module.inspect_built(str(tmp_path), "v1")
    assert (nothing["indexed"], nothing["versions"], nothing["files"]) == (False, {"k3s_version": "v1"}, {})
    archive.write(tmp_path / "tegra-device-plugin-arm64.tar.gz", ["a:1"], "arm64", {}, {})
    (tmp_path / "tegra-device-plugin-amd64.tar.gz").write_text("none")
    files = bundle_module.inspect_built(str(tmp_path), "v1")["files"]
    assert list(files["tegra-device-plugin-arm64.tar.gz"]["images"]) == ["a:1"]
    assert files["tegra-device-plugin-arm64.tar.gz"]["error"] is None
    assert "not an archive of `docker save`" in files["tegra-device-plugin-amd64.tar.gz"]["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2\n", "version: 1"),
        ("- a\n", "version: 1"),
        ("version: 1\nk3s_version: v1\n", "lacks plugin_image"),
        ("a: [", "not YAML"),
        (VERSIONS + "jtop: {version: 4.3.2, wheels: [../.ssh/id_rsa]}\n", "SHA256SUMS lacks: ../.ssh/id_rsa"),
        (VERSIONS + "jtop: {version: 4.3.2, wheels: /etc}\n", "jtop must have"),
        (VERSIONS + "jtop: {version: ../4, wheels: []}\n", "jtop must have"),
        (VERSIONS + "jtop: [/etc/shadow]\n", "jtop must have"),
    ],
)
def test_unusable_bundle_yml_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    (tmp_path / "bundle.yml").write_text(text)
    assert words in bundle_module.inspect(str(tmp_path))["errors"][0]


def test_damaged_list_of_sums_is_named_with_its_line() -> None:
    with pytest.raises(BundleError, match="line 2"):
        parse_sums("0" * 64 + "  a\nnonsense\n")


def test_duplicate_names_and_machine_ids_are_found_on_each_board() -> None:
    other = with_facts(hostname="other", machine_id="bb")
    fleet = {"a": with_facts(), "b": with_facts(hostname=with_facts()["hostname"].upper()), "c": other}
    assert [entry["id"] for entry in of_identity.findings_of_identity("a", fleet, [], [], [])] == [
        "hostname-duplicate",
        "machine-id-duplicate",
    ]
    assert of_identity.findings_of_identity("c", fleet, ["a", "b", "c"], [], []) == []


@pytest.mark.skipif(shutil.which("systemd-machine-id-setup") is None, reason="needs systemd")
def test_fix_for_a_cloned_machine_id_makes_another_one(tmp_path: Path) -> None:
    cloned = "0123456789abcdef" * 2
    *_, found = of_identity.findings_of_identity("a", {"a": with_facts(), "b": with_facts()}, [], [], [])
    removed, setup, _ = found["fix"].split(" && ")
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):  # as a card that was cloned has them
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{cloned}\n")
    for name in removed.removeprefix("sudo rm -f /").split(" /"):
        (tmp_path / name).unlink()
    subprocess.run([setup.removeprefix("sudo "), f"--root={tmp_path}"], check=True)
    made = (tmp_path / "etc/machine-id").read_text().strip()
    assert len(made) == 32
    assert made != cloned


@pytest.mark.parametrize("hostname", ["jetson_1", "-x", "ä", "--all", "a\n", "a/b", ["a"], None, "a" * 64])
def test_hostname_that_cannot_be_a_node_name_is_found(hostname: object) -> None:
    found = of_identity.findings_of_identity("a", {"a": with_facts(hostname=hostname)}, [], [], [])
    assert [entry["id"] for entry in found] == ["hostname-invalid"]


@pytest.mark.parametrize("hostname", ["jetson-2", "Jetson-2"])
def test_hostname_is_not_the_name_of_another_board_in_the_inventory(hostname: str) -> None:
    fleet = {"jetson-1": with_facts(hostname=hostname)}
    (found,) = of_identity.findings_of_hostname("jetson-1", fleet, ["jetson-1", "jetson-2"])
    assert (found["id"], "calls itself" in found["found"]) == ("hostname-duplicate", True)
    assert of_identity.findings_of_hostname("jetson-1", fleet, ["jetson-1", "jetson-3"]) == []


@pytest.mark.parametrize(
    ("node", "hostname", "named", "found"),
    [
        ("cam-north", "cam-south", False, True),
        ("cam-north", "Cam-North", False, False),
        ("Cam-North", "cam-north", False, False),  # K3s makes it lower-case
        (None, "cam-south", False, False),
        ("camera", "cam-south", True, False),  # it gets its name back
        ("cam-north", "cam-north", True, True),
        (None, "cam-north", True, True),  # a K3s that the stock script has installed
        (None, "Camera", True, False),
    ],
)
def test_renamed_board_is_found(node: str | None, hostname: str, named: bool, found: bool) -> None:
    at_work = {"installed": True, "command": "k3s agent"}
    facts = with_facts(hostname=hostname, **{"k3s__settings__node-name": node}, k3s__agent=at_work)
    findings = of_identity.findings_of_node("camera", facts, ["camera"] * named)
    assert [entry["id"] for entry in findings] == ["node-renamed"] * found
    keep = "call the board cam-north in the inventory" if named else "set-hostname cam-north"
    for words in (keep, "--limit camera", "delete node cam-north") if found else ():
        assert words in findings[0]["fix"]
    assert of_identity.findings_of_node("camera", with_facts(hostname=hostname), ["camera"] * named) == []


@pytest.mark.parametrize(
    ("host", "ids"),
    [
        ("Cam-North", []),
        ("cam_north", ["hostname-invalid"]),
        ("192.168.1.12", ["hostname-invalid"]),
        ("fd00::2", ["hostname-invalid"]),
        ("a" * 64, ["hostname-invalid"]),
        ("b", ["hostname-duplicate"]),
    ],
)
def test_new_hostname_is_checked(host: str, ids: list[str]) -> None:
    fleet = {host: with_facts(machine_id="mine"), "other": with_facts(hostname="b")}
    assert [entry["id"] for entry in of_identity.findings_of_identity(host, fleet, [host], [host], [])] == ids
    assert of_identity.name_of(host, fleet[host], [host]) == host.lower()
    # Flashed alike, and none calls itself as another is called.
    alike = {name: with_facts(machine_id=name) for name in ("x", "y")}
    assert of_identity.findings_of_identity("x", alike, ["x", "y"], ["x", "y"], []) == []


NINTH = {"device": "eth1", "address": "10.1.0.9/24"}
ADDRESSES = [{"device": "l4tbr0", "address": "192.168.55.1/24"}, {"device": "eth0", "address": "10.1.0.5/24"}]


@pytest.mark.parametrize(
    ("node", "changes", "ids"),
    [
        (("jetson-1", "bb", ["10.1.0.9"]), {}, ["hostname-duplicate"]),
        (("jetson-9", "aa", ["10.1.0.9"]), {}, ["machine-id-duplicate"]),
        (("jetson-9", "bb", ["10.1.0.9"]), {}, []),
        # The board itself: K3s was removed, or the board was flashed, renamed, or got another address.
        (("jetson-1", "aa", ["10.1.0.5"]), {}, []),
        (("jetson-1", "old", ["10.1.0.5"]), {}, []),
        (("jetson-9", "aa", ["10.1.0.5"]), {}, []),
        (("jetson-1", "aa", ["10.1.0.9"]), {"k3s__agent": {"installed": True, "command": "k3s agent"}}, []),
        (("jetson-1", "bb", ["192.168.55.1"]), {}, ["hostname-duplicate"]),
    ],
    ids=[
        "name", "machine-id", "neither", "removed", "flashed", "renamed", "readdressed",
        "an address of all boards",
    ],
)  # fmt: skip
def test_names_of_other_nodes_are_refused(
    node: tuple[str, str, list[str]], changes: Data, ids: list[str]
) -> None:
    owner = k3s_owner.owner(node[0], "", node[2], {"jetson-1": []})
    nodes = [dict(zip(("name", "machine_id", "addresses"), node, strict=True)) | {"board": owner}]
    facts = with_facts(network__addresses=ADDRESSES, **changes)
    found = of_identity.findings_of_identity("jetson-1", {"jetson-1": facts}, ["jetson-1"], [], nodes)
    assert [entry["id"] for entry in found] == ids
    assert all(f"node {node[0]} ({node[2][0]})" in entry["found"] for entry in found)


owner = k3s_owner.owner
BOARDS = {"jetson-1": ["192.0.2.1"], "cam-9": [], "jetson-2": ["192.0.2.2", "10.8.0.2"]}


@pytest.mark.parametrize(
    ("name", "record", "addresses", "board"),
    [
        # As servers have recorded it: with every name, by DNS, behind NAT, or flashed again.
        ("ubuntu", "cam-9", ["10.0.0.9"], "cam-9"),
        ("jetson-2", "cam-9", ["192.0.2.2"], "cam-9"),
        # Before this release nothing was recorded: the inventory's name or address.
        ("cam-9", "", ["10.0.0.9"], "cam-9"),
        ("ubuntu", "", ["192.0.2.2"], "jetson-2"),
        ("ubuntu", "", ["10.8.0.2", "fd00::1"], "jetson-2"),
        # The inventory has another name for the board than at the installation.
        ("ubuntu", "jetson-old", ["192.0.2.2"], "jetson-2"),
        # Not known: of another inventory, by DNS without a record, or with the addresses of two boards.
        ("jetson-9", "", ["192.0.2.9"], ""),
        ("ubuntu", "jetson-old", [], ""),
        ("ubuntu", "", ["192.0.2.1", "192.0.2.2"], ""),
    ],
)
def test_owner_of_a_node_is_what_the_cluster_and_the_inventory_say(
    name: str, record: str, addresses: list[str], board: str
) -> None:
    assert owner(name, record, addresses, BOARDS) == board


def test_addresses_of_boards_are_the_inventorys_and_no_names() -> None:
    variables: dict[str, Data] = {
        "jetson-1": {"ansible_host": "jetson-1.local"},
        "192.0.2.7": {},
        "jetson-2": {"ansible_host": "FD00::2", "jetson_k3s_address": "10.8.0.2"},
        "jetson-3": {
            "k3s_board_config": {"node-ip": "10.0.0.3,fd00:0::3", "node-external-ip": ["192.0.2.3"]}
        },
    }
    assert address.boards(list(variables), variables) == {
        "jetson-1": [],
        "192.0.2.7": ["192.0.2.7"],
        "jetson-2": ["fd00::2", "10.8.0.2"],
        "jetson-3": ["10.0.0.3", "fd00::3", "192.0.2.3"],
    }


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        # Hostile: it has K3s, it says, by the name of another board's node.
        ({"hostname": "jetson-9", "k3s__agent__installed": True}, "the cluster's node jetson-9 (10.1.0.9)"),
        ({"hostname": "jetson-9"}, "the cluster's node jetson-9 (10.1.0.9)"),
        ({"hostname": "jetson-1"}, ""),
        ({"hostname": "new"}, ""),
    ],
)
def test_node_is_a_boards_by_the_clusters_word_alone(facts: Data, found: str) -> None:
    nodes = [
        {"name": "jetson-9", "machine_id": "aa", "addresses": ["10.1.0.9"], "board": "cam-9"},
        {"name": "jetson-1", "machine_id": "zz", "addresses": ["10.1.0.5"], "board": "jetson-1"},
    ]
    fleet = {"jetson-1": with_facts(network__addresses=[*ADDRESSES, NINTH], **facts)}
    inventory = ["jetson-1", "cam-9"]
    identity = of_identity.findings_of_identity("jetson-1", fleet, inventory, [], nodes)
    known = of_identity.findings_of_known_node("jetson-1", fleet, inventory, nodes)
    for findings in (identity, known):
        (said,) = findings or [{"found": "", "fix": ""}]
        assert found in said["found"]
        assert bool(found) is ("sudo k3s kubectl -n kube-system annotate secret jetson-9.node" in said["fix"])


ASK = """\
- hosts: agent
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: nodes}
      vars: {__k3s_nodes_servers: [here, gone]}
    - ansible.builtin.debug:
        msg: "gone={{ 'installed' not in said.gone }} here={{ said.here.installed }}"
      vars:
        said: "{{ dict(k3s_nodes_answers.results | map(attribute='item') | zip(k3s_nodes_answers.results)) }}"
"""


def test_silent_server_stops_no_board(tmp_path: Path) -> None:
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    groups = {"server": {"here": None, "gone": gone}, "agent": ["board", "other"]}
    run = play_text(tmp_path, ASK, groups=groups)
    assert run.said.count("gone=True here=False") == len(groups["agent"])


NO_K3S = {"installed": False, "active": False, "command": None}
IS_SERVER = {"k3s": {"server": {"installed": True}, "agent": NO_K3S}}
IS_AGENT = {"k3s": {"server": NO_K3S, "agent": {"installed": True}}}
IS_BARE = {"k3s": {"server": NO_K3S, "agent": NO_K3S}}


@pytest.mark.parametrize(
    ("others", "fix"),
    [
        ([IS_SERVER, IS_AGENT], "Put b, or another server that runs, first"),
        ([IS_BARE, IS_AGENT], "data were on this server alone"),
    ],
)
def test_server_without_k3s_starts_no_second_cluster(others: list[Data], fix: str) -> None:
    fleet = {"a": IS_BARE, "b": others[0], "c": others[1]}
    (found,) = of_k3s.findings_of_server("a", fleet, "a", {})
    assert found["id"] == "server-new"
    assert "c (agent)" in found["found"]
    assert fix in found["fix"]
    # The others are stopped with their server, and have no problem of their own.
    assert of_k3s.findings_of_server("c", fleet, "a", {}) == []


def running(role: str, active: bool = True) -> Data:
    return {"k3s": {"server": NO_K3S, "agent": NO_K3S} | {role: {"installed": True, "active": active}}}


@pytest.mark.parametrize(
    ("fleet", "asked"),
    [
        ({"a": running("server"), "b": running("server")}, "a"),
        ({"b": running("server"), "d": running("agent")}, "b"),
        ({"b": running("server", active=False), "c": running("server")}, "c"),
        ({"b": IS_BARE, "d": running("agent")}, "a"),
        ({"d": running("agent")}, "a"),
    ],
    ids=["all answer", "the first is down", "another has stopped", "no other runs", "no server answers"],
)
def test_running_server_replaces_the_first(fleet: Data, asked: str) -> None:
    everyone = ["a", "b", "c", "d"]
    assert of_k3s.asked("a", fleet, ["a", "b", "c"], everyone) == asked
    assert of_k3s.asked("a", fleet, ["a", "b", "c"], ["d"]) == "a", "with --limit it has no facts"


NO, YES = {"item": "b", "installed": False}, {"item": "b", "installed": True}


@pytest.mark.parametrize(
    ("fleet", "results", "begins", "found"),
    [
        ({"a": IS_BARE}, [], False, "server-unanswered"),
        ({"a": IS_BARE}, [{"item": "b", "unreachable": True}], False, "server-unanswered"),
        ({"a": IS_BARE}, [NO], False, "server-unanswered"),
        ({"a": IS_BARE}, [NO, NO | {"item": "c"}], False, ""),
        ({"a": IS_BARE}, [YES], False, "server-new"),
        ({"a": IS_BARE}, [YES], True, "server-new"),
        ({"a": IS_BARE}, [], True, ""),
        ({"a": IS_BARE, "b": IS_BARE, "d": IS_BARE}, [], False, "server-unanswered"),
        ({"a": IS_BARE, "b": IS_BARE, "c": IS_BARE}, [], False, ""),
        ({"a": IS_SERVER, "b": IS_BARE, "c": IS_AGENT}, [], False, ""),
    ],
    ids=[
        "limited", "unreachable", "one of two", "both", "a cluster", "a cluster all the same",
        "the owner says so", "one is off", "all are bare", "there already",
    ],
)  # fmt: skip
def test_new_cluster_needs_all_servers(fleet: Data, results: list[Data], begins: bool, found: str) -> None:
    answers = of_k3s.answers_of(results, ["a", "b", "c"])
    findings = of_k3s.findings_of_server("a", fleet, "a", answers, begins)
    assert [entry["id"] for entry in findings] == [found] * bool(found)
    if found == "server-unanswered":
        assert "c did not answer" in findings[0]["found"]
        assert "-e jetson_k3s_confirm=new-cluster" in findings[0]["fix"]


@pytest.mark.parametrize(
    ("role", "installed", "server", "found"),
    [
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", None, True),
        # New to a cluster that is older.
        ("agent", None, "v1.33.5+k3s1", True),
        # It was off when the others were upgraded, or is new; then a server goes by itself.
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", False),
        ("agent", None, "v1.34.0+k3s1", False),
        ("server", "v1.33.5+k3s1", "v1.34.0+k3s1", True),
        ("server", "v1.34.0+k3s1", "v1.34.0+k3s1", False),
        ("server", None, None, False),
    ],
)
def test_minor_version_changes_with_an_upgrade(
    role: str, installed: str | None, server: str | None, found: bool
) -> None:
    facts = with_facts(k3s__version=installed, bundle__k3s_version="v1.34.1+k3s1", role=role)
    findings = of_k3s.findings_of_upgrade(facts, server)
    assert [entry["id"] for entry in findings] == (["k3s-upgrade"] if found else [])
    assert of_k3s.findings_of_upgrade(facts, server, upgrades=True) == []


AT_WORK = {"installed": True, "command": "k3s agent"}


def board(*addresses: str, routes: tuple[str, ...] = (), **changes: Any) -> Data:
    """Facts of a board; an address is `eth0 10.0.0.1/24`, a route `10.0.0.0/8 eth0 10.0.0.254`."""
    told = [dict(zip(("device", "address"), one.split(), strict=True)) for one in addresses]
    ways = [dict(zip(("to", "device", "gateway"), [*one.split(), None], strict=False)) for one in routes]
    return with_facts(network__addresses=told, network__routes=ways, **changes)


@pytest.mark.parametrize(
    ("facts", "ranges", "ids"),
    [
        (board("eth0 192.168.1.11/24"), {}, []),
        (board("wlan0 10.42.0.1/24"), {}, ["network-range"]),
        (board("eth0 10.43.7.7/16"), {}, ["network-range"]),
        (board("eth0 10.0.0.7/8"), {}, ["network-range-shared"]),
        (board(routes=("10.0.0.0/8 tun0 10.8.0.1",)), {}, ["network-range-shared"]),
        (board(routes=("10.43.0.0/24 eth0 192.168.1.1",)), {}, ["network-range"]),
        (board(routes=("0.0.0.0/0 eth0 192.168.1.1",)), {}, []),
        (board("wlan0 10.42.0.1/24"), {"cluster-cidr": "10.52.0.0/16"}, []),
        (board("eth0 10.52.0.1/24"), {"cluster-cidr": "10.52.0.0/16,fd00:42::/56"}, ["network-range"]),
        (board("eth0 fd00:42::9/64"), {"cluster-cidr": ["10.52.0.0/16", "fd00:42::/56"]}, ["network-range"]),
        (board("cni0 10.42.0.1/24", "flannel.1 10.42.0.0/32", k3s__agent=AT_WORK), {}, []),
        (board(routes=("10.42.1.0/24 eth0 192.168.1.12",), k3s__agent=AT_WORK), {}, []),  # host-gw
        (board("wlan0 10.42.0.1/24", k3s__agent=AT_WORK), {}, ["network-range-shared"]),
    ],
)
def test_overlapping_networks_are_found(facts: Data, ranges: dict[str, str], ids: list[str]) -> None:
    found = of_network.findings_of_ranges("a", {"a": facts}, ranges)
    assert [entry["id"] for entry in found] == ids
    assert all("sudo nmcli connection up NAME" in entry["fix"] for entry in found)


PORTS = ["6443/tcp", "10250/tcp", "8472/udp"]
RANGES = ["10.42.0.0/16", "10.43.0.0/16"]


@pytest.mark.parametrize(
    ("rules", "server", "servers", "missing"),
    [
        (None, True, 1, ""),
        (["everything"], True, 1, ""),
        (PORTS + RANGES, True, 1, ""),
        (["1000-65535/tcp", "8472/udp", *RANGES], True, 3, ""),
        (["192.168.1.0/24", *RANGES], True, 3, ""),
        (["interface eth0", *RANGES], True, 1, ""),
        (["interface cni0", *RANGES], False, 1, "10250/tcp, 8472/udp"),
        (["22/tcp"], True, 3, "10250/tcp, 8472/udp, 6443/tcp, 2379-2380/tcp, 10.42.0.0/16, 10.43.0.0/16"),
        (["22/tcp"], False, 3, "10250/tcp, 8472/udp, 10.42.0.0/16, 10.43.0.0/16"),
        ([*PORTS, "10.42.0.0/16"], True, 1, "10.43.0.0/16"),
    ],
)
@pytest.mark.parametrize("name", ["ufw", "firewalld"])
def test_closed_firewall_is_found(
    name: str, rules: list[str] | None, server: bool, servers: int, missing: str
) -> None:
    facts = board("eth0 192.168.1.11/24", "wwan0 10.64.0.2/30")
    facts["firewalls"][name] = rules
    fleet = {"a": facts, "b": board("eth0 192.168.1.12/24")}
    found = of_network.findings_of_firewalls("a", fleet, {}, servers if server else 0, "vxlan")
    assert [entry["id"] for entry in found] == [f"firewall-{name}"] * bool(missing)
    assert all(entry["found"].endswith(f"does not let in {missing}") for entry in found)


def test_commands_open_ports_for_the_site_only() -> None:
    facts = board("eth0 192.168.1.11/24", "wwan0 10.64.0.2/30", firewalls__ufw=[], firewalls__firewalld=[])
    fleet = {"a": facts, "b": board("eth0 192.168.1.12/24")}
    ufw, firewalld = (found["fix"] for found in of_network.findings_of_firewalls("a", fleet, {}, 3, None))
    assert ufw.split("; ") == [
        "sudo ufw allow from 192.168.1.0/24 to any port 10250 proto tcp",
        "sudo ufw allow from 192.168.1.0/24 to any port 8472 proto udp",
        "sudo ufw allow 6443/tcp",
        "sudo ufw allow from 192.168.1.0/24 to any port 2379:2380 proto tcp",
        "sudo ufw allow from 10.42.0.0/16",
        "sudo ufw allow from 10.43.0.0/16",
    ]
    add, source = "sudo firewall-cmd --permanent", "rule family=ipv4 source address=192.168.1.0/24"
    assert firewalld.split("; ") == [
        f"{add} --add-rich-rule='{source} port port=10250 protocol=tcp accept'",
        f"{add} --add-rich-rule='{source} port port=8472 protocol=udp accept'",
        f"{add} --add-port=6443/tcp",
        f"{add} --add-rich-rule='{source} port port=2379-2380 protocol=tcp accept'",
        f"{add} --zone=trusted --add-source=10.42.0.0/16",
        f"{add} --zone=trusted --add-source=10.43.0.0/16",
        "sudo firewall-cmd --reload",
    ]


LAN, LTE = "192.168.1.12", "10.64.0.2"


@pytest.mark.parametrize(
    ("changes", "config", "role", "chosen"),
    [
        ({}, {}, "agent", None),
        ({"network__towards_server": LAN}, {}, "agent", LAN),
        ({"network__towards_server": LAN}, {}, "server", LAN),
        ({"network__towards_server": LAN}, {"node-ip": LTE}, "agent", None),
        ({"network__towards_server": LAN}, {"flannel-iface+": "wwan0"}, "agent", None),
        ({"network__towards_server": LAN, "k3s__node_ip__owner": ["node-ip"]}, {}, "agent", None),
        ({"network__towards_server": "fd00::12"}, {}, "agent", None),
        ({"network__towards_server": "192.168.1.99"}, {}, "agent", None),
        # Chosen before: it stays while the server is out of reach, and follows the route of an agent.
        ({"k3s__node_ip__role": LAN}, {}, "agent", LAN),
        ({"k3s__node_ip__role": "192.168.1.99"}, {}, "agent", None),
        ({"k3s__node_ip__role": LTE, "network__towards_server": LAN}, {}, "agent", LAN),
        # A server that runs keeps the address by which etcd knows it.
        ({"network__towards_server": LAN, "k3s__server": AT_WORK}, {}, "server", None),
        (
            {"k3s__node_ip__role": LTE, "network__towards_server": LAN, "k3s__server": AT_WORK},
            {},
            "server",
            LTE,
        ),
    ],
)
def test_node_gets_the_address_towards_its_server(
    changes: Data, config: dict[str, str], role: str, chosen: str | None
) -> None:
    facts = board(f"eth0 {LAN}/24", f"wwan0 {LTE}/30", "eth0 fd00::12/64", **changes)
    devices = {LAN: "eth0", LTE: "wwan0"}
    expected = {"node-ip": chosen, "flannel-iface": devices[chosen]} if chosen else {}
    assert k3s_configuration.node_address(facts, config, role) == expected


ETCD = data("etcd")["__preflight_etcd"]


@pytest.mark.parametrize(
    ("installed", "wanted", "through"),
    [
        ("v1.33.5+k3s1", "v1.34.1+k3s1", "v1.33.7+k3s3"),
        ("v1.33.7+k3s1", "v1.36.5+k3s1", "v1.33.7+k3s3"),
        ("v1.33.5+k3s1", "v1.33.13+k3s1", "v1.33.7+k3s3"),  # site.yml may go there
        ("v1.32.11+k3s1", "v1.33.8+k3s1", "v1.32.11+k3s3"),
        ("v1.25.4+k3s1", "v1.34.1+k3s1", "v1.32.11+k3s3"),
        ("v1.33.7+k3s3", "v1.34.1+k3s1", None),
        ("v1.32.12+k3s1", "v1.33.8+k3s1", None),
        ("v1.33.8+k3s1", "v1.34.1+k3s1", None),
        ("v1.34.1+k3s1", "v1.36.5+k3s1", None),
        ("v1.33.5+k3s1", "v1.33.7+k3s3", None),
        ("v1.25.4+k3s1", "v1.25.4+k3s12", None),
        ("v1.33.7-rc2+k3s3", "v1.34.0-rc1+k3s1", None),
        (None, "v1.34.1+k3s1", None),
        ("v1.33.5+k3s1", None, None),
    ],
)
def test_step_to_etcd_3_6_needs_one_between(
    installed: str | None, wanted: str | None, through: str | None
) -> None:
    changes = {"k3s__version": installed, "bundle__k3s_version": wanted}
    found = of_etcd.findings_of_etcd(with_facts(k3s__etcd=True, **changes), ETCD)
    assert [entry["id"] for entry in found] == ["k3s-etcd"] * bool(through)
    assert all(f"First upgrade all servers to {through}, with a bundle" in entry["fix"] for entry in found)
    for other in ({"k3s__etcd": False}, {"k3s__etcd": True, "role": "agent"}):
        assert of_etcd.findings_of_etcd(with_facts(**changes, **other), ETCD) == []


def test_table_of_etcd_is_in_the_order_of_the_releases() -> None:
    releases = [of_etcd.release(entry["k3s"]) for entry in ETCD]
    assert releases == sorted(set(releases))
    assert all(of_etcd.numbers(entry["etcd"]) for entry in ETCD)


@pytest.mark.parametrize(
    ("kept", "words"),
    [(None, None), ("/k3s/server/db.before-1", "are in /k3s/server/db.before-1"), ("", "no data")],
)
def test_unfinished_restore_is_found_with_its_data(kept: str | None, words: str | None) -> None:
    found = of_k3s.findings_of_restore(with_facts(k3s__unfinished_restore=kept))
    assert [entry["id"] for entry in found] == ["restore-unfinished"] * (words is not None)
    assert all(str(words) in entry["found"] and "restore.yml again" in entry["fix"] for entry in found)


def test_settings_of_another_node_and_files_that_are_not_understood_are_both_found() -> None:
    refused = {
        "name": "node-name",
        "source": "config.yaml",
        "changes": "the node",
        "reason": "it is the board's",
    }
    unread = {"path": "/etc/rancher/k3s/config.yaml", "error": "line 2: no key"}
    found = of_k3s.findings_of_settings({"refused": [refused], "unread": [unread]})
    assert [(entry["id"], entry["found"]) for entry in found] == [
        ("k3s-option", "node-name in config.yaml"),
        ("k3s-unread", "/etc/rancher/k3s/config.yaml is not understood: line 2: no key"),
    ]
