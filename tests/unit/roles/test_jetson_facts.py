# SPDX-License-Identifier: Apache-2.0
"""Facts about boards, from the trees of the plugin's own tests: identity, Docker, kernel, network."""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import docker_files, jetson_toolkit
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_board as board
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_kernel as kernel
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_network as firewall
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_network as network
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_services as services
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_commands import Commands
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_kept_images
from ansible_collections.jetson_k3s.cluster.plugins.modules import jetson_facts as facts
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_docker

from tests import boards
from tests.lab import staging
from tests.unit.roles.places import ROLES
from tests.unit.roles.playing import play_text
from tests.unit.roles.preflight_facts import with_facts

Tree = Callable[[Mapping[str, str]], str]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files below a root, compressed if their name says so, and returns the root."""

    def write(files: Mapping[str, str]) -> str:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            content = text.encode()
            (tmp_path / path).write_bytes(gzip.compress(content) if path.endswith("gz") else content)
        return str(tmp_path)

    return write


@pytest.mark.parametrize("board_id", sorted(boards.load()))
def test_every_board_is_recognised(tmp_path: Path, board_id: str) -> None:
    fixture = boards.load()[board_id]
    boards.build(fixture, tmp_path)
    identity = board.board_identity(str(tmp_path))
    expected = {key: fixture.data[key] for key in ("soc", "l4t", "jetpack")} | {
        "platform": "tegra",
        "model": fixture.data["dt_model"],
    }
    assert {key: identity[key] for key in expected} == expected
    # Never a wrong module: JetPack 5 trees may list several.
    assert identity["module"] in (None, fixture.data["p_number"])


@pytest.mark.parametrize(
    ("state", "release", "known"),
    [
        ("masked", True, ("tegra", "36.4.3")),  # as in a container
        ("ready", False, ("tegra", None)),
        (None, True, ("none", "36.4.3")),  # L4T's container images have the file on any machine
        (None, False, ("none", None)),
    ],
)
def test_board_and_release_are_known_by_files(
    tmp_path: Path, tree: Tree, state: boards.State | None, release: bool, known: tuple[str, str | None]
) -> None:
    if state:
        boards.build(boards.load()["orinnano-jp6"], tmp_path, state=state)
    file = tmp_path / "etc/nv_tegra_release"
    file.unlink(missing_ok=True)
    if release:
        tree({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"})
    identity = board.board_identity(str(tmp_path))
    assert (identity["platform"], identity["l4t"]) == known


@pytest.mark.parametrize(
    ("text", "error", "config"),
    [
        ("", None, {}),
        ('{"debug": true}', None, {"debug": True}),
        ('{\n "a": 1,\n}', "line 3 column 1", {}),
        ("[1]", "not a JSON object", {}),
        ('{"log-opts": {"max-size": "1", "max-size": "2"}}', "the key max-size occurs twice", {}),
    ],
)
def test_daemon_json_is_read_or_its_error_named(
    tree: Tree, text: str, error: str | None, config: dict[str, object]
) -> None:
    assert services.daemon_json(tree({})) == {"exists": False, "error": None, "config": {}}
    found = services.daemon_json(tree({"etc/docker/daemon.json": text}))
    assert (found["exists"], found["config"]) == (True, config)
    assert found["error"] is None if error is None else error in found["error"]


class FakeCommands(Commands):
    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs

    def path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.outputs else None

    def output(self, *argv: str) -> str:
        return self.outputs.get(" ".join(argv[:2]), self.outputs.get(argv[0], ""))

    def partial_output(self, *argv: str) -> str:
        assert argv[:3] == ("docker", "image", "inspect")
        return json.dumps([{"Id": one, "RepoTags": [f"name-of-{one}"]} for one in argv[3:]])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA Container Runtime version 1.19.0\ncommit: x\n", "1.19.0"),
        ("runc version 1.0.0-rc8\nspec: 1.0.1\n", "1.7.0"),
    ],
)
def test_version_of_the_runtime_is_nvidias(tree: Tree, text: str, version: str | None) -> None:
    lists = ("l4t.csv", "devices.csv", "tensorrt.csv", "cuda.csv", "cuda.csv.dpkg-old")
    root = tree(
        {
            **{facts.LISTS.replace("*.csv", name): "" for name in lists},
            "etc/nvidia-container-runtime/config.toml": '[nvidia-container-runtime]\nmode = "cdi"\n',
        }
    )
    said = {"nvidia-container-runtime": text, "dpkg-query": "1.7.0-1"}
    assert facts.nvidia_runtime_facts(FakeCommands(said), root) == {
        "path": "/usr/bin/nvidia-container-runtime",
        "version": version,
        "config": {
            "exists": True,
            "broken": None,
            "unread": None,
            "values": {"nvidia-container-runtime": {"mode": "cdi"}},
            "keys": ["nvidia-container-runtime.mode"],
            "problems": {},
        },
        "optional_lists": ["cuda.csv", "tensorrt.csv"],
    }


SHOW = """\
Id=docker.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
ExecStart={ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd --default-runtime=x ; ignore_errors=no ; pid=7 }

Id=k3s.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
"""


def test_facts_of_a_running_engine(tmp_path: Path) -> None:
    info = {"ServerVersion": "20.10.24", "Containers": 2, "DefaultRuntime": "runc"}
    said = {
        "dockerd": "",
        "docker info": json.dumps(info),
        "docker version": json.dumps(
            {
                "Version": "20.10.24",
                "ApiVersion": "1.41",
                "MinAPIVersion": "1.12",
                "Components": [{"Name": "runc", "Version": "1.1.3"}],
            }
        ),
        "docker image": "pause:3.2 sha256:aa\nregistry:5000/x:1 sha256:bb\n",
    }
    units = services.parse_units(SHOW)
    assert services.unit_state(units["k3s.service"])["installed"] is False
    found = facts.docker_facts(FakeCommands(said), str(tmp_path), units["docker.service"])
    expected: dict[str, object] = {
        "installed": True,
        "active": True,
        "enabled": True,
        "running": True,
        "version": "20.10.24",
        "containers": 2,
        "default_runtime": "runc",
        "images": {"pause:3.2": "sha256:aa", "registry:5000/x:1": "sha256:bb"},
        "contents": {},
        "flags": {"--default-runtime": "default-runtime"},
        "min_api_version": "1.12",
        "runc": "1.1.3",
    }
    assert {key: found[key] for key in expected} == expected


def test_facts_of_a_stopped_engine(tmp_path: Path) -> None:
    found = facts.docker_facts(FakeCommands({"dockerd": ""}), str(tmp_path), {})
    assert (found["installed"], found["running"], found["default_runtime"]) == (True, False, None)
    assert found["min_api_version"] is None


def test_images_of_the_containerd_store_have_their_contents(tmp_path: Path) -> None:
    info = {"ServerVersion": "28.5.2", "DriverStatus": [["driver-type", facts.CONTAINERD_STORE]]}
    commands = FakeCommands({"docker info": json.dumps(info), "docker image": "a:1 x\nb:1 x\nc:1 y\n"})
    assert sorted(facts.docker_facts(commands, str(tmp_path), {})["contents"]) == ["name-of-x", "name-of-y"]


def test_images_that_containers_keep_are_known_by_their_archive() -> None:
    assert facts.KEEPS_LABEL == docker_kept_images.LABEL
    kept = [
        {"Image": image, "Config": {"Labels": {facts.KEEPS_LABEL: archive}}}
        for archive, image in (("a.tar", "sha256:1"), ("a.tar", "sha256:2"), ("b.tar", "sha256:3"))
    ]
    commands = FakeCommands({"docker ps": "c1\nc2\nc3\n", "docker inspect": json.dumps(kept)})
    assert facts.kept_images(commands) == {"a.tar": ["sha256:1", "sha256:2"], "b.tar": ["sha256:3"]}
    assert facts.kept_images(FakeCommands({"docker ps": ""})) == {}


RAW = docker_files.RAW_DROP_IN


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"raw_drop_in": False, "proxy": False, "strict": False, "restart_due": False}),
        ({docker_files.DROP_IN: RAW}, {"raw_drop_in": True}),
        ({docker_files.DROP_IN: f"# mine\n{RAW}"}, {"raw_drop_in": None}),
        ({docker_files.PROXY_FILE: ""}, {"proxy": True}),
        ({jetson_toolkit.RUNTIME_CONFIG: jetson_toolkit.strict_config("a = 1\n", True)}, {"strict": True}),
        ({jetson_toolkit.RUNTIME_CONFIG: f"a = 1{jetson_toolkit.OURS}\n"}, {"strict": None}),
        ({docker_files.MARKER: ""}, {"restart_due": True}),
    ],
)
def test_state_of_the_files_around_docker_is_a_fact(
    tree: Tree, files: dict[str, str], expected: dict[str, bool | None]
) -> None:
    found = docker_files.file_facts(tree(files))
    assert {key: found[key] for key in expected} == expected


def test_active_k3s_is_known_by_its_hash(tmp_path: Path) -> None:
    assert services.active_binary(str(tmp_path)) is None
    program = tmp_path / "usr/local/bin/k3s-v1"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"k3s")
    (tmp_path / services.K3S_LINK).symlink_to("k3s-v1")
    expected = {"path": str(program), "sha256": hashlib.sha256(b"k3s").hexdigest()}
    assert services.active_binary(str(tmp_path)) == expected


def test_version_of_the_engine_is_that_of_its_next_start(tmp_path: Path) -> None:
    said = {
        "dockerd": "Docker version 28.4.0, build 249d679\n",
        "docker info": json.dumps({"ServerVersion": "27.5.1"}),
    }
    assert facts.docker_facts(FakeCommands(said), str(tmp_path), {})["version"] == "28.4.0"
    del said["docker info"]  # installed, and it does not start before iptables is the legacy one
    found = facts.docker_facts(FakeCommands(said), str(tmp_path), {})
    assert (found["running"], found["version"]) == (False, "28.4.0")


def test_version_of_k3s_is_read(tmp_path: Path) -> None:
    commands = FakeCommands({"k3s": "k3s version v1.25.4+k3s1 (abc)\ngo version go1.19\n"})
    assert facts.k3s_facts(commands, str(tmp_path), {})["version"] == "v1.25.4+k3s1"


@pytest.mark.parametrize(
    ("now", "file", "wanted", "then"),
    [
        (None, None, "", "/var/lib/docker"),
        ("/mnt/flag", None, "", "/mnt/flag"),
        ("/var/lib/docker", "/mnt/file", "", "/mnt/file"),
        ("/var/lib/docker", "/mnt/file", "/mnt/inventory", "/mnt/inventory"),
        (None, None, "mnt", "/mnt"),  # dockerd's working directory is /
    ],
)
def test_data_root_is_that_of_the_next_start(
    tree: Tree, now: str | None, file: str | None, wanted: str, then: str
) -> None:
    commands = FakeCommands({"docker info": json.dumps({"DockerRootDir": now} if now else {})})
    root = tree({"etc/docker/daemon.json": json.dumps({"data-root": file} if file else {})})
    assert facts.docker_facts(commands, root, {}, wanted)["data_root"] == then


def test_disk_of_the_inventorys_data_root_is_measured(tmp_path: Path) -> None:
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jetson_facts}
    - ansible.builtin.debug: {msg: "disk {{ disk.path }} {{ disk.type }}"}
      vars: {disk: "{{ ansible_facts.jetson.disks.docker }}"}
"""
    place = "/dev/shm/not/there"
    run = play_text(tmp_path, text, variables={"nvidia_docker_daemon_config": {"data-root": place}})
    assert f"disk {place} tmpfs" in run.said


@pytest.mark.parametrize(
    ("unit", "failure"),
    [
        ({"ActiveState": "inactive", "SubState": "dead", "Result": "success"}, None),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}, "failed (exit-code)"),
        (
            {"ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code"},
            "starts again and again (exit-code)",
        ),
    ],
)
def test_failed_engine_differs_from_a_stopped_one(
    tmp_path: Path, unit: dict[str, str], failure: str | None
) -> None:
    assert facts.docker_facts(FakeCommands({"dockerd": ""}), str(tmp_path), unit)["failure"] == failure


@pytest.mark.parametrize(
    ("command", "config", "flags"),
    [
        ("dockerd -H fd://", {}, []),
        ("dockerd -H fd://", {"hosts": ["fd://"]}, ["-H"]),
        ("dockerd -Hfd://", {"hosts": ["fd://"]}, ["-H"]),
        ("dockerd --default-runtime=runc", {"default-runtime": "nvidia"}, ["--default-runtime"]),
        ("dockerd --exec-opt native.cgroupdriver=systemd", {"exec-opts": []}, ["--exec-opt"]),
        # dockerd merges these two, so they are no conflict.
        ("dockerd --add-runtime nvidia=/usr/bin/nvidia-container-runtime", {"runtimes": {}}, []),
        ("dockerd --log-driver=journald", {"debug": True}, []),
    ],
)
def test_flags_that_conflict_with_daemon_json_are_named(
    command: str, config: dict[str, object], flags: list[str]
) -> None:
    docker = with_facts(docker__flags=services.daemon_flags(command.split()))["docker"]
    docker["daemon_json"]["config"] = config
    assert preflight_docker.planned(docker, {})["conflicting_flags"] == flags


def test_flags_in_the_environment_of_the_unit_count(tree: Tree) -> None:
    root = tree({"etc/default/docker": '# old\nDOCKER_OPTS="--default-runtime=x --debug"\n'})
    unit = {
        "ExecStart": "{ path=x ; argv[]=/usr/bin/dockerd -H ${WHERE} $DOCKER_OPTS ; ignore_errors=no }",
        "Environment": 'WHERE=fd:// "TWO=a b"',
        "EnvironmentFiles": "/etc/default/gone (ignore_errors=yes)\n/etc/default/docker (ignore_errors=yes)",
    }
    variables = services.environment(root, unit)
    assert variables["TWO"] == "a b"
    command_line = services.arguments(services.unit_state(unit)["command"], variables)
    assert command_line == ["/usr/bin/dockerd", "-H", "fd://", "--default-runtime=x", "--debug"]
    assert services.daemon_flags(command_line)["--default-runtime"] == "default-runtime"


KERNEL = "5.15.148-tegra"
RAW = f"lib/modules/{KERNEL}/kernel/net/iptable_raw.ko"
LISTS = {f"lib/modules/{KERNEL}/modules.{name}": "" for name in ("builtin", "dep")}
LISTED = f"lib/modules/{KERNEL}/modules.dep", "kernel/net/iptable_raw.ko{}: kernel/net/x_tables.ko\n"
UNSET, MODULE = "# CONFIG_IP_NF_RAW is not set\n", "CONFIG_IP_NF_RAW=m\n"
MISSING = f"iptable_raw.ko is missing in /lib/modules/{KERNEL}, or in its modules.dep"
CONFIG, BOOT = "proc/config.gz", f"boot/config-{KERNEL}"


def kernel_lacks(root: str) -> dict[str, str]:
    config = kernel.kernel_config(root, KERNEL)
    lacking: dict[str, str] = kernel.kernel_lacks(root, KERNEL, config)
    return lacking


@pytest.mark.parametrize(
    ("files", "why"),
    [
        # Built in, loaded, or a file that modprobe finds.
        ({CONFIG: "CONFIG_IP_NF_RAW=y\n"}, None),
        ({CONFIG: UNSET, "proc/modules": "iptable_raw 16384 0 - Live 0x0\n"}, None),
        ({**LISTS, f"lib/modules/{KERNEL}/modules.builtin": "kernel/net/iptable_raw.ko\n"}, None),
        *(
            ({**LISTS, CONFIG: MODULE, LISTED[0]: LISTED[1].format(packed), RAW + packed: ""}, None)
            for packed in ("", ".gz", ".xz", ".zst")
        ),
        # Built by the owner, beside JetPack's kernel.
        ({**LISTS, CONFIG: UNSET, LISTED[0]: LISTED[1].format(""), RAW: ""}, None),
        # Neither configuration nor modules tell.
        ({}, None),
        ({BOOT: UNSET}, "CONFIG_IP_NF_RAW is not set (module iptable_raw)"),
        (
            {**LISTS, BOOT: MODULE, LISTED[0]: LISTED[1].format("")},
            f"CONFIG_IP_NF_RAW is m, but {MISSING}",
        ),
        (
            {CONFIG: MODULE, "lib/modules/5.15.136-tegra/modules.dep": LISTED[1].format("")},
            f"CONFIG_IP_NF_RAW is m, but iptable_raw.ko is missing: there is no /lib/modules/{KERNEL}, "
            "only that of 5.15.136-tegra",
        ),
        (
            LISTS,
            f"{MISSING} (CONFIG_IP_NF_RAW; the kernel does not show its configuration)",
        ),
    ],
)
def test_missing_kernel_feature_has_its_reason(tree: Tree, files: dict[str, str], why: str | None) -> None:
    assert kernel_lacks(tree(files)).get("iptable_raw") == why


def test_missing_directory_of_all_modules_is_told_with_its_features(tree: Tree) -> None:
    root = tree(
        {CONFIG: MODULE + "CONFIG_VXLAN=m\n# CONFIG_VETH is not set\n", "lib/modules/5.15.136-tegra/x": ""}
    )
    config, lacks = kernel.kernel_config(root, KERNEL), kernel_lacks(root)
    told = kernel.missing_modules(root, KERNEL, config, lacks)
    assert told is not None
    assert (told["path"], told["kernels"]) == (f"/lib/modules/{KERNEL}", ["5.15.136-tegra"])
    assert told["features"] == ["iptable_raw", "vxlan"]
    assert "veth" in lacks
    assert kernel.missing_modules(root, "5.15.136-tegra", config, lacks) is None


def test_option_without_a_module_and_the_older_name_of_masquerade_are_known(tree: Tree) -> None:
    option = "CONFIG_NF_TABLES_IPV4"
    found = kernel_lacks(tree({CONFIG: f"# {option} is not set\nCONFIG_IP_NF_TARGET_MASQUERADE=y\n"}))
    assert found["nf_tables_ipv4"] == f"{option} is not set"
    assert "masquerade" not in found


def test_a_long_list_of_modules_is_read_to_its_end(tree: Tree) -> None:
    many = "".join(f"kernel/drivers/net/some_module_{number}.ko:\n" for number in range(40_000))
    assert len(many) > 1 << 20
    assert "iptable_raw" not in kernel_lacks(tree({**LISTS, LISTED[0]: many + LISTED[1].format(""), RAW: ""}))


def test_damaged_kernel_configuration_is_ignored(tmp_path: Path, tree: Tree) -> None:
    root = tree({BOOT: UNSET})
    (tmp_path / "proc").mkdir()
    (tmp_path / CONFIG).write_bytes(gzip.compress(b"CONFIG_IP_NF_RAW=y")[:-9])
    assert "iptable_raw" in kernel_lacks(root)


EXTLINUX = "boot/extlinux/extlinux.conf"
VERSION_1 = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" + "".join(
    f"{name}\t{number}\t1\t1\n" for number, name in enumerate(("cpu", "cpuset", "memory", "pids"), 1)
)
WITHOUT_MEMORY = VERSION_1.replace("memory\t3\t1\t1", "memory\t0\t1\t0")
VERSION_2 = "sys/fs/cgroup/cgroup.controllers"
DISABLED = "cgroup_disable=memory is on the kernel's command line"


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ({VERSION_2: "cpuset cpu io memory pids"}, {}),
        ({"proc/cgroups": VERSION_1}, {}),
        (
            {"proc/cgroups": WITHOUT_MEMORY, "proc/cmdline": "quiet cgroup_disable=memory,io\n"},
            {"memory": DISABLED},
        ),
        (
            {
                "proc/cgroups": WITHOUT_MEMORY,
                "proc/cmdline": "cgroup_disable=memory",
                EXTLINUX: "LABEL a\nAPPEND quiet\n",
            },
            {"memory": f"{DISABLED}, and no longer in /boot/extlinux/extlinux.conf"},
        ),
        (
            {VERSION_2: "cpuset cpu memory", CONFIG: "CONFIG_MEMCG=y\n"},
            {"pids": "CONFIG_CGROUP_PIDS is not set"},
        ),
        ({VERSION_2: "cpuset cpu memory"}, {"pids": "the kernel does not offer it"}),
    ],
)
def test_missing_cgroup_controller_has_its_reason(
    tree: Tree, files: dict[str, str], lacking: dict[str, str]
) -> None:
    root = tree(files)
    assert kernel.cgroup_lacks(root, kernel.kernel_config(root, KERNEL)) == lacking


UNIFIED = "systemd.unified_cgroup_hierarchy=1"
BOOTS = (
    "TIMEOUT 30\nDEFAULT {}\nLABEL primary\n\tMENU LABEL primary kernel\n\tAPPEND\t${{cbootargs}} quiet {}\n"
    "# LABEL backup\n#   APPEND x\nlabel old\n      append quiet cgroup_disable=memory\n"
)


@pytest.mark.parametrize(
    ("running", "boots", "changes"),
    [
        ("quiet console=ttyTCS0", None, None),
        ("console=ttyTCS0 quiet", BOOTS.format("primary", ""), None),
        (f"quiet {UNIFIED}", BOOTS.format("primary", UNIFIED), None),
        # Set, and not rebooted. Lost at the next boot.
        ("quiet", BOOTS.format("primary", UNIFIED), f"has in addition {UNIFIED}"),
        (f"quiet {UNIFIED}", BOOTS.format("primary", ""), f"lacks {UNIFIED}"),
        (UNIFIED, BOOTS.format("old", ""), f"has in addition cgroup_disable=memory and lacks {UNIFIED}"),
        (UNIFIED, BOOTS.format("gone", ""), f"lacks {UNIFIED}"),  # the boot loader takes the first label
    ],
)
def test_kernel_arguments_of_the_next_boot_are_compared(
    tree: Tree, running: str, boots: str | None, changes: str | None
) -> None:
    files = {"proc/cmdline": running} | ({EXTLINUX: boots} if boots else {})
    assert kernel.boot_arguments(tree(files)) == changes


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "overlay"), ("/var/lib/docker/x", "ext4"), ("/var/lib/dockers", "overlay"), ("/data", "xfs")],
)
def test_file_system_of_a_directory_is_the_last_mount(tree: Tree, path: str, kind: str) -> None:
    mounts = (
        "/dev/root / ext4 ro 0 0\noverlayroot / overlay rw 0 0\n/dev/nvme0n1p1 /var/lib/docker ext4 rw 0 0\n"
        "tmpfs /data tmpfs rw 0 0\n/dev/nvme0n1p2 /data xfs rw 0 0\n"
    )
    assert board.filesystem_type(tree({"proc/mounts": mounts}), path) == kind


def test_virtual_board_is_known_by_the_files_of_the_lab(tree: Tree) -> None:
    assert board.simulated(tree({})) is False
    assert board.simulated(tree({f"{staging.TREE}/proc/meminfo": ""})) is True


def test_all_swap_is_counted(tree: Tree) -> None:
    swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 1024 0 5\n/swapfile file 2048 0 -2\n"
    assert board.swap_bytes(tree({"proc/swaps": swaps})) == 3 * 1024**2


@pytest.mark.parametrize(
    ("paths", "instances"),
    [
        ([], 0),
        (["mig/config", "gpu0/mig/config"], 0),
        (["gpu0/mig/gi1/access", "gpu0/mig/gi2/access"], 2),
    ],
)
def test_mig_instances_are_counted(tree: Tree, paths: list[str], instances: int) -> None:
    root = tree({f"proc/driver/nvidia/capabilities/{path}": "" for path in paths})
    assert board.mig_instances(root) == instances


def test_mig_instances_of_a_card_are_not_the_boards(tree: Tree) -> None:
    driver = "proc/driver/nvidia"
    root = tree(
        {
            f"{driver}/gpus/0000:01:00.0/information": "Device Minor: \t 0\n",
            f"{driver}/gpus/0005:01:00.0/information": "Device Minor: \t 1\n",
            f"{driver}/capabilities/gpu0/mig/gi1/access": "",
            f"{driver}/capabilities/gpu1/mig/gi1/access": "",
            f"{driver}/capabilities/gpu1/mig/gi2/access": "",
        }
    )
    assert board.mig_instances(root) == 1


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("NV Power Mode: MODE_15W_6CORE\n2\n", {"id": 2, "name": "MODE_15W_6CORE"}),
        ("NV Fan Mode:quiet\nNV Power Mode: MAXN\n0\n", {"id": 0, "name": "MAXN"}),
        ("", {"id": None, "name": None}),
    ],
)
def test_power_mode_is_read_from_nvpmodel(text: str, mode: dict[str, object]) -> None:
    assert board.power_mode(text) == mode


def test_newest_jetson_stats_of_the_system_counts(tmp_path: Path) -> None:
    for path in (
        "usr/lib/python3/dist-packages/jetson_stats-4.2.12.egg-info",
        "usr/local/lib/python3.10/dist-packages/jetson_stats-4.3.2.dist-info",
    ):
        (tmp_path / path).mkdir(parents=True)
    found = services.jtop_facts(str(tmp_path), {"ActiveState": "active", "LoadState": "loaded"})
    assert (found["version"], found["active"], found["program"]) == ("4.3.2", True, None)
    assert services.jtop_facts(str(tmp_path / "empty"), {})["version"] is None


@pytest.mark.parametrize("owner", ["role", "owner"])
def test_jtop_that_pip_has_installed_is_not_the_roles(tree: Tree, owner: str) -> None:
    of_pip = "#!/usr/bin/python3\n# -*- coding: utf-8 -*-\nfrom jtop.__main__ import main\n"
    template = (ROLES / "jtop/templates/jtop.j2").read_text()
    root = tree({"usr/local/bin/jtop": {"role": template, "owner": of_pip}[owner]})
    assert services.jtop_facts(root, {})["program"] == owner


def test_flag_of_k3s_overrides_the_last_file(tree: Tree) -> None:
    assert set(services.k3s_settings(services.k3s_files(tree({})), None).values()) == {None}
    texts = {"": "# node-name: a\nnode-name: 'b'\n", ".d/60-site.yml": "node-name: c # d\ntoken: planted\n"}
    files = services.k3s_files(
        tree({f"etc/rancher/k3s/config.yaml{name}": text for name, text in texts.items()})
    )
    assert list(files) == ["config.yaml", "config.yaml.d/60-site.yml"]
    assert "planted" not in str(files)
    assert services.k3s_settings(files, "/usr/local/bin/k3s server")["node-name"] == "c"
    command = "/usr/local/bin/k3s server --docker --node-name e {}/mnt"
    for flag in ("--data-dir=", "--data-dir ", "-data-dir ", "-d ", "-d="):
        assert services.k3s_settings(files, command.format(flag)) == {"data-dir": "/mnt", "node-name": "e"}


@pytest.mark.parametrize(
    ("files", "etcd", "kept"),
    [
        ({}, False, None),
        ({"db/state.db": ""}, False, None),
        ({"db/etcd/member/wal": ""}, True, None),
        ({"../restore.json": '{"kept": "/var/lib/rancher/k3s/server.before-1"}'}, False, "server.before-1"),
        ({"../restore.json": '{"kept": null}'}, False, ""),
        ({"../restore.json": "cut o"}, False, ""),
        ({"../restore.json": "[1]"}, False, ""),
    ],
)
def test_data_of_a_server_are_known(tree: Tree, files: dict[str, str], etcd: bool, kept: str | None) -> None:
    root = tree({f"var/lib/rancher/k3s/server/{name}": text for name, text in files.items()} | {"x": ""})
    assert services.on_etcd(root) is etcd
    found = services.unfinished_restore(root)
    assert (found is None) is (kept is None)
    assert (found or "").endswith(kept or "")


FULL = f"K10{'0' * 64}::"
OWN_FILE = "../../../../../etc/rancher/k3s/jetson-k3s.agent-token"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({OWN_FILE: "b\n"}, None),
        ({"token": f"{FULL}server:a\n", "agent-token": f"{FULL}server:a\n"}, "servers"),
        ({"token": f"{FULL}server:a\n", "agent-token": f"{FULL}node:b\n"}, "own"),
        # Old releases of K3s write no agent-token.
        ({"token": f"{FULL}server:a\n"}, "servers"),
        ({"token": f"{FULL}server:a\n", OWN_FILE: "b\n"}, "own"),
    ],
)
def test_token_of_agents_is_known_and_not_told(tree: Tree, files: dict[str, str], found: str | None) -> None:
    root = tree({f"var/lib/rancher/k3s/server/{name}": text for name, text in files.items()} | {"x": ""})
    assert services.agents_join_with(root) == found


def test_global_addresses_are_listed_with_their_interface() -> None:
    text = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        "4: eth0    inet 192.168.1.11/24 brd 192.168.1.255 scope global eth0\\       valid_lft forever\n"
        "4: eth0    inet6 fd00::2/64 scope global nodad \\       valid_lft forever\n"
        "4: eth0    inet6 fe80::1/64 scope link \\       valid_lft forever\n"
        "9: wwan0    inet 10.64.3.7/30 scope global noprefixroute wwan0\\       valid_lft forever\n"
    )
    assert [tuple(one.values()) for one in network.addresses(text)] == [
        ("eth0", "192.168.1.11/24"),
        ("eth0", "fd00::2/64"),
        ("wwan0", "10.64.3.7/30"),
    ]


ROUTE = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
DEFAULT = "eth0 00000000 0105A8C0 0003 0 0 100 00000000 0 0 0\n"
LTE = "wwan0 00000000 00000000 0001 0 0 700 00000000 0 0 0\n"
LAN = "eth0 0005A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n"
BLACKHOLE = "* 00002A0A 00000000 0200 0 0 0 0000FFFF 0 0 0\n"
ZERO, ONE = "0" * 32, "fe80" + "0" * 27 + "1"
IPV6 = (
    f"{ZERO} 00 {ZERO} 00 {ONE} 00000400 00000001 00000000 00000003 wlan0\n"
    f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200 lo\n"
    f"fe80{'0' * 28} 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001 eth0\n"
)


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "devices", "networks"),
    [
        (DEFAULT + LAN, "", ["eth0"], ["0.0.0.0/0", "192.168.5.0/24"]),
        (LAN + LTE + DEFAULT, "", ["wwan0", "eth0"], ["192.168.5.0/24", "0.0.0.0/0", "0.0.0.0/0"]),
        (LAN + BLACKHOLE, "", [], ["192.168.5.0/24"]),
        ("", IPV6, ["wlan0"], ["::/0"]),
        ("", "", [], []),
    ],
    ids=["one", "two", "none", "IPv6", "no network"],
)
def test_routes_and_default_interfaces_are_read(
    tree: Tree, ipv4: str, ipv6: str, devices: list[str], networks: list[str]
) -> None:
    routes = network.routes(tree({"proc/net/route": ROUTE + ipv4, "proc/net/ipv6_route": ipv6}))
    assert network.default_devices(routes) == devices
    assert [route["to"] for route in routes] == networks
    assert {"192.168.5.1", "fe80::1", None} >= {route["gateway"] for route in routes}


def test_address_towards_a_server_is_none_of_the_board_alone() -> None:
    assert network.source_address("127.0.0.1") is None
    assert network.source_address("a" * 64) is None


OURS = "config.yaml.d/50-jetson-k3s.yaml"


@pytest.mark.parametrize(
    ("files", "command", "owner", "role"),
    [
        ({}, None, [], None),
        ({"config.yaml.d/9.yaml": "flannel-iface: eth1\n# node-ip: x\n"}, None, ["flannel-iface"], None),
        (
            {"config.yaml": "node-ip:\n  - 10.0.0.1\n"},
            "k3s agent --vpn-auth=x",
            ["node-ip", "vpn-auth"],
            None,
        ),
        *((({}, f"k3s agent --docker {flag}", ["node-ip"], None)) for flag in ("-i 10.0.0.1", "-i=10.0.0.1")),
        ({}, "k3s agent -flannel-iface eth1", ["flannel-iface"], None),
        ({"config.yaml": "i: 10.0.0.1\n"}, None, ["node-ip"], None),
        ({"config.yaml": '{"docker": true, "node-ip": ["10.0.0.1"]}\n'}, None, ["node-ip"], None),
        ({"config.yaml.d/9.YML": "node-ip+: 10.0.0.1\n"}, None, ["node-ip"], None),
        ({"../../default/k3s-agent": "K3S_VPN_AUTH=name=x\n"}, None, ["vpn-auth"], None),
        ({"config.yaml": "tls-san: [node-ip, i]\n"}, "k3s server --tls-san node-ip", [], None),
        ({OURS: f"{network.CHOSEN}\nnode-ip: 10.0.0.1\n"}, None, [], "10.0.0.1"),
        ({OURS: "node-ip: 10.0.0.1\n"}, None, [], None),
    ],
)
def test_owner_of_the_nodes_address_is_known(
    tree: Tree, files: dict[str, str], command: str | None, owner: list[str], role: str | None
) -> None:
    root = tree({f"etc/rancher/k3s/{name}": text for name, text in files.items()})
    given = services.k3s_files(root), services.k3s_environment(root, {})
    assert network.node_ip(root, *given, command) == {"owner": owner, "role": role}


ON = {"etc/ufw/ufw.conf": "ENABLED=yes\n", "etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"\n'}
UFW_RULES = """\
### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### allow tcp 6443,10250 0.0.0.0/0 any 192.168.1.0/24 in
### tuple ### allow any 8472 0.0.0.0/0 any 0.0.0.0/0 in comment=ab
### tuple ### allow any any 0.0.0.0/0 any 10.42.0.0/16 in
### tuple ### allow any any 0.0.0.0/0 any 0.0.0.0/0 in_eth1
### tuple ### deny tcp 2379:2380 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### route:allow any any 0.0.0.0/0 any 10.9.0.0/16 in
"""


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        ({}, None),
        ({"etc/ufw/ufw.conf": "ENABLED=no\n"}, None),
        (ON, []),
        (ON | {"etc/default/ufw": "DEFAULT_INPUT_POLICY=ACCEPT\n"}, ["everything"]),
        (
            ON | {"etc/ufw/user.rules": UFW_RULES},
            ["10.42.0.0/16", "10250/tcp", "22/tcp", "6443/tcp", "8472/tcp", "8472/udp", "interface eth1"],
        ),
    ],
)
def test_ufw_rules_are_read(tree: Tree, files: dict[str, str], opened: list[str] | None) -> None:
    assert firewall.ufw(tree(files)) == opened


ZONES = """\
public (active)
  target: default
  interfaces: eth0
  sources:
  services: ssh
  ports: 6443/tcp 2379-2380/tcp
  forward-ports:
  rich rules:
\trule family="ipv4" source address="192.168.1.0/24" port port="8472" protocol="udp" accept

trusted
  target: ACCEPT
  interfaces:
  sources: 10.42.0.0/16 10.43.0.0/16
  ports:
"""


def test_firewalld_rules_are_read() -> None:
    said = {("firewall-cmd", "--list-all-zones"): ZONES}
    found: dict[str, Any] = firewall.firewalls("/nonexistent", True, lambda *argv: said[argv])
    opened = ["10.42.0.0/16", "10.43.0.0/16", "2379-2380/tcp", "6443/tcp", "8472/udp"]
    assert found == {"ufw": None, "firewalld": opened}
    assert firewall.firewalls("/nonexistent", False, lambda *argv: said[argv])["firewalld"] is None
