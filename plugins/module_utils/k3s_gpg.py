# SPDX-License-Identifier: Apache-2.0
"""gpg in a pipe: what is decrypted is read while gpg writes it, and is in no file.

Runs on the board and on the controller, therefore Python 3.6 compatible.
"""

import os
import subprocess
import tempfile

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_archive import CHUNK, ArchiveError

DECRYPT = ("--batch", "--no-tty", "--quiet")


def decrypt(gpg, path, take, arguments=(), descriptors=()):
    """What take(stream) makes of the decrypted file. ArchiveError, OSError.

    gpg finds out at the file's end whether it was changed. So the result counts only on return.
    """
    argv = [gpg, *DECRYPT, *arguments, "--decrypt", "--", path]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, pass_fds=descriptors
        )
        problem = result = None
        try:
            result = take(process.stdout)
            for _ in iter(lambda: process.stdout.read(CHUNK), b""):
                pass
        except ArchiveError as error:
            problem = error
        finally:
            process.stdout.close()
            status = process.wait()
        if status != 0:
            said.seek(0)
            raise ArchiveError("gpg does not decrypt it: {}".format(_words(said.read()) or problem))
        if problem is not None:
            raise problem
        return result


def decrypt_with_session_key(gpg, home, path, key, take):
    """The same with the key of this one file, as gpg --show-session-key gives it, and no other key."""
    reading = descriptor_of(key)
    try:
        number = str(reading)
        return decrypt(gpg, path, take, ("--homedir", home, "--override-session-key-fd", number), (reading,))
    finally:
        os.close(reading)


def descriptor_of(secret):
    """A pipe that gives a passphrase or a key, which is on no command line then."""
    reading, writing = os.pipe()
    os.write(writing, secret.encode("ascii") + b"\n")
    os.close(writing)
    return reading


def _words(said):
    """The messages of gpg without the session key."""
    lines = said.decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines if "session key" not in line and "seskey" not in line).strip()
