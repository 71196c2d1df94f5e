# SPDX-License-Identifier: Apache-2.0
"""jtop's facts as evidence beside those of the board's files, on every board, and of hostile relays."""

import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.labels import node_labels
from tegra_device_plugin.cli import main
from tegra_device_plugin.telemetry import jtop
from tegra_device_plugin.telemetry.jtop import Telemetry
from tegra_device_plugin.telemetry.jtop_facts import DisagreementLog, Fact, by_label, compare, disagreeing

from tests.boards import Fixture, build, load
from tests.unit.plugin.jtop_relay import relay

OWN = "jetson-k3s.github.io/jtop."
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
FACTS = ("model", "module", "l4t", "jetpack", "gpu", "compute-capability")


def telemetry_of(fixture: Fixture) -> Telemetry:
    """As jetson-stats reads this board. tests/jtop compares that with the real service."""
    return Telemetry(
        module="NVIDIA Jetson",
        part_number=fixture.data["p_number"],
        jetpack=fixture.jetpack,
        model=fixture.data["dt_model"],
        l4t=fixture.l4t,
        gpu="Thor" if fixture.is_pci else fixture.data["of_node_name"],
        compute_capability=fixture.compute_capability,
    )


def by_name(found: Detection, telemetry: Telemetry) -> dict[str, Fact]:
    return {fact.name: fact for fact in compare(found, telemetry)}


def disagreements(found: Detection, telemetry: Telemetry) -> list[str]:
    return [fact.name for fact in disagreeing(compare(found, telemetry))]


def test_jtop_agrees_with_the_files_of_each_board(board: Fixture, tmp_path: Path) -> None:
    build(board, tmp_path)
    facts = by_name(detect(tmp_path), telemetry_of(board))
    # A node called `gpu` tells no chip.
    expected = dict.fromkeys(FACTS, True) | ({"gpu": None} if facts["gpu"].value == "gpu" else {})
    assert {name: fact.agrees for name, fact in facts.items()} == expected
    assert facts["l4t"].evidence == ("jtop l4t", True, f"{board.l4t}; the board's files agree")


# A value of jtop that is none of any board's, by fact.
OTHER = {
    "model": {"model": "Another Kit"},
    "module": {"part_number": "p3489-0000"},
    "l4t": {"l4t": "36.4.9"},
    "jetpack": {"jetpack": "6.3 (rev1)"},
    "gpu": {"gpu": "gp10b"},
    "compute-capability": {"compute_capability": "9.9"},
}


@pytest.mark.parametrize("fact", OTHER)
def test_a_fact_that_disagrees_is_named_on_each_board(fact: str, board: Fixture, tmp_path: Path) -> None:
    build(board, tmp_path)
    found, wrong_facts = detect(tmp_path), telemetry_of(board)._asdict() | OTHER[fact]
    if wrong_facts["gpu"] == board.data["of_node_name"] == "gp10b" and fact == "gpu":
        wrong_facts["gpu"] = "gv11b"
    telemetry = Telemetry(**wrong_facts)
    assert disagreements(found, telemetry) == [fact]
    wrong = by_name(found, telemetry)[fact]
    assert wrong.own is not None
    assert wrong.evidence.detail == f"{wrong.value}; the board's files have {wrong.own}"
    assert node_labels(found, jtop=by_label(compare(found, telemetry)))[f"{OWN}disagrees"] == fact


@pytest.mark.parametrize("field", ["model", "module", "l4t", "jetpack", "gpu", "compute_capability"])
def test_a_fact_that_jtop_lacks_is_left_out_on_each_board(field: str, board: Fixture, tmp_path: Path) -> None:
    build(board, tmp_path)
    telemetry = telemetry_of(board)._replace(**{field: None}, part_number=None)
    facts = by_name(detect(tmp_path), telemetry)
    assert set(facts) == set(FACTS) - {field.replace("_", "-")}
    assert not disagreeing(list(facts.values()))


def test_facts_that_the_files_lack_stay_unknown(board: Fixture, tmp_path: Path) -> None:
    build(board, tmp_path, state="masked")
    (tmp_path / "etc/nv_tegra_release").unlink()
    found = detect(tmp_path)
    facts = by_name(found, telemetry_of(board))
    assert [facts[name].agrees for name in ("module", "l4t", "jetpack")] == [None] * 3
    labels = node_labels(found, jtop=by_label(list(facts.values())))
    assert labels[f"{OWN}l4t"] == board.l4t
    assert not {"jetson-k3s.github.io/l4t", "jetson-k3s.github.io/module"} & labels.keys()


# The device tree's entries, the EEPROM's number, and whether they agree.
MODULES = {
    "a carrier's tree for two modules": ("p3768-0000+p3767-0003 p3768-0000+p3767-0005", "p3767-0005", True),
    "a tree that says less": ("jetson-xavier", "p2888-0004", True),
    "the module of another product": ("e3900-0000+p2888-0004", "p2888-0004", True),
    "a tree of an emulated module": ("p3737-0000+p3767-0000", "p3701-0000", False),
    "one with less memory": ("p3768-0000+p3767-0003", "p3767-0004", False),
    "a number that is not known": ("p3768-0000+p3767-0003", "p9999-0001", None),
    "no number": ("p3768-0000+p3767-0003", None, None),
}


@pytest.mark.parametrize(("tree", "number", "agrees"), MODULES.values(), ids=MODULES)
def test_the_module_is_compared_by_the_number_of_its_eeprom(
    tree: str, number: str | None, agrees: bool | None, tmp_path: Path
) -> None:
    compatible = [*(f"nvidia,{entry}" for entry in tree.split()), "nvidia,tegra234"]
    build(load()["orinnano-jp6"].but(dt_compatible=compatible), tmp_path)
    telemetry = Telemetry(module="NVIDIA Jetson Orin Nano (Developer kit)", part_number=number)
    assert by_name(detect(tmp_path), telemetry)["module"].agrees is agrees


@pytest.mark.parametrize(
    ("l4t", "jetpack", "agrees"),
    [
        ("36.4.2", "6.1 (rev1)", True),
        ("35.1.0", "5.0.2 GA", True),
        ("36.4.3", "6.2.1", False),
        ("36.4.3", "6.20", False),
        # The catalogue lacks these, and knows their first numbers.
        ("39.2.9", "7.2.2", True),
        ("39.2.9", "7.20", False),
        ("36.4.9", "5.1.1", False),
    ],
)
def test_jetpack_is_compared_by_its_certain_numbers(
    l4t: str, jetpack: str, agrees: bool, tmp_path: Path
) -> None:
    build(load()["orinnano-jp6"], tmp_path)
    line, _, revision = l4t.partition(".")
    (tmp_path / "etc/nv_tegra_release").write_text(f"# R{line} (release), REVISION: {revision}, GCID: 1\n")
    assert by_name(detect(tmp_path), Telemetry(jetpack=jetpack))["jetpack"].agrees is agrees


def test_a_gpu_that_only_jtop_finds_is_named(orin: Path) -> None:
    found = detect(orin)
    absent = found._replace(gpu=found.gpu._replace(state="absent", chip=None, compute_capability=None))
    assert disagreements(absent, Telemetry(gpu="ga10b", compute_capability="8.7")) == ["gpu"]
    assert node_labels(absent, jtop=by_label(compare(absent, Telemetry(gpu="ga10b")))) == {}


def test_on_a_machine_that_is_no_tegra_nothing_is_compared(tmp_path: Path) -> None:
    told = telemetry_of(load()["orinnano-jp6"])
    assert {fact.agrees for fact in compare(detect(tmp_path), told)} == {None}


def test_detect_names_sources_and_disagreement(
    orin: Path, host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orin.rename(host / "board")
    root = host / "board"
    wrong = telemetry_of(load()["orinnano-jp6"])._replace(l4t="36.4.4", power_mode="25W")
    with relay(root, f"{json.dumps(wrong._asdict())}\n".encode()):
        assert main(["detect", f"--host-root={root}", "--output=json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["detect", f"--host-root={root}"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert main(["labels", f"--host-root={root}"]) == 0
        labels = capsys.readouterr().out.splitlines()
    assert (found["l4t"], found["jtop"]["l4t"]) == ("36.4.3", "36.4.4")
    assert found["jtop"]["disagrees"] == ["l4t"]
    assert found["jtop"]["power_mode"] == "25W"
    assert list(found)[-1] == "evidence"
    assert "  + jtop l4t: 36.4.4; the board's files have 36.4.3" in shown
    assert "  + jtop jetpack: 6.2; the board's files agree" in shown
    assert {f"{OWN}l4t=36.4.4", f"{OWN}disagrees=l4t", "jetson-k3s.github.io/l4t=36.4.3"} <= set(labels)


def test_detect_names_the_reason_without_jtop(orin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", f"--host-root={orin}", "--output=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "jtop" not in found
    assert found["evidence"][-1]["source"] == "jtop"
    assert found["evidence"][-1]["found"] is False
    assert "the relay does not run" in found["evidence"][-1]["detail"]


# Lines of relays that are wrong or hostile.
HOSTILE = {
    "another board": json.dumps(telemetry_of(load()["tx2-jp4"])._asdict()),
    "empty": "{}",
    "keys of labels": json.dumps({"jetson-k3s.github.io/l4t": "1.0", "nvidia.com/gpu.count": "8"}),
    "long": json.dumps(dict.fromkeys(Telemetry._fields, "x" * 5000)),
    "control characters": json.dumps(dict.fromkeys(Telemetry._fields, "\x1b[2J\nl4t: 1.0")),
    "nothing for a label": json.dumps(dict.fromkeys(Telemetry._fields, "...")),
    "no object": "[]",
    "nested": "[" * 60000,
    "an end": '{"error": "\\u001b[2J no"}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_relay_changes_evidence_alone(
    line: str, orin: Path, host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = host / "board"
    orin.rename(root)

    def shown() -> tuple[dict[str, object], dict[str, str]]:
        assert main(["detect", f"--host-root={root}", "--output=json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert main(["labels", f"--host-root={root}", "--output=json"]) == 0
        labels = json.loads(capsys.readouterr().out)
        assert all(map(VALUE.fullmatch, labels.values()))
        assert main(["detect", f"--host-root={root}"]) == 0
        assert capsys.readouterr().out.replace("\n", "").isprintable()
        without = {key: value for key, value in facts.items() if key not in ("jtop", "evidence")}
        without["evidence"] = [one for one in facts["evidence"] if not one["source"].startswith("jtop")]
        mode = "jetson-k3s.github.io/power-mode"  # has no other source
        return without, {key: value for key, value in labels.items() if not key.startswith((OWN, mode))}

    alone = shown()
    with relay(root, f"{line}\n".encode()):
        assert shown() == alone


ANY = st.one_of(
    st.none(), st.text(max_size=120), st.from_regex(r"[0-9.]{1,9}( [A-Z]{1,9})?", fullmatch=True), st.floats()
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Detection:
    root = tmp_path_factory.mktemp("host")
    build(load()["orinnano-jp6"], root)
    return detect(root)


@given(message=st.dictionaries(st.sampled_from(Telemetry._fields), ANY))
def test_no_message_fails_the_comparison_or_a_label(message: dict[str, object], known: Detection) -> None:
    telemetry = jtop._parse(json.dumps(message).encode())
    DisagreementLog(lambda: known).note(telemetry)
    labels = node_labels(known, jtop=by_label(compare(known, telemetry)))
    assert {key: value for key, value in labels.items() if not key.startswith(OWN)} == node_labels(known)
    assert all(map(VALUE.fullmatch, labels.values()))


def test_a_disagreement_is_logged_once(orin: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    good = telemetry_of(load()["orinnano-jp6"])
    found: list[Detection | None] = [None]
    log = DisagreementLog(lambda: found[0])
    log.note(good._replace(l4t="36.4.4"))  # the board was not observed yet
    found[0] = detect(orin)
    for telemetry in (good, *[good._replace(l4t="36.4.4", jetpack="6.2.1")] * 3, good, good):
        log.note(telemetry)
    assert [record.message for record in caplog.records] == [
        "jtop disagrees with the board's files, which are used: l4t 36.4.4 (files: 36.4.3); "
        "jetpack 6.2.1 (files: 6.2)",
        "jtop agrees with the board's files again",
    ]
