# SPDX-License-Identifier: Apache-2.0
"""A board whose owner has settings of his own, and an owner who chooses the tokens."""

import json
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_here, run_playbook
from tests.acceptance.site import build_deb
from tests.lab import inventory, lab, staging
from tests.lab.board import Board, boot_id, simulate_power, start
from tests.planted import PLANTED, leaked, watched
from tools.cache import CHECKOUT
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "own-settings"
TOKEN, AGENT_TOKEN = PLANTED["token"], PLANTED["agent-token"]
# Docker of the lab is older than the key `proxies`.
PROXY = f"""[Service]
Environment=HTTPS_PROXY=http://somebody:{PLANTED["proxy"]}@proxy.example:3128
"""
TOKENS = f"k3s_token: {TOKEN}\nk3s_agent_token: {AGENT_TOKEN}\n"
# One line for each process. Those that end meanwhile are left out.
PROCESSES = r"""for one in /proc/[0-9]*/cmdline; do tr '\0\n' '  ' < $one; echo; done 2>/dev/null"""
PACKAGES = "/usr/local/lib/jetson-k3s"
BOARD_SHIM = CHECKOUT / "tests/jtop/board_shim/sitecustomize.py"
# A line of a .pth file, which Python runs at its start; in jtop's service only.
SHIM_FOR_JTOP = """\
import os; "SIMULATED_PART_NUMBER" in os.environ and exec(open("/opt/simulated/shim.py").read())"""
OWN = {
    "debug": True,
    "features": {"buildkit": True},
    "runtimes": {"kata": {"path": "/usr/bin/kata"}},
    "registry-mirrors": ["https://mirror.example"],
}
# As K3s' install.sh writes it for `INSTALL_K3S_EXEC="server --docker ..."`.
STOCK_UNIT = r"""[Unit]
Description=Lightweight Kubernetes
Wants=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=notify
EnvironmentFile=-/etc/systemd/system/k3s.service.env
KillMode=process
Delegate=yes
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStart=/usr/local/bin/k3s \
    server \
    '--docker' \
    '--node-label' \
    'owner=somebody' \
    '--write-kubeconfig-mode' \
    '0640'
"""
MIGRATED = "/etc/rancher/k3s/config.yaml.d/40-migrated.yaml"


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """A board with its owner's daemon.json, taken over by Docker."""
    with lab.fresh(LAB, ("xaviernx-jp5",)) as (one,):
        one.exec("sh", "-c", f"echo '{json.dumps(OWN)}' > /etc/docker/daemon.json")
        drop_in = "/etc/systemd/system/docker.service.d/proxy.conf"
        one.exec("sh", "-c", f"mkdir -p {Path(drop_in).parent} && echo '{PROXY}' > {drop_in}")
        one.exec("systemctl", "daemon-reload")
        one.exec("systemctl", "restart", "docker")
        one.exec("sh", "-c", "tar -c /etc/hostname | docker import - somebodys:1")
        one.exec("docker", "create", "--name=mine", "somebodys:1", "true")
        yield one


@pytest.fixture(scope="module")
def docker_process(board: Board) -> str:
    return board.exec("systemctl", "show", "--property=MainPID", "docker")


@pytest.fixture(scope="module")
def run(
    board: Board, docker_process: str, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> PlaybookRun:
    """The run of site.yml with the chosen tokens, as talkative as possible."""
    variables = tmp_path_factory.mktemp("vars") / "token.yml"
    variables.write_text(TOKENS)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANSIBLE_CACHE_PLUGIN", "ansible.builtin.jsonfile")
        environment.setenv("ANSIBLE_CACHE_PLUGIN_CONNECTION", str(cache))
        with watched(lambda: board.exec("sh", "-c", PROCESSES), 0.3) as processes:
            result = run_playbook(LAB, "site.yml", f"--extra-vars=@{variables}", "--diff", "-vvv")
    assert result.returncode == 0, result.why
    assert any(line.startswith("/usr/local/bin/k3s server") for line in processes)
    assert leaked("\n".join(processes)) == []
    return result


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_docker_was_reloaded_and_not_restarted(board: Board, run: PlaybookRun, docker_process: str) -> None:
    assert board.exec("systemctl", "show", "--property=MainPID", "docker") == docker_process
    assert board.exec("docker", "info", "--format={{.DefaultRuntime}}").strip() == "nvidia"
    merged = json.loads(board.exec("cat", "/etc/docker/daemon.json"))
    assert merged["runtimes"].keys() == {"kata", "nvidia"}
    merged["runtimes"].pop("nvidia")
    assert merged.items() >= OWN.items()


@pytest.mark.parametrize(("token", "name"), [(TOKEN, "token"), (AGENT_TOKEN, "agent-token")])
def test_token_is_in_its_file_only(board: Board, run: PlaybookRun, token: str, name: str) -> None:
    assert token not in run.output
    assert token not in board.exec("journalctl", "--no-pager")
    found = board.exec("grep", "--recursive", "--files-with-matches", token, "/etc", check=False).split()
    assert found == [f"/etc/rancher/k3s/jetson-k3s.{name}"]
    assert board.exec("stat", "--format=%a %U", *found).split() == ["600", "root"]


def test_no_secret_is_on_the_screen_in_the_reports_or_in_the_fact_cache(
    board: Board, run: PlaybookRun, cache: Path
) -> None:
    assert PLANTED["proxy"] in board.exec("systemctl", "show", "--property=Environment", "docker")
    assert leaked(run.output) == []
    assert leaked(reports_dir(LAB)) == []
    (cached,) = cache.iterdir()
    assert "l4t" in cached.read_text()
    assert leaked(cache) == []


# Its preflight asks the running server about the agents' token.
def test_second_run_with_the_same_tokens_changes_nothing(
    board: Board, run: PlaybookRun, tmp_path: Path
) -> None:
    variables = tmp_path / "token.yml"
    variables.write_text(TOKENS)
    run_playbook(LAB, "site.yml", f"--extra-vars=@{variables}").unchanged()


def test_token_of_agents_stays_where_the_inventory_does_not_say_it_any_more(
    board: Board, run: PlaybookRun, tmp_path: Path
) -> None:
    quick = {"gpu_verify_mode": "undisturbed"}
    run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(quick)}").checked()
    for _ in range(2):  # K3s compares its passwords with its data store, and does not start with others
        board.exec("systemctl", "restart", "k3s", timeout=120)
    assert board.exec("cat", "/var/lib/rancher/k3s/server/agent-token").strip().endswith(f":{AGENT_TOKEN}")
    other = tmp_path / "other.yml"
    other.write_text(json.dumps(quick | {"k3s_agent_token": "planted-other-token"}))
    refused = run_playbook(LAB, "site.yml", f"--extra-vars=@{other}")
    assert refused.recap["jetson-1"].failed == 1, refused.output
    assert "K3s cannot change it" in " ".join(refused.output.split())


def test_images_of_the_bundle_stay_on_a_full_disk(board: Board, run: PlaybookRun) -> None:
    """The kubelet checks the disk 5 minutes after its start; here it takes 2 % for full."""
    limits = "image-gc-high-threshold=2, image-gc-low-threshold=1, minimum-image-ttl-duration=0s"
    board.exec("docker", "rm", "mine")
    before = set(board.exec("docker", "image", "ls", "--format={{.Repository}}:{{.Tag}}").split())
    board.exec("sh", "-c", f"echo 'kubelet-arg: [{limits}]' > /etc/rancher/k3s/config.yaml")
    try:
        board.exec("systemctl", "restart", "k3s")
        wait_until(
            lambda: board.exec("docker", "image", "ls", "--quiet", "somebodys:1") == "",
            "the kubelet deletes an image that no container uses",
            480,
        )
        after = set(board.exec("docker", "image", "ls", "--format={{.Repository}}:{{.Tag}}").split())
        assert after == before - {"somebodys:1"}
    finally:
        board.exec("rm", "/etc/rancher/k3s/config.yaml")
        board.exec("systemctl", "restart", "k3s")


def index_bundle() -> None:
    """Do what `playbooks/bundle.yml -e bundle_jtop=true` does besides fetching K3s."""
    bundle = inventory.bundle_path(LAB)
    given = {
        "__bundle_arch": "amd64",
        "__bundle_directory": str(bundle),
        "ansible_python_interpreter": sys.executable,
        "k3s_version": yaml.safe_load((bundle / "bundle.yml").read_text())["k3s_version"],
    }
    include = (Path(sys.executable).with_name("ansible"), "localhost", "--module-name=include_role")
    for part in ("jtop", "index"):
        role = json.dumps({"name": "jetson_k3s.cluster.bundle", "tasks_from": part})
        made = run_here(*include, f"--args={role}", f"--extra-vars={json.dumps(given)}")
        assert made.returncode == 0, made.stdout


@pytest.fixture(scope="module")
def _jtop_bundle(board: Board) -> None:
    """The lab's bundle with jetson-stats, and a board on which the real service finds a Jetson."""
    index_bundle()
    # The last one is what an older bundle has left.
    places = ("/opt/simulated", "/etc/systemd/system/jtop.service.d", f"{PACKAGES}/jtop-7.0.0")
    board.exec("mkdir", "-p", *places)
    docker("cp", str(BOARD_SHIM), f"{board.container}:/opt/simulated/shim.py")
    board.exec("sh", "-c", f"echo '{SHIM_FOR_JTOP}' > /usr/local/lib/python3.11/dist-packages/simulated.pth")
    part_number = 'Environment="SIMULATED_PART_NUMBER=699-13668-0000-300 A.0"'
    drop_in = "/etc/systemd/system/jtop.service.d/simulated.conf"
    board.exec("sh", "-c", f"printf '[Service]\n%s\n' '{part_number}' > {drop_in}")


def ask_jtop(board: Board) -> dict[str, str]:
    """What a client on the board hears from the service about the hardware."""
    (packages,) = board.exec("sh", "-c", f"ls -d {PACKAGES}/jtop-*").split()
    ask = "import json, jtop\nwith jtop.jtop() as j: print(json.dumps(j.board['hardware']))"
    said = board.exec("env", f"PYTHONPATH={packages}", "timeout", "30", "python3", "-c", ask)
    hardware: dict[str, str] = json.loads(said)
    return hardware


@pytest.mark.usefixtures("_jtop_bundle")
def test_jtop_is_installed_from_the_bundle_and_taken_away_again(board: Board, run: PlaybookRun) -> None:
    changed = []
    for _ in range(2):
        result = run_playbook(LAB, "jtop.yml").checked()
        changed.append(result.recap["jetson-1"].changed > 0)
        if changed == [True]:
            process = board.exec("systemctl", "show", "--property=MainPID", "jtop")
            assert ask_jtop(board)["L4T"] == "35.3.1"
    assert changed == [True, False]
    assert board.exec("systemctl", "show", "--property=MainPID", "jtop") == process

    for expected in (True, False):
        gone = run_playbook(LAB, "jtop.yml", "--extra-vars=jetson_k3s_state=absent")
        assert (gone.recap["jetson-1"].changed > 0) is expected, gone.output
    left = f"{PACKAGES}/* /run/jtop.sock /etc/systemd/system/*jtop*"
    assert board.exec("sh", "-c", f"ls -d {left}", check=False) == "/etc/systemd/system/jtop.service.d"
    assert "jtop-relay@" not in board.exec("systemctl", "list-units", "--all", "jtop-relay@*")
    for unit in ("jtop", "jtop-relay.socket"):
        assert board.exec("systemctl", "is-active", unit, check=False).strip() == "inactive"


@pytest.mark.usefixtures("_jtop_bundle")
def test_plugin_hears_the_service_by_the_relay(board: Board, run: PlaybookRun) -> None:
    cluster = Cluster([board])
    pod = str(cluster.plugin_pod("jetson-1"))

    def heard() -> int:
        return cluster.kubectl("--namespace=kube-system", "logs", pod).count("jtop: telemetry is available")

    before = heard()
    run_playbook(LAB, "jtop.yml").checked()
    wait_until(lambda: heard() > before, "the plugin hears jtop", 120)
    relays = board.exec("ps", "-C", "python3", "-o", "user:32=,args=").splitlines()
    (relay,) = (line for line in relays if "jtop_relay.py" in line)
    assert relay.split()[0] not in ("root", "jtop")
    before = heard()
    # The service is another process then, with another socket, and so is the relay.
    board.exec("systemctl", "kill", "--signal=KILL", "jtop")
    wait_until(lambda: heard() > before, "the plugin hears the next one", 120)
    run_playbook(LAB, "jtop.yml", "--extra-vars=jetson_k3s_state=absent").checked()


@pytest.mark.usefixtures("_jtop_bundle")
def test_jtop_of_the_owner_that_the_plugin_cannot_ask_is_refused(board: Board, run: PlaybookRun) -> None:
    unit, program = "/etc/systemd/system/jtop.service", "ExecStart=/usr/local/bin/jtop --force"
    packages = "/usr/local/lib/python3.11/dist-packages/jetson_stats-4.3.2.dist-info"
    board.exec("sh", "-c", f"mkdir {packages}; printf '[Service]\n{program}\n' > {unit}")
    board.exec("systemctl", "daemon-reload")
    try:
        refused = run_playbook(LAB, "jtop.yml")
    finally:
        board.exec("rm", "-r", unit, packages)
        board.exec("systemctl", "daemon-reload")
    recap = refused.recap["jetson-1"]
    assert (recap.failed, recap.changed) == (1, 0), refused.output
    said = " ".join(refused.output.split())
    assert "has installed jtop 4.3.2, with which the bundle's client (7.2.2) cannot talk" in said


@pytest.fixture(scope="module")
def powered(board: Board) -> Board:
    """The board with SIMULATED power modes."""
    simulate_power(board)
    return board


def test_power_mode_and_clocks_are_set_once_and_given_back(powered: Board) -> None:
    wanted = ("--extra-vars=power_mode_nvpmodel=MODE_50W", "--extra-vars=power_mode_jetson_clocks=true")
    changed = []
    for _ in range(2):
        result = run_playbook(LAB, "power_mode.yml", *wanted).checked()
        changed.append(result.recap["jetson-1"].changed > 0)
    assert changed == [True, False]
    assert powered.exec("cat", "/var/lib/nvpmodel/simulated").strip() == "3"
    assert powered.exec("ls", "/run/simulated-clocks-locked")
    run_playbook(LAB, "power_mode.yml", wanted[0]).checked()
    assert powered.exec("ls", "/run/simulated-clocks-locked", check=False).strip() == ""


def test_power_mode_that_needs_a_reboot_is_refused_unless_allowed(powered: Board) -> None:
    before = powered.exec("cat", "/var/lib/nvpmodel/simulated")
    result = run_playbook(LAB, "power_mode.yml", "--extra-vars=power_mode_nvpmodel=MODE_30W")
    recap = result.recap["jetson-1"]
    assert (recap.failed, recap.changed) == (1, 0), result.output
    assert "Allow it with `-e jetson_k3s_confirm=reboot`" in " ".join(result.output.split())
    assert powered.exec("cat", "/var/lib/nvpmodel/simulated") == before


def test_power_mode_that_needs_a_reboot_gets_one_when_allowed(powered: Board) -> None:
    before = boot_id(powered)

    def switch_on() -> None:
        docker("wait", powered.container, timeout=120)  # a container ends where a board boots again
        start(powered)

    def at_reboot(line: str) -> None:
        if line.startswith("TASK [jetson_k3s.cluster.board_reboot : Reboot the board]"):
            threads.append(pool.submit(switch_on))

    allowed = ("--extra-vars=power_mode_nvpmodel=MODE_30W", "--extra-vars=jetson_k3s_confirm=reboot")
    threads: list[Future[None]] = []
    with ThreadPoolExecutor() as pool:
        result = run_playbook(LAB, "power_mode.yml", *allowed, on_line=at_reboot)
    for thread in threads:
        thread.result()
    assert result.returncode == 0, result.why
    assert powered.exec("cat", "/var/lib/nvpmodel/simulated").strip() == "2"
    after = boot_id(powered)
    assert after != before

    again = run_playbook(LAB, "power_mode.yml", *allowed)
    assert again.recap["jetson-1"].changed == 0, again.output
    assert boot_id(powered) == after
    cluster = Cluster([powered])
    wait_until(lambda: cluster.allocatable() == {"jetson-1": 1}, "the node offers its GPU again", 120)


def test_newer_runtime_comes_from_the_bundle_when_asked(
    board: Board, run: PlaybookRun, tmp_path: Path
) -> None:
    strict = {"nvidia_docker_strict": True}
    refused = run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(strict)}")
    assert "[error] nvidia-runtime-strict" in refused.output
    release = {staging.TOOLKIT_VERSION.lstrip("/"): "1.18.0\n"}
    deb = build_deb(tmp_path, "nvidia-container-toolkit", "1.18.0-1", release)
    with tarfile.open(inventory.bundle_path(LAB) / "debs-jetpack5-amd64.tar", "w") as tar:
        tar.add(deb, deb.name)
    index_bundle()
    docker_process = board.exec("systemctl", "show", "--property=MainPID", "docker")
    settings = json.dumps(strict | {"jetson_k3s_confirm": ["update-runtime"]})
    changed = []
    for _ in range(2):
        result = run_playbook(LAB, "site.yml", f"--extra-vars={settings}").checked()
        changed.append(result.recap["jetson-1"].changed > 0)
    assert changed == [True, False], result.output
    assert board.exec("systemctl", "show", "--property=MainPID", "docker") == docker_process
    report = json.loads((reports_dir(LAB) / "jetson-1.json").read_text())
    assert report["software"]["container_toolkit"] == "1.18.0"
    (uninvited,) = (check for check in report["checks"] if check["id"] == "uninvited")
    assert (uninvited["status"], "has no GPU device node" in uninvited["evidence"][0]) == ("passed", True)


# The cluster goes with it.
def test_reset_gives_docker_its_owners_settings_back(board: Board, run: PlaybookRun) -> None:
    again = ("reset.yml", "--extra-vars=jetson_k3s_confirm=restore-docker k3s_reset_cluster=jetson-1")
    run_playbook(LAB, *again).checked()
    assert json.loads(board.exec("cat", "/etc/docker/daemon.json")) == OWN
    assert board.exec("docker", "info", "--format={{.DefaultRuntime}}").strip() == "runc"
    assert "nvidia" not in board.exec("docker", "info", "--format={{.Runtimes}}")
    docker_process = board.exec("systemctl", "show", "--property=MainPID", "docker")
    second = run_playbook(LAB, *again)
    assert second.recap["jetson-1"].changed == 0, second.output
    assert board.exec("systemctl", "show", "--property=MainPID", "docker") == docker_process


def test_k3s_of_its_stock_script_is_taken_over_with_its_flags_and_its_node(board: Board) -> None:
    bundle, cluster = inventory.bundle_path(LAB), Cluster([board])
    docker("cp", str(bundle / "k3s-amd64"), f"{board.container}:/usr/local/bin/k3s")
    docker("cp", str(bundle / "k3s-airgap-images-amd64.tar.gz"), f"{board.container}:/root/images.tar.gz")
    board.exec("docker", "load", "--input=/root/images.tar.gz")
    board.exec("sh", "-c", 'printf "%s" "$1" > /etc/systemd/system/k3s.service', "sh", STOCK_UNIT)
    board.exec("systemctl", "daemon-reload")
    board.exec("systemctl", "enable", "--now", "k3s")
    wait_until(lambda: "jetson-1" in cluster.kubelets(), "the owner's node", 60)
    node_id = ("get", "node", "jetson-1", "--output=jsonpath={.metadata.uid} {.metadata.labels.owner}")
    before = cluster.kubectl(*node_id)
    assert before.endswith(" somebody")

    run_playbook(LAB, "site.yml", "--extra-vars=jetson_k3s_confirm=migrate").checked()
    assert cluster.kubectl(*node_id) == before
    migrated = yaml.safe_load(board.exec("cat", MIGRATED))
    assert migrated == {"node-label": "owner=somebody", "write-kubeconfig-mode": "0640"}
    unit = board.exec("cat", "/etc/systemd/system/k3s.service").splitlines()
    assert "ExecStart=/usr/local/bin/k3s server" in unit
    assert board.exec("stat", "--format=%a", "/etc/rancher/k3s/k3s.yaml").strip() == "640"
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").unchanged()
