# SPDX-License-Identifier: Apache-2.0
"""The cache: entries are complete or absent, and built once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tools import cache as caching


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caching.cache() == tmp_path / "cache"
    monkeypatch.delenv("JETSON_K3S_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert caching.cache() == tmp_path / "xdg" / "jetson-k3s"


def test_an_entry_is_built_once_for_several_threads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, built = Event(), []
    monkeypatch.setattr(caching, "say", lambda _: waits.set())

    def build(out: Path) -> None:
        assert not out.exists()
        built.append(out)
        assert waits.wait(30), "another one waits for it"
        out.write_text("made")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: caching.cached("things/one.txt", build), range(8)))
    assert set(found) == {cache / "things/one.txt"}
    assert found[0].read_text() == "made"
    assert len(built) == 1


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def build(out: Path) -> None:
        out.write_text("half")
        raise RuntimeError("no power")

    with pytest.raises(RuntimeError):
        caching.cached("things/one.txt", build)
    assert not list((cache / "things").iterdir())
    assert not list((cache / "scratch").iterdir())


def test_a_killed_build_is_started_again(cache: Path) -> None:
    rest = cache / "scratch" / "things_one.txt" / "one.txt"
    rest.parent.mkdir(parents=True)
    rest.write_text("half")
    assert caching.cached("things/one.txt", lambda out: out.touch()).read_text() == ""
