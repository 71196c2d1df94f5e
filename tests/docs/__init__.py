# SPDX-License-Identifier: Apache-2.0
"""The documents: their links, their commands, and the data that they repeat."""

from tools.cache import CHECKOUT

__all__ = ["CHECKOUT"]
