#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ask a running K3s server of the cluster whether a join token is right, and only then write it.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64
import os
import ssl
import urllib.error
import urllib.request
from typing import Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_token import (
    TokenError,
    complete,
    is_bootstrap,
    opener,
    parse_token,
    secret,
)

DOCUMENTATION = r"""
module: k3s_join_token
short_description: A K3s join token that its server has accepted
description:
  - Compares the hash in the token with the CA of the cluster, and sends the token to a server that has a
    certificate of this CA. The module requests a file that only nodes get.
  - A token without a hash is written with the hash of the CA. K3s sends a token without one to any computer
    that answers.
  - An expiring token that the server does not take any more stays where it stands, if the agent has joined.
    K3s knows it by its certificate then.
  - In check mode the module sends the request and writes nothing.
options:
  server_url: {description: Such as https://jetson-1:6443. Without it no request is made. Needs O(ca).}
  ca: {description: 'The cluster''s CA in PEM, as read over SSH on one of its servers.'}
  ca_hash:
    description:
      C(K10) and the hash of the CA, as the server's own token file begins. Without it the token is written as
      it is, which is for the first server alone, as it joins no other.
  token:
    description:
      - C(<password>) or C(K10<hash of the CA>::<user>:<password>).
      - For agents also C(<id>.<secret>) or C(K10<hash of the CA>::<id>.<secret>), from C(k3s token create).
    required: true
  first: {default: '', description: 'The cluster''s present token of this kind, which K3s cannot change.'}
  present:
    description: The cluster's present token of servers. A server's token is compared with it, and not sent.
    default: ''
  server: {type: bool, default: false, description: Whether the token is for a server.}
  path: {type: path, required: true, description: The token file.}
  marker: {type: path, required: true, description: Marker of the restart that is due.}
"""

RETURN = r"""
reason: {type: str, returned: failure, description: 'Such as malformed, unreachable, untrusted or refused.'}
restart_due: {type: bool, description: 'Whether the marker exists, or would exist outside check mode.'}
"""

# An agent has it once it has joined.
CLIENT_CERTIFICATE = "/var/lib/rancher/k3s/agent/client-kubelet.crt"
# On a server, what agents join with.
AGENT_TOKEN = "/var/lib/rancher/k3s/server/agent-token"  # noqa: S105 - a file
ANSWER_BYTES = 1 << 20
ANSWER_SECONDS = 10
PRIVATE = 0o600


def check_form(token: str, server: bool) -> None:
    """TokenError 'malformed' for what can be no join token, or none of a server."""
    credentials = parse_token(token)[1]
    if server and is_bootstrap(credentials):
        raise TokenError(
            "malformed",
            "the token expires, so K3s takes it from agents only: set it for the group agent, and for "
            "servers a password or nothing",
        )


def check_unchanged(token: str, first: str) -> None:
    """TokenError 'fixed' for another token of agents than the cluster's."""
    if first and secret(token) != secret(first):
        raise TokenError(
            "fixed",
            "k3s_agent_token is not the token that this cluster began with, and K3s cannot change it: K3s "
            "keeps the first one in its data store and would not start at the start after the next. Give "
            "the first one, which is the end of {}, or leave k3s_agent_token out. K3s was not "
            "touched".format(AGENT_TOKEN),
        )


def check_same(token: str, present: str) -> None:
    """TokenError 'refused' for another token of servers than the cluster's."""
    if present and secret(token) != secret(present):
        raise TokenError("refused", "k3s_token is not the token of this cluster's servers")


def authorization(credentials: str) -> str:
    """The header by which a server knows who asks."""
    if is_bootstrap(credentials):
        return "Bearer " + credentials
    return "Basic " + base64.b64encode(credentials.encode()).decode()


def ask(url: str, ca: str, timeout: int, credentials: Optional[str] = None) -> None:
    """Send the credentials, if any, to a server that has a certificate of the CA.

    TokenError 'unreachable', 'untrusted' or 'refused'.
    """
    request = urllib.request.Request(url)  # noqa: S310 - server_url is checked to be https
    if credentials:
        request.add_header("Authorization", authorization(credentials))
    server = url.rsplit("/v1", 1)[0]
    try:
        with opener(ca).open(request, timeout=timeout) as answer:
            answer.read(ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        if credentials and error.code in (401, 403):
            text = "the K3s server {} refuses the join token (HTTP {})".format(server, error.code)
            if is_bootstrap(credentials):
                text += "; it may have expired, `k3s token list` there says when"
            raise TokenError("refused", text) from error
        raise TokenError("unreachable", "{} answers HTTP {}".format(url, error.code)) from error
    except (OSError, ssl.SSLError) as error:
        cause = getattr(error, "reason", error)
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            raise TokenError(
                "untrusted",
                "the computer that answers at {} has no certificate of this cluster's CA, so the join token "
                "was not sent ({}). k3s_server_url may be the address of another cluster, or another "
                "computer has taken that address".format(server, cause),
            ) from error
        raise TokenError("unreachable", "no K3s server answers at {}: {}".format(url, cause)) from error


def verify(server_url: str, ca: str, token: Optional[str], timeout: int) -> None:
    """Ask the server whether it accepts an agent's token, None only for its certificate. TokenError."""
    if not server_url.startswith("https://"):
        raise TokenError(
            "malformed", "the server's address must begin with https://, not {}".format(server_url)
        )
    if token is None:
        ask(server_url + "/ping", ca, timeout)
    else:
        ask(server_url + "/v1-k3s/client-ca.crt", ca, timeout, parse_token(token)[1])


def has_joined_with(token: str, path: str, certificate: str = CLIENT_CERTIFICATE) -> bool:
    """Has this node joined with this bootstrap token, so that K3s does not need the token any more?"""
    try:
        with open(path) as stream:
            credentials = parse_token(stream.read().strip())[1]
    except (IOError, TokenError):
        return False
    return is_bootstrap(credentials) and credentials == parse_token(token)[1] and os.path.exists(certificate)


def is_written(path: str, text: str) -> bool:
    """Is this the file's text, and is it root's alone?"""
    try:
        with open(path) as stream:
            return stream.read() == text and os.fstat(stream.fileno()).st_mode & 0o777 == PRIVATE
    except IOError:
        return False


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "server_url": {"type": "str"},
            "ca": {"type": "str"},
            "ca_hash": {"type": "str"},
            "token": {"type": "str", "required": True, "no_log": True},
            "first": {"type": "str", "default": "", "no_log": True},
            "present": {"type": "str", "default": "", "no_log": True},
            "server": {"type": "bool", "default": False},
            "path": {"type": "path", "required": True, "no_log": False},
            "marker": {"type": "path", "required": True},
        },
        required_by={"server_url": "ca"},
        supports_check_mode=True,
    )
    params = module.params
    try:
        token = params["token"].strip()
        check_form(token, params["server"])
        check_unchanged(token, params["first"])
        if params["ca_hash"]:
            token = complete(token, params["ca_hash"], params["server"])
        if params["server_url"]:
            asked = None if params["server"] else token
            verify(params["server_url"].rstrip("/"), params["ca"], asked, ANSWER_SECONDS)
        check_same(token, params["present"])
    except TokenError as error:
        if error.reason == "refused" and has_joined_with(token, params["path"]):
            module.exit_json(changed=False, restart_due=os.path.exists(params["marker"]))
        module.fail_json(msg=str(error), reason=error.reason)
    text = token + "\n"
    changed = not is_written(params["path"], text)
    if changed and not module.check_mode:
        leave_marker(params["marker"])
        replace_file(params["path"], text, PRIVATE)
    module.exit_json(changed=changed, restart_due=changed or os.path.exists(params["marker"]))


if __name__ == "__main__":
    main()
