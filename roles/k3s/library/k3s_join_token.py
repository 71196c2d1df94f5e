#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ask a running K3s server whether a join token is right, and only then write it for the agent.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64
import hashlib
import os
import re
import ssl
import urllib.error
import urllib.request

from ansible.module_utils.atomic_files import leave_marker, replace_file
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: k3s_join_token
short_description: A K3s join token that its server has accepted
description:
  - Fetches the server's CA, compares it with the hash in the token, and asks with the token's password for a
    file that only nodes get.
  - A token without a hash is written with the hash of the CA seen, so the agent trusts this server only.
  - In check mode the server is asked and nothing is written.
author: The jetson-k3s authors
options:
  server_url:
    description: Such as https://jetson-1:6443. Without it nobody is asked, as on the server itself.
    type: str
  token:
    description: C(<password>) or C(K10<sha256 of the CA>::<user>:<password>).
    type: str
    required: true
  path:
    description: The token file.
    type: path
    required: true
  marker:
    description: File that says that a restart is due, made before the token file is changed.
    type: path
    required: true
  timeout:
    description: Seconds for each of the two requests.
    type: int
    default: 10
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
reason:
  description: Why it failed, C(malformed), C(unreachable), C(other-ca) or C(refused).
  returned: failure
  type: str
restart_due:
  description: Whether the marker stands, or would stand outside check mode.
  returned: success
  type: bool
"""

# K3s pkg/clientaccess/token.go: "K10" + SHA-256 of the CA bundle in hex + "::" + user + ":" + password
SECURE_TOKEN = re.compile(r"^K10([0-9a-f]{64})::([^:]+):(.+)$")
# Bootstrap tokens and agents authenticate as "node" for the files that nodes get.
USER = "node"
ANSWER_BYTES = 1 << 20
PRIVATE = 0o600


class TokenError(Exception):
    """The token cannot be used: (reason, text)."""

    def __init__(self, reason, text):
        super(TokenError, self).__init__(text)
        self.reason = reason


def parse_token(token):
    """(hash of the CA or None, password) of a join token; TokenError 'malformed'."""
    match = SECURE_TOKEN.match(token)
    if match:
        return match.group(1), match.group(3)
    if not token or token.startswith("K10") or re.search(r"\s", token):
        raise TokenError(
            "malformed",
            "the join token is malformed: expected is a password, or K10<64 hex digits>::<user>:<password>",
        )
    return None, token


def get(url, context, timeout, password=None):
    """Body of an HTTPS answer; TokenError 'unreachable' or 'refused'."""
    request = urllib.request.Request(url)  # noqa: S310 - server_url is checked to be https
    if password is not None:
        credentials = base64.b64encode("{}:{}".format(USER, password).encode()).decode()
        request.add_header("Authorization", "Basic " + credentials)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=timeout) as answer:
            return answer.read(ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise TokenError(
                "refused",
                "the K3s server {} refuses the join token (HTTP {})".format(
                    url.rsplit("/v1", 1)[0], error.code
                ),
            ) from error
        raise TokenError("unreachable", "{} answers HTTP {}".format(url, error.code)) from error
    except (OSError, ssl.SSLError) as error:
        raise TokenError(
            "unreachable", "no K3s server answers at {}: {}".format(url, getattr(error, "reason", error))
        ) from error


def verify(server_url, token, timeout):
    """The secure form of a token that the server accepts; TokenError otherwise."""
    if not server_url.startswith("https://"):
        raise TokenError(
            "malformed", "the server's address must begin with https://, not {}".format(server_url)
        )
    ca_hash, password = parse_token(token)
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE  # the CA itself is fetched here; its hash is what is compared
    ca = get(server_url + "/cacerts", blind, timeout)
    found = hashlib.sha256(ca).hexdigest()
    if ca_hash is not None and found != ca_hash:
        raise TokenError(
            "other-ca",
            "the join token is for another cluster: its CA hash is {}..., that of {} is {}...".format(
                ca_hash[:12], server_url, found[:12]
            ),
        )
    trusting = ssl.create_default_context(cadata=ca.decode("ascii"))
    trusting.check_hostname = (
        False  # the CA is this cluster's own; the address used may not be in the certificate yet
    )
    get(server_url + "/v1-k3s/client-ca.crt", trusting, timeout, password)
    return token if ca_hash is not None else "K10{}::{}:{}".format(found, USER, password)


def stands(path, text):
    """Is this the file's text, and is it root's alone?"""
    try:
        with open(path) as stream:
            return stream.read() == text and os.fstat(stream.fileno()).st_mode & 0o777 == PRIVATE
    except IOError:
        return False


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "server_url": {"type": "str"},
            "token": {"type": "str", "required": True, "no_log": True},
            "path": {"type": "path", "required": True, "no_log": False},
            "marker": {"type": "path", "required": True},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        token = params["token"].strip()
        parse_token(token)
        if params["server_url"]:
            token = verify(params["server_url"].rstrip("/"), token, params["timeout"])
    except TokenError as error:
        module.fail_json(msg=str(error), reason=error.reason)
    text = token + "\n"
    changed = not stands(params["path"], text)
    if changed and not module.check_mode:
        leave_marker(params["marker"])
        replace_file(params["path"], text, PRIVATE)
    module.exit_json(changed=changed, restart_due=changed or os.path.exists(params["marker"]))


if __name__ == "__main__":
    main()
