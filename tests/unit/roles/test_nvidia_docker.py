# SPDX-License-Identifier: Apache-2.0
"""Docker on a board: its daemon.json, strict mode, and the variant of iptables that its kernel supports."""

import json
import os
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import docker_files, jetson_toolkit
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_iptables as iptables
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_daemon_config as daemon_config
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_environment as environment
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_kept_images as kept_images
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_reset
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight

from tests.planted import PLANTED, leaked
from tests.unit.roles.places import Data
from tests.unit.roles.playing import answer, run_module
from tests.unit.roles.preflight_facts import RULES, with_facts

PATH = "/usr/bin/nvidia-container-runtime"
WANTED: Data = {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": PATH, "runtimeArgs": []}}}


def test_unknown_keys_features_and_other_runtimes_are_kept() -> None:
    before: Data = {
        "features": {"buildkit": True, "containerd-snapshotter": False},
        "registry-mirrors": ["https://mirror.example"],
        "runtimes": {"kata": {"path": "/usr/bin/kata", "runtimeArgs": ["--x"]}},
        "of-a-newer-docker": {"a": [1]},
    }
    runtimes = {**before["runtimes"], **WANTED["runtimes"]}
    after = daemon_config.merge_config(before, WANTED)
    assert after == {**before, "default-runtime": "nvidia", "runtimes": runtimes}


LOGS: Data = {"log-driver": "json-file", "log-opts": {"max-size": "10m"}}


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ({}, {**LOGS, **WANTED}),
        ({"log-driver": "journald"}, WANTED),
        ({"log-opts": {"max-size": "1g"}}, WANTED),
    ],
)
def test_log_defaults_yield_to_the_owners(before: Data, written: Data) -> None:
    assert daemon_config.with_defaults(WANTED, LOGS, before) == written


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": PATH},
        {"path": "/opt/nvidia-container-runtime"},
        {"path": "nvidia-container-runtime", "args": []},
        {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": PATH}},
    ],
)
def test_equivalent_runtime_is_left_alone(runtime: Data) -> None:
    before = {"default-runtime": "nvidia", "runtimes": {"nvidia": runtime}}
    assert daemon_config.merge_config(before, WANTED) == before


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": PATH, "args": ["--debug"]},
        {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/runc"}},
        "odd",
    ],
)
def test_another_runtime_of_that_name_is_replaced(runtime: Any) -> None:
    after = daemon_config.merge_config({"runtimes": {"nvidia": runtime}}, WANTED)
    assert after["runtimes"]["nvidia"] == {"path": PATH, "runtimeArgs": []}


@pytest.mark.parametrize("before", [{}, {"path": PATH, "args": []}, {"runtimeType": "io.containerd.runc.v1"}])
def test_runtime_that_the_inventory_names_by_its_shim_has_no_path_beside_it(before: Data) -> None:
    shim = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": PATH}}
    wanted = {"runtimes": {"nvidia": {**WANTED["runtimes"]["nvidia"], **shim}}}  # merged with the role's own
    assert daemon_config.merge_config({"runtimes": {"nvidia": before}}, wanted) == {
        "runtimes": {"nvidia": shim}
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"debug": True}, {"debug": True}, "none"),
        ({}, WANTED, "reload"),
        ({"live-restore": False}, {"live-restore": True}, "reload"),
        ({}, {"data-root": "/mnt"}, "restart"),
        ({"debug": True, "exec-opts": ["a"]}, {"debug": False}, "restart"),
        (WANTED, {}, "restart"),
        ({"features": {"buildkit": True}}, {"features": {"buildkit": False}}, "reload"),
        ({}, {"features": {"containerd-snapshotter": False}}, "restart"),
        ({"debug": True, **WANTED}, {"debug": True}, "restart"),
        ({"runtimes": {"kata": {}, **WANTED["runtimes"]}}, {"runtimes": {"kata": {}}}, "reload"),
    ],
)
def test_activation_depends_on_the_changed_keys(before: Data, after: Data, expected: str) -> None:
    assert daemon_config.activation(before, after) == expected


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_file_is_an_empty_configuration(text: str) -> None:
    assert daemon_config.parse(text, "daemon.json") == {}


@pytest.mark.parametrize(
    ("text", "found"), [('{\n"a": 1\n"b": 2}', "line 3 column 1"), ("[]", "JSON object")]
)
def test_damaged_file_is_refused_with_the_place(text: str, found: str) -> None:
    with pytest.raises(daemon_config.ConfigError, match=f"daemon.json .*{found}"):
        daemon_config.parse(text, "/etc/docker/daemon.json")


@pytest.mark.parametrize(
    "before",
    [
        {"runtimes": {}},
        {"runtimes": {"kata": {"path": "/usr/bin/kata"}}, "default-runtime": "kata"},
        {"runtimes": {"nvidia": {"path": "/opt/other"}}, "features": {"buildkit": True}},
        {
            "default-runtime": "nvidia",
            "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
        },
    ],
)
def test_removal_restores_the_owners_settings(before: Data) -> None:
    assert daemon_config.unmerge(daemon_config.merge_config(before, WANTED), WANTED, before) == before


def test_removal_keeps_settings_that_were_changed_since() -> None:
    merged = daemon_config.merge_config({"debug": True}, WANTED)
    since = {"default-runtime": "runc", "debug": False, "mtu": 1400}
    assert daemon_config.unmerge({**merged, **since}, WANTED, {"debug": True}) == since


@pytest.mark.parametrize(
    ("code", "said", "refused"),
    [
        (0, "configuration OK", False),
        (125, "unknown flag: --validate", False),
        (1, "keys don't match any configuration option: mtuu", True),
    ],
)
def test_refused_configuration_is_not_written(tmp_path: Path, code: int, said: str, refused: bool) -> None:
    fake = SimpleNamespace(
        tmpdir=str(tmp_path),
        get_bin_path=lambda name, opt_dirs: f"{opt_dirs[0]}/{name}",
        run_command=lambda argv: (code, "", said + Path(argv[-1]).read_text()),
    )
    with pytest.raises(daemon_config.ConfigError, match=said) if refused else nullcontext():
        daemon_config.validate(fake, "{}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", [False, True])
def test_password_of_a_proxy_is_in_no_diff_result_or_log(tmp_path: Path, fails: bool) -> None:
    path, proxy = tmp_path / "daemon.json", f"http://me:{PLANTED['proxy']}@proxy.example"
    path.write_text("{," if fails else json.dumps({"proxies": {"https-proxy": proxy}}))
    places = {name: str(tmp_path / name) for name in ("record", "marker")}
    wanted = {"debug": True, "default-runtime": "nvidia", "proxies": {"http-proxy": proxy}}
    asked = {"path": str(path), "config": wanted, "_ansible_diff": True, **places}
    ran = run_module("docker_daemon_config", asked)
    assert leaked(ran.stdout + ran.stderr) == []
    result = json.loads(ran.stdout)
    assert result.get("failed", False) is fails
    assert result["invocation"]["module_args"]["config"]["default-runtime"] == "nvidia"
    if not fails:
        assert result["default_runtime"] == "nvidia"
        assert '"debug": true' in result["diff"]["after"]
        assert path.read_text().count(PLANTED["proxy"]) == 2


def test_ansible_hides_the_secrets_of_a_configuration_alone() -> None:
    proxy = f"http://me:{PLANTED['proxy']}@proxy.example"
    options = {"splunk-token": PLANTED["proxy"], "splunk-url": "https://splunk.example"}
    config = {"default-runtime": "nvidia", "proxies": {"http-proxy": proxy}, "log-opts": options}
    assert daemon_config.secrets({"path": "/x", "config": config}) == {proxy, PLANTED["proxy"]}


@pytest.mark.parametrize(
    ("config", "needs", "postponed"),
    [
        ({"icc": False}, "restart", True),
        pytest.param({"debug": True}, "reload", False, marks=pytest.mark.acceptance),
        pytest.param({}, "none", False, marks=pytest.mark.acceptance),
    ],
)
def test_restart_can_be_postponed(tmp_path: Path, config: Data, needs: str, postponed: bool) -> None:
    path, marker = tmp_path / "daemon.json", tmp_path / "due"
    path.write_text("{}\n")
    asked = {"path": str(path), "config": config, "marker": str(marker), "record": str(tmp_path / "record")}

    def run(**changed: object) -> Any:
        return answer("docker_daemon_config", asked | changed)

    result = run(postpone=True)
    assert (result["activation"], result["postponed"]) == (needs, postponed)
    assert result["changed"] is (bool(config) and not postponed)
    assert (json.loads(path.read_text()) == config) is not postponed
    assert not marker.exists()
    again = run(postpone=False)
    assert (again["changed"], json.loads(path.read_text())) == (postponed, config)
    assert marker.exists() is postponed
    if postponed:
        assert Path(again["backup_file"]).read_text() == "{}\n"


FAILS = "iptables-legacy, table raw: no"
TOML = """\
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []
"""


def planned(root: Path, raw: str | None = None, **changes: Any) -> tuple[list[Any], dict[str, str]]:
    params = {"docker_version": "28.4.0", "strict": False, "proxy": "", "state": "present"} | changes
    result: tuple[list[Any], dict[str, str]] = environment.plan(
        str(root), params, {"iptables": {"choose": None, "raw": raw}}
    )
    return result


@pytest.mark.parametrize(
    ("raw", "version", "needed"),
    [(FAILS, "28.0.2", True), (FAILS, "27.5.1", False), (FAILS, None, False), (None, "28.4.0", False)],
)
def test_docker_28_needs_a_drop_in_without_table_raw(
    raw: str | None, version: str | None, needed: bool
) -> None:
    assert docker_files.needs_raw_drop_in(raw, version) is needed


def test_docker_28_0_1_is_refused_with_two_alternatives() -> None:
    with pytest.raises(
        docker_files.EnvironmentProblem, match=r"table raw: no.*28\.0\.2 or newer, or 27\.5\.1"
    ):
        docker_files.needs_raw_drop_in(FAILS, "28.0.1")


def test_drop_in_is_written_once_restarts_docker_and_goes_on_removal(tmp_path: Path) -> None:
    ((path, before, after, restarts),), choices = planned(tmp_path, FAILS)
    assert (before, after, restarts, choices) == ("", docker_files.RAW_DROP_IN, True, {})
    environment.put(str(tmp_path / path), after)
    assert planned(tmp_path, FAILS) == ([], {})
    params = {"docker_version": "28.4.0", "strict": False, "proxy": "", "state": "present"}
    assert environment.plan(str(tmp_path), params, {}) == ([], {}), "not tried: the file stays"
    ((_, _, after, restarts),), _ = planned(tmp_path, FAILS, state="absent")
    assert (after, restarts) == ("", True)
    environment.put(str(tmp_path / path), after)
    assert not (tmp_path / path).exists()


def test_file_behind_a_link_is_written_by_ansibles_own_move(tmp_path: Path) -> None:
    kept = tmp_path / "kept.toml"
    kept.write_text("a = 1\n")
    (tmp_path / "config.toml").symlink_to(kept)
    environment.put(str(tmp_path / "config.toml"), "b = 1\n", os.replace)
    assert (tmp_path / "config.toml").is_symlink()
    assert kept.read_text() == "b = 1\n"


@pytest.mark.parametrize(
    "text", ["", TOML, "accept-nvidia-visible-devices-as-volume-mounts = false\n[a]\nb = 1\n"]
)
def test_strict_mode_is_reversible_and_written_once(text: str) -> None:
    strict = jetson_toolkit.strict_config(text, True)
    assert jetson_toolkit.strict_config(strict, True) == strict
    assert jetson_toolkit.strict_config(strict, False) == text


def test_strict_mode_restarts_nothing(tmp_path: Path) -> None:
    ((path, _, _, restarts),), choices = planned(tmp_path, strict=True)
    assert (path, restarts, choices) == (jetson_toolkit.RUNTIME_CONFIG, False, {})


def test_runtime_reads_the_options_of_strict_mode() -> None:
    before = "accept-nvidia-visible-devices-as-volume-mounts = false\n" + TOML
    read = tomllib.loads(jetson_toolkit.strict_config(before, True))
    assert read["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    assert read["accept-nvidia-visible-devices-as-volume-mounts"] is True
    assert read["disable-require"] is False
    assert read["nvidia-container-cli"] == {"environment": []}


@pytest.mark.parametrize(
    ("images", "holders", "missing", "outdated"),
    [
        ({"pause:3.2": "sha256:a"}, [], ["pause:3.2"], []),
        ({"pause:3.2": "sha256:a"}, [("c1", "sha256:a")], [], []),
        ({"plugin:2": "sha256:b"}, [("c1", "sha256:a")], ["plugin:2"], ["c1"]),
        ({}, [("c1", "sha256:a")], [], ["c1"]),
        ({"b": "sha256:b", "a": None}, [], ["a", "b"], []),
    ],
    ids=["first", "kept", "newer", "none", "several"],
)
def test_each_image_has_one_container(
    images: dict[str, str | None], holders: list[tuple[str, str]], missing: list[str], outdated: list[str]
) -> None:
    assert kept_images.plan(images, holders) == (missing, outdated)


# SIMULATED: an engine of the containerd store, where the id of an image is the digest of its manifest.
DOCKER = """\
#!/bin/sh
case "$1 $2" in
"image inspect") echo sha256:of-the-manifest ;;
"ps --all") echo c1 ;;
"inspect c1") echo '[{"Id": "c1", "Image": "sha256:of-the-manifest"}]' ;;
*) exit 1 ;;
esac
"""


def test_container_of_an_image_with_the_id_of_its_manifest_stays(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    asked = {"name": "x.tar.gz", "images": ["a:1"]}
    found = answer("docker_kept_images", asked, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (found["changed"], found["kept"]) == (False, [])


def test_reset_removes_the_containers_that_keep_images() -> None:
    assert k3s_reset.KEEPER_LABEL == kept_images.LABEL


ALL = "filter nat raw"
VERSIONS = {"nft": "iptables v1.8.7 (nf_tables)\n", "legacy": "iptables v1.8.7 (legacy)\n"}


class Board:
    """An AnsibleModule on a board whose kernel works with some tables of some variants of iptables."""

    def __init__(self, root: Path, works: dict[str, str], chosen: dict[str, str]) -> None:
        self.root, self.works = root, works
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
    params = {"docker_version": "28.4.0", "strict": False, "proxy": "", "state": "present"}
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
            ([docker_files.DROP_IN], LEGACY),
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
            ([docker_files.DROP_IN], {}),
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
        pytest.param({}, NFT_ONLY, {"iptables"}, ([docker_files.DROP_IN], {}), id="neither works"),
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
def test_preflight_and_role_choose_the_same_variant(
    tmp_path: Path,
    works: dict[str, str],
    chosen: dict[str, str],
    findings: set[str],
    does: tuple[list[str], dict[str, str]],
) -> None:
    board = Board(tmp_path, works, chosen)
    assert found(board, {}).keys() == findings
    assert done(board) == does


def test_finding_names_the_table_and_the_missing_feature(tmp_path: Path) -> None:
    board = Board(tmp_path, {"iptables-nft": "raw"}, NFT_ONLY)
    lacking = {"nft_compat": "CONFIG_NFT_COMPAT is not set", "iptable_nat": "no iptable_nat.ko"}
    text = found(board, lacking)["iptables"]
    for part in (
        "iptables-nft, table nat: iptables v1.8.7: no table `nat'; CONFIG_NFT_COMPAT is not set",
        "iptables-legacy, table nat: iptables v1.8.7: no table `nat'; no iptable_nat.ko",
    ):
        assert part in text


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
    assert done(board) == ([docker_files.DROP_IN], {})


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
def test_backend_of_iptables(text: str, facts: Data) -> None:
    assert iptables.version_facts(text) == facts
