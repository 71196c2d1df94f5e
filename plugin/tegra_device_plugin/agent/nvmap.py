# SPDX-License-Identifier: Apache-2.0
"""How much GPU memory each process holds, by nvmap's debugfs file `iovmm/clients`.

The form is that of nvmap_dev.c from L4T R32 to R36 (client_stringify): the client, the process' name, its
host pid and the size in columns of 18, 18, 8 and 11 characters:

    user                         gpu_burn     7979   23525644K

A process can have several rows. A buffer's size is divided by those who share it, so that rows add up to what
is held; in early 4.9 trees it counts in full for each of them.
"""

from __future__ import annotations

import re

CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"
MOST_BYTES = 1 << 20  # 17,000 rows

# By width, not by white space: a process chooses its name, up to 15 bytes of anything. With a line break in
# it, it could otherwise make up a row about a process of somebody else, or hide its own.
_ROW = re.compile(
    r"^[^\n]{18,}? (?s:.{18}) (?P<pid>[ 0-9]{7}[0-9]) (?P<size>[ 0-9]{9}[0-9])(?P<unit>[KMG])$", re.MULTILINE
)
_UNITS = {"K": 10, "M": 20, "G": 30}
# Early 4.9 trees sum bytes in a signed 32-bit number (iovm_commit) and print its kilobytes as unsigned
# (`%10uK`): from 2 GiB on they have 2^32 too many and 2^22 (4 GiB) too few. No board has 4 TiB, so such a
# number is one of those.
_WRAPPED_KIB = range((1 << 32) - (1 << 21), 1 << 32)


def parse(text: str) -> dict[int, int]:
    """Bytes by host pid; the kernel's own buffers have pid 0.

    `text` is decoded so that every byte is one character.
    """
    held: dict[int, int] = {}
    for row in _ROW.finditer(text):
        pid, size = int(row["pid"]), int(row["size"])
        if row["unit"] == "K" and size in _WRAPPED_KIB:
            size += (1 << 22) - (1 << 32)
        held[pid] = held.get(pid, 0) + (size << _UNITS[row["unit"]])
    return held
