#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Merge keys into Docker's daemon.json without losing what its owner wrote there.

Runs on the board, therefore Python 3.6 compatible.
"""

import copy
import json
import os
import tempfile
from typing import Any, Dict, List, Optional, Set

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import (
    leave_marker,
    replace_file,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact, redact_data

DOCUMENTATION = r"""
module: docker_daemon_config
short_description: Merge keys into Docker's daemon.json
description:
  - Merges objects key by key and keeps everything that is not named. A runtime is left alone if it has the
    same program, at any path or by a shim, and the same arguments.
  - The file is replaced atomically and its old version is kept beside it. Where dockerd can check a file
    (Docker 23 and newer) it has to accept the new one first.
  - What stood there before the first merge is recorded, so that C(state=absent) takes back what is ours only.
options:
  path: {type: path, default: /etc/docker/daemon.json, description: The file.}
  config: {type: dict, required: true, description: What must stand in it.}
  defaults:
    type: dict
    default: {}
    description: What is written as well where the file has none of these keys. They belong together.
  state:
    choices: [present, absent]
    default: present
    description: >-
      C(absent) gives each key of C(config) and C(defaults) that still says what they say its old value back.
      A key that somebody has changed since is left alone.
  record:
    type: path
    default: /var/lib/jetson-k3s/daemon.json.before
    description: Where the file's content before the first merge is kept.
  postpone:
    type: bool
    default: false
    description: Leave the file alone if the change needs a restart of Docker.
  marker:
    type: path
    required: true
    description: File that is left when Docker has to be restarted for the change, before the change is made.
"""

RETURN = r"""
activation:
  description: What makes dockerd use the change, C(reload) or C(restart); C(none) without a change.
postponed: {type: bool, description: Whether the file was left alone.}
backup_file: {returned: when an old version was replaced, description: Where the old version is kept.}
default_runtime:
  description: The default runtime as the file has it now; without one it is C(runc), as for dockerd.
"""

Data = Dict[str, Any]  # an object of daemon.json

# Keys that dockerd takes over on SIGHUP (moby daemon/reload.go, reload_unix.go); all others need a restart.
RELOADABLE = frozenset(
    [
        "allow-nondistributable-artifacts",
        "debug",
        "default-runtime",
        "features",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
    ]
)
# dockerd's own default.
STOCK_RUNTIME = "runc"


class ConfigError(Exception):
    """The file cannot be merged into; the text says why and where."""


def parse(text: str, path: str) -> Data:
    """The object in daemon.json; an empty file is an empty object, as it is for dockerd."""
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            "{} is not JSON: {}. Mend it by hand; it was not changed.".format(path, error)
        ) from error
    if not isinstance(config, dict):
        raise ConfigError("{} is not a JSON object. Correct it by hand; it was not changed.".format(path))
    return config


def merge(current: Data, wanted: Data) -> Data:
    """A new object: `current` with `wanted` merged in, objects key by key, other values replaced."""
    merged = copy.deepcopy(current)
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def as_shim(runtime: Data) -> Data:
    """An entry that names a shim has no path and no arguments beside it: dockerd refuses both together.

    `runtimeType` and `options` are of Docker 23 (moby daemon/config, Runtime).
    """
    if "runtimeType" not in runtime:
        return runtime
    return {key: value for key, value in runtime.items() if key not in ("path", "runtimeArgs", "args")}


def program(runtime: Data) -> str:
    """Name of the program of a runtime, which an entry for a shim has among its options."""
    options = runtime.get("options") or {}
    path: str = options.get("BinaryName") or runtime.get("path") or ""
    return os.path.basename(path)


def same_runtime(current: object, wanted: Data) -> bool:
    """Does an entry of `runtimes` run the program that is wanted, with the same arguments?"""
    if not isinstance(current, dict) or "runtimeType" in wanted:
        return current == as_shim(wanted)
    one, other = (entry.get("runtimeArgs") or entry.get("args") or [] for entry in (current, wanted))
    rest = set(wanted).difference(("path", "runtimeArgs", "args"))
    return (
        program(current) == program(wanted)
        and one == other
        and all(current.get(key) == wanted[key] for key in rest)
    )


def merge_runtimes(current: Data, wanted: Data) -> Data:
    """`runtimes` merged: an entry that already means what is wanted stays as its owner wrote it."""
    merged = dict(current)
    for name, runtime in wanted.items():
        if not same_runtime(current.get(name), runtime):
            merged[name] = as_shim(runtime)
    return merged


def merge_config(current: Data, wanted: Data) -> Data:
    """daemon.json with `wanted` merged in."""
    wanted = dict(wanted)
    runtimes = wanted.pop("runtimes", {})
    merged = merge(current, wanted)
    if runtimes:
        merged["runtimes"] = merge_runtimes(current.get("runtimes") or {}, runtimes)
    return merged


def with_defaults(wanted: Data, defaults: Data, current: Data) -> Data:
    """`wanted`, and `defaults` unless the file has one of their keys: the others might not go with it."""
    return dict(wanted) if set(defaults) & set(current) else dict(defaults, **wanted)


def unmerge(current: Data, wanted: Data, original: Data) -> Data:
    """`current` without `wanted`: each key that still says what is wanted gets its `original` value back.

    Keys that the original did not have go; so do objects that were made for them and are empty now.
    """
    result = dict(current)
    for key, value in wanted.items():
        if key not in current:
            continue
        if key == "runtimes":
            ours = [name for name, runtime in value.items() if same_runtime(current[key].get(name), runtime)]
            result[key] = restore(current[key], ours, original.get(key) or {})
        elif isinstance(value, dict) and isinstance(current[key], dict):
            result[key] = unmerge(current[key], value, original.get(key) or {})
        elif current[key] == value:
            result = restore(result, [key], original)
        if result.get(key) == {} and key not in original:
            del result[key]
    return result


def restore(current: Data, keys: List[str], original: Data) -> Data:
    """`current` with these keys as they are in `original`."""
    result = {key: value for key, value in current.items() if key not in keys}
    result.update({key: original[key] for key in keys if key in original})
    return result


def activation(before: Data, after: Data) -> str:
    """What a running dockerd needs to take over the change: 'none', 'reload' or 'restart'.

    A key that is gone needs a restart: on SIGHUP dockerd reads the keys that are there and keeps the
    values of all others (moby daemon/reload.go: `IsValueSet`). The image store is chosen when dockerd starts.
    """
    changed = [key for key in set(before) | set(after) if before.get(key) != after.get(key)]
    if not changed:
        return "none"
    if len({(config.get("features") or {}).get("containerd-snapshotter") for config in (before, after)}) > 1:
        return "restart"
    return "reload" if RELOADABLE.intersection(after).issuperset(changed) else "restart"


def render(config: Data) -> str:
    """The file's text, in its owner's order of keys."""
    return json.dumps(config, indent=4, ensure_ascii=False) + "\n"


def read_record(path: str) -> Data:
    """The content before the first merge; {} without a record: then nobody had written anything."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        return parse(stream.read(), path)


def validate(module: AnsibleModule, text: str) -> None:
    """Let dockerd check a configuration, if it is new enough (23); ConfigError with what it says."""
    dockerd = module.get_bin_path("dockerd", opt_dirs=["/usr/sbin", "/usr/local/sbin"])
    if dockerd is None:
        return
    handle, candidate = tempfile.mkstemp(prefix="daemon.json.", dir=module.tmpdir)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        code, _, said = module.run_command([dockerd, "--validate", "--config-file", candidate])
    finally:
        os.unlink(candidate)
    if code != 0 and "unknown flag" not in said:
        raise ConfigError(
            "dockerd refuses the new daemon.json, which was not written: {}. Correct that setting in "
            "nvidia_docker_daemon_config in the inventory, or in the file on the board.".format(
                redact(said.strip())
            )
        )


def write(module: AnsibleModule, path: str, text: str) -> Optional[str]:
    """Replace the file atomically; returns the backup's path or None. Owner and mode stay."""
    backup: Optional[str] = module.backup_local(path) if os.path.exists(path) else None
    replace_file(path, text, rename=module.atomic_move)
    return backup


def texts(value: Any) -> Set[str]:
    """All values in parsed JSON, as texts."""
    if isinstance(value, dict):
        value = list(value.values())
    return {text for one in value for text in texts(one)} if isinstance(value, list) else {str(value)}


def secrets(settings: Data) -> Set[str]:
    """The values that have a secret in them."""
    return texts(settings) - texts(redact_data(settings))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "config": {"type": "dict", "required": True, "no_log": True},
            "defaults": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "record": {"type": "path", "default": "/var/lib/jetson-k3s/daemon.json.before"},
            "postpone": {"type": "bool", "default": False},
            "marker": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    # no_log keeps a proxy's password out of the board's log. In results it would hide each text of the
    # settings, such as the runtime's name: there only secrets are hidden, also when Ansible's code fails.
    module.no_log_values = secrets(module.params)
    # Where it is a link, its owner keeps the file elsewhere: that one is changed.
    path, record = os.path.realpath(module.params["path"]), module.params["record"]
    wanted, defaults = module.params["config"], module.params["defaults"]
    present = module.params["state"] == "present"
    before_text = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            before_text = stream.read()
    try:
        before = parse(before_text, path)
        if present:
            after = merge_config(before, with_defaults(wanted, defaults, before))
        else:
            after = unmerge(before, dict(defaults, **wanted), read_record(record))
        after_text = render(after)
        if after != before:
            validate(module, after_text)
    except ConfigError as error:
        module.fail_json(msg=str(error))
    needs = activation(before, after)
    postponed = module.params["postpone"] and needs == "restart"
    result: Data = {
        "changed": after != before and not postponed,
        "activation": needs,
        "postponed": postponed,
        "default_runtime": after.get("default-runtime", STOCK_RUNTIME),
    }
    if result["changed"]:
        result["diff"] = {
            "before": redact(before_text),
            "after": redact(after_text),
            "before_header": path,
            "after_header": path,
        }
        if not module.check_mode:
            if present and not os.path.exists(record):
                replace_file(record, render(before), 0o600)
            if needs == "restart":
                leave_marker(module.params["marker"])
            backup = write(module, path, after_text)
            if backup:
                result["backup_file"] = backup
    if not present and not module.check_mode and os.path.exists(record):
        os.unlink(record)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
