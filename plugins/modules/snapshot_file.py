#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write the snapshot that a board has made, or read one. Runs on the controller.

An archive comes from a board or a stranger, and is refused if it is not safe to read.
"""

import base64
import binascii
import os
import re
from typing import Any, Dict, List, Mapping, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replacement
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.snapshot_archive import (
    ArchiveError,
    data_of,
    load,
    read,
    with_data,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.snapshot_redaction import Redaction

DOCUMENTATION = r"""
module: snapshot_file
short_description: Write the snapshot that a board has made, or read one
description:
  - With O(archive) it checks the archive, adds O(data) without secrets and identities, and writes a new file.
  - Without O(archive) it returns facts and run of the file.
options:
  path: {type: path, required: true, description: The file.}
  archive: {description: 'The archive, in base64.'}
  key: {description: That of the module C(snapshot).}
  names: {type: list, elements: str, default: [], description: Names of boards and servers to replace.}
  data:
    type: dict
    default: {}
    description: Facts, findings and the like of the board. A string says why there is none.
"""

RETURN = r"""
path: {type: str, returned: with O(archive), description: The file.}
unread: {type: int, returned: with O(archive), description: How many files and programs could not be read.}
ansible_facts: {type: dict, returned: without O(archive), description: Those of module jetson_facts.}
run: {type: dict, returned: without O(archive), description: 'The board and the servers, and what they said.'}
findings: {type: list, returned: without O(archive), description: Those of preflight on the board.}
created: {type: int, returned: without O(archive), description: In seconds since 1970.}
"""

Data = Dict[str, Any]

ADDRESS = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
PRIVATE, DIRECTORY = 0o600, 0o700
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


def saved(params: Data, write: bool) -> Data:
    """Check the archive, add the data, and write it. ArchiveError, OSError."""
    try:
        snapshot = read(base64.b64decode(params["archive"], validate=True))
    except (binascii.Error, ValueError) as error:
        raise ArchiveError("it is no base64 text") from error
    names, serials = identities_of(params["data"])
    redaction = Redaction([*params["names"], *names], serials, bytes.fromhex(params["key"]))
    content = with_data(
        snapshot,
        {
            name: redaction.text(value) if isinstance(value, str) else redaction.data(value)
            for name, value in params["data"].items()
        },
    )
    if write:
        os.makedirs(os.path.dirname(params["path"]), DIRECTORY, exist_ok=True)
        with replacement(params["path"], PRIVATE) as stream:
            stream.write(content)
    entries = snapshot.manifest["tree"] + snapshot.manifest["programs"]
    return {"path": params["path"], "unread": sum("error" in entry for entry in entries)}


def identities_of(data: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """Names and serial numbers of the board and of the cluster's nodes."""
    facts, run = data.get("facts"), data.get("run")
    known = [facts] if isinstance(facts, dict) else []
    answers = run.get("nodes", []) if isinstance(run, dict) else []
    known += [node for answer in answers for node in answer.get("nodes", [])]
    names = [one.get(key) for one in known for key in ("hostname", "name")]
    serials = [one.get("machine_id") for one in known]
    return [one for one in names if isinstance(one, str)], [one for one in serials if isinstance(one, str)]


def checked(path: str) -> Data:
    """What preflight needs of a snapshot. ArchiveError, OSError."""
    snapshot = load(path)
    facts, run = data_of(snapshot, "facts"), data_of(snapshot, "run")
    try:
        findings = data_of(snapshot, "findings")
    except ArchiveError:
        findings = []
    lists = [run.get(name) for name in ("servers", "nodes")] if isinstance(run, dict) else [None]
    if not isinstance(facts, dict) or not isinstance(findings, list) or not all(map(_is_list, lists)):
        raise ArchiveError("its facts, findings or run have another form")
    for name in [run.get("host"), *run["servers"]]:
        if not isinstance(name, str) or NAME.fullmatch(name) is None or name in ("all", "localhost"):
            raise ArchiveError("it names a board {!r}, which is no name of a board".format(name))
    if ADDRESS.fullmatch(str(run.get("address"))) is None:
        raise ArchiveError("it has the address {!r}".format(run.get("address")))
    return {
        "ansible_facts": {"jetson": facts},
        "created": snapshot.manifest["created"],
        "findings": findings,
        "run": run,
    }


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "archive": {"type": "str"},
            "key": {"type": "str", "no_log": True},
            "names": {"type": "list", "elements": "str", "default": []},
            "data": {"type": "dict", "default": {}},
        },
        required_together=[("archive", "key")],
        supports_check_mode=True,
    )
    path = module.params["path"]
    writes = module.params["archive"] is not None
    try:
        result = saved(module.params, not module.check_mode) if writes else checked(path)
    except ArchiveError as error:
        subject = "The snapshot that the board has made" if writes else path
        module.fail_json(msg="{} was refused: {}. Nothing was written.".format(subject, error))
    except OSError as error:
        module.fail_json(msg="{}: {}".format(path, error.strerror or error))
    else:
        module.exit_json(changed=writes, **result)


if __name__ == "__main__":
    main()
