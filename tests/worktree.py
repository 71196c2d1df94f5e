# SPDX-License-Identifier: Apache-2.0
"""Another revision of the project, in a working tree of its own."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.cache import CHECKOUT
from tools.process import ToolError, run

RELEASE_0_1_0 = "3075510253a917dd0d8da6062af04669edec1322"
"""The commit of release 0.1.0, which has no tag."""


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Yield a working tree of a commit; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-") as parent:
        tree = Path(parent, commit[:12])
        run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=CHECKOUT)
        try:
            yield tree
        finally:
            run(["git", "worktree", "remove", "--force", tree], cwd=CHECKOUT)


def file_of(commit: str, path: str) -> str:
    """Return a file as it was in a commit."""
    return run(["git", "show", f"{commit}:{path}"], cwd=CHECKOUT).stdout


def files_of(commit: str, directory: str) -> list[str]:
    """Return the paths of all files that a directory had in a commit."""
    return run(["git", "ls-tree", "-r", "--name-only", commit, directory], cwd=CHECKOUT).stdout.split()


def skip_without(commit: str) -> None:
    """Skip the test where git does not have the commit, as in a shallow clone.

    On GitHub it fails, where the workflows fetch the complete history.
    """
    try:
        run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=CHECKOUT)
    except ToolError as error:
        if "GITHUB_ACTIONS" in os.environ:
            raise
        pytest.skip(f"this clone does not have the commit {commit[:12]}: {error}")


def archive_of(commit: str, directory: str) -> bytes:
    """Return a directory as it was in a commit, as a tar archive."""
    command = ["git", "-C", str(CHECKOUT), "archive", commit, directory]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
