# SPDX-License-Identifier: Apache-2.0
"""Ansible action: run a person's job on a board, with its output on the screen while it runs.

A module answers once, at its end. So this part runs on the controller and calls the module gpu_job on the
server for each step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_image, gpu_job_plan
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.control_characters import shown
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_job_run import (
    Request,
    Runner,
    ServerGoneError,
    StepError,
)

MODULE = "jetson_k3s.cluster.gpu_job"
SCRIPT = "companion.py"
Data = dict[str, Any]


def text_of(path: str) -> str:
    """The manifest, '' without one. JobError."""
    try:
        return Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeError) as error:
        raise gpu_job_plan.JobError(f"--job {path}: {error}") from None


def plan_of(request: Data, archive: Data, node: str) -> gpu_job_plan.Plan:
    """The plan of a node. JobError, OSError."""
    text = text_of(request["manifest"])
    settings: gpu_job_plan.Settings = {
        "image": str(archive.get("image") or request["image"]),
        "loaded": bool(archive),
        "command": list(request["command"]),
        "resource": request["resource"],
        "timeout": int(request["timeout"]),
        "results_limit": request["results_limit"],
        "disk_limit": request["disk_limit"],
        "artifacts": bool(request["artifacts"]),
    }
    gpu_job_plan.check_settings(settings, bool(text), request["api"])
    script = Path(request["script"]).read_text(encoding="utf-8")
    path = request["manifest"] or "--image"
    return gpu_job_plan.plan(
        text, path, settings, node=node, runtime_class=request["runtime_class"], script=script
    )


def checked(request: Data) -> Data:
    """What the person gives: the image's archive, and the job's seconds. JobError, OSError."""
    archive = gpu_job_image.read(request["image"])
    plan = plan_of(request, archive, "node")
    return {"changed": False, "archive": archive, "limit": plan["limit"], "images": plan["images"]}


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Without a board it judges what the person gives; else it runs the job. A step is the module's alone."""

    _supports_check_mode = False

    def run(self, tmp: object = None, task_vars: Data | None = None) -> Data:
        """Ansible's entry point."""
        result: Data = super().run(tmp, task_vars)
        given, variables = self._task.args, task_vars or {}
        try:
            if "state" in given:
                self._step(variables, **given)
                return result | {"changed": False}
            if "board" not in given:
                return result | checked(given["request"])
            return result | self._ran(given["request"], given["board"], variables)
        except (gpu_job_plan.JobError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        except StepError as error:
            return result | {"failed": True, "msg": str(error), "fix": error.fix}
        except ServerGoneError as error:
            return result | {"failed": True, "msg": f"the server does not answer: {error}"}

    def _step(self, variables: Data, **arguments: Any) -> Data:
        """A step on the server. StepError, ServerGoneError."""
        # The job's objects may have Secrets: neither the board's log nor -v shows arguments.
        quiet = variables | {"ansible_no_target_syslog": True}
        try:
            done: Data = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=quiet)
        except AnsibleConnectionFailure as error:
            raise ServerGoneError(str(error)) from None
        if done.get("failed"):
            said = done.get("msg") or done.get("module_stderr") or "no answer"
            raise StepError(str(said), str(done.get("fix") or ""))
        return done

    def _ran(self, request: Data, board: Data, variables: Data) -> Data:
        """Run the job on a board. JobError, OSError, StepError, ServerGoneError."""
        archive = board["archive"]
        if board["skipped_because"]:
            return {"changed": False, "skipped_because": board["skipped_because"]}
        wrong = gpu_job_plan.wrong_architecture(archive, board["board"], board["architecture"])
        if wrong:
            return {"changed": False, "job": gpu_job_image.refused(archive, wrong, board["architecture"])}
        if board["not_loaded"]:
            raise StepError(f"the image is not on the board: {board['not_loaded']}")
        display = Display()
        runner = Runner(
            Request(
                board=board["board"],
                node=board["node"],
                server=board["server"],
                architecture=board["architecture"],
                plan=plan_of(request, archive, board["node"]),
                script=Path(request["script"]).read_text(encoding="utf-8"),
                output=Path(board["output"]),
                artifacts=Path(request["artifacts"], board["board"]) if request["artifacts"] else None,
                uploads=board["uploads"],
                timeout=int(board["step_timeout"]),
            ),
            lambda state, **arguments: self._step(variables, state=state, **arguments),
            lambda text: display.display(shown(text)),
        )
        try:
            return {"changed": False, "job": runner.run()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StepError(
                f"the answer of {board['server']} makes no sense ({type(error).__name__}: {error})"
            ) from None
