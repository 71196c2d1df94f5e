# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: lets jtop, itself unmodified, see a Jetson on a computer that is none.

Python imports this file by itself when its directory is on the path. The machine's name is a Jetson's, and on
I2C bus 0 there is the EEPROM of a module (address 0x50, 256 bytes, the part number at offset 20).
"""

import os
import platform
from typing import Any

import smbus2

platform.machine = lambda: "aarch64"

_EEPROM_ADDRESS = 0x50
_EEPROM = bytes(20) + os.environ["SIMULATED_PART_NUMBER"].encode().ljust(236, b"\0")


class _Bus:
    def __init__(self, bus: int, force: bool = False) -> None:
        if bus != 0:
            raise FileNotFoundError(f"no I2C bus {bus} on the simulated board")

    def read_i2c_block_data(self, address: int, register: int, length: int, **_: Any) -> list[int]:
        if address != _EEPROM_ADDRESS:
            raise OSError(f"nothing answers at {address:#x} on the simulated board")
        return list(_EEPROM[register : register + length])


smbus2.SMBus = _Bus
