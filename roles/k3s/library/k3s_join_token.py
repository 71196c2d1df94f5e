#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ask a running K3s server whether a join token is right, and only then write it for the agent.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64
import os
import re
import ssl
import urllib.error
import urllib.request

from ansible.module_utils.atomic_files import leave_marker, replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_ca import CaError, bundle_hash
from ansible.module_utils.k3s_token import is_usable, parts

DOCUMENTATION = r"""
module: k3s_join_token
short_description: A K3s join token that its server has accepted
description:
  - Fetches the server's CA, compares it with the hash in the token, and asks with the token's credentials
    for a file that only nodes get.
  - A token without a hash is written with the hash of the CA seen, so the agent trusts this server only.
  - An expiring token that the server does not take any more stays where it stands, if the agent has joined.
    K3s knows it by its certificate then.
  - In check mode the server is asked and nothing is written.
author: The jetson-k3s authors
options:
  server_url:
    description: Such as https://jetson-1:6443. Without it nobody is asked, as on the server itself.
    type: str
  token:
    description:
      - C(<password>) or C(K10<hash of the CA>::<user>:<password>).
      - For agents also C(<id>.<secret>) or C(K10<hash of the CA>::<id>.<secret>), from C(k3s token create).
    type: str
    required: true
  server:
    description: Is the token for a server? K3s takes no expiring one there.
    type: bool
    default: false
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

# A bootstrap token, which expires (Kubernetes' cluster-bootstrap/token/api).
BOOTSTRAP_TOKEN = re.compile(r"^[a-z0-9]{6}\.[a-z0-9]{16}$")
# Agents authenticate with a password as this user, whichever the token names (K3s pkg/agent/run.go).
USER = "node"
# An agent has it once it has joined.
CLIENT_CERTIFICATE = "/var/lib/rancher/k3s/agent/client-kubelet.crt"
ANSWER_BYTES = 1 << 20
PRIVATE = 0o600


class TokenError(Exception):
    """The token cannot be used: (reason, text)."""

    def __init__(self, reason, text):
        super(TokenError, self).__init__(text)
        self.reason = reason


def parse_token(token):
    """(hash of the CA or None, credentials) of a join token; TokenError 'malformed'.

    Credentials are a bootstrap token or `node:<password>`.
    """
    ca_hash, user, secret = parts(token)
    expires = user is None and is_bootstrap(secret)
    if not is_usable(secret) or (ca_hash and not user and not expires):
        raise TokenError(
            "malformed",
            "the join token is malformed: expected is a password, K10<64 hex digits>::<user>:<password>, or "
            "what `k3s token create` has printed",
        )
    return ca_hash, secret if expires else "{}:{}".format(USER, secret)


def is_bootstrap(credentials):
    """Are that a bootstrap token's, and no password?"""
    return BOOTSTRAP_TOKEN.match(credentials) is not None


def check_form(token, server):
    """TokenError 'malformed' for what can be no join token, or none of a server."""
    credentials = parse_token(token)[1]
    if server and is_bootstrap(credentials):
        raise TokenError(
            "malformed",
            "the token expires, so K3s takes it from agents only: set it for the group agent, and for "
            "servers a password or nothing",
        )


def authorization(credentials):
    """The header by which a server knows who asks."""
    if is_bootstrap(credentials):
        return "Bearer " + credentials
    return "Basic " + base64.b64encode(credentials.encode()).decode()


def get(url, context, timeout, credentials=None):
    """Body of an HTTPS answer; TokenError 'unreachable' or 'refused'."""
    request = urllib.request.Request(url)  # noqa: S310 - server_url is checked to be https
    if credentials is not None:
        request.add_header("Authorization", authorization(credentials))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=timeout) as answer:
            return answer.read(ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            text = "the K3s server {} refuses the join token (HTTP {})".format(
                url.rsplit("/v1", 1)[0], error.code
            )
            if is_bootstrap(credentials or ""):
                text += "; it may have expired, `k3s token list` there says when"
            raise TokenError("refused", text) from error
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
    ca_hash, credentials = parse_token(token)
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE  # the CA itself is fetched here; its hash is what is compared
    ca = get(server_url + "/cacerts", blind, timeout)
    try:
        found = bundle_hash(ca)
    except CaError as error:
        raise TokenError("unreachable", "{}/cacerts is no CA: {}".format(server_url, error)) from error
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
    get(server_url + "/v1-k3s/client-ca.crt", trusting, timeout, credentials)
    return token if ca_hash is not None else "K10{}::{}".format(found, credentials)


def has_joined_with(token, path, certificate=CLIENT_CERTIFICATE):
    """Has this node joined with this bootstrap token, so that K3s does not need the token any more?"""
    try:
        with open(path) as stream:
            credentials = parse_token(stream.read().strip())[1]
    except (IOError, TokenError):
        return False
    return is_bootstrap(credentials) and credentials == parse_token(token)[1] and os.path.exists(certificate)


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
            "server": {"type": "bool", "default": False},
            "path": {"type": "path", "required": True, "no_log": False},
            "marker": {"type": "path", "required": True},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        token = params["token"].strip()
        check_form(token, params["server"])
        if params["server_url"]:
            token = verify(params["server_url"].rstrip("/"), token, params["timeout"])
    except TokenError as error:
        if error.reason == "refused" and has_joined_with(token, params["path"]):
            module.exit_json(changed=False, restart_due=os.path.exists(params["marker"]))
        module.fail_json(msg=str(error), reason=error.reason)
    text = token + "\n"
    changed = not stands(params["path"], text)
    if changed and not module.check_mode:
        leave_marker(params["marker"])
        replace_file(params["path"], text, PRIVATE)
    module.exit_json(changed=changed, restart_due=changed or os.path.exists(params["marker"]))


if __name__ == "__main__":
    main()
