# SPDX-License-Identifier: Apache-2.0
"""A controller with an inventory of scripted boards: runs playbooks, and tells what they have done to it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.ansible_core import Core
from tests.docs import CHECKOUT
from tests.hostile import answers
from tests.lab import archive
from tests.unit.roles import signed_debs

HERE = Path(__file__).parent
SECRET = "canary-of-the-controller"
TIMEOUT_SECONDS = 1800  # `huge` answers every task with 10 MB
BOARDS = ("jetson-1", "jetson-2", "jetson-3")
INVENTORY = """\
[server]
jetson-1
[agent]
jetson-2
jetson-3
[k3s_cluster:children]
server
agent
[monitoring]
jetson-1
[monitoring:vars]
monitoring_rules_directory=/srv/monitoring
[all:vars]
ansible_connection=scripted
ansible_python_interpreter=/usr/bin/python3
jetson_k3s_bundle={bundle}
[k3s_cluster:vars]
power_mode_nvpmodel=1
jetson_k3s_confirm=restore-docker
gpu_device_plugin_metrics_on_host=true
"""


def make_bundle(path: Path) -> dict[str, str]:
    path.mkdir()
    plugin, pause = answers.IMAGES
    archive.write(path / "tegra-device-plugin-amd64.tar.gz", [plugin], "amd64", {}, {})
    archive.write(path / "k3s-airgap-images-amd64.tar.gz", [pause], "amd64", {}, {})
    (path / "k3s-amd64").write_text("k3s")
    (path / "jetson_stats-4.3.2-py3-none-any.whl").write_text("wheel")
    jtop = {"version": "4.3.2", "wheels": ["jetson_stats-4.3.2-py3-none-any.whl"]}
    versions = {"version": 1, "k3s_version": answers.NEW, "plugin_image": plugin, "jtop": jtop}
    versions |= {"pause_image": pause}
    (path / "bundle.yml").write_text(yaml.safe_dump(versions))
    sums = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(path.iterdir())}
    (path / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    return sums


def make_release(path: Path) -> None:
    """A K3s release as bundle.yml downloads it."""
    path.mkdir(parents=True)
    (path / "k3s").write_text("k3s")
    archive.write(path / "k3s-airgap-images-amd64.tar.gz", [answers.IMAGES[1]], "amd64", {}, {})
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in path.iterdir()]
    (path / "sha256sum-amd64.txt").write_text("".join(sums))


@functools.cache
def packages_and_keyring() -> tuple[signed_debs.Files, bytes]:
    """Packages as an honest board packs them, and the keyring of their source."""
    with signed_debs.made_keys() as keys:
        packages = signed_debs.board_archive(keys, *signed_debs.DEBS)
        return packages, keys.keyring(signed_debs.OWNER).read_bytes()


def variables() -> list[str]:
    """Every variable that a role has a default for, or that a user may set."""
    found = {
        "inventory_dir", "jetson_k3s_bundle", "omit", "groups", "hostvars", "playbook_dir", "role_path",
    }  # fmt: skip
    for path in CHECKOUT.glob("roles/*/defaults/main.yml"):
        found.update(yaml.safe_load(path.read_text()) or {})
    for path in CHECKOUT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            found.update(entry.get("options") or {})
    return sorted(found)


@dataclass(frozen=True)
class Run:
    code: int
    said: str
    logged: str
    """Ansible's own output, '' with -v."""
    written: set[str]
    sent: dict[str, list[tuple[str, bytes]]]
    calls: list[tuple[str, str, answers.Answer]]
    """Board, module and arguments, in the order in which the boards got them."""


@dataclass(frozen=True)
class Site:
    root: Path
    sums: dict[str, str]
    tmp: Path
    """The directory `tmp` by a short path: from 2.21 on Ansible has a socket there."""

    def state(self) -> dict[str, str | int]:
        """Every file below the site but Ansible's own, by content."""
        found: dict[str, str | int] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if not name.startswith(("boards/", "home/.ansible", "core/")):
                found[name] = path.read_bytes().hex()[:200] if path.is_file() else path.stat().st_mode
        return found

    def command(self, core: Core, playbook: str, *arguments: str) -> list[str]:
        """The command that runs a playbook, in the directory `site`."""
        command = [*core.program("playbook"), f"--inventory={self.root}/site/inventory"]
        return [*command, *arguments, f"{CHECKOUT}/playbooks/{playbook}.yml"]

    def environment(
        self, core: Core, boards: Path, attacks: dict[str, list[str]], **settings: str
    ) -> dict[str, str]:
        """Its environment. What the boards get is recorded below the directory `boards`."""
        (boards / "uploads").mkdir(parents=True)
        return (
            {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
            | {
                "HOME": f"{self.root}/home",
                "TMPDIR": str(self.tmp),
                "ANSIBLE_CONFIG": f"{CHECKOUT}/ansible.cfg",
                "ANSIBLE_CONNECTION_PLUGINS": f"{HERE}/connection_plugins",
                "ANSIBLE_NOCOLOR": "1",
                "JETSON_K3S_LOG_DIRECTORY": f"{self.root}/site/logs",
                "PYTHONPATH": core.pythonpath(CHECKOUT, CHECKOUT / "plugin"),
                "SCRIPTED_BOARDS": str(boards),
                "SCRIPTED_ATTACKS": json.dumps(attacks),
                "SCRIPTED_SUMS": json.dumps(self.sums),
                "SCRIPTED_PACKAGES": f"{self.root}/packages.tar",
                "SCRIPTED_SECRET": f"{self.root}/home/.ssh/id_ed25519",
                "SCRIPTED_TOUCH": f"{self.root}/touched",
                "SCRIPTED_VARIABLES": json.dumps(variables()),
            }
            | settings
        )

    def play(
        self,
        core: Core,
        playbook: str,
        attacks: dict[str, list[str]],
        *arguments: str,
        **settings: str,
    ) -> Run:
        boards = self.root / "boards" / f"{playbook}-{len(list((self.root / 'boards').iterdir()))}"
        environment = self.environment(core, boards, attacks, **settings)
        before = self.state()
        ran = subprocess.run(
            self.command(core, playbook, *arguments),
            cwd=self.root / "site",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        logs = self.root / "site/logs"
        assert logs.is_dir() or "ANSIBLE_VERBOSITY" in settings
        logged = "".join(path.read_text(errors="replace") for path in sorted(logs.glob("*.log")))
        shutil.rmtree(logs, ignore_errors=True)
        after = self.state()
        written = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        sent = {
            board: [
                (path.name.split("-", 2)[2], path.read_bytes()) for path in sorted((boards / board).glob("*"))
            ]
            for board in BOARDS
        }
        return Run(ran.returncode, ran.stdout, logged, written, sent, calls(boards))


def calls(boards: Path) -> list[tuple[str, str, answers.Answer]]:
    """The modules that ran, in order, as the connection plugin has recorded them below the directory."""
    found = []
    for path in sorted(boards.glob("*/*"), key=lambda path: path.name):
        module = path.name.split("-", 2)[-1]
        if path.parent.name != "uploads" and module not in ("shell", "upload"):
            found.append((path.parent.name, module, json.loads(path.read_bytes())))
    return found


def make_site(root: Path, inventory: str = INVENTORY) -> Site:
    for name in ("home/.ssh", "tmp", "site", "boards"):
        (root / name).mkdir(parents=True)
    (root / "home/.ssh/id_ed25519").write_text(SECRET)
    (root / "home/.ssh/authorized_keys").write_text("mine")
    sums = make_bundle(root / "bundle")
    make_release(root / "release" / answers.NEW)
    (root / "site/inventory").write_text(inventory.format(bundle=root / "bundle"))
    packages, keyring = packages_and_keyring()
    signed_debs.write_archive(root / "packages.tar", packages)
    (root / "site/keyring.gpg").write_bytes(keyring)
    (root / "site/key.asc").write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    short = Path(tempfile.mkdtemp())
    (short / "t").symlink_to(root / "tmp")
    site = Site(root, sums, short / "t")
    weakref.finalize(site, shutil.rmtree, short)
    return site
