# SPDX-License-Identifier: Apache-2.0
"""How role gpu_job makes one Job for each board, from a person's manifest or from an image and a command."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_image, gpu_job_plan
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.gpu_job_plan import JobError, Plan, Settings

SETTINGS: Settings = {
    "image": "",
    "loaded": False,
    "command": [],
    "resource": "nvidia.com/gpu",
    "timeout": 600,
    "results_limit": "256Mi",
    "disk_limit": "2Gi",
    "artifacts": True,
}
CONTAINER = {"name": "main", "image": "registry.example/app:1", "command": ["pytest"]}


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [CONTAINER], **spec.pop("pod", {})}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {"template": template, **spec},
    }


def plan(*objects: Any, runtime_class: str = "", **settings: Any) -> Plan:
    text = yaml.safe_dump_all(objects) if objects else ""
    given: Any = SETTINGS | settings
    gpu_job_plan.check_settings(given, bool(text), "device-plugin")
    return gpu_job_plan.plan(
        text, "job.yaml", given, node="jetson-1", runtime_class=runtime_class, script="pass"
    )


def pod(made: Plan) -> Any:
    return made["objects"][-1]["spec"]["template"]["spec"]


def test_manifest_becomes_one_job_with_one_try_on_this_board() -> None:
    made = plan(
        job(
            backoffLimit=6,
            ttlSecondsAfterFinished=5,
            pod={"nodeName": "other", "nodeSelector": {"a": "b", "kubernetes.io/hostname": "other"}},
        )
    )
    (mine,) = made["objects"]
    kubernetes_validate.validate(mine, "1.33", strict=True)
    assert (made["job"], made["containers"], made["limit"], made["gpu"]) == ("mine", ["main"], 600, False)
    assert "namespace" not in mine["metadata"]
    assert (mine["spec"]["backoffLimit"], mine["spec"]["activeDeadlineSeconds"]) == (0, 1200)
    assert "ttlSecondsAfterFinished" not in mine["spec"]
    assert pod(made)["nodeSelector"] == {"a": "b", "kubernetes.io/hostname": "jetson-1"}
    assert pod(made)["restartPolicy"] == "Never"
    assert "nodeName" not in pod(made)


def test_each_container_has_a_limit_for_the_disk_and_the_results_volume() -> None:
    own = CONTAINER | {"name": "own", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}
    made = plan(job(pod={"initContainers": [CONTAINER | {"name": "first"}], "containers": [CONTAINER, own]}))
    containers = [*pod(made)["initContainers"], *pod(made)["containers"]]
    assert [one["name"] for one in containers] == ["first", "main", "own", "jetson-k3s-companion"]
    limits = [one["resources"]["limits"].get("ephemeral-storage") for one in containers]
    assert limits == ["2Gi", "2Gi", "1Gi", None]
    assert all(one["resources"]["requests"]["ephemeral-storage"] == "0" for one in containers)
    assert {"name": "results", "emptyDir": {"sizeLimit": "256Mi"}} in pod(made)["volumes"]
    mounts = [[mount for mount in one["volumeMounts"] if mount["name"] == "results"] for one in containers]
    assert mounts[:3] == [[{"name": "results", "mountPath": "/results"}]] * 3
    assert mounts[3] == [{"name": "results", "mountPath": "/results", "readOnly": True}]


def test_own_results_volume_stays_where_the_manifest_mounts_it() -> None:
    mounted = CONTAINER | {"volumeMounts": [{"name": "results", "mountPath": "/out"}]}
    made = plan(job(pod={"containers": [mounted], "volumes": [{"name": "results", "emptyDir": {}}]}))
    assert pod(made)["containers"][0]["volumeMounts"] == mounted["volumeMounts"]
    assert pod(made)["volumes"][0] == {"name": "results", "emptyDir": {"sizeLimit": "256Mi"}}


def test_without_artifacts_there_is_no_volume() -> None:
    made = plan(job(), artifacts=False)
    assert [one["name"] for one in pod(made)["volumes"]] == ["jetson-k3s-sys"]
    assert "volumeMounts" not in pod(made)["containers"][0]


def test_shorter_deadline_of_the_manifest_is_the_limit() -> None:
    assert plan(job(activeDeadlineSeconds=60))["limit"] == 60
    assert plan(job(activeDeadlineSeconds=6000))["limit"] == 600


def test_image_and_command_without_a_manifest_ask_for_a_gpu() -> None:
    made = plan(image="app:2", command=["sh", "-c", "true"], runtime_class="nvidia")
    kubernetes_validate.validate(made["objects"][-1], "1.33", strict=True)
    container = pod(made)["containers"][0]
    assert (container["image"], container["command"]) == ("app:2", ["sh", "-c", "true"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (pod(made)["runtimeClassName"], made["gpu"]) == ("nvidia", True)


def test_image_of_the_run_replaces_that_of_the_manifest() -> None:
    assert plan(job(), image="elsewhere/app:3")["images"] == ["elsewhere/app:3"]
    helper = {"name": "helper", "image": "busybox@sha256:" + "0" * 64}
    two = job(pod={"containers": [CONTAINER, helper]})
    made = plan(two, image="registry.example/app:9", loaded=True)
    assert made["images"] == ["registry.example/app:9", helper["image"]]
    policies = [one.get("imagePullPolicy") for one in pod(made)["containers"][:2]]
    assert policies == ["Never", None]
    with pytest.raises(JobError, match="--image other:1 fits none of the containers' images"):
        plan(two, image="other:1")


def test_config_maps_and_secrets_come_along() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "team"}}
    made = plan(secret, job())
    assert [one["kind"] for one in made["objects"]] == ["Secret", "Job"]
    assert made["objects"][0]["metadata"] == {"name": "s"}


@pytest.mark.parametrize(
    ("objects", "settings", "message"),
    [
        ([], {}, "nothing to run: give a manifest .--job FILE., or an image"),
        ([job()], {"command": ["a"]}, "--command is for an image without a manifest"),
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {}}], {}, "it has Pod; a test is one Job"),
        ([job(), job()], {}, "it has 2 Jobs; a test is exactly one"),
        ([job() | {"apiVersion": "batch/v1beta1"}], {}, "write batch/v1"),
        ([job(parallelism=3)], {}, "spec.parallelism is 3; a test has one pod on each board"),
        ([job(suspend=True)], {}, "spec.suspend is true"),
        ([job(pod={"containers": []})], {}, "spec.template.spec.containers is empty"),
        ([job(pod={"containers": [{"image": "a"}]})], {}, "each container needs a name"),
        ([job(pod={"containers": [{"name": "a"}]})], {}, "container a has no image"),
        (
            [job(pod={"volumes": [{"name": "results", "hostPath": {"path": "/"}}]})],
            {},
            "the volume results has to be an emptyDir",
        ),
        (
            [
                job(
                    pod={
                        "containers": [CONTAINER | {"volumeMounts": [{"name": "x", "mountPath": "/results"}]}]
                    }
                )
            ],
            {},
            "mounts another volume at /results: name it results",
        ),
        ([job(activeDeadlineSeconds="1h")], {}, "spec.activeDeadlineSeconds is '1h'; write whole seconds"),
        ([job()], {"results_limit": "5 GB"}, "'5 GB' is not a size"),
        ([job()], {"timeout": 0}, "the timeout is 0 s"),
        ([["a"]], {}, "each document has to be an object of Kubernetes"),
    ],
)
def test_bad_job_is_refused_with_what_to_do(
    objects: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        plan(*objects, **settings)


def test_broken_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(JobError, match=r"job.yaml, line 2: this is no YAML"):
        gpu_job_plan.manifest("a: 1\n\tb: 2\n", "job.yaml")


@pytest.mark.parametrize(
    ("quantity", "size"), [("512Mi", 512 << 20), ("2Gi", 2 << 30), ("1.5k", 1500), ("7", 7)]
)
def test_sizes_are_those_of_kubernetes(quantity: str, size: int) -> None:
    assert gpu_job_plan.size(quantity) == size


def archive(path: Path, architecture: str = "arm64", tags: int = 1, images: int = 1) -> Path:
    """What `docker save` makes of an image without layers."""
    config = json.dumps({"architecture": architecture, "os": "linux"}).encode()
    names = [f"app:{number}" for number in range(1, tags + 1)]
    entry = {"Config": "config.json", "RepoTags": names, "Layers": []}
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("config.json", config),
            ("manifest.json", json.dumps([entry] * images).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_archive_of_an_image_is_read(tmp_path: Path) -> None:
    found = gpu_job_image.read(str(archive(tmp_path / "app.tar")))
    assert (found["image"], found["architecture"], found["compressed"]) == ("app:1", "arm64", False)
    assert gpu_job_image.read("registry.example/app:1") == {}


def test_image_for_another_architecture_is_named(tmp_path: Path) -> None:
    found = gpu_job_image.read(str(archive(tmp_path / "app.tar", "amd64")))
    wrong = gpu_job_plan.wrong_architecture(found, "jetson-1", "arm64")
    assert wrong == "app.tar is an image for amd64, and jetson-1 is arm64"
    assert gpu_job_plan.wrong_architecture(found, "jetson-1", "amd64") == ""
    refused = gpu_job_image.refused(found, wrong, "arm64")
    assert "--platform linux/arm64" in refused["fix"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.write_text("text"), "this is no archive of an image"),
        (lambda path: archive(path, tags=0), "it has 1 images and 0 names"),
        (lambda path: archive(path, images=2), "it has 2 images and 2 names"),
    ],
)
def test_bad_archive_is_refused(tmp_path: Path, made: Any, message: str) -> None:
    path = tmp_path / "app.tar"
    made(path)
    with pytest.raises(JobError, match=message):
        gpu_job_image.read(str(path))
