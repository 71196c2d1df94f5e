#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Give a K3s cluster new CAs, which the old CAs sign, or end its trust in the old CAs; on its first server.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import re
import secrets
import shutil
import ssl
import time
import urllib.error
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_releases import is_older, named
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_token import opener
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: k3s_ca_rotation
short_description: Other CAs for a K3s cluster
description:
  - Makes a new root and below it a new issuing CA, for each CA of K3s that is there. The old CA signs the new
    root as well, so clients that trust the old CA trust the new one.
  - With C(alone) it makes none. It takes the old CAs out of the bundles, so K3s trusts the new CAs alone.
  - Then C(k3s certificate rotate-ca) has K3s use the bundles from its next start on.
  - They stay in a directory until that is closed, so the next run continues an interrupted one.
  - Nobody keeps the new root's key. The next rotation needs that of the issuing CA.
options:
  state: {choices: [rotated, closed], required: true, description: C(closed) when all boards have the CAs.}
  wanted:
    choices: [changed, again, alone]
    default: changed
    description: C(again) rotates CAs of a rotation. C(alone) ends the trust in the CAs before the rotation.
  url: {required: true, description: Address of K3s on this board.}
  version: {description: 'The version of K3s, such as C(v1.33.5+k3s1). Needed with C(rotated).'}
  marker: {type: path, required: true, description: Marker of the restart that is due.}
"""

RETURN = r"""
begins: {type: bool, returned: with state rotated, description: Whether the rotation starts with this call.}
open: {type: bool, returned: with state rotated, description: Whether there is something to close.}
restart_due: {type: bool, returned: with state rotated, description: Whether a restart is due.}
closed: {type: bool, returned: with state closed, description: Whether there was something to close.}
since: {type: int, returned: with state closed, description: 'Time of the last rotation, null without one.'}
trusts_replaced: {type: bool, returned: with state closed, description: Whether K3s trusts a replaced CA.}
"""

Data = Dict[str, Any]  # parameters
Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

K3S = "/usr/local/bin/k3s"
SERVER_DIRECTORY = "/var/lib/rancher/k3s/server"
# What K3s' own script changes (contrib/util/rotate-default-ca-certs.sh).
CAS = ("server", "client", "request-header", "etcd/server", "etcd/peer")
# New CAs until the rotation is closed, and what was not ended before it was complete.
STAGED, UNFINISHED = "jetson-k3s-rotate-ca", ".jetson-k3s-rotate-ca"
# The first releases whose `k3s certificate` has rotate-ca.
FIRST_PATCH = {24: 12, 25: 8, 26: 3}
# They do not start with other CAs (K3s issue 11014).
BROKEN = ("v1.28.14", "v1.29.9", "v1.30.5", "v1.31.1")
TIMEOUT_SECONDS = 30
# As long as K3s' own.
DAYS = "3650"
# What K3s' script asks for. The subject's section has to be there.
CONFIGURATION = """
[req]
distinguished_name = subject
[subject]
[ca]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
basicConstraints = critical, CA:true
keyUsage = critical, digitalSignature, keyEncipherment, keyCertSign
"""


CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The end of a subject of K3s' own CA of servers, and of the root that a rotation makes: ours, or K3s' script.
K3S_CA = re.compile(r"CN ?= ?k3s-server-(?:ca|root)(?:@\d+)?$")
ROTATED_ROOT = re.compile(r"CN ?= ?k3s-server-root@(\d+)$")


class RotationError(Exception):
    """The CAs cannot be changed; the text says why and what to do."""


def read(*path: str) -> str:
    """A file's text."""
    with open(os.path.join(*path), encoding="ascii") as stream:
        return stream.read()


def tls(directory: str, name: str, kind: str) -> str:
    """The path of a CA's file below K3s' data directory."""
    return os.path.join(directory, "tls", "{}-ca.{}".format(name, kind))


def blocks(bundle: str) -> List[str]:
    """The certificates of a bundle, each as PEM that ends with a new line."""
    return [block + "\n" for block in CERTIFICATE.findall(bundle)]


def bundle(issuing: str, crossed: str, root: str, old: str) -> str:
    """What K3s gets as one CA: each certificate is there once.

    OpenSSL takes the first issuer that fits. Who has only the old CA must find the root that this one has
    signed before the root that it does not know. The old issuing CA stays for what it has signed.
    """
    ordered = []
    for block in blocks(issuing + crossed + root + old):
        if block not in ordered:
            ordered.append(block)
    return "".join(ordered)


def check(version: str, subjects: List[str]) -> None:
    """RotationError for a K3s or a CA that cannot be changed so."""
    if is_older(version, FIRST_PATCH):
        raise RotationError(
            "K3s {} takes no other CAs. {} and newer ones do: playbooks/upgrade.yml. Nothing was "
            "changed.".format(version, named(FIRST_PATCH))
        )
    if version.partition("+")[0] in BROKEN:
        raise RotationError(
            "K3s {} does not start with other CAs (https://github.com/k3s-io/k3s/issues/11014). Upgrade it "
            "first: playbooks/upgrade.yml. Nothing was changed.".format(version)
        )
    if not all(map(K3S_CA.search, subjects)):
        raise RotationError(
            "the cluster's CA is of your own organisation, not of K3s. Make the next one there, and "
            "see https://docs.k3s.io/cli/certificate for how K3s takes it. Nothing was changed."
        )


def check_port(url: str, ca: str) -> None:
    """RotationError if the certificate of K3s' port is of none of these CAs (PEM); OSError without an answer.

    Boards that trust these CAs alone could not connect. K3s before October 2025 keeps the certificate when it
    starts (K3s issue 13006).
    """
    try:
        opener(ca).open(url + "/ping", timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
        return  # the certificate was accepted
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):
            raise
        raise RotationError(
            "K3s still shows a certificate of the old CA at {} ({}). Renew it on this server, then run the "
            "same command again: sudo touch {}/tls/dynamic-cert-regenerate; sudo k3s kubectl "
            "--namespace=kube-system delete secret k3s-serving; sudo systemctl restart k3s. Nothing was "
            "changed.".format(url, error.reason, SERVER_DIRECTORY)
        ) from error


class Openssl:
    """openssl in a directory of its own, by argument lists."""

    def __init__(self, run: Run, directory: str) -> None:
        self._run, self._directory = run, directory
        replace_file(self.path("openssl.cnf"), CONFIGURATION, 0o600)

    def path(self, name: str) -> str:
        """Where a file is."""
        return os.path.join(self._directory, name)

    def __call__(self, *arguments: str) -> None:
        code, _, err = self._run(["openssl", *arguments], cwd=self._directory)
        if code:
            raise RotationError(
                "openssl {}: {}. Nothing was changed.".format(arguments[0], err.strip() or "no reason given")
            )

    def new(self, name: str, subject: str) -> None:
        """Make a key, and a request with it."""
        key, request = name + ".key", name + ".csr"
        self("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        self("req", "-new", "-config", "openssl.cnf", "-subj", subject, "-key", key, "-out", request)

    def sign(self, request: str, name: str, *by: str) -> None:
        """Make a certificate for a request; `by` names the signing key."""
        serial = "0x" + secrets.token_hex(16)
        self(
            "x509", "-req", "-in", request + ".csr", "-out", name + ".crt", "-sha256", "-days", DAYS,
            "-set_serial", serial, "-extfile", "openssl.cnf", "-extensions", "ca", *by
        )  # fmt: skip


def make(openssl: Openssl, name: str, directory: str, stage: str, made: int) -> None:
    """Make one CA below the stage, signed by the one that is below the directory."""
    short = name.replace("/", "-")
    openssl.new("root", "/CN=k3s-{}-root@{}".format(short, made))
    openssl.new("issuing", "/CN=k3s-{}-ca@{}".format(short, made))
    openssl.sign("root", "root", "-signkey", "root.key")
    openssl.sign("root", "crossed", "-CA", tls(directory, name, "crt"), "-CAkey", tls(directory, name, "key"))
    openssl.sign("issuing", "issuing", "-CA", "root.crt", "-CAkey", "root.key")
    parts = [read(openssl.path(part + ".crt")) for part in ("issuing", "crossed", "root")]
    replace_file(tls(stage, name, "key"), read(openssl.path("issuing.key")), 0o600)
    replace_file(tls(stage, name, "crt"), bundle(*[*parts, read(tls(directory, name, "crt"))]), 0o600)


class Rotation:
    """The change of the CAs of the server whose data are in a directory."""

    def __init__(self, directory: str, run: Run) -> None:
        self._directory, self._run = directory, run
        self._staged = os.path.join(directory, STAGED)
        self._unfinished = os.path.join(directory, UNFINISHED)

    @property
    def begun(self) -> bool:
        """Were new CAs made and not all boards gone through?"""
        return os.path.isdir(self._staged)

    @property
    def in_use(self) -> bool:
        """Does K3s have the new CAs?"""
        return all(
            read(tls(self._staged, name, "crt")) == read(tls(self._directory, name, "crt"))
            for name in self._names(self._staged)
        )

    @property
    def since(self) -> Optional[int]:
        """When the CAs in use were made, in seconds since 1970; None for the CAs of the installation."""
        roots = filter(None, map(ROTATED_ROOT.search, self.subjects))
        return max((int(root.group(1)) for root in roots), default=None)

    @property
    def subjects(self) -> List[str]:
        """The subjects of the certificates that K3s shows to others as its CA. RotationError."""
        try:
            certificates = blocks(read(tls(self._directory, "server", "crt")))
        except IOError as error:
            raise RotationError(
                "K3s has no CA yet ({}): playbooks/site.yml starts it.".format(error)
            ) from error
        return [self._name("subject", certificate) for certificate in certificates]

    def _name(self, kind: str, certificate: str) -> str:
        """The `subject` or the `issuer` of a certificate (PEM)."""
        _, out, _ = self._run(["openssl", "x509", "-noout", "-" + kind], data=certificate)
        return out.partition("=")[2].strip()

    def _kept(self, directory: str, name: str) -> List[str]:
        """Of a CA without the CAs that it replaced: the issuing CA, and its root if there is one."""
        certificates = blocks(read(tls(directory, name, "crt")))
        root = self._name("issuer", certificates[0]) if len(certificates) > 1 else None
        roots = [
            other
            for other in certificates[1:]
            # The old CA has signed the same root: that certificate has another issuer.
            if self._name("subject", other) == self._name("issuer", other) == root
        ]
        return certificates[:1] + roots[:1]

    def trusts_replaced(self, directory: str) -> bool:
        """Do CAs below the directory have a replaced CA in their bundle?"""
        return any(
            self._kept(directory, name) != blocks(read(tls(directory, name, "crt")))
            for name in self._names(directory)
        )

    @property
    def new_ca(self) -> str:
        """The CA of servers (PEM) without the one that it replaced."""
        return "".join(self._kept(self._directory, "server"))

    def check_changed(self) -> None:
        """RotationError unless a rotation of all CAs is finished, or K3s gets the new CAs alone already."""
        if self.begun and self.trusts_replaced(self._staged):
            raise RotationError(
                "the last rotation of the CAs is not finished. Run playbooks/rotate_ca.yml without "
                "jetson_k3s_confirm=rotate-ca-alone first. Nothing was changed."
            )
        if any(len(self._kept(self._directory, name)) == 1 for name in self._names(self._directory)):
            raise RotationError(
                "the CAs were never changed, so there are no old ones. Run playbooks/rotate_ca.yml without "
                "jetson_k3s_confirm=rotate-ca-alone first. Nothing was changed."
            )

    @staticmethod
    def _names(directory: str) -> List[str]:
        return [name for name in CAS if os.path.exists(tls(directory, name, "crt"))]

    def is_needed(self, wanted: str) -> bool:
        """Does K3s need other CAs? Raises RotationError."""
        if wanted == "alone":
            return self.trusts_replaced(self._directory)
        return wanted == "again" or self.since is None

    def stage(self, wanted: str) -> None:
        """Put the CAs that K3s is to get into their place, all or none of them."""
        self._clean()
        os.mkdir(self._unfinished, 0o700)
        work = os.path.join(self._unfinished, "work")
        os.mkdir(work, 0o700)
        openssl, made = Openssl(self._run, work), int(time.time())
        for name in self._names(self._directory):
            if wanted == "alone":
                key, kept = read(tls(self._directory, name, "key")), self._kept(self._directory, name)
                replace_file(tls(self._unfinished, name, "key"), key, 0o600)
                replace_file(tls(self._unfinished, name, "crt"), "".join(kept), 0o600)
            else:
                make(openssl, name, self._directory, self._unfinished, made)
        # It stays as it is. Older releases want it with the rest (K3s issue 10689).
        key = os.path.join("tls", "service.key")
        replace_file(os.path.join(self._unfinished, key), read(self._directory, key), 0o600)
        shutil.rmtree(work)
        os.sync()
        os.rename(self._unfinished, self._staged)

    def load(self, url: str) -> None:
        """Have K3s use the new CAs from its next start on."""
        argv = [K3S, "certificate", "rotate-ca", "--path=" + self._staged, "--server=" + url]
        code, out, err = self._run(argv)
        if code:
            raise RotationError(
                "K3s does not take the new CAs. Its journal says why. It said: {}".format(
                    redact((err or out).strip())
                )
            )

    def close(self) -> bool:
        """Remove the keys that lie here a second time. Whether there was something to close."""
        begun = self.begun
        if begun:
            if not self.in_use:
                raise RotationError("K3s does not use the new CAs yet: run playbooks/rotate_ca.yml again.")
            os.rename(self._staged, self._unfinished)
        self._clean()
        return begun

    def _clean(self) -> None:
        if os.path.isdir(self._unfinished):
            shutil.rmtree(self._unfinished)


def ensure_rotated(rotation: Rotation, params: Data, check_mode: bool) -> Tuple[bool, bool]:
    """(does a rotation begin, does K3s get other CAs)."""
    alone = params["wanted"] == "alone"
    begins = not rotation.begun and rotation.is_needed(params["wanted"])
    changes = begins or (rotation.begun and not rotation.in_use)
    if changes or alone:
        check(params["version"], rotation.subjects)
    if alone:
        rotation.check_changed()
    if alone and begins:
        check_port(params["url"], rotation.new_ca)
    if changes and not check_mode:
        if begins:
            rotation.stage(params["wanted"])
        leave_marker(params["marker"])
        rotation.load(params["url"])
    return begins, changes


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["rotated", "closed"], "required": True},
            "wanted": {"type": "str", "choices": ["changed", "again", "alone"], "default": "changed"},
            "url": {"type": "str", "required": True},
            "version": {"type": "str"},
            "marker": {"type": "path", "required": True},
        },
        required_if=[("state", "rotated", ["version"])],
        supports_check_mode=True,
    )
    params = module.params
    os.umask(0o077)
    rotation = Rotation(SERVER_DIRECTORY, module.run_command)
    try:
        if params["state"] == "closed":
            since, replaced = rotation.since, rotation.trusts_replaced(SERVER_DIRECTORY)
            closed = rotation.begun if module.check_mode else rotation.close()
            module.exit_json(changed=closed, closed=closed, since=since, trusts_replaced=replaced)
        begins, changes = ensure_rotated(rotation, params, module.check_mode)
    except (RotationError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=changes,
        begins=begins,
        open=begins or rotation.begun,
        restart_due=changes or os.path.exists(params["marker"]),
    )


if __name__ == "__main__":
    main()
