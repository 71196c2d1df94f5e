# SPDX-License-Identifier: Apache-2.0
"""The HTTP proxy of the inventory: what is refused, which hosts go without it, and where its password is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import docker_files
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_services as services
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_environment as environment
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_download
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import proxy

from tests.acceptance.site import Proxy, release_page
from tests.acceptance.site import proxy as serving_proxy
from tests.ansible_core import CORES
from tests.docs import CHECKOUT
from tests.planted import PLANTED, leaked, processes, watched
from tests.unit.roles.places import ROLES, Data, k3s_paths
from tests.unit.roles.playing import Run, answer, play_text, run_module
from tests.unit.roles.preflight_facts import with_facts

URL = "http://proxy.site.example:3128"
SECRET = f"http://fleet:{PLANTED['proxy']}@proxy.site.example:3128"
GIVEN: Data = {"http_proxy": URL, "no_proxy": [".site.example"]}


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        GIVEN,
        {"http_proxy": SECRET, "https_proxy": ""},
        {"https_proxy": "https://[fd00::1]:3128/", "no_proxy": "10.0.0.0/8, *.site.example,registry:5000"},
        {"http_proxy": "http://a:p%40%2F%25@proxy", "no_proxy": ["fd00::/8", "::1", "192.168.1.7"]},
    ],
)
def test_valid_proxy_has_no_problem(given: Any) -> None:
    assert [*proxy.problems(given)] == []


NO_URLS = (
    "proxy.site.example:3128", "socks5://proxy:1080", "http://", "http://proxy:port", "http://proxy:0",
    "http://proxy:3128/path", "http://a b@proxy", "http://u:'x@proxy", 'http://u:"@proxy', "http://u:$x@proxy",
    "http://u:p@x@proxy", "http://u:p#x@proxy", "http://proxy\n", 3128,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("http://proxy:3128", "jetson_k3s_proxy: a mapping is needed"),
        ({"no_proxy": ["a"]}, "jetson_k3s_proxy: neither http_proxy nor https_proxy is there"),
        (
            GIVEN | {"http-proxy": URL},
            "jetson_k3s_proxy: there is no http-proxy, but http_proxy, https_proxy,",
        ),
        *(({"https_proxy": url}, "https_proxy: http://HOST:PORT is needed") for url in NO_URLS),
        (GIVEN | {"no_proxy": {"a": 1}}, "no_proxy: a list of hosts, domains and networks is needed"),
        (GIVEN | {"no_proxy": ["*"]}, "no_proxy: * leaves no host to the proxy"),
        (GIVEN | {"no_proxy": "10.42.*"}, "no_proxy: 10.42.* is no host, no .domain and no network"),
        (GIVEN | {"no_proxy": ["http://registry"]}, "no_proxy: http://registry is no host,"),
        (GIVEN | {"no_proxy": ["a", "10.0.0.0/33"]}, "no_proxy: 10.0.0.0/33 is no host,"),
    ],
)
def test_wrong_proxy_is_named(given: Any, problem: str) -> None:
    found = [*proxy.problems(given)]
    assert [one for one in found if one.startswith(problem)], found


def test_no_problem_repeats_a_password() -> None:
    wrong = {"http_proxy": f"{SECRET} ", "https_proxy": [SECRET], "no_proxy": [SECRET], SECRET[:4]: 1}
    found = [*proxy.problems(wrong)]
    assert len(found) == 4
    assert leaked(str(found)) == []


def test_line_of_the_handbook_is_a_proxy(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/offline.md").read_text()
    (line,) = re.findall(r"^echo '(jetson_k3s_proxy=.*)' >> inventory$", page, re.MULTILINE)
    example = re.findall(
        r"^# (jetson_k3s_proxy=.*)", (CHECKOUT / "inventory.example").read_text(), re.MULTILINE
    )
    for text in (line, *example):
        # As install.sh leaves the file.
        (tmp_path / "inventory").write_text(
            f"[server]\na\n\n[k3s_cluster:children]\nserver\n\n[k3s_cluster:vars]\n{text}\n"
        )
        command: list[str | Path] = [
            Path(sys.executable).with_name("ansible-inventory"),
            "-i",
            tmp_path / "inventory",
            "--host=a",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        given = json.loads(ran.stdout)["jetson_k3s_proxy"]
        assert proxy.urls(given)["https_proxy"] == URL
        assert [*proxy.problems(given)] == []


@pytest.mark.parametrize(
    ("url", "settings", "found"),
    [
        ("http://10.43.7.1:3128", {}, ["10.43.7.1 is in 10.43.0.0/16"]),
        ("http://u:p@10.9.0.1", {"cluster-cidr": "10.9.0.0/24,fd42::/56"}, ["10.9.0.1 is in 10.9.0.0/24"]),
        ("http://[fd42::1]:1", {"cluster-cidr": ["10.9.0.0/24", "fd42::/56"]}, ["fd42::1 is in fd42::/56"]),
        ("http://10.42.7.1:3128", {"cluster-cidr": "10.99.0.0/24"}, []),
        ("http://192.168.1.1:3128", {}, []),
        (URL, {}, []),
    ],
)  # fmt: skip
def test_proxy_in_a_network_of_the_cluster_is_found(url: str, settings: Data, found: list[str]) -> None:
    assert proxy.inside({"http_proxy": url}, settings) == found


LAN = {"device": "eth0", "address": "192.168.1.12/24"}
LTE = {"device": "wwan0", "address": "100.64.7.2/24"}
WAYS = [{"to": "0.0.0.0/0", "device": "wwan0", "gateway": "100.64.7.1"}]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["", "192.168.1.12", ""], ["192.168.1.0/24"]),
        (["192.168.1.12,fd00::12", "jetson-2.site", None], ["192.168.1.0/24"]),
        # The controller knows the board by a name, or from elsewhere.
        (["", "jetson-2.site", ""], ["100.64.7.0/24"]),
    ],
)
def test_network_of_the_node_is_its_own(wanted: list[Any], found: list[str]) -> None:
    facts = {"addresses": [LTE, LAN, {"device": "wg0", "address": "10.9.0.2/32"}], "routes": WAYS}
    assert [*map(str, proxy.own_networks(facts, wanted))] == found
    assert proxy.own_networks({"addresses": [LAN], "routes": []}, ["jetson-2"]) == []
    assert proxy.own_networks({"addresses": [{"device": "wg0", "address": "10.9.0.2/32"}], "routes": []},
                              ["10.9.0.2"]) == []  # fmt: skip


def test_boards_are_known_by_all_their_addresses() -> None:
    boards: list[dict[str, object]] = [
        {"inventory_hostname": "jetson-1"},
        {"inventory_hostname": "jetson-2", "ansible_host": "192.168.1.12", "jetson_k3s_address": "10.8.0.2"},
        {
            "inventory_hostname": "jetson-3",
            "ansible_host": "jetson-3.site",
            "k3s_board_config": {"node-ip": "10.7.0.3,fd00::3", "node-external-ip": ["203.0.113.3"]},
        },
    ]
    assert proxy.peers(boards) == [
        "jetson-1", "192.168.1.12", "10.8.0.2", "jetson-3.site", "10.7.0.3", "fd00::3", "203.0.113.3",
    ]  # fmt: skip


CLUSTER = ["localhost", "127.0.0.0/8", "::1", ".svc", ".cluster.local", "10.42.0.0/16", "10.43.0.0/16"]


def test_hosts_of_the_cluster_go_without_the_proxy() -> None:
    near = proxy.own_networks({"addresses": [LAN], "routes": []}, ["192.168.1.12"])
    others = ["192.168.1.11", "192.168.1.13", "10.7.0.3", "jetson-9.site", "10.7.0.3", "", "a b"]
    found = proxy.no_proxy(GIVEN, {}, near, others)
    assert found == [*CLUSTER, "192.168.1.0/24", ".site.example", "10.7.0.3", "jetson-9.site"]
    # A board more in a network that is listed changes nothing.
    assert proxy.no_proxy(GIVEN, {}, near, [*others, "192.168.1.99"]) == found
    wide = GIVEN | {"no_proxy": "*.site.example, 10.0.0.0/8"}
    assert proxy.no_proxy(wide, {}, near, others) == [
        *CLUSTER, "192.168.1.0/24", ".site.example", "10.0.0.0/8", "jetson-9.site",
    ]  # fmt: skip
    assert proxy.no_proxy({}, {}, near, others) == []


def test_settings_of_the_servers_k3s_count() -> None:
    settings = {"cluster-cidr": "10.99.0.0/16", "service-cidr": None, "cluster-domain": "fleet.internal"}
    assert proxy.no_proxy(GIVEN, settings, [], [])[4:7] == [".fleet.internal", "10.99.0.0/16", "10.43.0.0/16"]
    hostile = {"cluster-cidr": "x\nA=1", "cluster-domain": "x\nA=1"}
    assert "A=1" not in "".join(proxy.no_proxy(GIVEN, hostile, [], []))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, ""),
        ({"no_proxy": ["a"]}, ""),
        (GIVEN, f"HTTP_PROXY={URL}\nHTTPS_PROXY={URL}\nNO_PROXY=a,10.0.0.0/8\n"),
        ({"https_proxy": URL}, f"HTTP_PROXY=\nHTTPS_PROXY={URL}\nNO_PROXY=a,10.0.0.0/8\n"),
        (GIVEN | {"https_proxy": ""}, f"HTTP_PROXY={URL}\nHTTPS_PROXY=\nNO_PROXY=a,10.0.0.0/8\n"),
    ],
)
def test_environment_file_names_what_is_used_and_nothing_else(given: Data, text: str) -> None:
    assert proxy.environment(given, ["a", "10.0.0.0/8"]) == text


def test_systemd_reads_the_environment_file_as_it_is_written(tmp_path: Path) -> None:
    given = {"http_proxy": "http://u:p%40%25%3Dx!&()*+,;=~@[fd00::1]:3128"}
    (tmp_path / "a.env").write_text(proxy.environment(given, ["a", "b"]))
    read = services.environment(str(tmp_path), {"EnvironmentFiles": "/a.env (ignore_errors=yes)"})
    assert read == {"HTTP_PROXY": given["http_proxy"], "HTTPS_PROXY": given["http_proxy"], "NO_PROXY": "a,b"}
    assert [*proxy.problems(given)] == []


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("https://github.com/k3s-io", True),
        ("https://mirror.site.example/k3s", False),
        ("https://site.example/k3s", False),
        ("https://notsite.example/k3s", True),
        ("https://10.7.0.9/k3s", False),
        ("https://10.8.0.9/k3s", True),
        ("https://registry:5000/k3s", False),
    ],
)
def test_download_from_a_host_without_the_proxy_uses_none(url: str, used: bool) -> None:
    without = [".site.example", "10.7.0.0/24", "registry:5000"]
    found = proxy.variables(GIVEN, without, url)
    assert (found["https_proxy"] == URL) is used
    assert found["no_proxy"] == (",".join(without) if used else "*")
    assert proxy.variables({}, without, url) == {}


def test_download_on_a_board_of_which_nothing_is_known_has_the_inventorys_hosts() -> None:
    assert proxy.variables(GIVEN)["no_proxy"].endswith(",.site.example")


def test_apt_reads_its_file(tmp_path: Path) -> None:
    file = tmp_path / "apt.conf"
    file.write_text(proxy.apt({"http_proxy": SECRET, "https_proxy": URL}))
    command = ["apt-config", "shell", "HTTP", "Acquire::http::Proxy", "HTTPS", "Acquire::https::Proxy"]
    if not Path("/usr/bin/apt-config").exists():
        pytest.skip("no apt on this machine")
    ran = subprocess.run(
        command, env=os.environ | {"APT_CONFIG": str(file)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [f"HTTP='{SECRET}'", f"HTTPS='{URL}'"]
    assert proxy.apt({}) == ""
    assert proxy.apt(GIVEN | {"https_proxy": ""}).count("\n") == 1


TEXT = "# ours\n" + proxy.environment({"http_proxy": SECRET}, ["localhost"])


def planned(root: Path, text: str | None = TEXT, **changes: Any) -> dict[str, str]:
    """Docker's files as they would be, by path."""
    params = {"docker_version": "28.4.0", "strict": False, "state": "present", "proxy": text} | changes
    files, _ = environment.plan(str(root), params, {"iptables": {"choose": None, "raw": None}})
    assert all(restarts for *_, restarts in files)
    for path, _, after, _ in files:
        environment.put(str(root / path), after)
    return {path: after for path, _, after, _ in files}


def test_docker_gets_the_proxy_once_in_a_file_of_roots_alone(tmp_path: Path) -> None:
    assert planned(tmp_path) == {
        docker_files.PROXY_FILE: TEXT,
        docker_files.PROXY_DROP_IN: docker_files.PROXY_TEXT,
    }
    file = tmp_path / docker_files.PROXY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PLANTED["proxy"] not in (tmp_path / docker_files.PROXY_DROP_IN).read_text()
    assert planned(tmp_path) == {}
    file.chmod(0o644)
    assert planned(tmp_path) == {docker_files.PROXY_FILE: TEXT}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # With containerd, Docker is left as it is.
    assert planned(tmp_path, None) == {}


@pytest.mark.parametrize("changes", [{"proxy": ""}, {"state": "absent"}])
def test_proxy_of_docker_goes_and_the_owners_files_stay(tmp_path: Path, changes: Data) -> None:
    own = tmp_path / "etc/systemd/system/docker.service.d/http-proxy.conf"
    own.parent.mkdir(parents=True)
    own.write_text(f"[Service]\nEnvironment=HTTPS_PROXY={URL}\n")
    planned(tmp_path)
    (tmp_path / docker_files.PROXY_FILE).chmod(0o644)
    assert planned(tmp_path, **changes) == {docker_files.PROXY_FILE: "", docker_files.PROXY_DROP_IN: ""}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert planned(tmp_path, **changes) == {}


def test_drop_in_wins_over_an_owners_variable(tmp_path: Path) -> None:
    """As systemd.exec(5) says it, and as the facts read it."""
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / docker_files.PROXY_FILE).write_text(TEXT)
    shown = {
        "Environment": "HTTPS_PROXY=http://old A=1",
        "EnvironmentFiles": f"/{docker_files.PROXY_FILE} (x)",
    }
    assert services.environment(str(tmp_path), shown)["HTTPS_PROXY"] == SECRET


def test_another_password_is_a_difference_without_it() -> None:
    before = TEXT.replace(PLANTED["proxy"], "old")
    found = environment.shown(docker_files.PROXY_FILE, before, TEXT)
    assert found["before"] != found["after"]
    assert leaked(json.dumps(found)) == []
    assert "old" not in found["before"]


CONTENT = b"K3s" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SUMS = f"{'0' * 64}  k3s-armhf\n{DIGEST}  k3s-arm64\n".encode()


LOGIN = f"fleet:{PLANTED['proxy']}"


@dataclass
class Site:
    """A page that nothing but the proxy reaches, and the proxy, which has a password."""

    release: Path
    proxy: Proxy

    @property
    def url(self) -> str:
        return self.proxy.url

    def serve(self, **changes: Any) -> None:
        for name, content in {"k3s-arm64": CONTENT, "sha256sum-arm64.txt": SUMS, **changes}.items():
            (self.release / name).write_bytes(content)


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("releases")
    (directory / "v1").mkdir()
    with release_page(directory) as port:
        hosts = {"releases.invalid": port, "mirror.invalid": port}
        with serving_proxy(
            "127.0.0.1", LOGIN, hosts, {"mirror.invalid": f"mirror:{PLANTED['token']}"}
        ) as made:
            found = Site(directory / "v1", made)
            found.serve()
            yield found


PAGE = "http://releases.invalid/v1"


def wanted(directory: Path, site: Site, **changes: Any) -> Data:
    return {
        "url": f"{PAGE}/k3s-arm64", "path": str(directory / "k3s"), "mode": "0755",
        "checksums": f"{PAGE}/sha256sum-arm64.txt", "http_proxy": site.url, "no_proxy": "localhost",
    } | changes  # fmt: skip


def download(directory: Path, site: Site, **changes: Any) -> Data:
    return answer("k3s_download", wanted(directory, site, **changes))


def test_k3s_is_downloaded_by_a_proxy_with_a_password(tmp_path: Path, site: Site) -> None:
    checked = download(tmp_path, site, _ansible_check_mode=True)
    assert (checked["changed"], [*tmp_path.iterdir()]) == (True, [])
    found = download(tmp_path, site)
    assert (found["changed"], found["sha256"]) == (True, DIGEST)
    assert (tmp_path / "k3s").read_bytes() == CONTENT
    assert stat.S_IMODE((tmp_path / "k3s").stat().st_mode) == 0o755
    assert site.proxy.asked == {f"GET {PAGE}/k3s-arm64", f"GET {PAGE}/sha256sum-arm64.txt"}
    assert download(tmp_path, site)["changed"] is False
    site.proxy.asked.clear()
    assert download(tmp_path, site, sha256=DIGEST)["changed"] is False
    assert site.proxy.asked == set()


@pytest.mark.parametrize(
    ("changes", "damage", "why"),
    [
        ({}, {"k3s-arm64": b"other"}, "and {digest} is expected by the release's checksums"),
        ({}, {"sha256sum-arm64.txt": f"{DIGEST}  k3s\n".encode()}, "the checksums do not have k3s-arm64"),
        ({"http_proxy": "http://127.0.0.1:1"}, {}, "Connection refused"),
        ({"http_proxy": "", "no_proxy": "*"}, {}, "releases.invalid"),
    ],
)
def test_file_that_was_not_downloaded_leaves_the_old_one(
    tmp_path: Path, site: Site, changes: Data, damage: Data, why: str
) -> None:
    (tmp_path / "k3s").write_text("old")
    site.serve(**damage)
    found = download(tmp_path, site, **changes)
    assert found["failed"] is True
    assert found["msg"].startswith(f"{PAGE}/k3s-arm64: ")
    assert why.format(digest=DIGEST) in found["msg"]
    assert [path.name for path in tmp_path.iterdir()] == ["k3s"]
    assert (tmp_path / "k3s").read_text() == "old"


@pytest.mark.parametrize("given", [{}, {"http_proxy": "http://fleet:wrong@127.0.0.1:{port}"}])
def test_password_of_a_proxy_is_in_no_result_or_log_of_a_download(
    tmp_path: Path, site: Site, given: Data
) -> None:
    port = urlsplit(site.url).port
    changes = {name: text.format(port=port) for name, text in given.items()}
    ran = run_module("k3s_download", wanted(tmp_path, site, **changes))
    assert leaked(ran.stdout + ran.stderr) == []
    assert "fleet:wrong" not in ran.stdout + ran.stderr
    assert json.loads(ran.stdout).get("failed", False) is bool(given)


def test_password_of_a_mirror_does_not_follow_a_redirect(tmp_path: Path) -> None:
    got: list[tuple[str, bool]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append((self.path, "Authorization" in self.headers))
            self.send_response(302 if self.path == "/k3s" else 200)
            self.send_header("Location", f"http://localhost:{server.server_port}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        login = {"username": "mirror", "password": PLANTED["token"], "timeout": 10}
        page = k3s_download.Page(login)
        page.open(f"http://127.0.0.1:{server.server_port}/k3s").close()
        server.shutdown()
        thread.join()
    assert got == [("/k3s", True), ("/elsewhere", False)]


def test_proxy_of_the_board_counts_where_the_inventory_has_none(tmp_path: Path, site: Site) -> None:
    found = answer("k3s_download", wanted(tmp_path, site, http_proxy="", no_proxy=""), http_proxy=site.url)
    assert found["changed"] is True


HOSTS = """\
- hosts: k3s_cluster
  gather_facts: false
  vars_files: [CONTEXT]
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given | combine({'network': {'addresses': lan}}, recursive=true) }}"
        cacheable: true
    - ansible.builtin.set_fact: {preflight_bundle_info: {indexed: false, versions: {}, files: {}}}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.nvidia_docker, tasks_from: plan}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: plan}
    - ansible.builtin.set_fact: {preflight_outcome: "{{ __preflight_plan }}"}
    - ansible.builtin.copy:
        content: "{{ [preflight_outcome.no_proxy, of_k3s, __nvidia_docker_proxy] | to_json }}"
        dest: "{{ there }}/{{ inventory_hostname }}.json"
        mode: "0600"
      vars:
        of_k3s: "{{ __k3s_proxy | jetson_k3s.cluster.proxy_environment(__k3s_direct.k3s) }}"
"""


def lan(address: str) -> list[Data]:
    return [{"device": "eth0", "address": f"{address}/24"}]


BOARDS: dict[str, Data] = {
    "jetson-1": {"ansible_host": "192.168.1.11", "lan": lan("192.168.1.11")},
    "jetson-2": {"ansible_host": "192.168.1.12", "lan": lan("192.168.1.12")},
    "jetson-3": {"ansible_host": "192.168.1.13", "lan": lan("192.168.1.13")},
    "jetson-4": {"ansible_host": "192.168.2.14", "lan": lan("192.168.2.14")},
    "jetson-5": {
        "ansible_host": "jetson-5.site",
        "lan": lan("192.168.2.15"),
        "jetson_k3s_address": "10.8.0.5",
    },
}
RELEASES = pytest.mark.parametrize("release", CORES)


@pytest.mark.acceptance
@RELEASES
def test_each_board_goes_to_the_cluster_without_the_proxy(tmp_path: Path, release: str) -> None:
    context = ROLES / "preflight/vars/main/context.yml"
    names = list(BOARDS)
    groups = {
        "server": {name: BOARDS[name] for name in names[:1]},
        "agent": {name: BOARDS[name] for name in names[1:]},
    }
    variables = {
        "given": with_facts(docker__containers=1, docker__command=None), "there": str(tmp_path),
        "preflight_accepted": [], "__preflight_restores": False, "__preflight_upgrades": False,
        "jetson_k3s_proxy": GIVEN, "image_supply_host": "jetson-5", "k3s_version": "v1.33.5+k3s1",
        "k3s_server_config": {"service-cidr": "10.99.0.0/16", "cluster-domain": "fleet.internal"},
    }  # fmt: skip

    def run(*arguments: str) -> dict[str, Any]:
        play_text(
            tmp_path, HOSTS.replace("CONTEXT", str(context)), *arguments,
            groups={**groups, "k3s_cluster": {**groups["server"], **groups["agent"]}}, variables=variables,
            line=release,
        )  # fmt: skip
        return {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}

    found = run()
    cluster = [*CLUSTER[:4], ".fleet.internal", "10.42.0.0/16", "10.99.0.0/16"]
    first, agent, other = (found[name][0] for name in ("jetson-1", "jetson-2", "jetson-4"))
    registry = ["10.8.0.5", "jetson-5.site"]
    lan = [*cluster, "192.168.1.0/24", ".site.example"]
    assert first["k3s"] == [*lan, "10.8.0.5", "192.168.2.14", "jetson-5.site"]
    assert first["docker"] == agent["docker"] == [*lan, *registry]
    assert agent["k3s"] == lan
    assert other["k3s"] == [*cluster, "192.168.2.0/24", ".site.example", "192.168.1.11"]
    without = ",".join(agent["k3s"])
    assert found["jetson-2"][1] == f"HTTP_PROXY={URL}\nHTTPS_PROXY={URL}\nNO_PROXY={without}\n"
    assert found["jetson-2"][2].startswith("# Written by Ansible (role nvidia_docker)")
    # The same for a board alone.
    assert run("--limit=jetson-4,jetson-2") == found


CONFIGURE = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.set_fact:
        preflight_outcome: {no_proxy: {k3s: [localhost, 10.42.0.0/16], docker: [localhost]}}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: configure}
    - ansible.builtin.copy:
        content: "{{ __k3s_configured | to_json }}"
        dest: "{{ there }}/result.json"
        mode: "0600"
      check_mode: false
      diff: false
"""
UNIT = {"installed": True, "active": False, "enabled": True, "command": None}
FACTS: Data = {
    "hostname": "localhost",
    "arch": "aarch64",
    "memory_bytes": 8 << 30,
    "network": {"addresses": [], "routes": [], "towards_server": None},
    "k3s": {
        "server": UNIT, "agent": UNIT, "kubectl": "/usr/bin/kubectl", "version": None, "registries": None,
        "credentials": None, "node_ip": {"owner": [], "role": None},
        "certificates": {"files": [], "started": None, "valid_days": 365},
    },
}  # fmt: skip


def configure(there: Path, release: str, *arguments: str, **variables: Any) -> tuple[Run, Data]:
    """Run role k3s' configuration of this machine, with its unit and its files in `there`."""
    given = {
        "facts": FACTS, "there": str(there), "k3s_version": "v1.33.5+k3s1",
        "preflight_bundle_info": {"indexed": False, "versions": {}, "files": {}},
        "__k3s_paths": k3s_paths(there), "__k3s_marker": f"{there}/run/restart",
    }  # fmt: skip
    run = play_text(there, CONFIGURE, *arguments, variables=given | variables, line=release)
    return run, json.loads((there / "result.json").read_text())


@pytest.mark.acceptance
@RELEASES
def test_k3s_gets_the_proxy_and_loses_it_again(tmp_path: Path, release: str) -> None:
    file, unit = tmp_path / "jetson-k3s.env", tmp_path / "k3s.service"
    checked, found = configure(tmp_path, release, "--check", "--diff", jetson_k3s_proxy=GIVEN)
    assert (found["changed"], found["restart_due"], file.exists()) == (True, True, False)
    assert f"+HTTPS_PROXY={URL}" in checked.stdout
    configure(tmp_path, release, jetson_k3s_proxy=GIVEN)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().endswith(f"HTTPS_PROXY={URL}\nNO_PROXY=localhost,10.42.0.0/16\n")
    # After the owner's files, so that it wins over them.
    files = [line for line in unit.read_text().splitlines() if line.startswith("EnvironmentFile=")]
    assert files[0] == "EnvironmentFile=-/etc/default/%N"
    assert files[-1] == f"EnvironmentFile=-{file}"
    assert configure(tmp_path, release, jetson_k3s_proxy=GIVEN)[1]["changed"] is False
    _, found = configure(tmp_path, release)
    assert (found["changed"], file.exists(), "jetson-k3s.env" in unit.read_text()) == (True, False, False)
    assert configure(tmp_path, release)[1]["changed"] is False


@pytest.mark.acceptance
@RELEASES
def test_proxy_with_a_password_is_shown_nowhere(tmp_path: Path, release: str) -> None:
    given = {"http_proxy": SECRET}
    run, found = configure(tmp_path, release, "--diff", "-vvv", jetson_k3s_proxy=given)
    assert PLANTED["proxy"] in (tmp_path / "jetson-k3s.env").read_text()
    assert (found["changed"], leaked(run.stdout), leaked(json.dumps(found))) == (True, [], [])
    assert f"{tmp_path}/jetson-k3s.env (mode 0600)" in run.stdout
    run, found = configure(tmp_path, release, "--diff", "-vvv", jetson_k3s_proxy={})
    assert (found["changed"], leaked(run.stdout), leaked(json.dumps(found))) == (True, [], [])


@RELEASES
def test_binary_is_downloaded_by_the_proxy_and_the_mirror_with_their_passwords(
    tmp_path: Path, site: Site, release: str
) -> None:
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: binary}
"""
    variables = {
        "k3s_version": "v1", "jetson_k3s_proxy": {"http_proxy": site.url},
        "preflight_bundle_info": {"indexed": False, "versions": {}, "files": {}},
        "k3s_release_url": f"http://mirror:{PLANTED['token']}@mirror.invalid",
        "__k3s_binary": str(tmp_path / "k3s"), "__k3s_marker": str(tmp_path / "run/restart"),
    }  # fmt: skip
    with watched(lambda: processes(f"JETSON_K3S_TEST={tmp_path}")) as lines:
        run = play_text(
            tmp_path, text, "-vvv", "--diff", variables=variables, line=release,
            JETSON_K3S_TEST=str(tmp_path),
        )  # fmt: skip
    assert (tmp_path / "k3s").read_bytes() == CONTENT
    assert leaked(run.stdout + "\n".join(lines)) == []
    assert "GET http://mirror.invalid/v1/k3s-arm64" in site.proxy.asked
