# SPDX-License-Identifier: Apache-2.0
"""A board whose every answer is hostile changes nothing on the controller but its report, and no other board.

Boards are scripted: connection_plugins/scripted.py is all that the controller has of them. CI runs the
playbooks that bring something to the controller; `make acceptance` runs every playbook with every attack.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_archive

from tests.ansible_core import CORES, LINES, NEWEST, OWN, core
from tests.docs import CHECKOUT
from tests.hostile import answers
from tests.hostile.site import (
    BOARDS,
    SECRET,
    TIMEOUT_SECONDS,
    Run,
    Site,
    make_site,
    packages_and_keyring,
)
from tests.unit.roles import signed_debs

SERVER, AGENT, _ = BOARDS
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REPORTS = r"site/reports(/.*)?"
RECORDS = r"home/\.local(/state(/jetson-k3s(/.*)?)?)?"
BACKUPS = r"site/backups(/k3s-jetson-1-\d{8}T\d{6}Z\.tar\.gz\.gpg(\.partial)?)?|" + RECORDS
# Relative to the directory of the command, the site.
KEY = "--extra-vars=k3s_backup_recipient=key.asc k3s_backup_directory=backups"
TO_REPORTS = "--extra-vars=gpu_verify_reports=reports"
RESTORED = "--extra-vars=k3s_backup_file=old.tar.gz"
COLLECTS = [
    f"--extra-vars=bundle_debs_from={AGENT} __bundle_arch=amd64 __bundle_directory=ROOT/made",
    "--extra-vars=bundle_plugin_archive=../bundle/tegra-device-plugin-amd64.tar.gz",
    f"--extra-vars=k3s_release_url=file://ROOT/release k3s_version={answers.NEW}",
    '--extra-vars={"bundle_debs_keyrings": ["keyring.gpg"], "bundle_controller_wheels": false}',
]
MADE = (
    r"made(/(debs-jetpack[4-9]-amd64\.tar|k3s-(airgap-images-)?amd64(\.tar\.gz)?"
    r"|tegra-device-plugin-amd64\.tar\.gz|bundle\.yml|SHA256SUMS))?|k3s-releases\.sha256"
)
# Playbook: arguments, and a pattern of the files that it writes on the controller.
PLAYBOOKS = {
    "backup": ([KEY], BACKUPS),
    "bundle": (COLLECTS, MADE),
    "drift": (["--extra-vars=jetson_k3s_drift_file=drift.json"], r"site/drift\.json"),
    "forget": ([f"--limit={AGENT}"], "none"),
    "jtop": ([], "none"),
    "kubeconfig": (
        ["--extra-vars=kubeconfig_file=kubeconfig kubeconfig_user=me"],
        "site/kubeconfig",
    ),
    "monitoring": ([], "none"),
    "os_update": ([], "none"),
    "power_mode": ([], "none"),
    "preflight": ([], "none"),
    "reboot": (["--extra-vars=board_reboot_only_if_required=true"], "none"),
    "reset": ([f"--limit={AGENT}"], "none"),
    "restore": ([RESTORED, TO_REPORTS], REPORTS),
    "rotate_ca": ([KEY, TO_REPORTS], f"{REPORTS}|{BACKUPS}"),
    "rotate_token": ([TO_REPORTS], REPORTS),
    "site": ([TO_REPORTS], REPORTS),
    "snapshot": (["--extra-vars=snapshot_directory=taken"], r"site/taken(/jetson-\d-\d{8}T\d{6}Z\.tar\.gz)?"),
    "status": (["--extra-vars=gpu_status_file=status.json"], r"site/status\.json"),
    "test": (
        [TO_REPORTS, "--extra-vars=gpu_job_image=app:1 gpu_job_artifacts=out"],
        rf"{REPORTS}|site/out(/.*)?",
    ),
    "upgrade": ([KEY, TO_REPORTS], f"{REPORTS}|{BACKUPS}"),
    "verify": ([TO_REPORTS], REPORTS),
}
# Playbooks that go on with the other boards when one has failed.
GO_ON = ("jtop", "preflight", "site", "snapshot", "test", "verify")
RECAP = re.compile(r"^(\S+) +: ok=.* unreachable=(\d+) +failed=(\d+)", re.MULTILINE)
# What the server's modules get of an agent's words: they compare and report them.
FROM_AGENTS = {"gpu_checks"}
# In CI: where files come to the controller, go from it to boards, or are written of what boards say.
QUICK = (
    ("backup", {SERVER: ["facts", "paths"]}),
    ("bundle", {AGENT: ["facts", "paths"]}),
    ("jtop", {AGENT: ["facts", "paths"]}),
    ("snapshot", {AGENT: ["facts", "paths"]}),
    ("status", {SERVER: ["facts", "templates"], AGENT: ["facts", "templates"]}),
    ("kubeconfig", {SERVER: ["facts", "templates"]}),
)
# Templates are the business of each release of ansible-core, all else is that of the roles.
ATTACKS = (
    *(("templates", line) for line in LINES),
    ("paths", "2.16"),
    ("options", NEWEST),
    ("types", "2.16"),
    ("garbage", OWN),
    ("huge", "2.16"),
    *(("fails", line) for line in LINES),
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = make_site(tmp_path / "controller")
    (tmp_path / "files/server/db").mkdir(parents=True)
    (tmp_path / "files/server/db/state.db").touch()
    (tmp_path / "files/server/token").write_text("K10")
    stream = io.BytesIO()
    manifest = {
        "server": SERVER,
        "k3s_version": answers.OLD,
        "datastore": "sqlite",
        "created": "2026-01-02T03:04:05Z",
        "ca": "c" * 64,
    }
    k3s_archive.write(stream, str(tmp_path / "files"), manifest)
    (made.root / "site/old.tar.gz").write_bytes(stream.getvalue())
    return made


def play(
    site: Site, line: str, playbook: str, attacks: dict[str, list[str]], *more: str, **settings: str
) -> Run:
    arguments = [argument.replace("ROOT", str(site.root)) for argument in [*PLAYBOOKS[playbook][0], *more]]
    if playbook == "restore":  # of a backup that another computer made
        digest = hashlib.sha256((site.root / "site/old.tar.gz").read_bytes()).hexdigest()
        arguments.append(f"--extra-vars=k3s_backup_accepted_sha256={digest}")
    return site.play(core(line), playbook, attacks, *arguments, **settings)


def assert_unharmed(run: Run, playbook: str, attacks: dict[str, list[str]]) -> None:
    """Only the report was written, no secret left the controller, and other boards got no hostile text."""
    allowed = re.compile(PLAYBOOKS[playbook][1])
    assert sorted(name for name in run.written if not allowed.fullmatch(name)) == [], run.said
    assert CONTROL.findall(run.said + run.logged) == []
    assert any(run.sent.values()), run.said
    told = {board: b"\n".join(content for _, content in sent) for board, sent in run.sent.items()}
    assert [board for board, text in told.items() if SECRET.encode() in text] == []
    if SERVER in attacks:
        return  # the cluster's administrator, whose words its agents follow
    hostile = {
        (board, kind)
        for board, sent in run.sent.items()
        if board not in attacks
        for kind, content in sent
        if answers.MARK.encode() in content
    }
    assert {kind for _, kind in hostile} <= FROM_AGENTS, run.said
    if playbook in GO_ON:
        recap = {name: (unreachable, failed) for name, unreachable, failed in RECAP.findall(run.said)}
        assert {recap[board] for board in BOARDS if board not in attacks} == {("0", "0")}, run.said


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("line", CORES)
@pytest.mark.parametrize(("playbook", "attacks"), QUICK, ids=[name for name, _ in QUICK])
def test_controller_is_unharmed(site: Site, playbook: str, attacks: dict[str, list[str]], line: str) -> None:
    run = play(site, line, playbook, attacks)
    assert_unharmed(run, playbook, attacks)
    # A playbook that stops early proves nothing. kubeconfig.yml stops at a CA that is not a certificate, and
    # snapshot.yml at an archive that is none.
    assert (run.code == 0) == (playbook not in ("kubeconfig", "snapshot")), run.said


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("line", CORES)
def test_bundle_has_no_package_of_a_board_that_no_signed_index_lists(site: Site, line: str) -> None:
    packages = "made/debs-jetpack6-amd64.tar"
    assert packages in play(site, line, "bundle", {}).written
    kept = (site.root / packages).read_bytes()
    files, _ = packages_and_keyring()
    docker = signed_debs.DEBS[0].file_name
    hostile = signed_debs.write_archive(site.root / "hostile.tar", files | {docker: b"code of the board"})
    run = play(site, line, "bundle", {}, SCRIPTED_PACKAGES=str(hostile))
    assert run.code != 0, run.said
    assert f"{docker}: no trusted index lists this content" in " ".join(run.said.split())
    assert (run.written, (site.root / packages).read_bytes()) == (set(), kept)


@pytest.mark.parametrize("verbosity", ["0", "3"])
@pytest.mark.parametrize("line", CORES)
def test_terminal_gets_no_escape_sequence_of_a_task_that_fails(site: Site, line: str, verbosity: str) -> None:
    attacks = {AGENT: ["fails"]}
    run = site.play(core(line), "status", attacks, *PLAYBOOKS["status"][0], ANSIBLE_VERBOSITY=verbosity)
    assert_unharmed(run, "status", attacks)
    assert "\\x1b]0;hostile\\x07" in run.said


@pytest.mark.acceptance
@pytest.mark.parametrize(("attack", "line"), ATTACKS)
@pytest.mark.parametrize("board", [SERVER, AGENT])
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_no_answer_to_any_playbook_harms(
    site: Site, playbook: str, attack: str, board: str, line: str
) -> None:
    attacks = {board: [attack, "facts"]}
    assert_unharmed(play(site, line, playbook, attacks), playbook, attacks)


# A node of the cluster, of a board that is off or of no board of this inventory: answers.py has it.
VICTIM = "jetson-9"
CLAIM = {
    "hostname": VICTIM,
    "machine_id": f"id of {VICTIM}",
    "k3s": {"settings": {"node-name": VICTIM}},
    "network": {"addresses": [{"device": "eth0", "address": "192.0.2.9/24"}]},
}
OF_NODES = (
    "drift", "forget", "jtop", "os_update", "power_mode", "preflight", "reboot", "reset", "restore",
    "rotate_ca", "rotate_token", "site", "upgrade", "verify",
)  # fmt: skip
# In CI: those that drain, delete and label nodes.
CLAIMED = ("reset", "power_mode", "reboot", "site")


def assert_node_of_another_is_untouched(site: Site, playbook: str, *more: str) -> None:
    claim = {"boards": [AGENT], "module": "jetson_facts", "answer": {"ansible_facts": {"jetson": CLAIM}}}
    run = play(site, NEWEST, playbook, {}, *more, SCRIPTED_ANSWERS=json.dumps([claim]))
    assert run.calls, run.said
    touched = {
        (module, arguments.get("state"))
        for _, module, arguments in run.calls
        if f'"{VICTIM}"' in json.dumps(arguments)
    }
    assert touched == set(), run.said
    # forget.yml asks no board, and goes by the cluster's record and the inventory's name.
    if playbook != "forget":
        assert run.code != 0, run.said
        assert f"the cluster's node {VICTIM} (192.0.2.9)" in " ".join(run.said.split())


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("playbook", CLAIMED)
def test_board_cannot_claim_the_node_of_another(site: Site, playbook: str) -> None:
    assert_node_of_another_is_untouched(site, playbook, f"--limit={AGENT}")


@pytest.mark.acceptance
@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("playbook", OF_NODES)
def test_no_playbook_touches_a_node_that_a_board_claims(site: Site, playbook: str, limited: bool) -> None:
    alone = [f"--limit={AGENT}"] if limited and not playbook.startswith(("restore", "rotate")) else []
    assert_node_of_another_is_untouched(site, playbook, *alone)


@pytest.mark.parametrize("line", CORES)
def test_playbooks_stop_where_facts_would_override_variables(site: Site, line: str) -> None:
    run = site.play(core(line), "status", {}, ANSIBLE_INJECT_FACT_VARS="True")
    assert (run.code, run.sent) == (2, {board: [] for board in BOARDS})
    assert "Set inject_facts_as_vars = False" in " ".join(run.said.split())


@pytest.mark.parametrize("line", CORES)
def test_board_that_never_answers_fails_and_the_others_go_on(site: Site, line: str) -> None:
    limit = re.compile(r"^task_timeout = (\d+)$", re.MULTILINE)
    settings = (CHECKOUT / "ansible.cfg").read_text()
    (seconds,) = limit.findall(settings)
    assert int(seconds) <= 600
    config = site.root / "home/ansible.cfg"
    config.write_text(
        limit.sub("task_timeout = 15", settings).replace(".collections:", f"{CHECKOUT}/.collections:")
    )
    run = site.play(core(line), "jtop", {AGENT: ["silent"]}, ANSIBLE_CONFIG=str(config))
    recap = {name: (down, failed) for name, down, failed in RECAP.findall(run.said) if name in BOARDS}
    assert recap == {SERVER: ("0", "0"), AGENT: ("0", "1"), BOARDS[2]: ("0", "0")}, run.said
    assert {board for board, module, _ in run.calls if module == "file"} >= {SERVER, BOARDS[2]}
    cause = f"{AGENT} took the connection and did not finish the task within 15 s."
    assert cause in " ".join(run.said.split())
