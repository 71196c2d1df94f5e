# SPDX-License-Identifier: Apache-2.0
"""A release's signature: over SHA256SUMS, by OpenSSH's ssh-keygen, which every Debian and Ubuntu has."""

import tempfile
from pathlib import Path

from release.version import CHECKOUT
from tools.process import ToolError, run

# Users name both to `ssh-keygen -Y verify` (docs/offline.md).
SIGNER, NAMESPACE = "jetson-k3s", "jetson-k3s-release"
SUFFIX = ".sig"


def public(key: Path) -> str:
    """Return the public key of a key file: type and key, without a comment. Raises ToolError or OSError."""
    beside = key if key.suffix == ".pub" else key.with_name(f"{key.name}.pub")
    text = beside.read_text() if beside.exists() else run(["ssh-keygen", "-y", "-f", key]).stdout
    return " ".join(text.split()[:2])


def allowed_signers(key: Path) -> str:
    """Return the line by which users know the key, in the form of ssh-keygen's ALLOWED SIGNERS."""
    return f'{SIGNER} namespaces="{NAMESPACE}" {public(key)}\n'


def sign(file: Path, key: Path) -> Path:
    """Write the signature beside the file and verify it as users do; return its path.

    A key with a passphrase has to be in ssh-agent. Raises ToolError or OSError.
    """
    signature = file.with_name(file.name + SUFFIX)
    run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, file])
    verify(file, allowed_signers(key))
    return signature


def verify(file: Path, signers: str) -> None:
    """Raise ToolError unless the signature beside the file is by one of `signers`, in ssh-keygen's form."""
    with tempfile.NamedTemporaryFile("w", prefix="signers-") as known:
        known.write(f"{signers}\n")
        known.flush()
        who = ["-f", known.name, "-I", SIGNER, "-n", NAMESPACE]
        run(
            ["ssh-keygen", "-Y", "verify", *who, "-s", file.with_name(file.name + SUFFIX)],
            stdin=file.read_text(),
        )


def problem(key: Path | None) -> str:
    """Return why a key cannot sign a release, with what to do; empty when it can."""
    if key is None:
        return "no key signs it: name yours, KEY=~/.ssh/jetson-k3s-release (CONTRIBUTING.md, Cut a release)"
    if key.resolve().is_relative_to(CHECKOUT):
        return f"KEY={key} is in the checkout: move the key to a directory that only you can read"
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-signing-") as directory:
        probe = Path(directory, "probe")
        probe.write_text("probe\n")
        try:
            sign(probe, key)
        except (ToolError, OSError) as error:
            return f"KEY={key} cannot sign it (with a passphrase, run `ssh-add {key}` first): {error}"
    return ""
