# SPDX-License-Identifier: Apache-2.0
"""Debian as the lab's supplier: packages for this machine, root file systems for boards and images."""

import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.cache import cached
from tools.process import ToolError, run, step

SUITE = "bookworm"
SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
UNPACKING = ("mmdebstrap", "debian-archive-keyring")
# Nobody reads documentation on a virtual board; a third of the unpacked size.
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def sources() -> list[tuple[str, str]]:
    """Return address and suite of the Debian archives of this machine (its mirror), else the public ones.

    Suites of other vendors have other names.
    """
    listed = run(["apt-get", "update", "--print-uris"]).stdout
    archives = dict.fromkeys(re.findall(r"^'(\S*debian\S*)/dists/([^/\s]+)/", listed, re.MULTILINE))
    return [(address, suite) for address, suite in archives if suite in SUITES] or [
        *(("http://deb.debian.org/debian", suite) for suite in SUITES[:2]),
        ("http://deb.debian.org/debian-security", SUITES[2]),
    ]


def line(address: str, suite: str) -> str:
    """Return the line of a sources.list for an archive."""
    return f"deb [signed-by={KEYRING}] {address} {suite} main\n"


def architecture() -> str:
    """Return Debian's name of this machine's architecture, as `amd64`."""
    return run(["dpkg", "--print-architecture"]).stdout.strip()


def installed(name: str) -> bool:
    """Say whether a Debian package is installed on this machine."""
    status = run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", name], check=False)
    return status.stdout == "installed"


def has_apt() -> bool:
    """Say whether this machine has the programs that install Debian packages."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-query") is not None


def ensure_packages(*names: str) -> None:
    """Install the Debian packages that this machine lacks.

    Raises ToolError naming them when this is not Debian or the user is not root.
    """
    if not has_apt():
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
        file = Path(scratch, "sources.list")
        file.write_text(line(sources()[0][0], suite))
        lists = Path(scratch, "lists")  # apt removes all other files there
        Path(lists, "partial").mkdir(parents=True)
        options = {
            "Dir::Etc::SourceList": file,
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
    suite: str = SUITE,
) -> None:
    """Write a tar of a Debian tree: `minbase` installs the packages and their dependencies, `extract` only
    unpacks them, so that no code of a foreign architecture runs. Files matching `excluded` are left out.
    """
    ensure_packages(*UNPACKING)
    archives = sources() if suite == SUITE else [(sources()[0][0], suite)]
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
            suite,
            out,
            "-",
        ],
        stdin="".join(line(*archive) for archive in archives),
    )
