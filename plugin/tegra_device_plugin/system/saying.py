# SPDX-License-Identifier: Apache-2.0
"""Log what goes on for long once, at its beginning and its end."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Saying:
    """One trouble at a time."""

    def __init__(self) -> None:
        self._said: str | None = None

    def warn(self, text: str) -> None:
        """Say what is wrong, unless that was said last."""
        if text != self._said:
            logger.warning("%s", text)
            self._said = text

    def well(self, text: str) -> None:
        """Say that it is over, if something was wrong."""
        if self._said is not None:
            logger.info("%s", text)
            self._said = None
