# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: what their kernel is told, and how QEMU and its agent are spoken to."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import boards
from tests.lab.vm import devicetree, machine
from tests.lab.vm.qemu import Channel, Qemu
from tools.process import ToolError


@pytest.mark.parametrize("fixture", boards.load().values(), ids=lambda fixture: str(fixture.id))
def test_the_device_tree_names_the_jetson(fixture: boards.Fixture) -> None:
    source = devicetree.source(fixture)
    assert f'model = "{fixture.data["dt_model"]}";' in source
    assert f'"{fixture.soc}"' in source or f'"nvidia,{fixture.soc}"' in source
    assert source.count("{") == source.count("}")


def test_the_gpu_stands_where_the_release_has_it() -> None:
    known = boards.load()
    assert "bus@0" in devicetree.source(known["orinnano-jp6"])
    assert "gpu@17000000 {" in devicetree.source(known["orinnano-jp6"])
    older = devicetree.source(known["xaviernx-jp5"])
    assert "bus@0" not in older
    assert 'gv11b { compatible = "nvidia,gv11b"; reg = <0x0 0x17000000' in older
    assert "gpu" not in devicetree.source(known["thor5000-jp70"]).replace("nvidia", "")


def test_two_boards_have_two_interfaces_whose_names_linux_takes() -> None:
    names = {machine._interface("lab", f"jetson-{number}") for number in range(20)}
    assert len(names) == 20
    assert all(len(name) <= 15 for name in names)


def test_a_machine_without_a_process_is_found_as_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.paths.CHECKOUT", tmp_path)
    place = machine.machines("lab") / "jetson-1"
    place.mkdir(parents=True)
    record = {
        "lab": "lab",
        "name": "jetson-1",
        "type": "orinnano-jp6",
        "address": "10.207.1.11",
    }
    (place / machine.RECORD).write_text(json.dumps(record))
    (place / "pid").write_text("1\n")  # not QEMU's
    (found,) = machine.find("lab")
    assert (found.name, found.address, found.running) == ("jetson-1", "10.207.1.11", False)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[list[bytes]]:
    """Listen at agent.sock and answer each line with the next of the list, as the guest's agent would."""
    answers: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent.sock"))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    asked = json.loads(line.lstrip(b"\xff"))
                    token = asked["arguments"].get("id", 0)
                    connection.sendall(answers.pop(0).replace(b"TOKEN", str(token).encode()) + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield answers
    thread.join(timeout=5)


def test_what_the_agent_tells_somebody_else_is_skipped(tmp_path: Path, peer: list[bytes]) -> None:
    peer += [b'{"return": 1}\nnonsense\n\xff{"return": TOKEN}', b'{"return": {"pid": 7}}']
    with Channel.connect(tmp_path, "agent.sock") as agent:
        agent.sync()
        assert agent.call("guest-exec", path="true") == {"pid": 7}


def test_an_event_is_no_answer_and_a_refusal_says_why(tmp_path: Path, peer: list[bytes]) -> None:
    peer += [
        b'{"event": "STOP"}\n{"return": {}}',
        b'{"error": {"class": "GenericError", "desc": "no such job"}}',
    ]
    with Channel.connect(tmp_path, "agent.sock") as channel:
        assert channel.call("stop") == {}
        with pytest.raises(ToolError, match="refused cont: no such job"):
            channel.call("cont")


def test_an_agent_that_is_not_there_does_not_answer(tmp_path: Path) -> None:
    assert not Qemu(tmp_path, "none").answers()
