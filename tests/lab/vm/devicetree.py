# SPDX-License-Identifier: Apache-2.0
"""The device tree that an emulated board's kernel reads: QEMU's with a Jetson's identity laid over it."""

from pathlib import Path

from tests.boards import Fixture
from tools.debian import ensure_packages
from tools.process import run

SERIAL_NUMBER = "1423000000000"
REGISTERS = "0x0 0x1000000"  # size of the GPU's first register range; nothing on the board reads it


def source(fixture: Fixture) -> str:
    """Return what makes a Jetson of the machine, as source that comes after the machine's own.

    The kernel makes a platform device of the GPU's node, named as on the real board: its address, then the
    node's name. A GPU on PCI (Thor) has no node.
    """
    lines = [
        f"model = {_strings(fixture.data['dt_model'])};",
        f"compatible = {_strings(*fixture.data['dt_compatible'])};",
        f"serial-number = {_strings(SERIAL_NUMBER)};",
    ]
    if fixture.data["of_compatible"]:
        lines += _gpu(fixture)
    return "/ {\n" + "".join(f"\t{line}\n" for line in lines) + "};\n"


def _gpu(fixture: Fixture) -> list[str]:
    """Return the GPU's node, below bus@0 from L4T 36 on and at the top before."""
    address = fixture.data["devfreq"].partition(".")[0]
    name = fixture.data["of_node_name"]
    node = f"{name}@{address}" if name == "gpu" else name
    properties = (
        f"compatible = {_strings(fixture.data['of_compatible'])}; reg = <0x0 0x{address} {REGISTERS}>;"
    )
    gpu = f"{node} {{ {properties} }};"
    if "bus@0" not in fixture.gpu_device:
        return [gpu]
    bus = 'compatible = "simple-bus"; #address-cells = <2>; #size-cells = <2>; ranges;'
    return [f"bus@0 {{ {bus}", f"\t{gpu}", "};"]


def _strings(*values: str) -> str:
    return ", ".join(f'"{value}"' for value in values)


def write(fixture: Fixture, machine: Path, out: Path) -> None:
    ensure_packages("device-tree-compiler")
    own = run(["dtc", "-q", "-I", "dtb", "-O", "dts", machine]).stdout
    # dtc merges nodes that are given twice, the later properties win.
    run(["dtc", "-q", "-I", "dts", "-O", "dtb", "-o", out, "-"], stdin=own + source(fixture))
