# SPDX-License-Identifier: Apache-2.0
"""The socket directory: who serves, what is left over, what can never work."""

import socket
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet.sockets import (
    MAX_SOCKET_PATH,
    Instance,
    accepts,
    check_length,
    serving,
    sweep,
)


def test_a_directory_that_goes_has_no_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It goes between any two calls, also after a check of its existence.
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert serving(tmp_path / "gone") == frozenset()
    assert Instance().others(tmp_path / "gone") == {}
    sweep(tmp_path / "gone")


def test_a_full_queue_is_not_a_dead_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind("busy")
        busy.listen(0)
        first.connect("busy")
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            assert second.connect_ex("busy") != 0  # the queue is full indeed
        assert accepts(Path("busy"))


def test_only_stale_sockets_of_this_plugin_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths: pytest's own are too long for a socket's address
    with socket.socket(socket.AF_UNIX) as serving, socket.socket(socket.AF_UNIX) as stale:
        serving.bind("tegra-gpu-2-0.sock")
        serving.listen()
        stale.bind("tegra-gpu-1-0.sock")
        Path("other.sock").touch()
        sweep(Path())
        assert sorted(path.name for path in Path().iterdir()) == ["other.sock", "tegra-gpu-2-0.sock"]


def test_a_directory_whose_name_is_too_long_for_sockets_is_rejected() -> None:
    check_length(Path("/var/lib/kubelet/device-plugins"))
    longest = "/" + Instance(standby=True).new_socket().replace("-0.sock", f"-{10**9}.sock")
    fits = Path("/" + "a" * (MAX_SOCKET_PATH - len(longest) - 1))
    check_length(fits)
    with pytest.raises(OSError, match="by 1 bytes"):
        check_length(Path(f"{fits}a"))


def test_a_newer_instance_goes_first_and_one_that_stands_by_last() -> None:
    older, stand_by, newer = Instance(), Instance(standby=True), Instance()
    assert older.yields_to(newer.new_socket())
    assert not newer.yields_to(older.new_socket())
    assert stand_by.yields_to(older.new_socket())
    assert not older.yields_to(stand_by.new_socket())


def test_a_clock_that_is_set_back_does_not_change_who_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_800_000_000_000_000_000, 1_700_000_000_000_000_000])
    monkeypatch.setattr("time.time_ns", lambda: next(times))
    older = Instance()
    assert older.yields_to(Instance().new_socket())
