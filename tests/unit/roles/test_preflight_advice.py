# SPDX-License-Identifier: Apache-2.0
"""Every fix that a finding offers works on the board that it is offered to."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight

from tests.unit.roles.places import PLUGINS, Data
from tests.unit.roles.preflight_facts import KERNEL, RULES, with_facts
from tests.unit.roles.test_preflight import INCOMPATIBLE

version = preflight.version_key


class Line(NamedTuple):
    """A line of JetPack as flashed, and the newest packages of its archives."""

    facts: Data
    toolkit: str  # in NVIDIA's archive for this L4T
    docker_ce: str  # of docker.com for its Ubuntu


# L4T's archives, and download.docker.com: 18.04 has no Docker after 24.0.2, 20.04 none after 28.1.1.
LINES = {
    "JetPack 4.4": Line({"jetpack": "4.4", "kernel": "4.9.140-tegra", "python": "3.6.9"}, "1.0.1", "24.0.2"),
    "JetPack 4.6": Line(
        {"jetpack": "4.6.1", "kernel": "4.9.253-tegra", "python": "3.6.9"}, "1.7.0", "24.0.2"
    ),
    "JetPack 5": Line(
        {"jetpack": "5.1.1", "kernel": "5.10.104-tegra", "python": "3.8.10"}, "1.11.0", "28.1.1"
    ),
    "JetPack 6": Line(
        {"jetpack": "6.2", "kernel": "5.15.148-tegra", "python": "3.10.12"}, "1.16.2", "29.1.0"
    ),
    "JetPack 7": Line(
        {
            "jetpack": "7.0",
            "kernel": "6.8.12-tegra",
            "kernel_package": "linux-image-6.8.12-tegra",
            "python": "3.12.3",
        },
        "1.18.0",
        "29.1.0",
    ),
}
# JetPack 4 and 5 boot with cgroup v1; a kernel before 5.2 has no complete v2.
CGROUPS = {
    "JetPack 4.4": (1,),
    "JetPack 4.6": (1,),
    "JetPack 5": (1, 2),
    "JetPack 6": (2,),
    "JetPack 7": (2,),
}
INSTALLED = (None, "v1.34.2+k3s1", "v1.36.2+k3s1")

Board = Data
# A command or a setting of an advice, and where it works: board, line, version that the rule asks for.
WORKS: dict[str, Callable[[Board, Line, str], bool]] = {
    r"systemd.unified_cgroup_hierarchy=1": lambda board, *_: version(board["kernel"]) >= (5, 2),
    # From Kubernetes 1.31 on (pkg/kubelet/apis/config: FailCgroupV1).
    r"fail-cgroupv1=false": lambda board, *_: version(board["bundle"]["k3s_version"]) >= (1, 31),
    r"a bundle with K3s 1\.34": lambda board, *_: (
        board["k3s_source"] == "bundle" and version(board["k3s"]["version"] or "0")[:2] <= (1, 34)
    ),
    r"k3s_version: v1\.34\.\d+\+k3s1": lambda board, *_: (
        board["k3s_source"] == "download" and version(board["k3s"]["version"] or "0")[:2] <= (1, 34)
    ),
    r"pip install 'ansible-core==2\.16\.\*'": lambda *_: True,
    r"pip install 'ansible-core==2\.19\.\*'": lambda board, *_: version(board["python"]) >= (3, 8),
    r"make venv ANSIBLE=2\.16": lambda *_: True,
    r"make venv ANSIBLE=2\.19": lambda board, *_: version(board["python"]) >= (3, 8),
    r"make venv(?! ANSIBLE)": lambda board, *_: version(board["python"]) >= (3, 9),  # with 2.21
    r"apt install --only-upgrade nvidia-container-toolkit`? from NVIDIA's own": (
        lambda board, *_: version(board["jetpack"]) >= (5,)
    ),
    r"apt install --only-upgrade nvidia-container-toolkit(?! nvidia|`? from)": (
        lambda _, line, wanted: version(line.toolkit) >= version(wanted)
    ),
    r"nvidia-container-toolkit nvidia-container-runtime nvidia-docker2": (
        lambda board, line, wanted: (
            version(board["jetpack"]) < (5,) and version(line.toolkit) >= version(wanted)
        )
    ),
    r"nvidia-container-toolkit=1\.7\.0": lambda board, *_: version(board["jetpack"]) < (5,),
    # NVIDIA's own archive keeps each release.
    r"nvidia-container-toolkit=1\.(17|18|19)\.": lambda *_: True,
    r"nvidia-container-toolkit=1\.16\.2": lambda board, *_: version(board["jetpack"])[0] == 6,
    r"apt dist-upgrade": lambda board, *_: version(board["jetpack"]) < (4, 6, 1),
    r"systemctl enable --now docker": lambda *_: True,
    r"docker-ce=5:27\.5\.1": lambda _, line, __: version(line.docker_ce) >= (27, 5, 1),
    r"Docker 28\.0\.2": lambda _, line, __: version(line.docker_ce) >= (28, 0, 2),
    r"nvidia-l4t-kernel": lambda board, *_: version(board["jetpack"]) < (7,),
    r"features: {containerd-snapshotter": lambda _, line, __: version(line.docker_ce) >= (24,),
    r"min-api-version": lambda _, line, __: version(line.docker_ce) >= (29,),
    r"nvidia-smi": lambda board, *_: version(board["jetpack"]) >= (7,),
    r"k3s token create": lambda board, *_: version(board["bundle"]["k3s_version"]) >= (1, 26),
    r"DRAConsumableCapacity=true": lambda board, *_: version(board["bundle"]["k3s_version"]) >= (1, 34),
}
# Commands of every Ubuntu from 18.04 on, and settings that no board refuses.
ANYWHERE = re.compile(
    r"sudo (reboot|depmod|apt update|apt install --reinstall linux-image-[\w.-]+|apt remove podman-docker|"
    r"snap remove docker|systemctl daemon-reload|ln -s /opt/docker/dockerd /usr/local/bin/dockerd|"
    r"apt-mark unhold PACKAGE|apt install iptables|"
    r"apt install --only-upgrade (docker\.io|runc|containerd\.io)|"
    r"apt-mark hold (docker-ce|docker\.io containerd)|journalctl .*|systemctl edit docker|unshare .*|"
    r"update-alternatives .*)|"
    r"docker (pull REGISTRY/NAME:TAG|push)|openssl rand -hex 16|python3 -m json\.tool .*|"
    r"cgroup_disable|disable-network-policy: true|exec-opts|"
    r"\[[\w-]+\]|(disable-cuda-compat-lib-hook|ldconfig|mode) = .*|"  # of config.toml
    r"-e jetson_k3s_confirm=[\w-]+|-e bundle_jtop=true|playbooks/bundle\.yml -i INVENTORY|"
    r"fail-swap-on|swapon --show|"
    r"flannel-(backend|iface).*|(kubelet|kube-\w+)-arg|devices|memoryTotal|node-ip|shares|sharing.*|timeSlicing|units"
)


def boards(line: str, changes: Data) -> list[Board]:
    """Boards of this line with these changes, by cgroup version and by the K3s that is installed."""
    docker = {"docker__version": min("27.5.1", LINES[line].docker_ce, key=version)}
    return [
        with_facts(
            **{**docker, **changes, **LINES[line].facts, "cgroup_version": cgroup, "k3s__version": installed},
            k3s_source=source,
        )
        for cgroup in CGROUPS[line]
        for installed in INSTALLED
        for source in ("bundle", "download")
    ]


def can_exist(board: Board, line: Line) -> bool:
    """Has the line's Ubuntu this Docker, its GPU MIG? K3s does not go back, which is a finding of its own."""
    docker, installed = board["docker"]["version"], board["k3s"]["version"]
    old = installed and version(installed)[:2] > version(board["bundle"]["k3s_version"])[:2]
    dropped = version(board["docker"]["min_api_version"] or "1.24") >= (1, 44)  # as Docker 29 has it
    newest = max(version(docker or "0"), (29,) if dropped else (0,))
    mig = board["mig_instances"] and version(board["jetpack"]) < (7,)
    return not old and not mig and newest <= version(line.docker_ce)


MISSING: list[Data] = [
    {
        "kernel_lacks": dict.fromkeys(entry.get("features", [entry["feature"]]), "-"),
        "flannel_backend": backend,
    }
    for entry in KERNEL
    for backend in ("vxlan", "none")
]


@pytest.mark.parametrize("line", LINES)
def test_every_advice_works_on_the_boards_that_get_it(line: str) -> None:
    wanted = {rule["id"]: str(rule["require"].get("from", "0")) for rule in RULES}
    fired = set()
    for changes in [changes for changes, _ in INCOMPATIBLE] + MISSING:
        for board in boards(line, changes):
            if not can_exist(board, LINES[line]):
                continue
            for found in preflight.findings_of_rules(board, RULES):
                fired.add(found["id"])
                where = f"{found['id']} on {line}, cgroup v{board['cgroup_version']}: {found['fix']}"
                assert found["fix"], where
                for act, works in WORKS.items():
                    if re.search(act, found["fix"]):
                        assert works(board, LINES[line], wanted[found["id"]]), f"{act}: {where}"
                for command in re.findall(r"`([^`]+)`", found["fix"]):
                    decided = ANYWHERE.fullmatch(command) or any(re.search(act, command) for act in WORKS)
                    assert decided, f"where does `{command}` work? {where}"
                assert not re.search(r"(?<!`)\bsudo ", found["fix"]), where
    assert len(fired) > 25


# Of every JetPack's Ubuntu (18.04 and later), or what the finding is about: K3s, a firewall that is active.
PROGRAMS = {
    *(
        "apt",
        "date",
        "dmesg",
        "docker",
        "dpkg",
        "du",
        "hostnamectl",
        "mount",
        "nmcli",
        "reboot",
        "rm",
        "systemctl",
        "systemd-machine-id-setup",
        "timedatectl",
    ),
    *("firewall-cmd", "k3s", "ufw"),
}


def test_rules_that_are_functions_offer_what_every_jetpack_has() -> None:
    sources = "".join(path.read_text() for path in PLUGINS.glob("*/preflight*.py"))
    assert set(re.findall(r"\bsudo (?!and\b)([\w-]+)", sources)) == PROGRAMS
