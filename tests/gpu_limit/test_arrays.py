# SPDX-License-Identifier: Apache-2.0
"""What an array is charged: the driver's own figure, or that of its format."""

import re

import pytest

from tests.gpu_limit.archives import known, unpacked
from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda

# By CUarray_format, without its prefix: the channels that a program says, and the bits of an element.
# YUV formats: a luma sample for each element; a pair of chroma samples for 4 (4:2:0), 2 (4:2:2) or 1 (4:4:4).
BITS = {
    "UNSIGNED_INT8": (4, 32), "UNSIGNED_INT16": (2, 32), "UNSIGNED_INT32": (4, 128),
    "SIGNED_INT8": (1, 8), "SIGNED_INT16": (4, 64), "SIGNED_INT32": (1, 32),
    "HALF": (4, 64), "FLOAT": (2, 64),
    "UNORM_INT8X1": (1, 8), "UNORM_INT8X2": (2, 16), "UNORM_INT8X4": (4, 32),
    "UNORM_INT16X1": (1, 16), "UNORM_INT16X2": (2, 32), "UNORM_INT16X4": (4, 64),
    "SNORM_INT8X1": (1, 8), "SNORM_INT8X2": (2, 16), "SNORM_INT8X4": (4, 32),
    "SNORM_INT16X1": (1, 16), "SNORM_INT16X2": (2, 32), "SNORM_INT16X4": (4, 64),
    "UNORM_INT_101010_2": (4, 32),
    "BC1_UNORM": (4, 4), "BC1_UNORM_SRGB": (4, 4), "BC2_UNORM": (4, 8), "BC2_UNORM_SRGB": (4, 8),
    "BC3_UNORM": (4, 8), "BC3_UNORM_SRGB": (4, 8), "BC4_UNORM": (1, 4), "BC4_SNORM": (1, 4),
    "BC5_UNORM": (2, 8), "BC5_SNORM": (2, 8), "BC6H_UF16": (3, 8), "BC6H_SF16": (3, 8),
    "BC7_UNORM": (4, 8), "BC7_UNORM_SRGB": (4, 8),
    "NV12": (3, 12), "P010": (3, 24), "P016": (3, 24), "NV16": (3, 16), "P210": (3, 32), "P216": (3, 32),
    "YUY2": (2, 16), "Y210": (2, 32), "Y216": (2, 32), "AYUV": (4, 32), "Y410": (4, 32), "Y416": (4, 64),
    "Y444_PLANAR8": (3, 24), "Y444_PLANAR10": (3, 48),
    "YUV444_8bit_SemiPlanar": (3, 24), "YUV444_16bit_SemiPlanar": (3, 48),
}  # fmt: skip
WIDTH, HEIGHT = 4096, 2048  # so many elements of so many bits have as many MiB
FORMAT = re.compile(r"CU_AD_FORMAT_(\w+)\s*=\s*(0x\w+)")


def formats() -> dict[str, int]:
    """Return the formats of the newest cuda.h."""
    (header,) = unpacked("runtime", known("runtime")[-1]).rglob("cuda.h")
    found = {name: int(number, 16) for name, number in FORMAT.findall(header.read_text())}
    del found["MAX"]
    return found


@pytest.fixture
def by_format(rig: Rig) -> Rig:
    """A driver that does not tell the size of an array."""
    return rig.but(driver=libcuda("11.4"), limit="1000")


def test_each_format_is_charged_by_its_bits(by_format: Rig) -> None:
    numbers = formats()
    assert numbers.keys() == BITS.keys()
    cases = [(name, numbers[name], *row) for name, row in BITS.items()]
    ran = by_format.run(f"""
        for name, number, channels, _ in {cases}:
            array = make("cuArray3DCreate_v2", byref(Array({WIDTH}, {HEIGHT}, 0, number, channels, 0)))
            print(name, int(1000 - info()[0]))
            call("cuArrayDestroy", c_void_p(array))
    """)
    charged = dict(line.split() for line in ran.stdout.splitlines())
    assert charged == {name: str(bits) for name, (_, bits) in BITS.items()}


def test_an_unknown_format_is_charged_as_the_widest_channel(by_format: Rig) -> None:
    by_format.run(f"""
        assert make("cuArray3DCreate_v2", byref(Array({WIDTH}, {HEIGHT}, 0, 0x7777, 2, 0)))
        assert info() == (1000 - 64, 1000)
    """)


def test_blocks_are_stored_completely_at_each_level(by_format: Rig) -> None:
    # BC1: 8 bytes for 4 x 4. Levels of 6 x 6, 3 x 3 and 1 x 1 have 4, 1 and 1 blocks, in 16,384 layers each.
    by_format.run("""
        layered, layers = 1, 1 << 14
        assert make("cuMipmappedArrayCreate", byref(Array(6, 6, layers, 0x91, 4, layered)), 3)
        assert info() == (1000 - 6 * 8 * layers / MIB, 1000)
    """)


@pytest.mark.parametrize("release", ["12.6", "13.0"])
def test_a_driver_that_tells_the_size_is_believed(release: str, rig: Rig) -> None:
    # The simulated one has tiles of 64 KiB.
    rig.but(driver=libcuda(release)).run("""
        array = make("cuArray3DCreate_v2", byref(Array(10, 10, 0, 1, 1, 0)))
        assert info() == (100 - 1 / 16, 100) and used() == 1 / 16
        flat = (c_size_t * 3)(10, 10, 1 | 1 << 32)
        assert make("cuArrayCreate_v2", byref(flat)) and info() == (100 - 2 / 16, 100)
        levels = make("cuMipmappedArrayCreate", byref(Array(300, 300, 0, 1, 1, 0)), 2)
        assert info() == (100 - 4 / 16, 100) and used() == 4 / 16
        call("cuArrayDestroy", c_void_p(array)); call("cuMipmappedArrayDestroy", c_void_p(levels))
        assert info() == (100 - 1 / 16, 100)
    """)
