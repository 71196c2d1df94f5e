# SPDX-License-Identifier: Apache-2.0
"""Cut a release: set the version, build everything into dist/VERSION, sign, commit, tag. Nothing is pushed.

All of it happens in a second worktree. The branch and the tag move last, and only when all went well.
"""

import argparse
import difflib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from release import changelog, identity, plan, signature
from release.version import CHECKOUT
from tools import suites
from tools.process import ToolError, run, step

DIST = CHECKOUT / "dist"
UNCHANGED = "Nothing has been changed."


def git(*arguments: str | Path, tree: Path = CHECKOUT, stdin: str | None = None) -> str:
    """Run git in a worktree; return its output without the last newline. Raises ToolError."""
    return run(["git", "-C", tree, *arguments], stdin=stdin).stdout.rstrip("\n")


def state(key: Path | None) -> plan.State:
    """Read the state of the checkout, and try the key."""
    return plan.State(
        branch=git("branch", "--show-current"),
        commit=git("rev-parse", "HEAD"),
        uncommitted=tuple(git("status", "--porcelain").splitlines()),
        owner=identity.owner(),
        tags=frozenset(git("tag", "--list").split()),
        built=frozenset(path.name for path in DIST.glob("*")),
        changelog=(CHECKOUT / changelog.FILE).read_text(),
        unsigned=signature.problem(key),
        ran={suite: suites.read(CHECKOUT, suite) for suite in suites.SUITES},
    )


def difference(texts: dict[Path, str]) -> str:
    """Return what new texts of files change, as a unified diff."""
    lines: list[str] = []
    for path, text in texts.items():
        name = str(path.relative_to(CHECKOUT))
        before, after = path.read_text().splitlines(keepends=True), text.splitlines(keepends=True)
        lines += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(lines)


@contextmanager
def worktree() -> Iterator[Path]:
    """A second worktree of the branch's newest commit; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-release-") as directory:
        tree = Path(directory, "checkout")
        try:
            git("worktree", "add", "--quiet", "--detach", tree)
            yield tree
        finally:
            run(["git", "-C", CHECKOUT, "worktree", "remove", "--force", tree], check=False)


def commit(wanted: str, tree: Path, today: str, tested: str) -> str:
    """Make the release's commit in a worktree; return its id. `tested` says which tests ran."""
    for path, text in plan.changes(wanted, tree, today).items():
        path.write_text(text)
    # The first release may find the version and its entry as they should be.
    message = f"--message=Release {wanted}\n\n{tested}"
    git("commit", "--quiet", "--all", "--allow-empty", message, tree=tree)
    return git("rev-parse", "HEAD", tree=tree)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Neither Ctrl-C nor SIGTERM ends what is inside."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def release(wanted: str, today: str, key: Path, tested: str) -> None:
    """Make the release, whose commit says what `tested` says.

    Raises ToolError or OSError, and then everything is as it was.
    """
    DIST.mkdir(exist_ok=True)
    with worktree() as tree, tempfile.TemporaryDirectory(dir=DIST, prefix=".") as partial:
        made = commit(wanted, tree, today, tested)
        output = Path(partial, wanted)
        with step(f"building release {wanted}"):
            run([sys.executable, "-m", "release.artifacts", "--output", output], cwd=tree)
        signature.sign(output / "SHA256SUMS", key)
        notes = changelog.entries((tree / changelog.FILE).read_text())[wanted].text
        with uninterrupted():
            put_in_place(wanted, made, notes, output)


def put_in_place(wanted: str, made: str, notes: str, output: Path) -> None:
    """Move the files, the tag and the branch: all of them, or none and an exception."""
    with ExitStack() as undo:
        output.rename(DIST / wanted)
        undo.callback(shutil.rmtree, DIST / wanted)
        # A line that begins with # is a heading in the notes, no comment.
        how = ("--annotate", "--cleanup=whitespace", "--file=-")
        git("tag", *how, plan.tag(wanted), made, stdin=f"Release {wanted}\n\n{notes}\n")
        undo.callback(git, "tag", "--delete", plan.tag(wanted))
        if (branch := git("branch", "--show-current")) != plan.BRANCH:
            raise ToolError(f"the checkout went from {plan.BRANCH} to {branch or 'no branch'} meanwhile")
        git("merge", "--quiet", "--ff-only", made)
        undo.pop_all()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("version", help="three numbers, such as 0.2.0")
    parser.add_argument("--key", type=Path, help="key that signs it, for ssh-keygen; outside of the checkout")
    parser.add_argument("--check", action="store_true", help="only say what would be done")
    options = parser.parse_args()
    wanted, today = options.version, datetime.now(UTC).date().isoformat()
    key = options.key and options.key.expanduser()
    # As with Ctrl-C: everything becomes as it was.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = state(key)
        if against := plan.refusals(wanted, found, today):
            reasons = "".join(f"  * {reason}\n" for reason in against)
            sys.stderr.write(f"error: this cannot be released. {UNCHANGED}\n{reasons}")
            return 1
        if options.check:
            last = plan.last_release(wanted, found)
            sys.stdout.write(difference(plan.changes(wanted, CHECKOUT, today)))
            sys.stdout.write(f"{plan.tested(found)}\n")
            sys.stdout.write(
                f"{wanted} can be released; the last release is {last or 'none'}. It changes what is above, "
                f"builds dist/{wanted}, signs, commits, and tags {plan.tag(wanted)}. {UNCHANGED}\n"
            )
            return 0
        release(wanted, today, key, plan.tested(found))
    except (ToolError, OSError) as error:
        sys.stderr.write(f"error: {error}\n{UNCHANGED}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped. {UNCHANGED}\n")
        return 130
    sums = (DIST / wanted / "SHA256SUMS").read_text()
    sys.stdout.write(f"{sums}\n{next_steps(wanted, signature.allowed_signers(key))}")
    return 0


def next_steps(wanted: str, signers: str) -> str:
    """Return what is left to do by hand."""
    return f"""\
Released {wanted}: the files are in dist/{wanted}, the tag is {plan.tag(wanted)}. Nothing has been pushed.
Next:
  git show {plan.tag(wanted)}
  git push --atomic origin {plan.BRANCH} {plan.tag(wanted)}
  Then upload the files in dist/{wanted}.
Users verify SHA256SUMS.sig with this line (docs/offline.md). Publish it elsewhere than the files:
  {signers}To undo it before the push:
  git tag --delete {plan.tag(wanted)} && git reset --keep HEAD~1 && rm -r dist/{wanted}
"""


if __name__ == "__main__":
    sys.exit(main())
