#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Download one file and keep it only if it has its SHA-256.

Runs on the board, therefore Python 3.6 compatible.
"""

import hashlib
import os
import re
import tempfile
from typing import IO, Any, Dict, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: k3s_download
short_description: A downloaded file with a known SHA-256
description:
  - Neither the address of the proxy nor a password is an argument of a process, as with the variables of
    C(environment), which every user of the board could read.
  - The file is replaced in one step. One that has the SHA-256 already is left alone.
options:
  url: {required: true, description: Address of the file.}
  path: {type: path, required: true, description: Where the file goes.}
  mode: {required: true, description: Its mode.}
  sha256: {description: 'Its SHA-256. Without it that in O(checksums) counts.'}
  checksums: {required: true, description: 'Address of the checksums, in the format of C(sha256sum).'}
  username: {description: For the server of O(url).}
  password: {description: As above.}
  http_proxy: {default: '', description: Proxy for C(http://).}
  https_proxy: {default: '', description: Proxy for C(https://).}
  no_proxy: {default: '', description: 'Hosts without a proxy, separated by commas.'}
  timeout: {type: int, default: 60, description: Seconds to wait for an answer.}
"""

RETURN = r"""
sha256: {type: str, description: 'SHA-256 of the file, null in check mode if it is not there yet.'}
"""

Data = Dict[str, Any]  # parameters

BLOCK = 1 << 20
# Checksums of a release are far smaller.
LARGEST_LIST = 1 << 20
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


class DownloadError(Exception):
    """The file was not taken; the text says why."""


def digest(path: str) -> Optional[str]:
    """SHA-256 of a file, None without one."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(BLOCK), b""):
                found.update(block)
    except FileNotFoundError:
        return None
    return found.hexdigest()


def listed(text: str, name: str) -> str:
    """The SHA-256 of a file in the text of checksums. DownloadError without one."""
    for line in text.splitlines():
        found, _, file = line.partition(" ")
        if file.lstrip(" *") == name and DIGEST.match(found):
            return found
    raise DownloadError("the checksums do not have {}".format(name))


def check(found: str, wanted: str, pinned: bool) -> None:
    """DownloadError if these are two SHA-256. The inventory may have pinned the one that is wanted."""
    if found != wanted:
        by = "k3s_sha256, which may be of another version" if pinned else "the release's checksums"
        raise DownloadError("it has SHA-256 {}, and {} is expected by {}".format(found, wanted, by))


def use_proxy(params: Data) -> None:
    """Let this process use the proxy of its arguments and no other.

    Without a proxy there, the environment of the board counts, which its owner may have set.
    """
    given = {name: params[name] for name in VARIABLES if params[name]}
    for name in [key for key in os.environ if key.lower() in (*VARIABLES, "all_proxy")] if given else ():
        del os.environ[name]
    os.environ.update(given)


class Page:
    """The server with the files."""

    def __init__(self, params: Data) -> None:
        self.params = params

    def open(self, url: str) -> IO[bytes]:
        """A stream of the file. OSError, ValueError."""
        answer: IO[bytes] = open_url(
            url,
            url_username=self.params["username"],
            url_password=self.params["password"],
            force_basic_auth=bool(self.params["username"]),
            unredirected_headers=["Authorization"],  # the mirror's password is not for the address it names
            timeout=self.params["timeout"],
            http_agent="jetson-k3s",
        )
        return answer

    def checksum(self) -> str:
        """The SHA-256 that the file has to have. DownloadError, OSError, ValueError."""
        known: Optional[str] = self.params["sha256"]
        if known:
            return known
        text = self.open(self.params["checksums"]).read(LARGEST_LIST).decode("utf-8", "replace")
        return listed(text, os.path.basename(self.params["url"]))

    def fetch(self, wanted: str) -> None:
        """Put the file into its place. DownloadError, OSError, ValueError."""
        path = self.params["path"]
        found = hashlib.sha256()
        fresh = tempfile.NamedTemporaryFile(
            prefix=".{}.".format(os.path.basename(path)), dir=os.path.dirname(path), delete=False
        )
        try:
            with fresh as stream:
                answer = self.open(self.params["url"])
                for block in iter(lambda: answer.read(BLOCK), b""):
                    found.update(block)
                    stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
            check(found.hexdigest(), wanted, pinned=bool(self.params["sha256"]))
            os.chmod(fresh.name, int(self.params["mode"], 8))
            os.rename(fresh.name, path)
        except BaseException:
            os.unlink(fresh.name)
            raise


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "mode": {"type": "str", "required": True},
            "sha256": {"type": "str"},
            "checksums": {"type": "str", "required": True},
            "username": {"type": "str"},
            "password": {"type": "str", "no_log": True},
            "http_proxy": {"type": "str", "default": "", "no_log": True},
            "https_proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    use_proxy(module.params)
    page, path = Page(module.params), module.params["path"]
    try:
        wanted = page.checksum()
        changed = digest(path) != wanted
        if changed and not module.check_mode:
            page.fetch(wanted)
    except (DownloadError, OSError, ValueError) as error:
        module.fail_json(msg=redact("{}: {}".format(module.params["url"], error)))
    module.exit_json(changed=changed, sha256=None if changed and module.check_mode else wanted)


if __name__ == "__main__":
    main()
