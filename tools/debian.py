# SPDX-License-Identifier: Apache-2.0
"""Debian as the lab's supplier: packages for this machine, root file systems for boards and images."""

import hashlib
import json
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cache import cached
from tools.process import ToolError, run, step

SUITE = "bookworm"
SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
UNPACKING = ("mmdebstrap", "debian-archive-keyring")
# Nobody reads documentation on a virtual board; a third of the unpacked size.
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


@dataclass(frozen=True)
class Source:
    """One archive that apt knows: where it is and which suites of it are used."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the source as one-line entries of binary packages."""
        return [
            f"deb [signed-by={KEYRING}] {self.uri} {suite} {' '.join(self.components)}"
            for suite in self.suites
        ]


def parse_one_line(text: str) -> Iterable[Source]:
    """Yield the sources of a *.list file."""
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0] != "deb":
            continue
        rest = words[1:]
        if rest and rest[0].startswith("["):
            closing = next((i for i, word in enumerate(rest) if word.endswith("]")), len(rest))
            rest = rest[closing + 1 :]
        match rest:
            case [uri, suite, *components] if components:
                yield Source(uri, (suite,), tuple(components))


def parse_deb822(text: str) -> Iterable[Source]:
    """Yield the sources of a *.sources file."""
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[key] += " " + line.strip()
            elif ":" in line:
                key, value = line.split(":", 1)
                key = key.lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split())
            )


def only_debian(sources: Iterable[Source]) -> list[Source]:
    """Keep Debian's own archives of the suite, main only; other vendors' repositories are left out."""
    kept = []
    for source in sources:
        suites = tuple(suite for suite in source.suites if suite in SUITES)
        if suites and "main" in source.components and "debian" in source.uri:
            kept.append(Source(source.uri, suites, ("main",)))
    return kept


def debian_sources(apt: Path = Path("/etc/apt")) -> list[Source]:
    """Return the Debian archives that this machine uses (its mirror), the public ones when it has none."""
    found: list[Source] = []
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for path in lists:
        if path.is_file():
            found += parse_one_line(path.read_text())
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        found += parse_deb822(path.read_text())
    return only_debian(found) or [
        Source("http://deb.debian.org/debian", SUITES[:2], ("main",)),
        Source("http://deb.debian.org/debian-security", SUITES[2:], ("main",)),
    ]


def sources_list() -> str:
    """Return a sources.list of Debian's archives."""
    return "".join(line + "\n" for source in debian_sources() for line in source.lines())


def architecture() -> str:
    """Return Debian's name of this machine's architecture, as `amd64`."""
    return run(["dpkg", "--print-architecture"]).stdout.strip()


def installed(name: str) -> bool:
    """Say whether a Debian package is installed on this machine."""
    status = run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", name], check=False)
    return status.stdout == "installed"


def ensure_packages(*names: str) -> None:
    """Install the Debian packages that this machine lacks.

    Raises ToolError naming them when this is not Debian or the user is not root.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        raise ToolError(
            f"this machine has no apt-get; install what these Debian packages hold by hand: {' '.join(names)}"
        )
    missing = [name for name in names if not installed(name)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise ToolError(
            f"Debian packages are missing and only root can install them: apt-get install {' '.join(missing)}"
        )
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-q", "-y"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing Debian packages: {' '.join(missing)}"):
        install = [*apt, "install", "--no-install-recommends", *missing]
        # Fresh lists only when the ones at hand do not do: it saves seconds on every later call.
        if run([*install, "--simulate"], env=environment, check=False).returncode != 0:
            run([*apt, "update"], env=environment)
        if run(install, env=environment, check=False).returncode != 0:
            run([*apt, "update"], env=environment)
            run(install, env=environment)


def can_unpack() -> bool:
    """Say whether mmdebstrap() can work: its packages are there, or this is Debian and the user is root.

    On other systems with apt-get the packages are not installed unasked.
    """
    try:
        debian = platform.freedesktop_os_release()["ID"] == "debian"
    except OSError:
        return False
    there = shutil.which("dpkg-query") is not None and all(map(installed, UNPACKING))
    return there or (debian and os.geteuid() == 0)


def package_files(*names: str, suite: str = SUITE) -> Path:
    """Return the cached directory of these packages' files, without what they depend on.

    apt compares each with the archive's signed checksums.
    """

    def build(out: Path) -> None:
        out.mkdir()
        with step(f"fetching packages of Debian {suite}: {' '.join(names)}"), _apt_get(suite) as apt_get:
            download = [*apt_get, "download", *names]
            if run(download, cwd=out, check=False).returncode != 0:
                run([*apt_get, "update"])
                run(download, cwd=out)

    recipe = hashlib.sha256(json.dumps([architecture(), *sorted(names)]).encode()).hexdigest()
    return cached(f"packages/{suite}-{recipe[:12]}", build)


@contextmanager
def _apt_get(suite: str) -> Iterator[list[str]]:
    """Yield apt-get for one suite; for another than this machine's with lists of its own."""
    command = ["apt-get", "--quiet"]
    if suite == SUITE:
        yield command
        return
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch, "sources.list")
        source = Source(debian_sources()[0].uri, (suite,), ("main",))
        sources.write_text("".join(line + "\n" for line in source.lines()))
        lists = Path(scratch, "lists")  # apt removes all other files there
        Path(lists, "partial").mkdir(parents=True)
        options = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": lists,
            "APT::Sandbox::User": "root",  # nobody else may read the directory
        }
        yield [*command, *(f"--option={name}={value}" for name, value in options.items())]


def rootfs(name: str, packages: Sequence[str], *, customize: Sequence[str] = (), arch: str = "amd64") -> Path:
    """Return the cached tar of a Debian root file system with the given packages.

    `customize` are shell commands run at the end with the new root as `$1` (mmdebstrap's customize hooks).
    The cache entry is named by a hash of the recipe: a changed recipe is another root file system. Programs
    of an `arch` that is not this machine's must run here (binfmt_misc).
    """
    recipe = json.dumps([SUITE, arch, sorted(packages), list(customize), EXCLUDED])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]

    def build(out: Path) -> None:
        with step(f"building the root file system {name} ({arch}) with mmdebstrap"):
            hooks = [f"--customize-hook={command}" for command in customize]
            mmdebstrap(out, "minbase", arch, packages, excluded=EXCLUDED, hooks=hooks)

    return cached(f"rootfs/{name}-{arch}-{digest}.tar", build)


def program(package: str, path: str, arch: str) -> Path:
    """Return the cached program `path` of a package, unpacked and not installed: no service of its starts."""

    def unpack(out: Path) -> None:
        tree = out.with_suffix(".tar")
        mmdebstrap(tree, "extract", arch, [package], excluded=EXCLUDED)
        with tarfile.open(tree) as tar:
            file = tar.extractfile(f".{path}")
            if file is None:
                raise ToolError(f"Debian's package {package} has no file {path}")
            out.write_bytes(file.read())
        out.chmod(0o755)

    return cached(f"programs/{SUITE}-{arch}/{Path(path).name}", unpack)


def mmdebstrap(
    out: Path,
    variant: str,
    arch: str,
    packages: Sequence[str],
    *,
    excluded: Sequence[str],
    hooks: Sequence[str] = (),
) -> None:
    """Write a tar of a Debian tree: `minbase` installs the packages and their dependencies, `extract` only
    unpacks them, so that no code of a foreign architecture runs. Files matching `excluded` are left out.
    """
    ensure_packages(*UNPACKING)
    run(
        [
            "mmdebstrap",
            "--quiet",
            f"--variant={variant}",
            f"--architectures={arch}",
            f"--include={','.join(packages)}",
            '--aptopt=Acquire::Languages "none"',
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in excluded),
            *hooks,
            SUITE,
            out,
            "-",
        ],
        stdin=sources_list(),
    )
