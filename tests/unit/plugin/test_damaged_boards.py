# SPDX-License-Identifier: Apache-2.0
"""Whatever is missing from a board or garbled, the answers stay consistent and nothing is raised."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import judge, sample
from tegra_device_plugin.board.labels import node_labels

from tests.boards import State, build, load

BOARDS = load()
STATES: tuple[State, ...] = ("ready", "unpowered", "dead", "masked")


def _damage(root: Path, choices: st.DataObject) -> None:
    entries = sorted(root.rglob("*"))
    for _ in range(choices.draw(st.integers(1, 8), label="damages")):
        path = choices.draw(st.sampled_from(entries), label="entry")
        if not path.is_symlink() and not path.exists():
            continue  # gone with an earlier one
        garble = choices.draw(st.booleans(), label="garble")
        if garble and path.is_file():
            path.write_bytes(choices.draw(st.binary(max_size=40), label="content"))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@settings(max_examples=150)
@given(st.sampled_from(sorted(BOARDS)), st.sampled_from(STATES), st.data())
def test_answers_stay_consistent(board: str, state: State, choices: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        build(BOARDS[board], root, state=state)
        _damage(root, choices)
        detection = detect(root)
        gpu = detection.gpu
        verdict = judge(sample(root, gpu))
        found = node_labels(detection)

        if detection.board.platform == "none":
            assert gpu.state == "absent"
        if gpu.state == "absent":
            assert (gpu.sysfs, gpu.device_nodes, found) == (None, (), {})
            assert not verdict.healthy
        else:
            assert gpu.sysfs is not None
            assert (root / gpu.sysfs.lstrip("/")).is_dir()
            assert found["nvidia.com/gpu.count"] == "1"
        if gpu.state == "ready":
            assert (root / str(gpu.sysfs).lstrip("/") / "driver").is_dir()
        assert all((root / node.lstrip("/")).is_file() for node in gpu.device_nodes)
        assert all(value.isprintable() for value in found.values())
        assert detection.evidence
