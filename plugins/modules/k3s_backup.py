#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A backup of this K3s server in one file: its data, taken while it runs, and what is needed to read them.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import datetime
import glob
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import zipfile
from typing import IO, Callable, Iterator, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_archive import (
    OURS,
    check_space,
    digest,
    is_known,
    write,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.private_directory import private_directory
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: k3s_backup
short_description: A backup of a K3s server, in one file
description:
  - Embedded etcd says its snapshot itself (C(k3s etcd-snapshot save)). SQLite is read in one transaction,
    while K3s goes on writing, and the copy is checked.
  - Token, certificate authorities, credentials and manifests come with it, the host's node password, and what
    the owner has put into /etc/rancher/k3s.
options:
  recipient:
    description:
      An OpenPGP public key, armored. Then the file is encrypted for it, and lies where
      the user who logs in can fetch it. Without it the file is root's alone.
  directory: {type: path, required: true, description: Directory of unencrypted backups.}
  name: {required: true, description: 'Name of the file, as on the controller.'}
"""

RETURN = r"""
path: {type: str, description: 'The file, null in check mode.'}
sha256: {type: str, description: 'Its hash, null in check mode.'}
bytes: {type: int, description: 'Its size, 0 in check mode.'}
datastore: {type: str, description: C(etcd) or C(sqlite).}
"""

Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

K3S = "/usr/local/bin/k3s"
DATA = "/var/lib/rancher/k3s/server"
CONFIG = "/etc/rancher/k3s"
NODE_PASSWORD = "/etc/rancher/node/password"  # noqa: S105 - a path
# What makes the data readable and the server itself: K3s encrypts its bootstrap data with the token.
FILES = ("token", "agent-token")
TREES = ("tls", "cred", "manifests")
OWNERS = ("config.yaml", "config.yaml.d/*.yaml", "config.yaml.d/*.yml", "registries.yaml")
# Where K3s reads from that its data are elsewhere.
ENVIRONMENT = ("/etc/default/k3s", "/etc/sysconfig/k3s", "/etc/systemd/system/k3s.service.env")
ENDPOINT = re.compile(
    r"""(?:^|[{,])[ \t]*["']?datastore-endpoint["']?\+?[ \t]*:[ \t]*["']?[^\s"']"""
    r"""|\bK3S_DATASTORE_ENDPOINT=["']?[^\s"']|\s--?datastore-endpoint[=\s]""",
    re.MULTILINE,
)
ELSEWHERE = (
    "K3s keeps its data in a database elsewhere (datastore-endpoint), which has a backup of its own. Keep a "
    "copy of {}/token as well: K3s encrypts the keys of its CA with it. No backup was made.".format(DATA)
)
STAGE = ".unfinished-"
FETCHED_FROM = "/var/tmp"  # noqa: S108 - what lies there is encrypted, in a directory of its own
FETCHED = "jetson-k3s-backup-"


class BackupError(Exception):
    """No backup can be made; the text says why and what to do."""


def datastore(data: str, run: Run) -> str:
    """Which data store the server has: etcd or sqlite. BackupError for one that is elsewhere.

    K3s uses an etcd that is there before all else (pkg/cluster/managed.go). An old SQLite may be left.
    """
    if os.path.isdir(os.path.join(data, "db", "etcd")):
        return "etcd"
    check_endpoint(run(["systemctl", "show", "--property=ExecStart,Environment", "k3s.service"])[1])
    if os.path.exists(os.path.join(data, "db", "state.db")):
        return "sqlite"
    place = os.path.join(data, "db")
    raise BackupError("{} has neither etcd's nor SQLite's data: K3s was never started here.".format(place))


def check_endpoint(unit: str) -> None:
    """BackupError if K3s' files, or its unit as systemd shows it, name a database elsewhere."""
    texts = [unit]
    owners = [path for pattern in OWNERS[:-1] for path in glob.glob(os.path.join(CONFIG, pattern))]
    for path in [*owners, *ENVIRONMENT]:
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            texts.append(re.sub(r"(?m)^[ \t]*#.*$", "", stream.read()))
    if any(ENDPOINT.search(text) for text in texts):
        raise BackupError(ELSEWHERE)


def size(path: str) -> int:
    """Bytes of a file, or of all files below a directory; those that go meanwhile do not count."""
    total = 0
    for where, _, names in os.walk(path) if os.path.isdir(path) else [(os.path.dirname(path), [], [path])]:
        for name in names:
            with contextlib.suppress(OSError):
                total += os.path.getsize(os.path.join(where, name))
    return total


def copy_sqlite(source: str, target: str) -> None:
    """Write a copy of a database that is in use, as it is at one moment, and check it. BackupError.

    The module of Python 3.6 has no backup(); what it can dump is the same in all versions.
    """
    with contextlib.closing(sqlite3.connect("file:{}?mode=ro".format(source), uri=True, timeout=30)) as old:
        old.isolation_level = None
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the transaction begins with a read
        with contextlib.closing(sqlite3.connect(target)) as new:
            new.isolation_level = None
            new.execute("PRAGMA synchronous = OFF")  # the complete file is synced later
            for statement in old.iterdump():
                new.execute(statement)
            (verdict,) = new.execute("PRAGMA integrity_check").fetchone()
            (objects,) = new.execute("SELECT count(*) FROM kine WHERE name LIKE '/registry/%'").fetchone()
    if verdict != "ok" or not objects:
        raise BackupError(
            "the copy of {} is not sound ({}, {} objects). No backup was made.".format(
                source, verdict, objects
            )
        )


def copy_etcd(run: Run, stage: str) -> None:
    """Have K3s write a snapshot into the stage, which it checks itself. BackupError."""
    directory = os.path.join(stage, "snapshot")
    os.mkdir(directory, 0o700)
    code, out, err = run(
        [K3S, "etcd-snapshot", "save", "--name=jetson-k3s", "--etcd-snapshot-dir=" + directory]
    )
    found = os.listdir(directory)
    if code or len(found) != 1:
        raise BackupError(
            "`k3s etcd-snapshot save` has failed: {}".format(
                redact(err or out).strip() or "it left no snapshot"
            )
        )
    snapshot = os.path.join(directory, found[0])
    if zipfile.is_zipfile(snapshot):  # etcd-snapshot-compress
        with zipfile.ZipFile(snapshot) as archive:
            snapshot = archive.extract(archive.namelist()[0], stage)
    place(snapshot, os.path.join(stage, "files", "server", "db", "snapshot"))


def place(source: str, target: str) -> None:
    """Copy a file, for root alone."""
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    shutil.copyfile(source, target)


def copy_identity(data: str, files: str) -> None:
    """Copy what the server is known by and what its owner has configured."""
    paths = [os.path.join(data, name) for name in FILES]
    for tree in TREES:
        for where, _, names in os.walk(os.path.join(data, tree)):
            paths += [os.path.join(where, name) for name in names]
    for path in paths:
        if os.path.isfile(path) and not os.path.islink(path):
            place(path, os.path.join(files, "server", os.path.relpath(path, data)))
    for pattern in OWNERS:
        for path in glob.glob(os.path.join(CONFIG, pattern)):
            if os.path.basename(path) != OURS:
                place(path, os.path.join(files, "etc", os.path.relpath(path, CONFIG)))
    if os.path.exists(NODE_PASSWORD):
        place(NODE_PASSWORD, os.path.join(files, "node", "password"))
    for where, _, names in os.walk(files):
        for name in names:
            path = os.path.relpath(os.path.join(where, name), files)
            if not is_known(path):
                raise BackupError(
                    "{!r} cannot be backed up under this name. Rename or remove it.".format(path)
                )


def fetched() -> List[str]:
    """Directories in which a backup of root's waits to be fetched."""
    found = glob.glob(os.path.join(FETCHED_FROM, FETCHED + "*"))
    return [path for path in found if os.lstat(path).st_uid == os.geteuid()]


@contextlib.contextmanager
def staging(directory: str) -> Iterator[str]:
    """A directory of root's alone, gone at the end."""
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    for leftover in fetched():
        shutil.rmtree(leftover)
    with private_directory(directory, STAGE) as stage:
        yield stage


def encrypted(gpg: str, key: str, stage: str, target: str, fill: Callable[[IO[bytes]], None]) -> None:
    """Have gpg write the target, encrypted for the key; fill(stream) gives it the content. BackupError."""
    home, recipient = os.path.join(stage, "gnupg"), os.path.join(stage, "recipient.asc")
    os.mkdir(home, 0o700)
    with open(recipient, "w") as stream:
        stream.write(key)
    argv = [gpg, "--homedir", home, "--batch", "--no-tty", "--quiet", "--trust-model", "always"]
    argv += ["--recipient-file", recipient, "--output", target, "--encrypt"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            with contextlib.suppress(BrokenPipeError):  # its exit status tells
                fill(process.stdin)
                process.stdin.close()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.wait() != 0:
            said.seek(0)
            raise BackupError(
                "gpg cannot encrypt for the key in k3s_backup_recipient: {}".format(
                    said.read().decode("utf-8", "replace").strip()
                )
            )


def backup(module: AnsibleModule, kind: str, name: str) -> str:
    """Make the backup; return its path. BackupError, OSError."""
    directory, key = module.params["directory"], module.params["recipient"]
    gpg = module.get_bin_path("gpg") if key else None
    if key and not gpg:
        raise BackupError("the board has no gpg to encrypt with: sudo apt-get install gnupg")
    with staging(directory) as stage:
        # The data once as files and once as the backup; dumped, SQLite's have no unused pages.
        check_space(directory, 2 * size(os.path.join(DATA, "db", "etcd" if kind == "etcd" else "state.db")))
        files = os.path.join(stage, "files")
        os.makedirs(os.path.join(files, "server", "db"), 0o700)
        if kind == "etcd":
            copy_etcd(module.run_command, stage)
        else:
            copy_sqlite(os.path.join(DATA, "db", "state.db"), os.path.join(files, "server", "db", "state.db"))
        copy_identity(DATA, files)
        manifest = {
            "created": datetime.datetime.utcnow().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "server": os.uname().nodename.lower(),
            "k3s_version": version(module),
            "datastore": kind,
            "ca": digest(os.path.join(DATA, "tls", "server-ca.crt")),
        }
        made = os.path.join(stage, name)
        if gpg:
            encrypted(gpg, key, stage, made, lambda stream: write(stream, files, manifest))
            target = os.path.join(tempfile.mkdtemp(prefix=FETCHED, dir=FETCHED_FROM), name)
            os.chmod(os.path.dirname(target), 0o755)  # noqa: S103 - encrypted, and to be fetched
            os.chmod(made, 0o644)
            shutil.move(made, target)
        else:
            with open(made, "wb") as stream:
                write(stream, files, manifest)
                stream.flush()
                os.fsync(stream.fileno())
            target = os.path.join(directory, name)
            os.rename(made, target)
    return target


def version(module: AnsibleModule) -> str:
    """K3s' version, such as v1.33.5+k3s1. BackupError."""
    found = re.search(r"k3s version (v\S+)", module.run_command([K3S, "--version"])[1])
    if found is None:
        raise BackupError("`k3s --version` does not say which K3s runs here.")
    return found.group(1)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "recipient": {"type": "str"},
            "directory": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    os.umask(0o077)
    try:
        kind = datastore(DATA, module.run_command)
        if module.check_mode:
            module.exit_json(changed=False, path=None, sha256=None, bytes=0, datastore=kind)
        path = backup(module, kind, module.params["name"])
        module.exit_json(
            changed=False,
            path=path,
            sha256=digest(path),
            bytes=os.path.getsize(path),
            datastore=kind,
        )
    except (BackupError, OSError, sqlite3.Error) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
