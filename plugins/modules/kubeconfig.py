#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig with a client certificate: ask for one where it is needed, try it, and put it into its place.

Runs on the controller.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file

DOCUMENTATION = r"""
module: kubeconfig
short_description: A kubeconfig with a client certificate whose key was made here
description:
  - With C(requested) it reads the file. If a new certificate is needed, it makes a key and a request.
  - With C(present) it tries the certificate at the API server. Only then is the file put into its place. An
    old one stays until then.
  - A file that this module has not written is refused.
options:
  path: {type: path, required: true, description: The kubeconfig.}
  state: {choices: [requested, present], required: true, description: See above.}
  user: {required: true, description: 'The user, who becomes the certificate''s common name.'}
  cluster: {required: true, description: What the kubeconfig calls the cluster and its context.}
  server: {required: true, description: URL of the API server.}
  ca: {required: true, description: Its CA (PEM).}
  scratch: {type: path, required: true, description: Private directory for the key.}
  certificate: {description: The certificate for the request (PEM). Without it the file is only tried.}
"""

RETURN = r"""
path: {type: str, description: The absolute path of the file.}
request: {type: str, returned: with state requested, description: 'Certificate request (PEM), or empty.'}
why: {type: str, returned: with state requested, description: 'Why a new certificate is needed, or empty.'}
ends: {type: float, returned: with state present, description: 'End of the certificate, in Unix time.'}
"""

HEADER = "# Written by Ansible (role kubeconfig). It is renewed as long as this line stands.\n"
# An elliptic curve that every OpenSSL and Go have; the key takes no time to make.
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
KEY = "user.key"
# A certificate that has lived for half of its time is renewed.
RENEWED_AFTER = 0.5
REQUEST_SECONDS = 10
UNAUTHORIZED = 401
REDIRECTS = range(300, 400)


class KubeconfigError(Exception):
    """No kubeconfig can be had so; the text says why and what to do."""


def openssl(*arguments: str | Path, stdin: str = "") -> str:
    """Output of openssl. KubeconfigError when it is not there or fails."""
    try:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise KubeconfigError("this computer has no openssl command: install its package") from error
    if done.returncode != 0:
        raise KubeconfigError(f"openssl {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def lifetime(certificate: str) -> tuple[float, float]:
    """From when to when a certificate (PEM) is valid, in seconds since 1970."""
    dates = dict(
        line.split("=", 1)
        for line in openssl("x509", "-noout", "-startdate", "-enddate", stdin=certificate).splitlines()
    )
    return ssl.cert_time_to_seconds(dates["notBefore"]), ssl.cert_time_to_seconds(dates["notAfter"])


def make_request(user: str, scratch: Path) -> str:
    """A certificate request for a fresh key, which stays in `scratch`."""
    return openssl("req", "-new", *NEW_KEY, "-keyout", scratch / KEY, "-subj", f"/CN={user}")


def embedded(pem: str) -> str:
    """PEM as a kubeconfig embeds it."""
    return base64.b64encode(pem.encode()).decode()


def render(params: dict[str, Any], certificate: str, key: str) -> str:
    """The file's text."""
    cluster, user = params["cluster"], f"{params['user']}@{params['cluster']}"
    server = {"server": params["server"], "certificate-authority-data": embedded(params["ca"])}
    client = {"client-certificate-data": embedded(certificate), "client-key-data": embedded(key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": server}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    return HEADER + str(yaml.safe_dump(content, sort_keys=False))


def read(path: Path) -> str:
    """Our file's text, '' without a file. KubeconfigError when somebody else has written it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} cannot be read: {error}") from error
    if not text.startswith(HEADER):
        raise KubeconfigError(
            f"{path} is there, and this role has not written it. Name another file (kubeconfig_file), or "
            "move that one away. Nothing was made."
        )
    return text


def client_of(text: str) -> tuple[str, str]:
    """Certificate and key (PEM) in our file's text."""
    user = yaml.safe_load(text)["users"][0]["user"]
    certificate, key = (
        base64.b64decode(user[f"client-{part}-data"]).decode() for part in ("certificate", "key")
    )
    return certificate, key


def outdated(text: str, params: dict[str, Any], now: float) -> str:
    """Why our file has to be replaced; '' if it is up to date."""
    if not text:
        return "there is none"
    try:
        certificate, key = client_of(text)
        same = text == render(params, certificate, key)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, IndexError):
        return "it is damaged"
    if not same:
        return "user, server or CA is another one"
    start, end = lifetime(certificate)
    if now > start + (end - start) * RENEWED_AFTER:
        return "half of its certificate's time is over"
    return ""


def ask(params: dict[str, Any], client: tuple[str, str] | None) -> int:
    """The HTTP status for a client with this certificate and key, or without.

    KubeconfigError when nobody answers there who is known by the CA.
    """
    context = ssl.create_default_context(cadata=params["ca"])
    # Python 3.13 insists on extensions that CAs of older releases of K3s do not have; kubectl does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if client is not None:
        # Python takes a key from a file only.
        pair = Path(params["scratch"]) / "client.pem"
        pair.touch(mode=0o600)
        pair.write_text("\n".join(client), encoding="ascii")
        context.load_cert_chain(pair)
    server = params["server"]
    parts = urlsplit(f"{server}/version")
    connection = http.client.HTTPSConnection(parts.netloc, timeout=REQUEST_SECONDS, context=context)
    # It knows no proxy, and follows no redirect: that is no API server.
    try:
        connection.request("GET", parts.path)
        status = connection.getresponse().status
    except ssl.SSLCertVerificationError as error:
        raise KubeconfigError(
            f"the certificate of {server} does not fit ({error.verify_message}). "
            "Another name of the server belongs into its tls-san (k3s_server_config)."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise KubeconfigError(
            f"this computer does not reach the API server at {server}: {error}. Say by kubeconfig_server "
            "under which name or address it does."
        ) from error
    finally:
        connection.close()
    if status in REDIRECTS:
        raise KubeconfigError(
            f"{server} sends its clients to another address (HTTP status {status}), so it is no API server. "
            "Say by kubeconfig_server under which name or address this computer reaches the API server."
        )
    return status


def requested(path: Path, params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Result of state `requested`: whether a certificate is needed, and the request for it."""
    text = read(path)
    why = outdated(text, params, time.time())
    # Who asks without a certificate sees whether there is somebody to ask.
    status = ask(params, None if why else client_of(text))
    if not why and status == UNAUTHORIZED:
        why = "the server does not take its certificate any more"
    request = make_request(params["user"], Path(params["scratch"])) if why and not check_mode else ""
    return {"changed": bool(why) and check_mode, "why": why, "request": request}


def present(path: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Result of state `present`: a file that was tried, and when its certificate ends."""
    text = read(path)
    if params["certificate"]:
        key = (Path(params["scratch"]) / KEY).read_text(encoding="ascii")
        text = render(params, params["certificate"], key)
    client = client_of(text)
    status = ask(params, client)
    if status == UNAUTHORIZED:
        raise KubeconfigError(f"{params['server']} does not let the user in: HTTP status {status}")
    if params["certificate"]:
        replace_file(str(path), text, 0o600)
    loose = bool(path.stat().st_mode & 0o077)
    if loose:
        path.chmod(0o600)
    return {"changed": bool(params["certificate"]) or loose, "ends": lifetime(client[0])[1]}


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["requested", "present"], "required": True},
            "user": {"type": "str", "required": True},
            "cluster": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "ca": {"type": "str", "required": True},
            "scratch": {"type": "path", "required": True},
            "certificate": {"type": "str"},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"]).absolute()
    try:
        if module.params["state"] == "requested":
            result = requested(path, module.params, module.check_mode)
        else:
            result = present(path, module.params)
    except (KubeconfigError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(path=str(path), **result)


if __name__ == "__main__":
    main()
