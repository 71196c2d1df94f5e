# SPDX-License-Identifier: Apache-2.0
"""Maintenance of boards: upgrades of K3s, reboots, updates of the operating system, power modes."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_packages as reboots
from ansible_collections.jetson_k3s.cluster.plugins.modules import nvpmodel
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_reboot
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_upgrade as upgrade

from tests.unit.roles.places import ROLES
from tests.unit.roles.playing import answer, play_text


@pytest.mark.parametrize(
    ("role", "installed", "wanted", "server"),
    [
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s1", None),
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s2", None),
        ("server", "v1.33.5+k3s1", "v1.34.0+k3s1", None),
        ("agent", "v1.33.5+k3s1", "v1.34.2+k3s1", "v1.34.0+k3s1"),
        ("agent", "v1.25.4+k3s1", "v1.25.4+k3s12", "v1.25.4+k3s1"),
        # It was off when the server went through 1.33, and is upgraded with or after it.
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", None),
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", "v1.34.0+k3s1"),
    ],
)
def test_supported_step_is_not_refused(role: str, installed: str, wanted: str, server: str | None) -> None:
    assert upgrade.refusal(wanted, installed, role, server) == ""


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (("server", None, "v1.33.5+k3s1", None), "site.yml"),
        (("server", "v1.32.9+k3s1", "v1.34.0+k3s1", None), "v1.33 first"),
        (("agent", "v1.33.5+k3s1", "v2.0.0+k3s1", None), "skipped"),
        (("server", "v1.33.5+k3s1", "v1.33.4+k3s1", None), "newer than the bundle"),
        (("agent", "v1.33.5+k3s1", "v1.34.0+k3s1", "v1.33.5+k3s1"), "upgrade the server first"),
        (("agent", "v1.33.5+k3s1", "v1.34.0+k3s1", ""), "does not say which K3s"),
    ],
)
def test_unsupported_step_is_refused_with_the_way_out(
    step: tuple[str, str | None, str, str | None], words: str
) -> None:
    role, installed, wanted, server = step
    assert words in upgrade.refusal(wanted, installed, role, server)


def test_text_that_is_no_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="latest"):
        upgrade.refusal("latest", "v1.33.5+k3s1", "server")


CHECK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {k3s: {version: v1.34.1+k3s1}}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s_upgrade, tasks_from: check}
    - ansible.builtin.debug: {msg: "begins {{ k3s_upgrade_begins }} from {{ __k3s_upgrade_from }}"}
"""


@pytest.mark.parametrize(
    ("recorded", "wanted", "words"),
    [
        (None, "v1.35.2+k3s1", "begins True from v1.34.1+k3s1"),
        (None, "v1.34.1+k3s1", "begins False from v1.34.1+k3s1"),
        ("v1.33.9+k3s1", "v1.34.1+k3s1", "begins False from v1.33.9+k3s1"),
        ("v1.33.9+k3s1", "v1.33.9+k3s1", "begins False from v1.33.9+k3s1"),  # back to where it was
        (
            "v1.33.9+k3s1",
            "v1.35.2+k3s1",
            "cannot be upgraded: from v1.33.9+k3s1 to v1.35.2+k3s1 minor versions would be skipped; go "
            "through v1.34 first, with a bundle of it. An upgrade from v1.33.9+k3s1 was not finished here "
            "({record}): first finish it with its own bundle. Nothing was changed on any board.",
        ),
    ],
)
def test_unfinished_upgrade_is_finished_before_the_next_one(
    tmp_path: Path, recorded: str | None, wanted: str, words: str
) -> None:
    """The binary of the interrupted upgrade is there, and says its version."""
    record = tmp_path / "k3s.previous"
    if recorded:
        record.symlink_to(f"k3s-{recorded}")
    refused = "cannot be upgraded" in words
    variables = {"__k3s_upgrade_record": str(record), "__k3s_upgrade_to": wanted}
    ran = play_text(tmp_path, CHECK, variables=variables, fails=refused)
    assert words.format(record=record) in ran.said


@pytest.mark.parametrize(("boards", "drains"), [(["jetson-1"], "False"), (["jetson-1", "jetson-2"], "True")])
def test_pods_are_moved_if_there_is_another_board(boards: list[str], drains: str) -> None:
    drain = yaml.safe_load((ROLES / "rolling_restart/vars/main.yml").read_text())["__rolling_restart_drain"]
    variables = {"groups": {"k3s_cluster": boards}, "__rolling_restart_of_docker": True}
    assert jinja2.Template(drain).render(variables) == drains


NONE = {"required": False, "packages": [], "kernel": None}
KERNEL = {"required": True, "packages": [], "kernel": "5.15.2-tegra"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, NONE),
        ({"run/reboot-required": ""}, NONE | {"required": True}),
        (
            {"run/reboot-required": "", "run/reboot-required.pkgs": "linux-base\nlibc6\nlinux-base\n"},
            {"required": True, "packages": ["libc6", "linux-base"], "kernel": None},
        ),
        ({"lib/modules/5.15.2-tegra/modules.dep": "new"}, KERNEL),
        # It was there when the board started, with the one that runs.
        ({"lib/modules/5.15.2-tegra/modules.dep": "old"}, NONE),
        # DKMS has made a module for it.
        ({"lib/modules/5.15.1-tegra/modules.dep": "new"}, NONE),
    ],
)
def test_required_reboot_is_found(tmp_path: Path, files: dict[str, str], expected: dict[str, Any]) -> None:
    for name, text in ({"proc/stat": "cpu 1\nbtime 2000\n"} | files).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (3000, 3000) if text == "new" else (1000, 1000))
    assert reboots.reboot_facts(str(tmp_path), "5.15.1-tegra") == expected


@pytest.mark.parametrize(("active", "limit"), [(True, "5"), (False, "0")])
def test_five_running_k3s_restart_at_a_time_and_first_starts_have_no_limit(active: bool, limit: str) -> None:
    variables = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())
    tasks = yaml.safe_load((ROLES / "k3s/tasks/start.yml").read_text())
    (start,) = (task for task in tasks if "ansible.builtin.systemd_service" in task)
    throttle = jinja2.Template(start["throttle"])
    assert throttle.render(variables | {"__k3s_state": {"active": active}}) == limit


BOARDS = {
    "jetson-1": {"reboot": {"required": True, "packages": ["libc6", "dbus"], "kernel": ""}},
    "jetson-2": {"reboot": {"required": True, "packages": ["linux-base"], "kernel": "5.15.148-tegra"}},
    "jetson-3": {"reboot": {"required": True, "packages": [], "kernel": ""}},
    # What is not needed has no reason.
    "jetson-4": {"reboot": {"required": False, "packages": ["vim"], "kernel": "5.15.1"}},
}
DUE = [
    "jetson-1: is to reboot (libc6, dbus)",
    "jetson-2: is to reboot (linux-base, kernel 5.15.148-tegra)",
    "jetson-3: is to reboot (/var/run/reboot-required)",
]


@pytest.mark.parametrize(
    ("only_if_required", "updates", "said"),
    [
        (False, False, [*DUE, "jetson-4: is to reboot"]),
        (False, True, [*DUE, "jetson-4: is to reboot"]),
        (True, False, [*DUE, "jetson-4: is left alone, no reboot required"]),
        (
            True,
            True,
            [
                "The update of packages may require more reboots.",
                *DUE,
                "jetson-4: is left alone, no reboot required",
            ],
        ),
    ],
)
def test_plan_says_which_boards_reboot_and_why(
    only_if_required: bool, updates: bool, said: list[str]
) -> None:
    plan = board_reboot.plan
    assert plan(BOARDS, only_if_required, updates).splitlines() == said


LEFT = yaml.safe_load((ROLES / "os_update/vars/main.yml").read_text())["__os_update_left"]
LEFT["sites"].append("127.0.0.1")
INSTALLED = (
    "libssl", "tzdata", "base", "docker.io", "containerd", "nvidia-l4t-core", "nvidia-container-toolkit",
    "docker-user", "base-user", "kernel", "tool",
)  # fmt: skip
# Archive: packages as name, version, depends. The newest tzdata has no security fix, an older one has.
ARCHIVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "jammy-security": (("libssl", "2"), ("tzdata", "2"), ("kernel", "2", "kernel-2"), ("kernel-2", "2")),
    "jammy-updates": (
        ("libssl", "2"), ("tzdata", "3"), ("base", "2"), ("docker.io", "2"), ("containerd", "2"),
        ("docker-user", "2"), ("base-user", "2", "docker.io (>= 2)"),
    ),
    "stable": (("nvidia-l4t-core", "2"), ("nvidia-container-toolkit", "2"), ("tool", "2")),
}  # fmt: skip


def stanza(name: str, version: str, depends: str = "", status: str = "") -> str:
    """An entry of a list of packages, or of dpkg's status."""
    more = f"Depends: {depends}\n" if depends else ""
    more += f"Status: {status}\n" if status else f"Filename: ./{name}.deb\nSize: 1\nSHA256: {'0' * 64}\n"
    return f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: m\n{more}Description: d\n\n"


@pytest.fixture
def apt_board(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A board whose apt is configured below `tmp_path`: the environment with which apt finds it.

    The archive `stable` is that of a web server, as NVIDIA's is.
    """
    for directory in ("etc/preferences.d", "etc/apt.conf.d", "state/lists/partial", "cache/archives/partial"):
        (tmp_path / directory).mkdir(parents=True)
    write_status(tmp_path)
    for suite, packages in ARCHIVES.items():
        archive = tmp_path / "archives" / suite
        archive.mkdir(parents=True)
        (archive / "Packages").write_text("".join(stanza(*package) for package in packages))
        (archive / "Release").write_text(f"Suite: {suite}\nOrigin: SIMULATED\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "archives")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        at = dict.fromkeys(ARCHIVES, f"file:{tmp_path}/archives")
        at["stable"] = f"http://127.0.0.1:{server.server_port}"
        sources = "".join(f"deb [trusted=yes] {place}/{suite} ./\n" for suite, place in at.items())
        (tmp_path / "etc/sources.list").write_text(sources)
        places = {
            "Dir::Etc": "etc",
            "Dir::State": "state",
            "Dir::Cache": "cache",
            "Dir::State::status": "status",
        }
        settings = {key: str(tmp_path / place) for key, place in places.items()}
        settings |= {"APT::Architecture": "amd64", "APT::Sandbox::User": "", "Acquire::http::Proxy": "DIRECT"}
        text = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        (tmp_path / "apt.conf").write_text(text)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {"APT_CONFIG": f"{tmp_path}/apt.conf"}
        server.shutdown()
        thread.join()


def write_status(root: Path, held: tuple[str, ...] = ()) -> None:
    """Installed packages, and the selections of dpkg for them."""
    words = {name: "hold" if name in held else "install" for name in INSTALLED}
    text = "".join(stanza(name, "1", status=f"{word} ok installed") for name, word in words.items())
    (root / "status").write_text(text)


def packages(apt_board: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """What the module says in check mode."""
    given = {"left": LEFT, "_ansible_check_mode": True} | options
    return answer("os_packages", given, **apt_board)


def fetch(apt_board: Mapping[str, str]) -> str:
    """Fetch the lists, and say why that failed."""
    given = {"fetch": True, "lock_timeout": 0}
    return str(answer("os_packages", given, **apt_board).get("msg", ""))


SECURITY = {"libssl": "2", "tzdata": "2", "kernel": "2", "kernel-2": "2"}
# base-user would need a newer docker.io.
ALL = SECURITY | {"tzdata": "3", "base": "2"}
L4T = {"nvidia-l4t-core": "2"}


def test_packages_that_are_left_alone_are_updated_only_if_named(apt_board: dict[str, str]) -> None:
    assert fetch(apt_board) == ""
    for options, updates, disruptive in (
        ({}, SECURITY, False),
        ({"security": False}, ALL, False),
        ({"also": ["docker.io"]}, SECURITY | {"docker.io": "2"}, True),
        ({"security": False, "also": ["nvidia-l4t-*", "tool"]}, ALL | L4T | {"tool": "2"}, True),
        ({"security": False, "also": ["docker.io"]}, ALL | {"docker.io": "2", "base-user": "2"}, True),
    ):
        found = packages(apt_board, **options)
        assert (found.get("updates"), found.get("disruptive")) == (updates, disruptive), found
    assert "left alone: containerd 2, docker-user 2, nvidia-container-toolkit 2" in found["summary"]


def test_holds_and_preferences_of_apt_stay_in_force(apt_board: dict[str, str], tmp_path: Path) -> None:
    assert fetch(apt_board) == ""
    write_status(tmp_path, held=("libssl", "docker.io"))
    (tmp_path / "etc/preferences.d/own").write_text("Package: tzdata\nPin: release *\nPin-Priority: -1\n")
    kept = {name: version for name, version in SECURITY.items() if name not in ("libssl", "tzdata")}
    found = packages(apt_board)
    assert found.get("updates") == kept, found
    named = packages(apt_board, also=["docker*"])
    assert "os_update_packages names docker.io, which apt-mark holds on this board." in named["msg"]
    assert "sudo apt-mark unhold docker.io" in named["msg"]


def test_list_that_cannot_be_fetched_is_an_error(apt_board: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "state/lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # unattended-upgrades are at work
        assert "Could not get lock" in fetch(apt_board)
    shutil.rmtree(tmp_path / "archives/stable")
    said = fetch(apt_board)
    assert "the package lists could not be fetched, so updates may be missing." in said
    assert "E: Failed to fetch http://127.0.0.1" in said


CONFIG = (ROLES.parent / "tests/lab/simulated_power/nvpmodel.conf").read_text()


def test_mode_is_found_by_number_and_name() -> None:
    models = nvpmodel.parse_models(CONFIG)
    assert [nvpmodel.find(models, wanted) for wanted in ("2", "mode_30w")] == [2, 2]
    with pytest.raises(nvpmodel.PowerModeError, match=r"0 \(MAXN\), 2 \(MODE_30W\)"):
        nvpmodel.find(models, "15W")
    with pytest.raises(nvpmodel.PowerModeError, match="does not say a mode"):
        nvpmodel.parse_query("NVPM ERROR: no nvpmodel")


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [(0, 0, False), (0, 3, False), (0, 2, True), (2, 3, True), (9, 3, True)],
)
def test_another_mask_needs_a_reboot(present: int, wanted: int, expected: bool) -> None:
    assert nvpmodel.needs_reboot(nvpmodel.parse_models(CONFIG), present, wanted) is expected


@pytest.fixture
def mode(tmp_path: Path) -> Any:
    """The module on a board with a SIMULATED nvpmodel in mode 0; returns (answer, mode afterwards)."""
    simulated = ROLES.parent / "tests/lab/simulated_power"
    state = tmp_path / "state"
    state.write_text("0\n")

    def run(wanted: str, *, check: bool = False, asks: bool = False) -> tuple[dict[str, Any], str]:
        if asks:  # a need for a reboot that the file does not show
            (tmp_path / "state.asks").touch()
        given = {"mode": wanted, "config": str(simulated / "nvpmodel.conf"), "_ansible_check_mode": check}
        places = {"PATH": f"{simulated}:/usr/bin:/bin", "SIMULATED_NVPMODEL_STATE": str(state)}
        return answer("nvpmodel", given, **places), state.read_text().strip()

    return run


def test_clocks_alone_are_changed_immediately_and_once(mode: Any) -> None:
    first, second = mode("MODE_50W"), mode("MODE_50W")
    assert (first[0]["changed"], first[0]["reboot_required"], first[1]) == (True, False, "3")
    assert (second[0]["changed"], second[0]["reboot_required"]) == (False, False)


def test_check_mode_says_which_mode_would_change_and_changes_none(mode: Any) -> None:
    said, afterwards = mode("3", check=True)
    assert (said["changed"], afterwards) == (True, "0")


@pytest.mark.parametrize(("wanted", "asks"), [("MODE_30W", False), ("MODE_50W", True)])
def test_mode_that_needs_a_reboot_is_left_to_the_role(mode: Any, wanted: str, asks: bool) -> None:
    said, afterwards = mode(wanted, asks=asks)
    assert (said["changed"], said["reboot_required"], afterwards) == (False, True, "0")
