# SPDX-License-Identifier: Apache-2.0
"""tools.words finds banned words where people read them, and only there."""

import pytest

from tools import words


@pytest.mark.parametrize(
    ("suffix", "text", "lines"),
    [
        (".md", "One.\nWhoever reads.\n", [2]),
        (".md", "Run `held` or\n```\nwhoever\n```\n", []),
        (".py", 'def held():\n    """Return whatever is there."""\n    return 1  # at once\n', [2, 3]),
        (".py", "raise E('the board was told to stop')\nx['told'] = 1\n", [1]),
        (".yml", "- name: Import the tasks\n  when: held is defined and told\n  # a turn\n", [1, 3]),
        (".yml", "msg: >-\n  {{ held }} packages hold\n", []),
        (".sh", "hold=1 # no life here\n", [1]),
        (".c", "/* one\n * whole */ int held; // sold\n", [2, 2]),
        (".json", '{"told": 1}', []),
    ],
)
def test_banned_words_are_found_in_prose(suffix: str, text: str, lines: list[int]) -> None:
    assert sorted(number for number, _ in words.banned(suffix, text)) == lines
