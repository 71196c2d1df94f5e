#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Give a K3s cluster another server token, on its first server.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64
import glob
import json
import os
import re
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_releases import is_older, named
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_token import (
    is_usable,
    opener,
    parts,
    secret,
)

DOCUMENTATION = r"""
module: k3s_token_rotation
short_description: Another server token for a K3s cluster
description:
  - Sends the request that C(k3s token rotate) sends. K3s then encrypts the keys of its CAs by the new token.
    The command itself would show the new token in the process list.
  - Before that the old token is kept in a record. The record stays until it is closed, so the next run
    continues an interrupted one.
  - Refused where the old token stands in K3s' own configuration. K3s would start with it, and fail.
  - Refused where K3s does not have that request yet.
options:
  state: {choices: [rotated, closed], required: true, description: C(closed) when all boards have the token.}
  token: {description: The new token. Without it K3s makes one.}
  token_file: {type: path, required: true, description: File of a given token.}
  record: {type: path, required: true, description: Where the old token is kept.}
  url: {required: true, description: Address of K3s on this board.}
  version: {description: 'The version of K3s, such as C(v1.33.5+k3s1). Needed with C(rotated).'}
  marker: {type: path, required: true, description: Marker of the restart that is due.}
"""

RETURN = r"""
restart_due: {type: bool, returned: with state rotated, description: Whether a restart is due.}
kept: {type: str, returned: with state closed, description: 'File of the old token, or empty.'}
"""

Data = Dict[str, Any]  # parameters

SERVER_DIRECTORY = "/var/lib/rancher/k3s/server"
# Where K3s and its unit may have a token from: files, and those that `token-file` in them names.
CONFIGURATION = (
    "/etc/rancher/k3s/config.yaml",
    "/etc/rancher/k3s/config.yaml.d/*",
    "/etc/default/k3s",
    "/etc/sysconfig/k3s",
    "/etc/systemd/system/k3s.service.env",
)
TOKEN_FILE = re.compile(r"""^(?:token-file:|K3S_TOKEN_FILE=)\s*["']?([^"'\s]+)""", re.MULTILINE)
# K3s' pkg/server/handlers/token.go: the path, and the user who may.
PATH, USER = "/v1-k3s/token", "server"
# The first patch release of a minor one of Kubernetes 1 that has it: https://github.com/k3s-io/k3s/pull/8265.
# Those before answer as to a wrong token.
FIRST_PATCH = {25: 15, 26: 10, 27: 7, 28: 3}
TIMEOUT_SECONDS = 60
PRIVATE = 0o600


class RotationError(Exception):
    """The token cannot be changed; the text says why and what to do."""


def read(path: str) -> str:
    """A file's text without blanks around it, '' if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except IOError:
        return ""


def check(wanted: str, current: str) -> None:
    """RotationError for what cannot be this cluster's new token."""
    ca_hash, _, new = parts(wanted)
    if not is_usable(new):
        raise RotationError("k3s_token is malformed: the output of `openssl rand -hex 16` is a good one")
    if ca_hash not in (None, parts(current).ca_hash):
        raise RotationError("k3s_token is of another cluster: leave out what stands before its last colon")


def check_version(version: str) -> None:
    """RotationError for a K3s that does not have the request."""
    if is_older(version, FIRST_PATCH):
        raise RotationError(
            "K3s {} cannot change its token. {} and newer ones can: playbooks/upgrade.yml. Nothing was "
            "changed.".format(version, named(FIRST_PATCH))
        )


def is_needed(current: str, wanted: Optional[str], record: str) -> bool:
    """Has the token still to be changed? `record` is the old one of an interrupted run, or ''."""
    if wanted is not None:
        return secret(wanted) != secret(current)
    return record in ("", current)


def elsewhere(current: str, patterns: Sequence[str], ours: Optional[str]) -> List[str]:
    """Files of K3s' configuration that have this token, but for ours."""
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    named = [name for path in paths for name in TOKEN_FILE.findall(read(path))]
    whole = re.compile(r"(?<!\w){}(?!\w)".format(re.escape(secret(current))))
    return [path for path in paths + named if path != ours and whole.search(read(path))]


def rotate(url: str, current: str, wanted: Optional[str], ca: str) -> None:
    """Have K3s change its token. RotationError when it does not."""
    request = urllib.request.Request(  # noqa: S310 - the role gives an https URL
        url + PATH, json.dumps({"newToken": secret(wanted or "")}).encode(), method="PUT"
    )
    credentials = base64.b64encode("{}:{}".format(USER, secret(current)).encode()).decode()
    request.add_header("Authorization", "Basic " + credentials)
    try:
        with opener(read(ca)).open(request, timeout=TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        raise RotationError(
            "K3s does not change its token: HTTP status {}. Its journal says why.".format(error.code)
        ) from error
    except OSError as error:
        raise RotationError(
            "no K3s answers at {}: {}. Start it (`sudo systemctl status k3s` says why it is down), and run "
            "the same command again".format(url, getattr(error, "reason", error))
        ) from error


def ensure_rotated(params: Data, current: str, check_mode: bool) -> bool:
    """Whether the token had to be changed; afterwards it is, and the old one is in the record."""
    wanted, record = params["token"], read(params["record"])
    if wanted is not None:
        check(wanted, current)
    if not is_needed(current, wanted, record):
        return False
    check_version(params["version"])
    others = elsewhere(current, CONFIGURATION, params["token_file"] if wanted else None)
    if others:
        raise RotationError(
            "the present token stands in {}. K3s would start with it again, and fail. Take it out there "
            "(K3s has it in its data directory), run playbooks/site.yml, then this again. Nothing was "
            "changed.".format(", ".join(others))
        )
    if not check_mode:
        change(params, current)
    return True


def change(params: Data, current: str) -> None:
    """Have K3s change its token; a cut in the middle leaves what the next run goes on with."""
    record, marker = params["record"], params["marker"]
    close(record, current)  # of a change before this one, which was not ended
    marked = os.path.exists(marker)
    leave_marker(marker)
    replace_file(record, current + "\n", PRIVATE)
    try:
        rotate(params["url"], current, params["token"], os.path.join(SERVER_DIRECTORY, "tls/server-ca.crt"))
    except RotationError:
        if not marked:
            os.unlink(marker)
        if read(os.path.join(SERVER_DIRECTORY, "token")) == current:
            os.unlink(record)
        raise


def close(record: str, current: str) -> str:
    """Give the record of an old token its lasting name; '' when there is no old token in it."""
    if read(record) in ("", current):
        return ""
    kept = "{}.until-{}".format(record, time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime()))
    os.rename(record, kept)
    return kept


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["rotated", "closed"], "required": True},
            "token": {"type": "str", "no_log": True},
            "token_file": {"type": "path", "required": True, "no_log": False},
            "record": {"type": "path", "required": True},
            "url": {"type": "str", "required": True},
            "version": {"type": "str"},
            "marker": {"type": "path", "required": True},
        },
        required_if=[("state", "rotated", ["version"])],
        supports_check_mode=True,
    )
    params = module.params
    current = read(os.path.join(SERVER_DIRECTORY, "token"))
    if not current:
        module.fail_json(
            msg="K3s has no token in {} yet: playbooks/site.yml starts it.".format(SERVER_DIRECTORY)
        )
    try:
        if params["state"] == "closed":
            kept = "" if module.check_mode else close(params["record"], current)
            module.exit_json(changed=bool(kept), kept=kept)
        changed = ensure_rotated(params, current, module.check_mode)
    except (RotationError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, restart_due=changed or os.path.exists(params["marker"]))


if __name__ == "__main__":
    main()
