# SPDX-License-Identifier: Apache-2.0
"""The one exception that ends the stand-in with a message for the person who runs it."""


class StandinError(Exception):
    """The stand-in cannot go on; the message says what is wrong, where, and what to do."""
