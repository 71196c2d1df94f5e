# SPDX-License-Identifier: Apache-2.0
"""Ansible filters: the names by which tasks call the decisions of plugin_utils/.

One file for all of them, because Ansible reads every file in this directory again for each filter that a task
names, in each process that it starts for a task on a board.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_python,
    board_reboot,
    board_release,
    board_variables,
    bundle,
    controller_paths,
    existing_cluster,
    gpu_device_plugin,
    gpu_device_plugin_answers,
    gpu_device_plugin_configurations,
    gpu_device_plugin_stand_by,
    gpu_job_report,
    gpu_report,
    gpu_status,
    gpu_status_credentials,
    gpu_verify,
    gpu_verify_plan,
    host_kinds,
    host_names,
    image_fit,
    image_supply,
    k3s,
    k3s_backup,
    k3s_certificates,
    k3s_configuration,
    k3s_files,
    k3s_options,
    k3s_reading,
    k3s_registries,
    k3s_reset,
    k3s_restart,
    k3s_supply,
    k3s_tokens,
    k3s_upgrade,
    k3s_version,
    k3s_work,
    monitoring,
    nvidia_docker,
    preflight,
    preflight_configurations,
    preflight_inventory,
    proxy,
    role_settings,
    rollout,
    run_lock,
    site,
    snapshot,
    user_images,
)

MODULES = (
    board_python,
    board_reboot,
    board_release,
    board_variables,
    bundle,
    controller_paths,
    existing_cluster,
    gpu_device_plugin,
    gpu_device_plugin_answers,
    gpu_device_plugin_configurations,
    gpu_device_plugin_stand_by,
    gpu_job_report,
    gpu_report,
    gpu_status,
    gpu_status_credentials,
    gpu_verify,
    gpu_verify_plan,
    host_kinds,
    host_names,
    image_fit,
    image_supply,
    k3s,
    k3s_backup,
    k3s_certificates,
    k3s_configuration,
    k3s_files,
    k3s_options,
    k3s_reading,
    k3s_registries,
    k3s_reset,
    k3s_restart,
    k3s_supply,
    k3s_tokens,
    k3s_upgrade,
    k3s_version,
    k3s_work,
    monitoring,
    nvidia_docker,
    preflight,
    preflight_configurations,
    preflight_inventory,
    proxy,
    role_settings,
    rollout,
    run_lock,
    site,
    snapshot,
    user_images,
)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters of all modules. Each has its role's name, or that of its subject, in front."""
        return {name: function for module in MODULES for name, function in module.FILTERS.items()}
