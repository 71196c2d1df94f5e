# SPDX-License-Identifier: Apache-2.0
"""Read a board into a snapshot: nothing on the board changes, and no file or program of it stops the capture.

What cannot be read is recorded with the reason: a file that is absent, vanishes, is not readable or does not
answer, and a program that fails or does not end. Nothing is written to the board's disk.

Runs on the board, therefore Python 3.6 compatible. The device plugin has this file, too, by a link.
"""

import contextlib
import errno
import fnmatch
import os
import re
import select
import signal
import stat
import struct
import subprocess
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .snapshot_archive import write
from .snapshot_list import FILES, HOSTNAME, PACKAGES, PACKAGES_LIMIT, PAGE, PROGRAMS, SERIALS, Program
from .snapshot_redaction import Redaction

Data = Dict[str, Any]  # an entry of the manifest

_MAX_LINKS = 40  # the kernel's own limit (linux/namei.h, MAXSYMLINKS)
_MAGIC = re.compile(r"[*?[]")
_KINDS = (
    (stat.S_ISDIR, "dir"),
    (stat.S_ISCHR, "char"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISREG, "file"),
)
_DEVICES = "/dev/"  # never opened
_POLL_SECONDS = 0.1
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Limits = NamedTuple(
    "Limits",
    [
        ("file", float),  # seconds for one file
        ("program", float),  # seconds for one program
        ("total", float),  # seconds; what is left then is recorded as not read
        ("entries", int),  # files, links and device nodes
        ("output", int),  # bytes of a program
        ("content", int),  # bytes of all files
    ],
)
LIMITS = Limits(5, 20, 180, 10000, 256 * 1024, 8 * 1024 * 1024)


def capture(
    root: str,
    tool: Mapping[str, str],
    *,
    names: Iterable[str] = (),
    limits: Limits = LIMITS,
    programs: Sequence[Program] = PROGRAMS,
    key: Optional[bytes] = None,
) -> bytes:
    """The archive of the board below the host root. Raises nothing for any state of the board.

    `names` of boards and servers get placeholders. Programs run only where `root` is /.
    """
    ends = time.monotonic() + limits.total
    with contextlib.closing(_Reader(limits.file, ends)) as reader:
        tree = _Tree(root, reader, limits)
        tree.read_serials()
        redaction = Redaction([*names, *tree.names], tree.serials, key)
        tree.read_files()
        packages = _packages(tree.read(PACKAGES, PACKAGES_LIMIT)) if tree.exists(PACKAGES) else ""
    outputs = [_run(program, root, limits, ends) for program in programs]
    contents: Dict[str, bytes] = {}
    for path, (kind, content) in tree.contents.items():
        contents["tree" + path] = (
            redaction.text(content.decode("utf-8", "replace")).encode()
            if kind == "text"
            else redaction.bytes_of_file(content)
        )
    for entry, text in outputs:
        if text:
            contents["programs/{}.txt".format(entry["name"])] = redaction.text(text).encode()
        if "error" in entry:
            entry["error"] = redaction.text(entry["error"])
    if packages:
        contents["packages.txt"] = packages.encode()  # names and versions that are published
    for entry in tree.entries.values():
        if "target" in entry:
            entry["target"] = redaction.text(entry["target"])
    manifest = {
        "created": int(time.time()),
        "tool": dict(tool),
        "root": "host" if root == "/" else "mounted",
        "tree": [tree.entries[path] for path in sorted(tree.entries)],
        "programs": [entry for entry, _ in outputs],
        "data": {},
        "packages": {} if packages else {"error": "{} cannot be read".format(PACKAGES)},
        "redacted": redaction.counts,
    }
    return write(manifest, contents)


class _Tree:
    """The files of the list, as they are below the root. Links are followed here, so none leads out of it."""

    def __init__(self, root: str, reader: "_Reader", limits: Limits) -> None:
        self._root = root.rstrip("/")
        self._reader = reader
        self._limits = limits
        self._size = 0
        self.entries: Dict[str, Data] = {}
        self.contents: Dict[str, Tuple[str, bytes]] = {}
        self.serials: List[str] = []
        self.names: List[str] = []

    def read_serials(self) -> None:
        """Read what is only replaced."""
        for path in SERIALS:
            self.serials += self.read(path, PAGE).decode("utf-8", "replace").split("\0")[0].split()
        self.names += self.read(HOSTNAME, PAGE).decode("utf-8", "replace").split()
        if not self._root:
            self.names.append(os.uname().nodename)

    def exists(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return os.path.exists(self._root + self._resolved(path, recorded=False))
        return False

    def read(self, path: str, limit: int) -> bytes:
        """The beginning of a file; nothing if it cannot be read."""
        try:
            return self._reader.read(self._root + self._resolved(path, recorded=False), limit)
        except OSError:
            return b""

    def read_files(self) -> None:
        for files in FILES:
            for pattern in files.patterns:
                for path in self._matches(pattern):
                    if len(self.entries) < self._limits.entries:
                        self._record(path, files.kind, files.limit)

    def _matches(self, pattern: str) -> List[str]:
        found = [""]
        for part in pattern.strip("/").split("/"):
            found = [
                "{}/{}".format(folder, name)
                for folder in found
                for name in (fnmatch.filter(self._names(folder), part) if _MAGIC.search(part) else [part])
            ]
        return found

    def _names(self, path: str) -> List[str]:
        try:
            return sorted(os.listdir(self._root + self._resolved(path) or "/"))
        except OSError:
            return []

    def _record(self, path: str, kind: str, limit: int) -> None:
        """Put the entry at this path into the manifest, with the links on its way."""
        try:
            place = self._resolved(path)
            status = os.lstat(self._root + place)
        except OSError as error:
            parent = path.rpartition("/")[0]
            if "*" not in path and self.exists(parent) and error.errno == errno.ENOENT:
                return  # not on this board
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._add(path, {"type": "absent", "error": _words(error)})
            return
        if place in self.entries and (kind == "stat" or place in self.contents):
            return
        entry = _entry(status)
        if entry["type"] == "file" and kind != "stat" and not place.startswith(_DEVICES):
            self._read_content(place, kind, limit, entry)
        self._add(place, entry)

    def _read_content(self, place: str, kind: str, limit: int, entry: Data) -> None:
        if self._size > self._limits.content:
            entry["error"] = "not read: the snapshot is full"
            return
        try:
            content = self._reader.read(self._root + place, limit + 1)
        except OSError as error:
            entry["error"] = _words(error)
            if error.errno == errno.ENOENT:
                entry["type"] = "absent"
            return
        if len(content) > limit:
            entry["truncated"] = True
        self._size += len(content)
        self.contents[place] = (kind, content[:limit])

    def _add(self, place: str, entry: Data) -> None:
        with contextlib.suppress(UnicodeEncodeError):
            place.encode()  # a name that is no text is left out
            self.entries[place] = dict(entry, path=place)

    def _resolved(self, path: str, recorded: bool = True) -> str:
        """The path without links. Records each link on the way. Raises OSError."""
        pending = [part for part in path.split("/") if part][::-1]
        done: List[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/" + "/".join([*done, part])
            status = os.lstat(self._root + here)
            if not stat.S_ISLNK(status.st_mode):
                done.append(part)
                continue
            target = os.readlink(self._root + here)
            if recorded and len(self.entries) < self._limits.entries:
                self._add(
                    here, {"type": "link", "target": target, "uid": status.st_uid, "gid": status.st_gid}
                )
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                del done[:]
            pending.extend(target.split("/")[::-1])
            pending = [part for part in pending if part]
        return "/" + "/".join(done)


def _entry(status: os.stat_result) -> Data:
    kind = next((name for fits, name in _KINDS if fits(status.st_mode)), "other")
    entry: Data = {
        "type": kind,
        "mode": "{:04o}".format(stat.S_IMODE(status.st_mode)),
        "uid": status.st_uid,
        "gid": status.st_gid,
    }
    if kind in ("char", "block"):
        entry.update({"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)})
    if kind == "file":
        entry["size"] = status.st_size
    return entry


def _words(error: OSError) -> str:
    """The error without the path, which the entry has."""
    return error.strerror or str(error)


class _Reader:
    """Reads files in a process of its own, which is left behind if the kernel does not answer.

    No signal ends a process that waits in a driver. So the process has no file of ours open, and nobody waits
    for its end.
    """

    def __init__(self, seconds: float, ends: float) -> None:
        self._seconds = seconds
        self._ends = ends
        self._child: Optional[Tuple[int, int, int]] = None

    def read(self, path: str, limit: int) -> bytes:
        """The file's first `limit` bytes. OSError, also if that takes too long."""
        if time.monotonic() >= self._ends:
            raise OSError(errno.ETIMEDOUT, "not read: the snapshot took too long")
        _, requests, answers = self._child = self._child or _start_child()
        try:
            os.write(requests, struct.pack("=II", len(os.fsencode(path)), limit) + os.fsencode(path))
        except OSError:
            self.close()  # it was ended, perhaps for its memory: the next file gets another one
            raise
        until = min(time.monotonic() + self._seconds, self._ends)
        header = self._received(answers, struct.calcsize("=iI"), until)
        code, size = struct.unpack("=iI", header)
        content = self._received(answers, size, until)
        if code:
            raise OSError(code, os.strerror(code), path)
        return content

    def _received(self, answers: int, size: int, until: float) -> bytes:
        parts, missing = [], size
        while missing:
            left = max(0.0, until - time.monotonic())
            part = os.read(answers, missing) if select.select([answers], [], [], left)[0] else None
            if not part:
                self.close()
                reason = (
                    "no answer within {:g} s".format(self._seconds) if part is None else "the reader ended"
                )
                raise OSError(errno.ETIMEDOUT, reason)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._child is None:
            return
        pid, requests, answers = self._child
        self._child = None
        os.close(requests)
        os.close(answers)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            for _ in range(100):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.01)


def _start_child() -> Tuple[int, int, int]:
    """Start the process that reads: its id, and the ends of its pipes for requests and answers."""
    requested, requests = os.pipe()
    answers, answered = os.pipe()
    pid = os.fork()
    if pid:
        os.close(requested)
        os.close(answered)
        return pid, requests, answers
    try:
        os.close(requests)
        os.close(answers)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        while True:
            header = os.read(requested, struct.calcsize("=II"))
            if not header:
                break
            length, limit = struct.unpack("=II", header)
            path = b""
            while len(path) < length:
                path += os.read(requested, length - len(path))
            try:
                code, content = 0, read_file(os.fsdecode(path), limit)
            except OSError as error:
                code, content = error.errno or errno.EIO, b""
            answer = struct.pack("=iI", code, len(content)) + content
            while answer:
                answer = answer[os.write(answered, answer) :]
    finally:
        os._exit(0)


def read_file(path: str, limit: int) -> bytes:
    """The file's first `limit` bytes. OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(number, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        parts: List[bytes] = []
        while limit > 0:
            part = stream.read(limit)
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)


def _packages(status: bytes) -> str:
    """`name version architecture` of each installed package, from dpkg's own list."""
    lines = []
    for block in status.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version|Architecture): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            lines.append("{Package} {Version} {Architecture}\n".format(**dict(_NO_FIELDS, **fields)))
    return "".join(sorted(lines))


_NO_FIELDS = {"Package": "?", "Version": "?", "Architecture": "?"}


def _run(program: Program, root: str, limits: Limits, ends: float) -> Tuple[Data, str]:
    """The manifest's entry of a program, and the text that it printed."""
    entry: Data = {"name": program.name, "argv": list(program.argv)}
    if root != "/":
        return dict(entry, error="not run: programs of the board cannot be run from here"), ""
    seconds = min(limits.program, ends - time.monotonic())
    if seconds <= 0:
        return dict(entry, error="not run: the snapshot took too long"), ""
    path = _which(program.argv[0])
    if path is None:
        return dict(entry, error="not found"), ""
    try:
        process = subprocess.Popen(
            [path, *program.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": _PATH, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return dict(entry, error=_words(error)), ""
    content, size = _output(process, time.monotonic() + seconds, limits.output)
    status = process.poll()
    if status is None:
        entry["error"] = "did not end within {:g} s".format(seconds)
    else:
        entry["status"] = status
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    text = content.decode("utf-8", "replace")
    if size > len(content):
        entry["truncated"] = True
        text = text.partition("\n")[2]
    if program.only is not None:
        text = "".join(line for line in text.splitlines(True) if program.only.search(line))
    return entry, text


def _output(process: "subprocess.Popen[bytes]", ends: float, limit: int) -> Tuple[bytes, int]:
    """The end of a program's output, which of a journal is the newest part, and the size of all of it.

    The output ends with the program: a child that keeps it open delays nothing.
    """
    content, size = b"", 0
    with process.stdout as stream:  # type: ignore[union-attr]  # it is a pipe
        while time.monotonic() < ends:
            if select.select([stream], [], [], _POLL_SECONDS)[0]:
                part = os.read(stream.fileno(), limit)
                if not part:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=max(0.0, ends - time.monotonic()))
                    break
                content, size = (content + part)[-limit:], size + len(part)
            elif process.poll() is not None:
                break
    return content, size


def _which(name: str) -> Optional[str]:
    for folder in _PATH.split(":"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
