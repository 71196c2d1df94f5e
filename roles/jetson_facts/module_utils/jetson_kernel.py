# SPDX-License-Identifier: Apache-2.0
"""What a board's kernel can do of what Docker and Kubernetes ask.

Runs on the board, therefore Python 3.6 compatible.
"""

import gzip
import os
import re

from ansible.module_utils.jetson_board import FACT_FILE_BYTES, read

# A kernel with everything as modules has a modules.dep of more than 1 MiB.
MODULE_LIST_BYTES = 16 << 20

# What Docker and Kubernetes ask of the kernel: feature, the options of which one brings it, its modules.
KERNEL_FEATURES = {
    "br_netfilter": (("BRIDGE_NETFILTER",), ("br_netfilter",)),
    "bridge": (("BRIDGE",), ("bridge",)),
    "ip_set": (("IP_SET",), ("ip_set",)),
    "iptable_raw": (("IP_NF_RAW",), ("iptable_raw",)),
    # Renamed in Linux 5.2.
    "masquerade": (
        ("NETFILTER_XT_TARGET_MASQUERADE", "IP_NF_TARGET_MASQUERADE"),
        ("xt_MASQUERADE", "ipt_MASQUERADE"),
    ),
    "nf_tables": (("NF_TABLES",), ("nf_tables",)),
    "overlay": (("OVERLAY_FS",), ("overlay",)),
    "veth": (("VETH",), ("veth",)),
    "vxlan": (("VXLAN",), ("vxlan",)),
    "xt_addrtype": (("NETFILTER_XT_MATCH_ADDRTYPE",), ("xt_addrtype",)),
    "xt_comment": (("NETFILTER_XT_MATCH_COMMENT",), ("xt_comment",)),
    "xt_conntrack": (("NETFILTER_XT_MATCH_CONNTRACK",), ("xt_conntrack",)),
    "xt_multiport": (("NETFILTER_XT_MATCH_MULTIPORT",), ("xt_multiport",)),
    "xt_nat": (("NETFILTER_XT_NAT",), ("xt_nat",)),
    "xt_statistic": (("NETFILTER_XT_MATCH_STATISTIC",), ("xt_statistic",)),
}


def cgroup_version(root):
    """2 on a unified hierarchy, else 1."""
    return 2 if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")) else 1


def cgroup_controllers(root):
    """Names of the controllers that the kernel offers, whichever the version."""
    unified = read(root, "sys/fs/cgroup/cgroup.controllers")
    if unified is not None:
        return sorted(unified.split())
    # Columns: name, hierarchy, number of cgroups, enabled (Linux kernel/cgroup/cgroup-v1.c).
    return sorted(re.findall(r"^(\w+)\s+\d+\s+\d+\s+1$", read(root, "proc/cgroups") or "", re.MULTILINE))


def kernel_config(root, release):
    """The kernel's options that are y or m, without CONFIG_; None where it does not tell."""
    try:
        with gzip.open(os.path.join(root, "proc/config.gz"), "rt", errors="replace") as handle:
            text = handle.read(FACT_FILE_BYTES)
    except OSError:
        text = read(root, "boot/config-" + release)
    if text is None:
        return None
    return dict(re.findall(r"^CONFIG_(\w+)=([ym])$", text, re.MULTILINE))


def module_names(root, release):
    """Modules of this kernel, built in or loadable; None where the lists of them are missing."""
    lists = [
        read(root, "lib/modules/{}/{}".format(release, name), MODULE_LIST_BYTES)
        for name in ("modules.builtin", "modules.dep")
    ]
    if None in lists:
        return None
    return {
        os.path.basename(path).replace("-", "_")
        for path in re.findall(r"^(\S+?)\.ko", "\n".join(lists), re.M)
    }


def kernel_features(root, release):
    """{feature: has the kernel got it}; null where neither its configuration nor its modules tell."""
    config, present = kernel_config(root, release), module_names(root, release)
    loaded = {line.split()[0] for line in (read(root, "proc/modules") or "").splitlines() if line}
    features = {}
    for feature, (options, modules) in KERNEL_FEATURES.items():
        states = {config.get(option) for option in options} if config is not None else set()
        if "y" in states or loaded.intersection(modules):
            features[feature] = True
        elif present is not None and (config is None or "m" in states):
            # A module that was configured is there only when its package is installed.
            features[feature] = bool(present.intersection(modules))
        else:
            features[feature] = "m" in states if config is not None else None
    return features
