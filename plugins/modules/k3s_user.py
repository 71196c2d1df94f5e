#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Let a user into the cluster: a role, and a client certificate for a key that stays where it was made.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import base64
import json
import os
from typing import Dict, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    K3S,
    Data,
    KubectlError,
    WatchTimeoutError,
    condition,
    get,
    listed,
    run,
    wait_until,
)

DOCUMENTATION = r"""
module: k3s_user
short_description: A user of the cluster, with a role and a client certificate
description:
  - The user is bound to the role by a ClusterRoleBinding of ours. No other binding is touched.
  - A second one lets the user list nodes, which the roles C(view) and C(edit) do not.
  - The certificate comes from Kubernetes' own API for that (C(certificates.k8s.io), signer
    C(kubernetes.io/kube-apiserver-client)). The request is removed again.
options:
  name: {required: true, description: The user.}
  state: {choices: [known, present, absent], required: true, description: C(known) changes nothing.}
  role: {description: 'ClusterRole, which must exist. Not needed to remove the binding.'}
  request: {description: 'Certificate request (PKCS#10, PEM) to sign. Without it there is no certificate.'}
  seconds: {type: int, description: Requested lifetime of the certificate.}
"""

RETURN = r"""
api: {type: dict, description: C(url) and C(ca) (PEM) of the API server.}
certificate: {type: str, description: 'The certificate (PEM), empty without a request and in check mode.'}
"""


RBAC = "rbac.authorization.k8s.io"
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "jetson-k3s"
SIGNER = "kubernetes.io/kube-apiserver-client"
SIGNING_SECONDS = 60
NODES_ROLE = OURS + ":nodes"
# No user has a colon in the name, so no user has this binding as the first one.
NODES_SUFFIX = ":nodes"


class UserError(Exception):
    """The user cannot be let in so; the text says why."""


def binding_name(user: str) -> str:
    """Our ClusterRoleBinding of a user; a name of RBAC may have more signs than other names."""
    return "{}:{}".format(OURS, user)


def binding(user: str, role: str, suffix: str = "") -> Data:
    """Our ClusterRoleBinding."""
    return {
        "apiVersion": RBAC + "/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": binding_name(user) + suffix, "labels": {MANAGED_BY: OURS}},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


def nodes_role() -> Data:
    """Our ClusterRole that lets users list nodes."""
    return {
        "apiVersion": RBAC + "/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NODES_ROLE, "labels": {MANAGED_BY: OURS}},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}],
    }


def is_ours(item: Data) -> bool:
    """Has this module made the object?"""
    return (item["metadata"].get("labels") or {}).get(MANAGED_BY) == OURS


def is_as(found: Data, wanted: Data) -> bool:
    """Does an object give the wanted rights to the wanted user, and no others?"""
    return all(found.get(key) == wanted.get(key) for key in ("roleRef", "subjects", "rules"))


def request_object(user: str, pem: str, seconds: int) -> Data:
    """The CertificateSigningRequest."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": OURS + "-", "labels": {MANAGED_BY: OURS}},
        "spec": {
            "request": base64.b64encode(pem.encode()).decode(),
            "signerName": SIGNER,
            "expirationSeconds": seconds,
            "usages": ["client auth"],
        },
    }


def signed(user: str, pem: str, seconds: int) -> str:
    """The certificate for a request; the request is gone afterwards. UserError when it is not signed."""
    # Kubernetes before 1.22 does not know expirationSeconds, and its kubectl would refuse the field.
    made = run(
        "create", "--validate=false", "--output=json", "--filename=-",
        stdin=json.dumps(request_object(user, pem, seconds)),
    )  # fmt: skip
    name = json.loads(made)["metadata"]["name"]
    try:
        run("certificate", "approve", name)
        found = wait_until(is_answered, "signing", SIGNING_SECONDS, "certificatesigningrequest", name)
    except WatchTimeoutError as error:
        raise UserError(
            "no certificate within {} s: does the controller manager of K3s sign? {}".format(
                SIGNING_SECONDS, error
            )
        ) from error
    finally:
        run("delete", "--ignore-not-found", "certificatesigningrequest", name)
    certificate = found["status"].get("certificate")
    if not certificate:
        raise UserError("the cluster does not sign: {}".format(condition(found, "Failed").get("message")))
    return base64.b64decode(certificate).decode()


def is_answered(item: Data) -> bool:
    """Has the signer signed, or said that it does not?"""
    return bool((item.get("status") or {}).get("certificate") or condition(item, "Failed"))


def api() -> Dict[str, str]:
    """How the API server is reached from here: its URL and CA."""
    config = json.loads(run("config", "view", "--minify", "--raw", "--flatten", "--output=json"))
    cluster = config["clusters"][0]["cluster"]
    return {
        "url": cluster["server"],
        "ca": base64.b64decode(cluster["certificate-authority-data"]).decode(),
    }


def check_role(role: str) -> None:
    """UserError when there is no ClusterRole of this name."""
    names = sorted(item["metadata"]["name"] for item in listed("clusterroles"))
    if role not in names:
        raise UserError(
            "the cluster has no ClusterRole {}. It has {}. Nothing was made.".format(
                role, ", ".join(name for name in names if not name.startswith("system:"))
            )
        )


def ensure(name: str, wanted: Optional[Data], check_mode: bool) -> bool:
    """Make our object, or remove the binding if it is None; returns whether that was necessary."""
    kind = "ClusterRoleBinding" if wanted is None else wanted["kind"]
    found = get(kind, name)
    if found is not None and not is_ours(found):
        raise UserError("{} {} is not ours: remove or rename it".format(kind, name))
    if found is None or wanted is None:
        changed = (found is None) != (wanted is None)
    else:
        changed = not is_as(found, wanted)
    if changed and not check_mode:
        if found is not None:  # a binding's role cannot be changed
            run("delete", "--ignore-not-found", kind, name)
        if wanted is not None:
            run("create", "--filename=-", stdin=json.dumps(wanted))
    return changed


def bind(user: str, role: Optional[str], check_mode: bool) -> bool:
    """Bind the user to the role and let them list nodes, or remove both if the role is None.

    Returns whether that was necessary.
    """
    name = binding_name(user)
    if role is None:  # others may be bound to the role for nodes
        wanted = {name: None, name + NODES_SUFFIX: None}  # type: Dict[str, Optional[Data]]
    else:
        wanted = {
            name: binding(user, role),
            NODES_ROLE: nodes_role(),
            name + NODES_SUFFIX: binding(user, NODES_ROLE, NODES_SUFFIX),
        }
    changed = [ensure(one, item, check_mode) for one, item in wanted.items()]
    return any(changed)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["known", "present", "absent"], "required": True},
            "role": {"type": "str"},
            "request": {"type": "str"},
            "seconds": {"type": "int"},
        },
        required_if=[("state", "known", ["role"]), ("state", "present", ["role"])],
        required_together=[("request", "seconds")],
        supports_check_mode=True,
    )
    params = module.params
    user, role, state = params["name"], params["role"], params["state"]
    if not os.path.exists(K3S):
        module.fail_json(msg="There is no K3s on this server yet: playbooks/site.yml installs it.")
    try:
        if state != "absent":
            check_role(role)
        bound = None if state == "absent" else role
        changed = state != "known" and bind(user, bound, module.check_mode)
        certificate = ""
        if params["request"] and not module.check_mode:
            certificate, changed = signed(user, params["request"], params["seconds"]), True
        module.exit_json(changed=changed, api=api(), certificate=certificate)
    except (UserError, KubectlError, OSError) as error:
        module.fail_json(msg="user {}: {}".format(user, error))


if __name__ == "__main__":
    main()
