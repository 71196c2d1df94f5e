# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's config.toml: how it is read on a board, and what preflight says of each key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_toolkit as toolkit
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_toolkit

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import RULES, TOOLKIT, with_facts

KEYS = Path(__file__).with_name("nvidia_config_keys.txt")
# As the package nvidia-container-toolkit 1.16.2 has it on a board.
SHIPPED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
PROGRAMS = ("runc", "nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-cli")


class Board:
    """Programs of a board, by name."""

    def __init__(self, *programs: str) -> None:
        self.programs = programs

    def path(self, name: str) -> str | None:
        return f"/usr/bin/{Path(name).name}" if Path(name).name in self.programs else None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lists = tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d"
    for path in (lists, tmp_path / "sbin", tmp_path / "usr/lib/aarch64-linux-gnu/nvidia"):
        path.mkdir(parents=True)
    for path in (
        lists / "l4t.csv",
        tmp_path / "sbin/ldconfig.real",
        tmp_path / "usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1",
    ):
        path.touch()
    return tmp_path


def facts_of(root: Path, text: str | None, *programs: str) -> Data:
    if text is not None:
        (root / toolkit.RUNTIME_CONFIG).write_text(text)
    board: Any = Board(*(programs or PROGRAMS))
    return toolkit.config_facts(board, str(root))


def findings(root: Path, text: str, version: str = "1.16.2", **board: Any) -> list[str]:
    """The findings about this file on a good board."""
    config = facts_of(root, text)
    facts = with_facts(**board, nvidia_runtime__version=version, nvidia_runtime__config=config)
    found = preflight.findings_of_rules(facts, RULES) + preflight_toolkit.findings_of_toolkit(facts, TOOLKIT)
    return [one["id"] for one in found]


def test_the_table_has_the_keys_of_nvidias_own_structs_and_no_others() -> None:
    keys = [line for line in KEYS.read_text().splitlines() if not line.startswith("#")]
    assert sorted(keys) == sorted({entry["key"] for entry in TOOLKIT})


def test_each_key_has_a_verdict_and_a_reason() -> None:
    assert {entry["verdict"] for entry in TOOLKIT} == {"harmless", "understood", "finding"}
    assert [entry["key"] for entry in TOOLKIT if not entry["reason"]] == []
    for entry in TOOLKIT:
        judged = entry["verdict"] == "finding"
        assert judged == ("id" in entry) == (bool(entry.get("path")) != ("require" in entry) and judged)


def test_the_file_as_it_is_shipped_has_no_finding(root: Path) -> None:
    assert toolkit.parse_toml(SHIPPED) == tomllib.loads(SHIPPED)
    facts = facts_of(root, SHIPPED)
    assert (facts["broken"], facts["unread"], facts["problems"]) == (None, None, {})
    assert findings(root, SHIPPED) == []
    assert findings(root, SHIPPED, "1.18.0", strict=True) == []


def test_a_board_without_the_file_has_the_defaults(root: Path) -> None:
    facts = facts_of(root, None)
    assert (facts["exists"], facts["values"], facts["keys"]) == (False, {}, [])


VALID = [
    "",
    "# a\n\n a = 1 # b\r\n",
    'a = \'x\\n\'\nb = "x\\n\\u0041\\""\n',
    "a.b.c = true\na.b.d = -17\n[x.'y z']\n\"k\" = [1, 2,\n # c\n 3,]\n",
    "a = [[1], ['x', \"y\"], []]\nb=+1_000\n",
    "[a]\nx = 1\n[a.b]\ny = 2\n[c]\n",
]


@pytest.mark.parametrize("text", VALID)
def test_toml_is_read_as_pythons_own_parser_reads_it(text: str) -> None:
    assert toolkit.parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        'a = """x"""',
        "a = '''x'''",
        "a = {b = 1}",
        "[[a]]\nb = 1",
        "a = 1.5",
        "a = inf",
        "a = 2026-01-01",
        "a = 0x10",
        "a = [1, {b = 2}]",
    ],
)
def test_toml_of_another_form_is_unread_and_not_guessed(root: Path, text: str) -> None:
    assert tomllib.loads(text)
    with pytest.raises(toolkit.Unread):
        toolkit.parse_toml(text)
    facts = facts_of(root, f"disable-require = true\n{text}\n")
    assert "line 2" in facts["unread"]
    assert (facts["values"], facts["keys"], facts["broken"]) == ({}, [], None)
    assert findings(root, text) == ["toolkit-unread"]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a =",
        "a = b",
        "= 1",
        "a = 1 b = 2",
        "a = 'x",
        'a = "x\n"',
        'a = "\\q"',
        "a = [1 2]",
        "a = [1",
        "[a",
        "[a] b = 1",
        "a = 1\na = 2",
        "[a]\n[a]",
        "a = 1\n[a]",
        "a = tru",
    ],
)
def test_a_file_that_is_no_toml_is_an_error(root: Path, text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)
    with pytest.raises(toolkit.Broken, match=r"^line \d"):
        toolkit.parse_toml(text)
    assert findings(root, text) == ["toolkit-broken"]


RUNTIME = "[nvidia-container-runtime]\n"
CLI = "[nvidia-container-cli]\n"
JIT = "[nvidia-container-runtime.modes.jit-cdi]\n"
OLD: dict[str, Any] = {"version": "1.7.0", "jetpack": "4.6.1"}


@pytest.mark.parametrize(
    ("text", "board", "expected"),
    [
        *(
            (f'{RUNTIME}mode = "{mode}"\n', {}, "toolkit-mode")
            for mode in ("cdi", "legacy", "jit-cdi", "csv ")
        ),
        (f'{RUNTIME}mode = "cdi"\n', {"container_runtime": "containerd"}, "toolkit-mode"),
        (f'{RUNTIME}runtimes = ["gone"]\n', {}, "toolkit-runtimes"),
        (f'{RUNTIME}runtimes = ["/usr/bin/gone", "other"]\n', {}, "toolkit-runtimes"),
        (f"{CLI}no-cgroups = true\n", {}, "toolkit-no-cgroups"),
        (f'{CLI}root = "/run/nvidia/driver"\n', {}, "toolkit-root"),
        (f'{CLI}root = "/etc"\n', {}, "toolkit-root"),
        (f'{CLI}ldconfig = "/sbin/ldconfig"\n', {"version": "1.18.0"}, "toolkit-ldconfig"),
        (f'{CLI}ldconfig = "@/sbin/gone"\n', OLD, "toolkit-ldconfig-absent"),
        (f'{CLI}path = "/opt/gone"\n', OLD, "toolkit-cli"),
        (f'{CLI}ldcache = "/etc/gone"\n', OLD, "toolkit-ldcache"),
        ('[nvidia-ctk]\npath = "/opt/gone"\n', {}, "toolkit-ctk"),
        ('[nvidia-container-runtime-hook]\npath = "/opt/gone"\n', OLD, "toolkit-hook"),
        (f'{RUNTIME}modes.csv.mount-spec-path = "/etc"\n', {}, "toolkit-lists"),
        (f'{JIT}nvcdi-disable-hooks = ["chmod", "update-ldcache"]\n', {"version": "1.20.0"}, "toolkit-hooks"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", {}, "toolkit-envvar"),
        ('supported-driver-capabilities = "utility"\n', OLD, "toolkit-capabilities"),
        ("disable-requires = true\n", {}, "toolkit-unknown"),
        (f'{CLI}rot = "/"\n', {}, "toolkit-unknown"),
    ],
)
def test_a_value_that_breaks_pods_is_found_alone(root: Path, text: str, board: Any, expected: str) -> None:
    assert findings(root, text, **board) == [expected]


@pytest.mark.parametrize(
    ("text", "board"),
    [
        (f'{RUNTIME}mode = "csv"\n', {}),
        # Claims do not come by NVIDIA's runtime.
        (
            f'{RUNTIME}mode = "cdi"\n',
            {
                "gpu_device_plugin_api": "dra",
                "container_runtime": "containerd",
                "bundle__k3s_version": "v1.36.2+k3s1",
            },
        ),
        (f'{RUNTIME}mode = "cdi"\n', OLD),
        (f'{RUNTIME}runtimes = ["docker-runc", "runc"]\ndebug = "/var/log/x.log"\n', {}),
        (f'{CLI}root = "/"\n', {}),
        (f'{CLI}root = ""\n', {}),
        (f'{CLI}ldconfig = "/sbin/ldconfig"\n', {}),
        (
            f'{CLI}ldconfig = "/sbin/ldconfig"\n[features]\nallow-ldconfig-from-container = true\n',
            {"version": "1.18.0"},
        ),
        (f'{CLI}path = "/opt/gone"\n', {}),
        (f'{JIT}nvcdi-disable-hooks = ["chmod"]\n', {"version": "1.20.0"}),
        ('supported-driver-capabilities = "utility"\n', {}),
        (
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
            {"strict": True, "version": "1.18.0"},
        ),
        ("disable-require = true\nswarm-resource = 'X'\n", {}),
    ],
)
def test_a_value_that_breaks_no_pod_has_no_finding(root: Path, text: str, board: Any) -> None:
    assert findings(root, text, **board) == []


def test_lines_of_strict_mode_are_the_roles_and_no_setting_of_the_owner(root: Path) -> None:
    strict = toolkit.strict_config(SHIPPED, True)
    assert findings(root, strict, "1.18.0") == []
    assert facts_of(root, strict)["values"] == tomllib.loads(SHIPPED)


def test_the_runtime_that_would_start_itself_is_found(root: Path) -> None:
    facts = facts_of(
        root, f'{RUNTIME}runtimes = ["nvidia-container-runtime", "runc"]\n', "nvidia-container-runtime"
    )
    assert "would start itself" in facts["problems"]["nvidia-container-runtime"]["runtimes"]


def test_a_finding_names_the_value_and_what_is_missing(root: Path) -> None:
    config = facts_of(root, f'{CLI}root = "/run/nvidia/driver"\n[nvidia-container-runtime]\nmode = "cdi"\n')
    facts = with_facts(nvidia_runtime__config=config)
    texts = {one["id"]: one["found"] for one in preflight.findings_of_rules(facts, RULES)}
    assert (
        "= /run/nvidia/driver in config.toml: there is no directory /run/nvidia/driver"
        in texts["toolkit-root"]
    )
    assert 'mode = "cdi"' in texts["toolkit-mode"]


def test_a_driver_below_another_root_is_good(root: Path) -> None:
    below = root / "opt/driver/usr/lib/aarch64-linux-gnu"
    below.mkdir(parents=True)
    assert findings(root, f'{CLI}root = "/opt/driver"\n') == ["toolkit-root"]
    (below / "libcuda.so.1").touch()
    assert findings(root, f'{CLI}root = "/opt/driver"\n') == []
