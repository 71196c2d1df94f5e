#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Apply a manifest with kubectl, truthful in check mode and with a diff.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

from typing import List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    KUBECONFIG,
    KubectlError,
    has_kubectl,
    run,
    use,
)

DOCUMENTATION = r"""
module: k3s_manifest
short_description: Objects of a manifest in the cluster
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  manifest: {required: true, description: 'YAML or JSON, one or more objects.'}
  absent:
    type: list
    elements: str
    default: []
    description: Objects of kube-system that must not be there, as KIND/NAME.
"""

RETURN = r"""
objects:
  type: list
  elements: str
  description: What kubectl said about each object, also about those that it has removed.
"""

# `kubectl diff` ends with 1 when there is a difference.
DIFFERENT = (0, 1)


def changed_objects(output: str) -> List[str]:
    """Lines of `kubectl apply` about objects that were changed: all but 'NAME unchanged'."""
    return [line for line in output.splitlines() if line and not line.endswith(" unchanged")]


def leftovers(absent: List[str]) -> List[str]:
    """Those of the objects that must not be there which are there."""
    if not absent:
        return []
    found = run("get", "--namespace=kube-system", "--ignore-not-found", "--output=name", *absent)
    return found.split()


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "manifest": {"type": "str", "required": True},
            "absent": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    manifest, absent = module.params["manifest"], module.params["absent"]
    use(module.params)
    if module.check_mode and not has_kubectl():
        module.exit_json(changed=True, diff={"before": "", "after": manifest})
    try:
        prepared = (
            run("diff", "--filename=-", stdin=manifest, accept=DIFFERENT)
            if module.check_mode or module._diff
            else ""
        )
        surplus = leftovers(absent)
        prepared += "".join("removed: {}\n".format(name) for name in surplus)
        if module.check_mode:
            module.exit_json(changed=bool(prepared), diff={"prepared": prepared})
        objects = run("apply", "--filename=-", stdin=manifest).splitlines()
        if surplus:
            objects += run("delete", "--namespace=kube-system", "--ignore-not-found", *surplus).splitlines()
    except (KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(changed_objects("\n".join(objects))), objects=objects, diff={"prepared": prepared}
    )


if __name__ == "__main__":
    main()
