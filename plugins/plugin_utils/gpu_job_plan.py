# SPDX-License-Identifier: Apache-2.0
"""How role gpu_job runs a person's job on a board: from a manifest, or an image and a command, to one Job.

Pure functions: the text of the manifest and settings in, objects of Kubernetes out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import yaml

Data = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
VOLUME = "results"
RESULTS = "/results"
COMPANION = "jetson-k3s-companion"
COMPANION_SYS = "jetson-k3s-sys"
DISK = "ephemeral-storage"
GRACE_SECONDS = 600
"""A Job whose run was killed ends by itself this long after its limit: until then its files are fetched."""
ALLOWED = ("Job", "ConfigMap", "Secret")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$")
FACTORS = {"": 1, "k": 1000} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGTPE", 1)
    for suffix, base in (("", 1000), ("i", 1024))
    if prefix + suffix != "K"
}


class JobError(Exception):
    """The job cannot be run as it is given; the text says what is wrong, where, and what to do."""


class Settings(TypedDict):
    """What the person wants."""

    image: str
    """Image of the job's container, '' for that of the manifest."""
    loaded: bool
    """Whether the run itself puts the image on the board."""
    command: list[str]
    """Command of an image without a manifest, [] for the image's own."""
    resource: str
    """The GPU's resource, for an image without a manifest."""
    timeout: int
    results_limit: str
    disk_limit: str
    artifacts: bool
    """Whether the files of the results volume are fetched."""


class Plan(TypedDict):
    """One board's part of the test."""

    objects: list[Data]
    """What is created in the test's namespace: the Job is the last one."""
    job: str
    containers: list[str]
    """The person's containers, init containers first."""
    images: list[str]
    limit: int
    """Seconds after which the job is ended."""
    results: bool
    """Whether the job can write files that are fetched."""
    results_bytes: int
    gpu: bool
    """Whether a container asks for a device, or the pod has a claim."""


def size(quantity: str) -> int:
    """Bytes of a quantity such as 512Mi. JobError."""
    if not QUANTITY.match(quantity):
        raise JobError(f"{quantity!r} is not a size: write it as Kubernetes does, such as 512Mi or 2Gi")
    number = quantity.rstrip("KMGTPEik")
    return int(float(number) * FACTORS[quantity[len(number) :]])


def documents(text: str, path: str) -> list[Data]:
    """The objects of a manifest. JobError."""
    try:
        found = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise JobError(f"{path}{where}: this is no YAML: {getattr(error, 'problem', error)}") from None
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("metadata", {}), dict):
            raise JobError(f"{path}: each document has to be an object of Kubernetes, with kind and metadata")
    return found


def manifest(text: str, path: str) -> tuple[Data, list[Data]]:
    """The Job of a manifest, and the ConfigMaps and Secrets that it reads. JobError."""
    found = documents(text, path)
    kinds = [str(one.get("kind")) for one in found]
    strange = sorted({kind for kind in kinds if kind not in ALLOWED})
    if strange:
        raise JobError(
            f"{path}: it has {', '.join(strange)}; a test is one Job (batch/v1) and the ConfigMaps and "
            "Secrets that it reads. Create other objects before the test, or wrap the pod in a Job"
        )
    if kinds.count("Job") != 1:
        raise JobError(f"{path}: it has {kinds.count('Job')} Jobs; a test is exactly one")
    job = found[kinds.index("Job")]
    if job.get("apiVersion") != "batch/v1":
        raise JobError(f"{path}: the Job has apiVersion {job.get('apiVersion')}; write batch/v1")
    return job, [one for one in found if one is not job]


def of_image(settings: Settings) -> Data:
    """The Job of an image and a command."""
    container: Data = {
        "name": "test",
        "image": settings["image"],
        "resources": {"limits": {settings["resource"]: 1}},
    }
    if settings["command"]:
        container["command"] = list(settings["command"])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "test"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def part(owner: Data, key: str, kind: type, path: str, default: Any = None) -> Any:
    """A field of the manifest, of this type. JobError names the field."""
    found = owner.get(key, default)
    if not isinstance(found, kind):
        raise JobError(f"{path} is missing or is not a {'list' if kind is list else 'mapping'}")
    return found


def containers_of(pod: Data, where: str) -> list[Data]:
    """The containers of a pod's spec, init containers first. JobError."""
    found: list[Data] = []
    for key in ("initContainers", "containers"):
        for one in part(pod, key, list, f"{where}.{key}", [] if key == "initContainers" else None):
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise JobError(f"{where}.{key}: each container needs a name")
            found.append(one)
    if not pod["containers"]:
        raise JobError(f"{where}.containers is empty")
    return found


def repository(image: str) -> str:
    """An image's name without tag and digest."""
    name = image.partition("@")[0]
    head, _, tail = name.rpartition(":")
    return head if head and "/" not in tail else name


def set_image(containers: Sequence[Data], settings: Settings, path: str) -> None:
    """Give the container of the job the image of the run. JobError.

    Of several containers it is the one with the same repository.
    """
    image = settings["image"]
    if image:
        same = [one for one in containers if repository(str(one.get("image", ""))) == repository(image)]
        chosen = same or (list(containers) if len(containers) == 1 else [])
        if not chosen:
            images = ", ".join(str(one.get("image")) for one in containers)
            raise JobError(
                f"{path}: --image {image} fits none of the containers' images ({images}): "
                f"let one of them have the image {repository(image)}"
            )
        for one in chosen:
            one["image"] = image
            if settings["loaded"]:
                one["imagePullPolicy"] = "Never"
    for one in containers:
        if not isinstance(one.get("image"), str) or not one["image"]:
            raise JobError(f"{path}: container {one['name']} has no image: add it, or use --image")


def limit_disk(container: Data, settings: Settings, where: str) -> None:
    """Limit the disk that a container writes to, so that it cannot fill the board's. JobError."""
    resources = container.setdefault("resources", {})
    limits = part(container, "resources", dict, f"{where}.resources").setdefault("limits", {})
    if not isinstance(limits, dict):
        raise JobError(f"{where}.resources.limits is not a mapping")
    limits.setdefault(DISK, settings["disk_limit"])
    # Otherwise the request is the limit, and the scheduler wants that much disk to be free.
    requests = resources.setdefault("requests", {})
    if isinstance(requests, dict):
        requests.setdefault(DISK, "0")


def add_results(pod: Data, containers: Sequence[Data], settings: Settings, where: str) -> None:
    """Mount the volume whose files are fetched: the manifest's own, or one at /results. JobError."""
    volumes = pod.setdefault("volumes", [])
    part(pod, "volumes", list, f"{where}.volumes")
    own = next((one for one in volumes if isinstance(one, dict) and one.get("name") == VOLUME), None)
    if own is not None:
        if not isinstance(own.get("emptyDir"), dict):
            raise JobError(
                f"{where}.volumes: the volume {VOLUME} has to be an emptyDir, because its files are fetched: "
                f"write `emptyDir: {{}}`, or give the other volume another name"
            )
        own["emptyDir"].setdefault("sizeLimit", settings["results_limit"])
        return
    volumes.append({"name": VOLUME, "emptyDir": {"sizeLimit": settings["results_limit"]}})
    for one in containers:
        mounts = one.setdefault("volumeMounts", [])
        part(one, "volumeMounts", list, f"{where}: volumeMounts of container {one['name']}")
        if any(isinstance(mount, dict) and mount.get("mountPath") == RESULTS for mount in mounts):
            raise JobError(
                f"{where}: container {one['name']} mounts another volume at {RESULTS}: name it {VOLUME}"
            )
        mounts.append({"name": VOLUME, "mountPath": RESULTS})


def companion(script: str, results: bool) -> tuple[Data, Data]:
    """The container that samples the board and keeps the results until they are fetched, and its volume.

    The module on the server gives it the image of the node's device plugin.
    """
    mounts = [{"name": COMPANION_SYS, "mountPath": "/host/sys", "readOnly": True}]
    if results:
        mounts.append({"name": VOLUME, "mountPath": RESULTS, "readOnly": True})
    container = {
        "name": COMPANION,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3.11", "-c", script],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi", DISK: "0"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            # Files of any user are read, and nothing can be changed.
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]},
        },
        "volumeMounts": mounts,
    }
    return container, {"name": COMPANION_SYS, "hostPath": {"path": "/sys", "type": "Directory"}}


def asks_for_gpu(pod: Mapping[str, Any], containers: Sequence[Data]) -> bool:
    """Whether the job asks for a device or has a claim."""
    names = {
        name
        for one in containers
        for name in ((one.get("resources") or {}).get("limits") or {})
        if "/" in name and not name.startswith("kubernetes.io/")
    }
    return bool(names or pod.get("resourceClaims"))


def check_single(spec: Mapping[str, Any], path: str) -> None:
    """Refuse a Job of several pods: each board has one, and its result has to be clear. JobError."""
    for key in ("parallelism", "completions"):
        if spec.get(key, 1) != 1:
            raise JobError(f"{path}: spec.{key} is {spec[key]}; a test has one pod on each board: remove it")
    if spec.get("suspend"):
        raise JobError(f"{path}: spec.suspend is true, so the Job would not start: remove it")


def plan(text: str, path: str, settings: Settings, *, node: str, runtime_class: str, script: str) -> Plan:
    """The objects of a board's test. JobError.

    `text` is the manifest in the file `path`, '' for an image alone. `node` is the node's name, `script` the
    program of the companion.
    """
    given, others = manifest(text, path) if text else (of_image(settings), [])
    job = copy.deepcopy(given)
    spec = part(job, "spec", dict, f"{path}: spec")
    check_single(spec, path)
    template = part(spec, "template", dict, f"{path}: spec.template")
    where = f"{path}: spec.template.spec"
    pod = part(template, "spec", dict, where)
    containers = containers_of(pod, where)
    if any(one["name"] == COMPANION for one in containers):
        raise JobError(f"{where}: the name {COMPANION} is taken by the test itself")
    set_image(containers, settings, path)
    for one in containers:
        limit_disk(one, settings, f"{where}: container {one['name']}")
    if settings["artifacts"]:
        add_results(pod, containers, settings, where)
    sampler, volume = companion(script, settings["artifacts"])
    pod["containers"].append(sampler)
    pod.setdefault("volumes", []).append(volume)
    # This board and one try, also if the manifest says otherwise: a test that fails has failed.
    pod.pop("nodeName", None)
    selector = pod.get("nodeSelector") or {}
    pod["nodeSelector"] = {**selector, HOSTNAME: node}
    pod["restartPolicy"] = "Never"
    pod.setdefault("terminationGracePeriodSeconds", 5)
    if runtime_class:
        pod.setdefault("runtimeClassName", runtime_class)
    own = spec.get("activeDeadlineSeconds") or settings["timeout"]
    if not isinstance(own, int) or own < 1:
        raise JobError(f"{path}: spec.activeDeadlineSeconds is {own!r}; write whole seconds")
    limit = min(own, settings["timeout"])
    spec.pop("ttlSecondsAfterFinished", None)
    spec.update(backoffLimit=0, activeDeadlineSeconds=limit + GRACE_SECONDS)
    metadata = job.setdefault("metadata", {})
    name = str(metadata.get("name") or "test")
    for owner in (metadata, *(one.setdefault("metadata", {}) for one in others)):
        owner.pop("namespace", None)
        owner.pop("generateName", None)
    metadata["name"] = name
    return {
        "objects": [*copy.deepcopy(others), job],
        "job": name,
        "containers": [one["name"] for one in containers],
        "images": [one["image"] for one in containers],
        "limit": limit,
        "results": settings["artifacts"],
        "results_bytes": size(settings["results_limit"]),
        "gpu": asks_for_gpu(pod, containers),
    }


def check_settings(settings: Settings, manifest_given: bool, api: str) -> None:
    """Refuse settings that contradict each other. JobError."""
    if not manifest_given and not settings["image"]:
        raise JobError("nothing to run: give a manifest (--job FILE), or an image (--image)")
    if manifest_given and settings["command"]:
        raise JobError("--command is for an image without a manifest: write the command into the manifest")
    if not manifest_given and api == "dra":
        raise JobError(
            "the GPU is allocated by claims here (gpu_device_plugin_api: dra): use --job with a claim"
        )
    if settings["timeout"] < 1:
        raise JobError(f"the timeout is {settings['timeout']} s; give at least one second")
    for quantity in (settings["results_limit"], settings["disk_limit"]):
        size(quantity)


def wrong_architecture(archive: Mapping[str, Any], board: str, architecture: str) -> str:
    """Why a board cannot run the image of an archive, '' if it can. Both are Go's names, such as arm64."""
    has = archive.get("architecture") or ""
    if not has or has == architecture:
        return ""
    return f"{archive['name']} is an image for {has}, and {board} is {architecture}"


def build_for(architecture: str) -> str:
    """What to do about an image for another architecture."""
    return f"Build it for the board: docker buildx build --platform linux/{architecture} ..."
