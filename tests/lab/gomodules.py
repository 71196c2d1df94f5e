# SPDX-License-Identifier: Apache-2.0
"""Programs compiled from Go modules: K3s, the CNI plugins, Kubernetes with etcd, Helm.

Each is compiled in its own module, with its makers' go.mod and go.sum, which have the versions and checksums
of all other modules. The result is kept in the cache by recipe and architecture.
"""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.lab import compiler
from tools import debian
from tools.cache import cache, cached
from tools.process import ToolError, compile_packages, run, say, step

OWN_FILES = Path(__file__).parent / "go"
SCRATCH_BYTES = 4_000_000_000
"""What compiling Kubernetes takes for objects and the linker, measured with 1.36; given back at the end."""
DEBIANS_GO = (1, 19)
"""The version of Debian 12's package golang-go."""


class NoGoError(ToolError):
    """There is no Go that can compile the module; the message says which one to install."""


@dataclass(frozen=True)
class Recipe:
    """Programs of a module, and how they are compiled: statically, to run on each board, with any libc.

    Files in `go/<name>` are compiled with the first package.
    """

    name: str
    module: str
    """With its version, as `go mod download` takes it."""
    go: str
    """The oldest Go that compiles it."""
    checksum: str
    """SHA-256 of go.sum's lines of this module and of those that its own go.sum does not have."""
    packages: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Modules, with versions, that the packages need and go.mod does not have."""
    replaced: tuple[str, ...] = ()
    """Replacements of modules: `old=new@version`."""
    tags: tuple[str, ...] = ("providerless", "no_btrfs")
    """They leave out what needs C libraries."""
    cgo: bool = False
    linker_flags: tuple[str, ...] = ()
    keep_objects: bool = False
    """Keep Go's build cache, so that the same program with another version is only linked."""

    def flags(self) -> list[str]:
        """Return the flags of `go build`."""
        linker = ["-s", "-w", "-buildid=", *self.linker_flags]
        if self.cgo:
            linker.append("-extldflags=-static")
        return [
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            f"-tags={','.join(self.tags)}",
            f"-ldflags={' '.join(linker)}",
        ]

    def digest(self) -> str:
        """Return what tells this way to compile from another."""
        own = [path.read_text() for path in sorted((OWN_FILES / self.name).glob("*"))]
        return hashlib.sha256(repr((astuple(self), self.flags(), own)).encode()).hexdigest()[:12]

    def entry(self, arch: str) -> str:
        return f"go/{self.name}-{arch}-{self.digest()}"


def programs(recipe: Recipe, arch: str) -> Path:
    """Return the cached directory with the programs of a recipe; `arch` is as Debian names it.

    Raises NoGoError when there is no Go that can, ToolError without disk space or access to the modules.
    """
    return cached(recipe.entry(arch), lambda out: build(recipe, out, arch))


def is_compiled(recipe: Recipe, arch: str) -> bool:
    return (cache() / recipe.entry(arch)).exists()


def build(recipe: Recipe, out: Path, arch: str) -> None:
    work = out.parent
    ensure_go(recipe)
    check_room(work)
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("GOFLAGS", "GOOS", "GOARCH")},
        "CGO_ENABLED": str(int(recipe.cgo)),
        "GOARCH": arch,
        "GOCACHE": str(cache() / "go-build" if recipe.keep_objects else work / "objects"),
        "GOTMPDIR": str(work),
        "GOWORK": "off",
        "GOSUMDB": "off",  # the recipe and go.sum have all checksums
    }
    if recipe.cgo:
        environment["CC"] = compiler.tool("gcc", arch)
    with step(f"fetching the Go modules of {recipe.name}"):
        tree = source(recipe, work, environment)
        listing = ["go", "list", "-deps", *recipe.flags()[:-1], *recipe.packages]
        packages = run(listing, env=environment, cwd=tree).stdout.count("\n")
    out.mkdir()
    title = f"compiling {packages} Go packages"
    say(f"{title}: up to 10 minutes on 2 cores, once")
    target = f"{out}/" if len(recipe.packages) > 1 else out / recipe.name
    command = ["go", "build", "-v", *recipe.flags(), "-o", str(target), *recipe.packages]
    compile_packages(command, title, packages, env=environment, cwd=tree)


def source(recipe: Recipe, work: Path, environment: Mapping[str, str]) -> Path:
    """Unpack the recipe's module, with its changes, and return the directory.

    Raises ToolError for other files than those whose checksum the recipe has.
    """
    (main,) = download([recipe.module], environment)
    with zipfile.ZipFile(main["Zip"]) as archive:
        archive.extractall(work)
    tree = work / recipe.module
    if (own := OWN_FILES / recipe.name).exists():
        shutil.copytree(own, tree / recipe.packages[0], dirs_exist_ok=True)
    # Kubernetes publishes the modules of its tree with its version, but for the major one.
    local = re.findall(r"^\t(\S+) => \./", (tree / "go.mod").read_text(), re.MULTILINE)
    published = main["Version"].replace("v1", "v0", 1)
    required = [*recipe.required, *(f"{module}@{published}" for module in local)]
    edits = [f"-dropreplace={module}" for module in local] + [f"-require={module}" for module in required]
    for replacement in recipe.replaced:
        old, new = replacement.split("=")
        edits += [f"-replace={replacement}", f"-require={old}@{new.partition('@')[2]}"]
        required.append(new)
    fetched = [main, *(download(required, environment) if required else ())]
    lines = [
        f"{one['Path']} {one['Version']}{of} {one[key]}\n"
        for one in fetched
        for of, key in (("", "Sum"), ("/go.mod", "GoModSum"))
    ]
    found = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    if found != recipe.checksum:
        raise ToolError(
            f"the Go modules of {recipe.name} are not the recorded ones: their checksums have the SHA-256 "
            f"{found}, not {recipe.checksum}"
        )
    run(["go", "mod", "edit", "-fmt", *edits], env=environment, cwd=tree)
    with (tree / "go.sum").open("a") as sums:
        sums.writelines(lines)
    return tree


def download(modules: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Have modules in Go's cache; return the facts about each, as `go help mod download` has them."""
    said = run(["go", "mod", "download", "-json", *modules], env=environment).stdout
    found: list[dict[str, str]] = json.loads("[" + said.replace("}\n{", "},\n{") + "]")
    return found


KUBERNETES = "v1.36.4"
"""The lab's newest Kubernetes."""


def kubernetes_flags() -> tuple[str, ...]:
    """Return the linker's flags by which Kubernetes knows its version, as in its own makefiles."""
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    facts = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return tuple(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in facts.items()
    )


HYPERKUBE = Recipe(
    "hyperkube",
    f"k8s.io/kubernetes@{KUBERNETES}",
    go="1.26",
    checksum="e5768d1896c47e278e1000143f7266ff403eb41ba0da85f24cc5cad167f17df7",
    packages=("./cmd/hyperkube",),
    required=(  # by etcd
        "github.com/golang/groupcache@v0.0.0-20210331224755-41bb18bfe9da",
        "github.com/grpc-ecosystem/go-grpc-middleware@v1.3.0",
    ),
    linker_flags=kubernetes_flags(),
)
HELM_VERSION = "v4.2.0"
HELM = Recipe(
    "helm",
    f"helm.sh/helm/v4@{HELM_VERSION}",
    go="1.26",
    checksum="93c083f9a1485c7fbec8e99032ebb66503390730cac86a55df7c17d414ba6f46",
    packages=("./cmd/helm",),
    linker_flags=(f"-X helm.sh/helm/v4/internal/version.version={HELM_VERSION}",),
)


def ensure_go(recipe: Recipe) -> None:
    """Raise NoGoError unless there is a Go that is new enough; install Debian's if that is."""
    way_out = f"install Go {recipe.go} or newer, which compiles {recipe.name}"
    if shutil.which("go") is None:
        if numbers(recipe.go) > DEBIANS_GO:
            raise NoGoError(f"there is no Go here: {way_out}")
        debian.ensure_packages("golang-go")
    found = run(["go", "env", "GOVERSION"]).stdout.strip().removeprefix("go")
    # With GOTOOLCHAIN=auto the command fetches the version that go.mod wants.
    own = run(["go", "env", "GOTOOLCHAIN"]).stdout.strip() in ("local", "")
    if own and numbers(found) < numbers(recipe.go):
        raise NoGoError(f"Go {found} is too old: {way_out}, or set GOTOOLCHAIN=auto")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def check_room(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < SCRATCH_BYTES:
        raise ToolError(
            f"{directory} has {free / 1e9:.1f} GB free and compiling takes {SCRATCH_BYTES / 1e9:.0f}: "
            "free some space there, or set JETSON_K3S_CACHE to a larger disk"
        )
