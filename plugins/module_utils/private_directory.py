# SPDX-License-Identifier: Apache-2.0
"""A directory for secrets that is removed when its process ends.

Runs on the board: Python 3.6 compatible.
"""

import contextlib
import glob
import os
import shutil
import signal
import sys
import tempfile
from types import FrameType
from typing import Iterator, Optional


@contextlib.contextmanager
def private_directory(parent: str, prefix: str) -> Iterator[str]:
    """A new directory for this user alone, which is removed after the block. OSError.

    A signal ends the block as well, such as that of a lost connection. After SIGKILL or a power cut, the next
    call removes the directory.
    """
    for leftover in glob.glob(os.path.join(glob.escape(parent), prefix + "*")):
        shutil.rmtree(leftover)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _end)
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _end(number: int, _frame: Optional[FrameType]) -> None:
    sys.exit("ended by signal {}".format(number))
