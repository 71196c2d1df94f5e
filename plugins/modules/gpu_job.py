#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A person's job on one node: start it, observe it, pack its files, remove it.

The action plugin of the same name calls it again and again; between two calls nothing is kept but the objects
in the cluster. Runs on a K3s server, therefore Python 3.6 compatible.
"""

import base64
import json
import os
import time
from typing import Any, Callable, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_job_pods as pods
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_node import software
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import Data, KubectlError, run
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import now
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.uploads import UploadError, make, remove

DOCUMENTATION = r"""
module: gpu_job
short_description: A person's job on the node of one board
description:
  - Without I(state), the action plugin of the same name checks the job on the controller. With I(board) it
    runs the job to its end, writes its output on the controller while it runs, fetches its files and removes
    it. The filter C(gpu_job_report) puts its result into the board's report. A job that fails is no failure
    of the task.
  - The action plugin calls this module on the server for one step each, with I(state).
options:
  request: {type: dict, description: 'For the action plugin: what the person wants.'}
  board: {type: dict, description: 'For the action plugin: one board, and where its output goes.'}
  state:
    description:
      - C(started) creates the objects in a namespace of the test. C(observed) waits for news and tells them.
      - C(packed) packs the files of the results volume on the server, C(read) reads a part of that archive.
      - C(absent) removes everything.
    choices: [started, observed, packed, read, absent]
  node: {type: str, description: The node's name.}
  timeout: {type: int, default: 300, description: Seconds for each step of Kubernetes.}
  objects: {type: list, elements: dict, default: [], description: 'What is created, the Job last.'}
  job: {type: str, description: Name of the Job.}
  containers: {type: list, elements: str, default: [], description: Containers whose output is read.}
  cursors: {type: dict, default: {}, description: Where the output of each was read to.}
  seconds: {type: int, default: 5, description: 'With C(observed), how long to wait for news.'}
  pod: {type: str, description: Name of the pod.}
  companion: {type: str, description: Name of the container that packs the files.}
  script: {type: str, description: Its program.}
  bytes: {type: int, default: 0, description: 'The most bytes of files, or of one part.'}
  uploads: {type: path, description: 'Where the archive is kept on the server until it is read.'}
  path: {type: str, description: 'The archive, as C(packed) has returned it.'}
  offset: {type: int, default: 0, description: Where the part begins.}
  force: {type: bool, default: false, description: 'With C(absent), do not wait for a board that is gone.'}
"""

RETURN = r"""
started: {type: str, returned: with state started, description: When the job was created.}
node: {type: dict, returned: with state started, description: State of the node before the job.}
seen: {type: dict, returned: with state observed, description: 'Pod, node, new output and cursors.'}
path: {type: str, returned: with state packed, description: The archive on the server.}
size: {type: int, returned: with state packed, description: Its size in bytes.}
listing: {type: dict, returned: with state packed, description: 'Files and bytes that the job has written.'}
too_large: {type: bool, returned: with state packed, description: 'If so, nothing was packed.'}
content: {type: str, returned: with state read, description: A part of the archive in base64.}
"""

ARCHIVE = "results.tar"
# Headers of a tar archive are about as large as a small file.
HEADERS = 32 << 20
PACK_SECONDS = 600
TOO_LARGE = 3
# Each look starts kubectl several times, which is work for a small server.
LOOK_SECONDS = 2


def started(params: Data) -> Data:
    """Create the test's namespace and objects."""
    node = pods.node_state(params["node"])
    if not node["ready"]:
        raise KubectlError("{} takes no pods: {}".format(params["node"], node["reason"]))
    image = software(params["node"])["device_plugin"]
    if not image:
        raise KubectlError(
            "the device plugin does not run on {}: run playbooks/site.yml".format(params["node"])
        )
    namespace = pods.namespace_of(params)
    remove_jobs(namespace)
    objects = params["objects"]
    for container in objects[-1]["spec"]["template"]["spec"]["containers"]:
        if container["name"] == params["companion"]:
            container["image"] = image
    namespace.open()
    for manifest in objects:
        run("create", "--namespace=" + namespace.name, "--filename=-", stdin=json.dumps(manifest))
    return {"started": now(), "node": node}


def remove_jobs(namespace: Any) -> None:
    """Delete the Jobs first: one whose pod goes makes another."""
    run(
        "delete",
        "jobs",
        "--all",
        "--namespace=" + namespace.name,
        "--cascade=background",
        "--ignore-not-found",
    )


def observed(params: Data) -> Data:
    """Wait for news, and tell them."""
    namespace = pods.namespace_of(params)
    deadline = time.monotonic() + params["seconds"]
    before = None
    while True:
        seen = pods.observe(namespace, params["job"], params["containers"], params["cursors"])
        states = [(one["name"], one["state"]) for one in (seen["pod"] or {}).get("containers", [])]
        news = any(seen["output"].values()) or (before is not None and states != before)
        if news or time.monotonic() >= deadline:
            if seen["pod"] and seen["node"]["ready"]:
                seen["gpu_memory"] = pods.measured_gpu_memory(params["node"], namespace.name)
            return {"seen": seen}
        before = states
        time.sleep(LOOK_SECONDS)


def packed(params: Data) -> Data:
    """Pack the results on the server."""
    directory = make(params["uploads"])
    path = os.path.join(directory, ARCHIVE)
    namespace = pods.namespace_of(params)
    argv = [
        "exec",
        params["pod"],
        "--namespace=" + namespace.name,
        "--container=" + params["companion"],
        "--",
    ]
    argv += ["python3.11", "-c", params["script"], "pack", str(params["bytes"])]
    try:
        status, said = pods.copy_out(argv, path, params["bytes"] + HEADERS, PACK_SECONDS)
        found = pods.listing(said, status in (0, TOO_LARGE))
    except (KubectlError, OSError, ValueError):
        remove(params["uploads"], directory)
        raise
    return {"path": path, "size": os.path.getsize(path), "listing": found, "too_large": status == TOO_LARGE}


def read(params: Data) -> Data:
    """A part of the archive."""
    with open(os.open(params["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        file.seek(params["offset"])
        return {"content": base64.b64encode(file.read(params["bytes"])).decode()}


def absent(params: Data) -> Data:
    """Remove the archive, the objects and the namespace."""
    if params["path"]:
        remove(params["uploads"], os.path.dirname(params["path"]))
    namespace = pods.namespace_of(params)
    remove_jobs(namespace)
    if params["force"]:
        run("delete", "pods", "--all", "--namespace=" + namespace.name, "--grace-period=0", "--force")
    namespace.close()
    return {}


STATES: Dict[str, Callable[[Data], Data]] = {
    "started": started,
    "observed": observed,
    "packed": packed,
    "read": read,
    "absent": absent,
}


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": list(STATES)},
            "node": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 300},
            "objects": {"type": "list", "elements": "dict", "default": []},
            "job": {"type": "str"},
            "containers": {"type": "list", "elements": "str", "default": []},
            "cursors": {"type": "dict", "default": {}},
            "seconds": {"type": "int", "default": 5},
            "pod": {"type": "str"},
            "companion": {"type": "str"},
            "script": {"type": "str"},
            "bytes": {"type": "int", "default": 0},
            "uploads": {"type": "path"},
            "path": {"type": "str"},
            "offset": {"type": "int", "default": 0},
            "force": {"type": "bool", "default": False},
        }
    )
    try:
        result = STATES[module.params["state"]](module.params)
    except (KubectlError, CheckFailed, UploadError, OSError, ValueError) as error:
        module.fail_json(msg=redact(str(error)), fix=getattr(error, "fix", ""))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
