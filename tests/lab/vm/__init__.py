# SPDX-License-Identifier: Apache-2.0
"""Boards of the grade arm64: whole machines emulated by QEMU, with a kernel and a device tree of their own.

`disk` makes what they boot from, `devicetree` what their kernel reads, `machine` runs a board.
"""
