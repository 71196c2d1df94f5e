# SPDX-License-Identifier: Apache-2.0
"""gpg in a pipe: decrypted content is read while gpg writes it, and is never in a file.

Runs on the board and on the controller, therefore Python 3.6 compatible.
"""

import functools
import os
import subprocess
import tempfile
from typing import IO, Callable, Sequence, TypeVar

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_archive import CHUNK, ArchiveError

Taken = TypeVar("Taken")

DECRYPT = ("--batch", "--no-tty", "--quiet")


def decrypt(
    gpg: str,
    path: str,
    take: Callable[[IO[bytes]], Taken],
    arguments: Sequence[str] = (),
    descriptors: Sequence[int] = (),
) -> Taken:
    """The result of take(stream) with the decrypted content. ArchiveError, OSError.

    gpg detects a changed file only at its end. So the result is valid only on return.
    """
    argv = [gpg, *DECRYPT, *arguments, "--decrypt", "--", path]
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, pass_fds=descriptors
        ) as process:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            try:
                result = take(process.stdout)
                for _ in iter(functools.partial(process.stdout.read, CHUNK), b""):
                    pass
            except ArchiveError as error:
                process.stdout.close()
                _check_status(process.wait(), said, str(error))
                raise
        _check_status(process.returncode, said, "exit status {}".format(process.returncode))
        return result


def _check_status(status: int, said: IO[bytes], problem: str) -> None:
    """ArchiveError if gpg failed: with its messages, or without messages with the problem."""
    if status != 0:
        said.seek(0)
        raise ArchiveError("gpg does not decrypt it: {}".format(_words(said.read()) or problem))


def decrypt_with_session_key(
    gpg: str, home: str, path: str, key: str, take: Callable[[IO[bytes]], Taken]
) -> Taken:
    """The same with the key of this one file, as gpg --show-session-key gives it, and no other key."""
    reading = descriptor_of(key)
    try:
        number = str(reading)
        return decrypt(gpg, path, take, ("--homedir", home, "--override-session-key-fd", number), (reading,))
    finally:
        os.close(reading)


def descriptor_of(secret: str) -> int:
    """A pipe with a passphrase or a key, which is on no command line."""
    reading, writing = os.pipe()
    os.write(writing, secret.encode("ascii") + b"\n")
    os.close(writing)
    return reading


def _words(said: bytes) -> str:
    """The messages of gpg without the session key."""
    lines = said.decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines if "session key" not in line and "seskey" not in line).strip()
