# SPDX-License-Identifier: Apache-2.0
"""A key pair of the operator's, for backups, in a keyring that playbooks use which run meanwhile."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tools.debian import ensure_packages
from tools.process import run


@contextmanager
def keyring() -> Iterator[Path]:
    """Give the file with the public key, as `gpg --armor --export` writes it."""
    ensure_packages("gpg", "gpg-agent")
    home = Path(tempfile.mkdtemp(prefix="gpg-"))  # short: gpg's sockets lie in it
    try:
        with mock.patch.dict(os.environ, {"GNUPGHOME": str(home)}):
            user = "backup@example.com"
            new_key = ("--quick-generate-key", user, "default", "default", "never")
            run(["gpg", "--batch", "--quiet", "--passphrase", "", *new_key])
            public = home / "backup-key.asc"
            public.write_text(run(["gpg", "--armor", "--export", user]).stdout)
            yield public
            run(["gpgconf", "--kill", "all"], check=False)
    finally:
        shutil.rmtree(home, ignore_errors=True)
