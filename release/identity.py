# SPDX-License-Identifier: Apache-2.0
"""Who owns the project, and its address. pyproject.toml has both; this command sets them everywhere else.

It writes files only: read the difference, and commit it.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.process import ToolError, run

CHECKOUT = Path(__file__).resolve().parents[1]
NAME = "jetson-k3s"
PROJECT = "pyproject.toml"
PLACEHOLDER = "OWNER"
# Where a file of the repository is read on GitHub, below the address.
FILES = "blob/main"
# As GitHub permits them.
_ACCOUNT = re.compile(r"[A-Za-z0-9](-?[A-Za-z0-9]){0,38}")
_IN_PROJECT = re.compile(rf'^Repository = "https://github\.com/([^/"]+)/{NAME}"$', re.MULTILINE)
# What a document says as long as nobody owns the project. The blank line behind it goes with it.
_WITHOUT_OWNER = re.compile(r"<!-- no owner -->\n.*?<!-- /no owner -->\n\n?", re.DOTALL)
_PRIVATE = re.compile(r'^ *"Private :: .*\n', re.MULTILINE)
_OF_FINDINGS = re.compile(r'^(ADDRESS = )".*"$', re.MULTILINE)
# Files that name the owner without the project.
_NAMED = {
    ".github/CODEOWNERS": "^([*] @)%s$",
    "plugin/deploy/chart/Chart.yaml": "^( +(?:- name: |url: https://github[.]com/))%s$",
}
_FINDINGS = "plugins/module_utils/project.py"


def owner(tree: Path = CHECKOUT) -> str:
    """Return the account that owns the project; PLACEHOLDER if there is none."""
    match = _IN_PROJECT.search((tree / PROJECT).read_text())
    if match is None:
        raise ValueError(f"{PROJECT} has no line `Repository` with the project's address")
    return match[1]


def address(account: str) -> str:
    """Return the project's address; empty if nobody owns the project."""
    return "" if account == PLACEHOLDER else f"https://github.com/{account}/{NAME}"


def texts(tree: Path) -> Iterator[tuple[str, str]]:
    """Each text file that git knows: its path in the checkout, and its text."""
    for name in run(["git", "-C", tree, "ls-files", "-z"]).stdout.split("\0"):
        path = tree / name
        if name and path.is_file() and not path.is_symlink():
            try:
                yield name, path.read_bytes().decode()
            except UnicodeDecodeError:
                continue  # a picture, or a program


def with_owner(name: str, text: str, before: str, after: str) -> str:
    """Return the text of a file after a change of the owner."""
    text = re.sub(rf"\bgithub\.com/{before}/{NAME}\b", f"github.com/{after}/{NAME}", text)
    text = re.sub(rf"//{before}\.github\.io/{NAME}\b", f"//{after}.github.io/{NAME}", text)
    if name in _NAMED:
        text = re.sub(_NAMED[name] % before, rf"\g<1>{after}", text, flags=re.MULTILINE)
    if name == PROJECT:
        text = _PRIVATE.sub("", text)
    if name == _FINDINGS:
        text = _OF_FINDINGS.sub(rf'\g<1>"{address(after)}"', text)
    return _WITHOUT_OWNER.sub("", text) if name.endswith(".md") else text


def set_to(account: str, tree: Path) -> dict[Path, str]:
    """Return the texts that files of a checkout get for another owner, by path.

    Raises ValueError if the account is none.
    """
    if account == PLACEHOLDER or not _ACCOUNT.fullmatch(account):
        raise ValueError(f"OWNER={account} is not an account of GitHub: write its name, such as OWNER=jane")
    before = owner(tree)
    changed = {name: (text, with_owner(name, text, before, account)) for name, text in texts(tree)}
    return {tree / name: new for name, (old, new) in changed.items() if new != old}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m release.identity", description=__doc__)
    parser.add_argument("account", help="the account or organization on GitHub that has the repository")
    account = parser.parse_args().account
    try:
        found = set_to(account, CHECKOUT)
        for path, text in found.items():
            path.write_text(text)
            sys.stdout.write(f"{path.relative_to(CHECKOUT)}\n")
    except (ToolError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{len(found)} files name {account} now. Commit them.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
