# SPDX-License-Identifier: Apache-2.0
"""Changing a board's simulated hardware while it is live."""

import itertools
import shutil
from pathlib import Path
from typing import get_args

import pytest

from tests import boards
from tests.lab.virtual_board import virtual_board


def listing(root: Path) -> dict[str, str]:
    """Return every file below the areas that change, with what it holds."""
    found = {}
    for area in virtual_board.AREAS:
        for path in (root / area).rglob("*"):
            if path.is_symlink():
                content = f"-> {path.readlink()}"
            else:
                content = "directory" if path.is_dir() else path.read_text(errors="replace")
            found[str(path.relative_to(root))] = content
    # The kernel keeps these when they are empty, a tree may have them or not.
    return {
        path: content
        for path, content in found.items()
        if path.removeprefix("sys/") not in virtual_board.OPAQUE
    }


@pytest.mark.parametrize("board", ["nano-jp4", "agxorin-jp6", "thor5000-jp70"])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(get_args(boards.State), 2)))
def test_a_live_tree_becomes_the_new_one(
    board: str, before: boards.State, after: boards.State, tmp_path: Path
) -> None:
    fixture = boards.load()[board]
    tree, new, live = tmp_path / "tree", tmp_path / "new", tmp_path / "live"
    boards.build(fixture, tree, state=before)
    boards.build(fixture, new, state=after)
    shutil.copytree(tree, live, symlinks=True)
    wanted = listing(new)
    assert listing(live) != wanted

    virtual_board.apply(new, tree, live)

    assert listing(live) == wanted
    assert listing(tree) == wanted
    assert not new.exists()


def test_what_is_not_simulated_stays(tmp_path: Path) -> None:
    tree, new, live = tmp_path / "tree", tmp_path / "new", tmp_path / "live"
    (tree / "sys/class/devfreq").mkdir(parents=True)
    (new / "sys/class").mkdir(parents=True)
    shutil.copytree(tree, live)
    (live / "sys/class/net").mkdir()
    (live / "sys/class/devfreq/of-the-machine").touch()
    virtual_board.apply(new, tree, live)
    assert (live / "sys/class/net").is_dir()
    assert (live / "sys/class/devfreq/of-the-machine").exists()
