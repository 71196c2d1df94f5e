# SPDX-License-Identifier: Apache-2.0
"""tools/words.py finds its words in everything that people read, and in names."""

import pytest

from tools import words


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".md", "One line.\nThe GPU is sold.\n"),
        (".py", "x = 1\n# gives back the lock\n"),
        (".py", "x = 1\ny = 'each node waits for its turn'\n"),
        (".py", "\ndef way_back() -> None: ...\n"),
        (".py", "\nclass GivenOut: ...\n"),
        (".py", "\nsold = 1\n"),
        (".json", '{\n  "given_out": 1\n}'),
        (".json", '{\n  "why": "the GPU is sold"\n}'),
        (".yml", "\n- name: Import the role\n"),
        (".yml", "\n# the way back\n"),
        (".c", "\n// the way back\n"),
    ],
)
def test_word_is_found_with_its_line(suffix: str, text: str) -> None:
    ((line, _),) = words.banned(suffix, text)
    assert line == 2


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".md", "`sold` is code, and an apt hold is apt's term.\n"),
        (".py", "held_packages = threshold = 1\n"),
        (".md", "Look at the whole room, as you were told.\n"),
        (".json", '{"thresholds": "household"}'),
    ],
)
def test_terms_of_others_and_everyday_words_are_not(suffix: str, text: str) -> None:
    assert list(words.banned(suffix, text)) == []


def test_list_is_short() -> None:
    assert len(words.WORDS) <= 20
