# SPDX-License-Identifier: Apache-2.0
"""One plan for iptables: preflight tells it, and role nvidia_docker carries it out."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.preflight_facts import RULES, with_facts

iptables = load("jetson_facts/module_utils/jetson_iptables.py")
environment = load("nvidia_docker/library/docker_environment.py")
preflight = load("preflight/filter_plugins/preflight.py")

ALL = "filter nat raw"
VERSIONS = {"nft": "iptables v1.8.7 (nf_tables)\n", "legacy": "iptables v1.8.7 (legacy)\n"}


class Board:
    """An AnsibleModule on a board whose kernel works with some tables of some variants of iptables."""

    def __init__(self, root: Path, works: dict[str, str], chosen: dict[str, str]) -> None:
        self.root, self.works = root, works
        self.tried: list[str] = []
        for directory in ("usr/sbin", "etc/alternatives", "proc/net"):
            (root / directory).mkdir(parents=True)
        (root / "proc/net/if_inet6").touch()
        (root / "usr/sbin/unshare").touch()
        for family, variant in chosen.items():
            for name in ("nft", "legacy"):
                (root / f"usr/sbin/{family}-{name}").touch()
            (root / f"usr/sbin/{family}").symlink_to(root / "etc/alternatives" / family)
            (root / f"etc/alternatives/{family}").symlink_to(root / f"usr/sbin/{family}-{variant}")

    def get_bin_path(self, name: str) -> str | None:
        path = self.root / "usr/sbin" / name
        return str(path) if path.exists() else None

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[1:] == ["--version"]:
            return 0, VERSIONS[Path(argv[0]).resolve().name.partition("-")[2]], ""
        assert argv[0].endswith("/unshare")
        assert argv[1] == "--net", "nothing of it stays on the board"
        variant, table = Path(argv[2]).resolve().name, argv[argv.index("--table") + 1]
        self.tried.append(f"{variant} {table}")
        if table in self.works.get(variant, "").split():
            return 0, "", "# Warning: iptables-legacy tables present, use iptables-legacy to see them\n"
        if "broken" in self.works:
            return 1, "", self.works["broken"]
        return 4, "", f"iptables v1.8.7: no table `{table}'.\n"

    def warn(self, text: str) -> None:
        self.warned = text


def found(board: Board, lacking: dict[str, str]) -> dict[str, str]:
    facts = iptables.iptables_facts(board, str(board.root), lacking)
    findings = preflight.findings_of_rules(with_facts(iptables=facts), RULES)
    return {entry["id"]: entry["found"] for entry in findings}


def done(board: Board) -> tuple[list[str], dict[str, str]]:
    params = {"docker_version": "28.4.0", "strict": False, "state": "present"}
    files, choices = environment.plan(str(board.root), params, environment.variants(board, str(board.root)))
    return [path for path, *_ in files], choices


NFT_ONLY = {"iptables": "nft"}
BOTH = {"iptables": "nft", "ip6tables": "nft"}
GOOD = {f"{family}-{variant}": ALL for family in BOTH for variant in VERSIONS}
LEGACY = {"iptables": "/usr/sbin/iptables-legacy"}


@pytest.mark.parametrize(
    ("works", "chosen", "findings", "does"),
    [
        pytest.param(GOOD, BOTH, set(), ([], {}), id="all works"),
        pytest.param(
            {"iptables-legacy": "filter nat"},
            NFT_ONLY,
            {"iptables-variant"},
            ([environment.DROP_IN], LEGACY),
            id="no nf_tables, and no raw",
        ),
        pytest.param(
            {"iptables-nft": "filter raw", "iptables-legacy": ALL},
            NFT_ONLY,
            {"iptables-variant"},
            ([], LEGACY),
            id="nf_tables without nat",
        ),
        pytest.param(
            {"iptables-nft": "filter nat", "iptables-legacy": ALL},
            NFT_ONLY,
            set(),
            ([environment.DROP_IN], {}),
            id="raw alone changes Docker's unit only",
        ),
        pytest.param(
            {"iptables-nft": ALL},
            {"iptables": "legacy"},
            {"iptables-variant"},
            ([], {"iptables": "/usr/sbin/iptables-nft"}),
            id="a newer kernel without ip_tables",
        ),
        pytest.param(
            {**GOOD, "ip6tables-nft": ""},
            BOTH,
            {"iptables-variant"},
            ([], {"ip6tables": "/usr/sbin/ip6tables-legacy"}),
            id="IPv6 alone",
        ),
        pytest.param(
            {"iptables-nft": ALL}, BOTH, set(), ([], {}), id="IPv6 fails: Docker and K3s start without"
        ),
        pytest.param({}, NFT_ONLY, {"iptables"}, ([environment.DROP_IN], {}), id="neither works"),
        pytest.param({}, {}, set(), ([], {}), id="not installed yet"),
        pytest.param(
            {"broken": "unshare: unshare failed: Operation not permitted"},
            NFT_ONLY,
            {"iptables-not-tried"},
            ([], {}),
            id="no network namespace",
        ),
        pytest.param(
            {"broken": "Another app is currently holding the xtables lock.\n"},
            NFT_ONLY,
            {"iptables-not-tried"},
            ([], {}),
            id="locked",
        ),
    ],
)
def test_preflight_says_what_the_role_does(
    tmp_path: Path,
    works: dict[str, str],
    chosen: dict[str, str],
    findings: set[str],
    does: tuple[list[str], dict[str, str]],
) -> None:
    board = Board(tmp_path, works, chosen)
    assert found(board, {}).keys() == findings
    assert done(board) == does


def test_other_variant_is_tried_only_where_the_present_one_fails(tmp_path: Path) -> None:
    board = Board(tmp_path, {**GOOD, "ip6tables-nft": "filter"}, BOTH)
    found(board, {})
    assert [entry.split()[0] for entry in board.tried[::3]] == [
        "iptables-nft",
        "ip6tables-nft",
        "ip6tables-legacy",
    ]


def test_a_finding_names_the_table_and_what_the_kernel_lacks_for_it(tmp_path: Path) -> None:
    board = Board(tmp_path, {"iptables-nft": "raw"}, NFT_ONLY)
    lacking = {"nft_compat": "CONFIG_NFT_COMPAT is not set", "iptable_nat": "no iptable_nat.ko"}
    text = found(board, lacking)["iptables"]
    for part in (
        "iptables-nft, table nat: iptables v1.8.7: no table `nat'; CONFIG_NFT_COMPAT is not set",
        "iptables-legacy, table nat: iptables v1.8.7: no table `nat'; no iptable_nat.ko",
    ):
        assert part in text


class RealBoard(Board):
    """A board with this machine's kernel, and an iptables-nft that may not use the table nat."""

    PROGRAMS = ("iptables-legacy", "xtables-nft-multi", "setpriv", "unshare")

    def __init__(self, root: Path) -> None:
        super().__init__(root, {}, NFT_ONLY)
        refused = "setpriv --bounding-set=-net_admin --inh-caps=-net_admin"
        self._program(
            "iptables-nft", f'case " $* " in *" nat "*) with="{refused}";; esac', "xtables-nft-multi iptables"
        )
        self._program("iptables-legacy", "", "iptables-legacy")

    def _program(self, name: str, first: str, program: str) -> None:
        script = self.root / "usr/sbin" / name
        script.write_text(f'#!/bin/sh\n{first}\nexec $with {program} "$@"\n')
        script.chmod(0o755)

    def get_bin_path(self, name: str) -> str | None:
        return shutil.which(name) if name == "unshare" else super().get_bin_path(name)

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def can_try() -> bool:
    """Has this machine both variants, and root that may make a network namespace?"""
    argv = ["unshare", "--net", "iptables-legacy", "--list"]
    return all(map(shutil.which, RealBoard.PROGRAMS)) and not subprocess.run(argv, check=False).returncode


@pytest.mark.skipif(not can_try(), reason="needs both variants of iptables, root and network namespaces")
def test_the_kernels_own_answer_decides_and_its_rules_stay_as_they_are(tmp_path: Path) -> None:
    board = RealBoard(tmp_path)
    assert "iptables-nft, table nat: iptables v" in found(board, {})["iptables-variant"]
    assert done(board) == ([], LEGACY)
    for variant in VERSIONS:
        listed = board.run_command([f"iptables-{variant}", "--table", "raw", "--list-rules"])
        assert iptables.ADDRESSES["iptables"] not in listed[1]


@pytest.mark.parametrize("outside", ["missing", "unmanaged"])
def test_a_variant_that_update_alternatives_cannot_choose_is_not_chosen(tmp_path: Path, outside: str) -> None:
    board = Board(tmp_path, {"iptables-legacy": ALL}, NFT_ONLY)
    if outside == "missing":
        (tmp_path / "usr/sbin/iptables-legacy").unlink()
    else:
        (tmp_path / "usr/sbin/iptables").unlink()
        (tmp_path / "usr/sbin/iptables").symlink_to(tmp_path / "usr/sbin/iptables-nft")
        (tmp_path / "etc/alternatives/iptables").unlink()
    assert found(board, {}).keys() == {"iptables"}
    assert done(board) == ([environment.DROP_IN], {})


def test_a_kernel_without_ipv6_has_no_plan_for_it(tmp_path: Path) -> None:
    board = Board(tmp_path, {"iptables-nft": ALL, "ip6tables-legacy": ALL}, BOTH)
    (tmp_path / "proc/net/if_inet6").unlink()
    assert done(board) == ([], {})


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("iptables v1.8.7 (nf_tables)\n", {"version": "1.8.7", "backend": "nf_tables"}),
        ("iptables v1.8.4 (legacy)\n", {"version": "1.8.4", "backend": "legacy"}),
        ("iptables v1.6.1\n", {"version": "1.6.1", "backend": "legacy"}),
        ("", {"version": None, "backend": None}),
    ],
)
def test_backend_of_iptables(text: str, facts: dict[str, Any]) -> None:
    assert iptables.version_facts(text) == facts
