#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A backup as it goes to the server: encrypted, and the key of this one file.

Runs on the controller. The server has no private key, and the decrypted backup lies on neither side.
"""

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import CHUNK, ArchiveError, digest
from ansible.module_utils.k3s_gpg import decrypt, descriptor_of

DOCUMENTATION = r"""
module: k3s_backup_seal
short_description: An encrypted backup and the session key that decrypts it
description:
  - Of a file that ends in C(.gpg) the user's own gpg gives the session key, which decrypts no other file.
  - Any other file is encrypted first, by a random passphrase that nobody keeps.
  - The result is a secret.
options:
  path: {type: path, required: true, description: The backup.}
  sha256: {required: true, description: Its hash. A file that was changed since it was read is refused.}
  directory: {type: path, required: true, description: A private directory for what is encrypted here.}
"""

RETURN = r"""
path: {type: str, description: The encrypted file.}
sha256: {type: str, description: Its hash.}
session_key: {type: str, description: As C(gpg --show-session-key) gives it.}
"""

SESSION_KEY = re.compile(rb"^\[GNUPG:\] SESSION_KEY (\S+)$", re.MULTILINE)


def session_key(gpg, path, arguments=(), descriptors=()):
    """The key of one encrypted file. ArchiveError, OSError."""
    with tempfile.TemporaryFile() as status:
        number = status.fileno()
        asked = ("--show-session-key", "--status-fd", str(number), *arguments)
        decrypt(gpg, path, lambda _stream: None, asked, (number, *descriptors))
        status.seek(0)
        found = SESSION_KEY.search(status.read())
    if found is None:
        raise ArchiveError("gpg does not say the session key")
    return found.group(1).decode("ascii")


def seal(gpg, path, sha256, directory):
    """Encrypt a file whose hash is known; return the encrypted file and its session key.

    ArchiveError, OSError.
    """
    passphrase, home = secrets.token_hex(32), os.path.join(directory, "gnupg")
    target = os.path.join(directory, "backup.gpg")
    os.mkdir(home, 0o700)
    by_passphrase = ("--homedir", home, "--pinentry-mode", "loopback", "--passphrase-fd")
    try:
        reading = descriptor_of(passphrase)
        argv = [gpg, "--batch", "--no-tty", "--quiet", *by_passphrase, str(reading)]
        argv += ["--cipher-algo", "AES256", "--output", target, "--symmetric"]
        found = hashlib.sha256()
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(reading,)
        )
        os.close(reading)
        with open(path, "rb") as stream, process.stdin as sink:
            for chunk in iter(lambda: stream.read(CHUNK), b""):
                found.update(chunk)
                sink.write(chunk)
        if process.wait() != 0:
            raise ArchiveError("gpg does not encrypt it")
        if found.hexdigest() != sha256:
            raise ArchiveError("it was changed since it was read")
        reading = descriptor_of(passphrase)
        try:
            return target, session_key(gpg, target, (*by_passphrase, str(reading)), (reading,))
        finally:
            os.close(reading)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "directory": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    path, sha256 = os.path.abspath(module.params["path"]), module.params["sha256"]
    gpg = shutil.which("gpg")
    if gpg is None:
        module.fail_json(msg="this computer has no gpg; install gnupg")
    os.umask(0o077)
    try:
        if path.endswith(".gpg"):
            key = session_key(gpg, path)
        else:
            path, key = seal(gpg, path, sha256, module.params["directory"])
            sha256 = digest(path)
    except (ArchiveError, OSError) as error:
        module.fail_json(msg="{} cannot be sent to the server: {}".format(path, error))
    module.exit_json(changed=False, path=path, sha256=sha256, session_key=key)


if __name__ == "__main__":
    main()
