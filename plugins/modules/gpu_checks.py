#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Run one stage of a node's verification: checks that belong together, in one round.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

from typing import Callable, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_claims as claims
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_access import (
    cuda_kernel,
    device_query,
    non_root,
    unified_memory,
    uninvited,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_diagnosis import diagnose
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_node import (
    allocatable,
    default_runtime,
    devices_offered,
    driver_registered,
    node_ready,
    plugin_registered,
    software,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import Namespace, holders
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_restarts import (
    before_reboot,
    before_restart,
    rebooted,
    restarted,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import (
    CheckFunction,
    Record,
    run_check,
    run_checks,
    unmet_need,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_sharing import (
    CONCURRENCY,
    TIME_SLICING,
    limits,
    sharing,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    KUBECONFIG,
    Data,
    KubectlError,
    use,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import now
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact, redact_data

# Unless the plugin's configuration says another.
EXCLUSIVE = {"resource": "nvidia.com/gpu", "devices": 1, "replicas": 1, "limited": False}

DOCUMENTATION = r"""
module: gpu_checks
short_description: One stage of the proof that pods of a node get its GPU
description:
  - Each check says what it found, how long it took, and when it did not pass why, with what helps to see the
    cause. The module itself fails only when it could not work at all; the caller judges the checks.
  - All pods are in one namespace per node, which the stages C(node) and C(before_reboot) create and C(close)
    deletes.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  stage:
    description:
      - C(node) starts no pod. C(access) tests which pods get the GPU, C(sharing) tests how many.
      - C(before_restart) starts a pod with the GPU, C(restarted) checks the pod after the kubelet's restart.
        C(before_reboot) and C(rebooted) do so for a reboot of the board.
      - C(close) deletes the namespace.
    choices: [node, access, sharing, before_restart, restarted, before_reboot, rebooted, close]
    required: true
  checks:
    description: Checks with C(id), C(title), C(failure), C(needs), C(fix).
    type: list
    elements: dict
    default: []
  known:
    description: >-
      What earlier stages have found: C(statuses) of checks by id, C(gpu), C(software), C(before_restart) and
      C(before_reboot) of the stages of these names, and C(busy), the reason not to start pods.
    type: dict
    required: true
  restart_error: {default: '', description: 'Why the restart before this stage failed, empty if it did not.'}
  pods:
    description: Settings of the pods of all stages.
    type: dict
    required: true
    suboptions:
      node: {type: str, required: true, description: The node's name.}
      own_image: {type: str, description: 'The owner''s image with NVIDIA''s deviceQuery, or empty.'}
      own_command:
        description: Command of deviceQuery in that image.
        type: list
        elements: str
        required: true
      api: {type: str, choices: [device-plugin, dra], required: true, description: How pods ask for the GPU.}
      runtime_class: {type: str, description: 'RuntimeClass of the pods, if they need one.'}
      timeout: {type: int, required: true, description: Seconds for each step.}
  engine: {type: dict, default: {}, description: What Docker on the board says of itself.}
  video_group: {type: int, description: Number of the board's group video.}
  memory_bytes: {type: int, description: The board's memory.}
  strict: {type: bool, default: false, description: Whether strict mode is on.}
"""

RETURN = r"""
part:
  description: >-
    What the stage adds to the report: C(checks), C(gpu), C(software), C(started), C(ended), and C(busy),
    C(before_restart) or C(before_reboot).
  type: dict
fix:
  description: What to do, if the stage failed and that is known. Otherwise empty.
  type: str
"""


def open_namespace(namespace: Namespace, gpu: Data) -> None:
    """Make the namespace for pods that ask for the GPU."""
    namespace.open(claims.templates(gpu) if namespace.params["api"] == claims.DRA else ())


def node_stage(namespace: Namespace, part: Data) -> None:
    """Check the node, delete pods of an interrupted run, and find other users of the GPU."""
    params, gpu = namespace.params, part["gpu"]
    dra = params["api"] == claims.DRA
    registered, offered = (driver_registered, devices_offered) if dra else (plugin_registered, allocatable)
    functions: Dict[str, CheckFunction] = {
        "node-ready": lambda record: node_ready(params, record),
        "default-runtime": lambda record: default_runtime(params, record),
        "plugin-registered": lambda record: registered(params, gpu, record),
        "allocatable": lambda record: offered(params, gpu, record),
    }
    namespace.close()  # first: pods of an interrupted run may use the GPU
    part["software"] = software(params["node"])
    part["checks"] = run_checks(params["checks"], functions, {}, lambda: diagnose(namespace))
    if not params["busy"]:
        users = holders(dict(params, resource=gpu["resource"]))
        if users:
            part["busy"] = "the GPU is in use by {}".format(", ".join(users))
        else:
            open_namespace(namespace, gpu)


def pods_stage(namespace: Namespace, part: Data) -> None:
    """Try pods."""
    params, gpu = namespace.params, part["gpu"]
    functions: Dict[str, CheckFunction] = {
        "device-query": lambda record: device_query(namespace, gpu, record),
        "cuda-kernel": lambda record: cuda_kernel(namespace, gpu, record),
        "non-root": lambda record: non_root(namespace, record),
        "uninvited": lambda record: uninvited(namespace, record),
        "unified-memory": lambda record: unified_memory(params, gpu, record),
        "concurrency": lambda record: sharing(namespace, gpu, record, CONCURRENCY),
        "time-slicing": lambda record: sharing(namespace, gpu, record, TIME_SLICING),
        "limits": lambda record: limits(namespace, gpu, record),
    }

    def diagnosed() -> List[Data]:
        found = diagnose(namespace)
        namespace.clear()  # the next check finds the GPU free
        return found

    part["checks"] = run_checks(params["checks"], functions, params["statuses"], diagnosed, params["busy"])


def before_stage(namespace: Namespace, part: Data, name: str, start: Callable[[Record], Data]) -> None:
    """Start a pod with the GPU for a later stage. Without `name` in the result no pod runs."""
    params = namespace.params
    check = params["checks"][0]

    def keep(record: Record) -> None:
        part[name] = start(record)

    obstacle = params["busy"] or unmet_need(check, params["statuses"])
    entry = run_check(Record(check), keep, lambda: diagnose(namespace), obstacle)
    if name in part:
        part[name]["entry"] = entry
    else:
        part["checks"] = [entry]


def before_restart_stage(namespace: Namespace, part: Data) -> None:
    """Start the pod that the kubelet's restart must not disturb."""
    before_stage(namespace, part, "before_restart", lambda record: before_restart(namespace, record))


def before_reboot_stage(namespace: Namespace, part: Data) -> None:
    """Start the pod that has to come back with the board."""

    def start(record: Record) -> Data:
        open_namespace(namespace, part["gpu"])
        return before_reboot(namespace, record)

    before_stage(namespace, part, "before_reboot", start)


def after_stage(
    namespace: Namespace,
    part: Data,
    before: Data,
    what: Tuple[str, str],
    check: Callable[[Namespace, Data, Data, Record], None],
) -> None:
    """Check the pod of an earlier stage after a restart; `what` is its subject and verb."""
    params = namespace.params

    def compare(record: Record) -> None:
        if params["restart_error"]:
            raise OSError("{} was not {}: {}".format(*what, params["restart_error"]))
        record.note("{} was {}".format(*what))
        check(namespace, part["gpu"], before, record)

    record = Record(params["checks"][0], before["entry"])
    part["checks"] = [run_check(record, compare, lambda: diagnose(namespace))]


def restarted_stage(namespace: Namespace, part: Data) -> None:
    """Check that the pod still runs after the kubelet's restart."""
    after_stage(namespace, part, namespace.params["before_restart"], ("the kubelet", "restarted"), restarted)


def rebooted_stage(namespace: Namespace, part: Data) -> None:
    """Check that the pod is back after the board's reboot."""
    after_stage(namespace, part, namespace.params["before_reboot"], ("the board", "rebooted"), rebooted)


def settings(given: Data) -> Data:
    """The module's parameters as the checks read them: flat, with what earlier stages have found."""
    known = given["known"]
    gpu = dict(known.get("gpu") or EXCLUSIVE)
    return dict(
        {key: value for key, value in given.items() if key not in ("pods", "known")},
        gpu=gpu,
        statuses=known.get("statuses") or {},
        busy=known.get("busy") or "",
        before_restart=known.get("before_restart"),
        before_reboot=known.get("before_reboot"),
        image=(known.get("software") or {}).get("device_plugin"),
        resource=gpu["resource"],
        share=gpu["devices"] // gpu["replicas"],
        **given["pods"],
    )


STAGES: Dict[str, Callable[[Namespace, Data], None]] = {
    "node": node_stage,
    "access": pods_stage,
    "sharing": pods_stage,
    "before_restart": before_restart_stage,
    "restarted": restarted_stage,
    "before_reboot": before_reboot_stage,
    "rebooted": rebooted_stage,
    "close": lambda namespace, part: namespace.close(),
}


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "stage": {"type": "str", "required": True, "choices": list(STAGES)},
            "checks": {"type": "list", "elements": "dict", "default": []},
            "known": {"type": "dict", "required": True},
            "restart_error": {"type": "str", "default": ""},
            "pods": {
                "type": "dict",
                "required": True,
                "options": {
                    "node": {"type": "str", "required": True},
                    "own_image": {"type": "str"},
                    "own_command": {"type": "list", "elements": "str", "required": True},
                    "api": {"type": "str", "required": True, "choices": ["device-plugin", claims.DRA]},
                    "runtime_class": {"type": "str"},
                    "timeout": {"type": "int", "required": True},
                },
            },
            "engine": {"type": "dict", "default": {}},
            "video_group": {"type": "int"},
            "memory_bytes": {"type": "int"},
            "strict": {"type": "bool", "default": False},
        }
    )
    use(module.params)
    params = settings(module.params)
    part = {"started": now(), "checks": [], "gpu": params["gpu"]}
    try:
        STAGES[params["stage"]](Namespace(params), part)
    except (KubectlError, OSError) as error:
        module.fail_json(msg=redact(str(error)), fix=getattr(error, "fix", ""), part=redact_data(part))
    part["ended"] = now()
    module.exit_json(changed=False, part=redact_data(part))


if __name__ == "__main__":
    main()
