# SPDX-License-Identifier: Apache-2.0
"""Features that Docker and Kubernetes need, and a board's kernel lacks.

Runs on the board, therefore Python 3.6 compatible.
"""

import gzip
import os
import re
import zlib
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import FACT_FILE_BYTES, read

# A kernel with everything as modules has a modules.dep of more than 1 MiB.
MODULE_LIST_BYTES = 16 << 20

# Features of the kernel: the options, one of which brings the feature, and the modules, one of which has it.
KERNEL_FEATURES: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "br_netfilter": (("BRIDGE_NETFILTER",), ("br_netfilter",)),
    # Renamed in Linux 5.2.
    "masquerade": (
        ("NETFILTER_XT_TARGET_MASQUERADE", "IP_NF_TARGET_MASQUERADE"),
        ("xt_MASQUERADE", "ipt_MASQUERADE"),
    ),
    # Parts of nf_tables, without modules of their own.
    "nf_tables_ipv4": (("NF_TABLES_IPV4",), ()),
    "nf_tables_ipv6": (("NF_TABLES_IPV6",), ()),
    # Renamed in Linux 5.1.
    "nft_chain_nat": (("NFT_NAT",), ("nft_chain_nat", "nft_chain_nat_ipv4")),
    "overlay": (("OVERLAY_FS",), ("overlay",)),
}
# Features with one option and one module that have the same name after these prefixes.
ALIKE = (
    ("", "", "bridge ip_set nf_tables nft_compat veth vxlan"),
    ("IP_SET_", "ip_set_", "bitmap_port hash_ip hash_ipport hash_net hash_netnet"),
    ("IP_NF_", "iptable_", "filter nat raw"),
    ("IP6_NF_", "ip6table_", "filter nat raw"),
    ("IP_NF_TARGET_", "ipt_", "REJECT"),
    ("NETFILTER_XT_", "xt_", "mark nat set"),
    ("NETFILTER_XT_MATCH_", "xt_", "addrtype comment conntrack limit multiport physdev statistic"),
    ("NETFILTER_XT_TARGET_", "xt_", "NFLOG"),
)
for _option, _module, _names in ALIKE:
    for _name in _names.split():
        KERNEL_FEATURES[_module + _name] = ((_option + _name.upper(),), (_module + _name,))
# Controllers without which K3s or its kubelet ends, and the option of each.
CGROUP_CONTROLLERS = {"cpu": "CGROUP_SCHED", "cpuset": "CPUSETS", "memory": "MEMCG", "pids": "CGROUP_PIDS"}
# Where L4T's boot loader finds the arguments of the kernel, and those that decide about cgroups.
EXTLINUX = "boot/extlinux/extlinux.conf"
CGROUP_ARGUMENTS = re.compile(r"(?:cgroup_(?:disable|enable|no_v1)|systemd\.unified_cgroup_hierarchy)=\S*")


def cgroup_version(root: str) -> int:
    """2 on a unified hierarchy, else 1."""
    return 2 if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")) else 1


def cgroup_controllers(root: str) -> List[str]:
    """Names of the controllers that the kernel offers, whichever the version."""
    unified = read(root, "sys/fs/cgroup/cgroup.controllers")
    if unified is not None:
        return sorted(unified.split())
    # Columns: name, hierarchy, number of cgroups, enabled (Linux kernel/cgroup/cgroup-v1.c).
    return sorted(re.findall(r"^(\w+)\s+\d+\s+\d+\s+1$", read(root, "proc/cgroups") or "", re.MULTILINE))


def kernel_config(root: str, release: str) -> Optional[Dict[str, str]]:
    """The kernel's options that are y or m, without CONFIG_; None if unknown."""
    text: Optional[str]
    try:
        with gzip.open(os.path.join(root, "proc/config.gz"), "rt", errors="replace") as handle:
            text = handle.read(FACT_FILE_BYTES)
    except (OSError, EOFError, zlib.error):
        text = read(root, "boot/config-" + release)
    if text is None:
        return None
    return dict(re.findall(r"^CONFIG_(\w+)=([ym])$", text, re.MULTILINE))


def next_arguments(root: str) -> Optional[str]:
    """The kernel's arguments at the next boot: APPEND of the label that DEFAULT names, else of the first.

    None where there is no extlinux.conf, as on other computers.
    """
    labels, default, label = {}, None, None
    for line in (read(root, EXTLINUX) or "").splitlines():
        keyword, _, rest = line.strip().replace("\t", " ").partition(" ")
        if keyword.upper() == "DEFAULT":
            default = rest.strip()
        elif keyword.upper() == "LABEL":
            label = rest.strip()
            labels[label] = ""
        elif keyword.upper() == "APPEND" and label is not None:
            labels[label] = rest
    first = next(iter(labels.values()), None)
    return first if default is None else labels.get(default, first)


def cgroup_arguments(text: Optional[str]) -> Set[str]:
    """The arguments about cgroups on a command line."""
    return {word for word in (text or "").split() if CGROUP_ARGUMENTS.match(word)}


def boot_arguments(root: str) -> Optional[str]:
    """The next boot's changes of the arguments about cgroups, as text; None without a change.

    The boot loader adds arguments of its own to those of extlinux.conf, but none about cgroups.
    """
    after = next_arguments(root)
    now, then = cgroup_arguments(read(root, "proc/cmdline")), cgroup_arguments(after)
    differences = (("has in addition", then - now), ("lacks", now - then)) if after is not None else ()
    words = ["{} {}".format(text, " ".join(sorted(some))) for text, some in differences if some]
    return " and ".join(words) or None


def disabled_controllers(text: Optional[str]) -> List[str]:
    """The cgroup controllers that a command line disables."""
    return ",".join(re.findall(r"(?:^|\s)cgroup_disable=(\S+)", text or "")).split(",")


def cgroup_lacks(root: str, config: Optional[Dict[str, str]]) -> Dict[str, str]:
    """{controller: why the kernel does not offer it}, of those that K3s and its kubelet need.

    `config` is what kernel_config() returns.
    """
    offered, after = cgroup_controllers(root), next_arguments(root)
    lacking = {}
    for controller, option in CGROUP_CONTROLLERS.items():
        if controller in offered:
            continue
        if controller in disabled_controllers(read(root, "proc/cmdline")):
            lacking[controller] = "cgroup_disable={} is on the kernel's command line".format(controller)
            if after is not None and controller not in disabled_controllers(after):
                lacking[controller] += ", and no longer in /boot/extlinux/extlinux.conf"
        elif config is not None and option not in config:
            lacking[controller] = "CONFIG_{} is not set".format(option)
        else:
            lacking[controller] = "the kernel does not offer it"
    return lacking


def modules_on_disk(root: str, release: str) -> Optional[Set[str]]:
    """Modules of this kernel, built in or with a file that modprobe finds; None without the lists of them."""
    directory = os.path.join(root, "lib/modules", release)
    builtin, loadable = (
        read(root, os.path.join(directory, name), MODULE_LIST_BYTES)
        for name in ("modules.builtin", "modules.dep")
    )
    if builtin is None or loadable is None:
        return None
    files = re.findall(r"^(\S+?\.ko[^\s:]*):", loadable, re.MULTILINE)
    there = [path for path in files if os.path.exists(os.path.join(directory, path))]
    # The name of the module in a file such as kernel/net/xt-mark.ko.zst.
    return {os.path.basename(path).split(".ko")[0].replace("-", "_") for path in builtin.split() + there}


def kernels(root: str) -> List[str]:
    """Releases of the kernels that have a directory of modules."""
    parent = os.path.join(root, "lib/modules")
    return sorted(os.listdir(parent)) if os.path.isdir(parent) else []


def why_missing(root: str, release: str, modules: Sequence[str]) -> str:
    """Why modprobe finds none of these modules."""
    missing = " or ".join(module + ".ko" for module in modules) + " is missing"
    others = kernels(root)
    if release in others:
        return "{} in /lib/modules/{}, or in its modules.dep".format(missing, release)
    rest = ", only that of {}".format(", ".join(others)) if others else ""
    return "{}: there is no /lib/modules/{}{}".format(missing, release, rest)


def kernel_lacks(root: str, release: str, config: Optional[Dict[str, str]]) -> Dict[str, str]:
    """{feature: why it is missing}; a feature is left out if neither configuration nor modules are known.

    A feature is there when it is built in, when its module is loaded, or when modprobe finds the module.
    `config` is what kernel_config() returns.
    """
    on_disk = modules_on_disk(root, release)
    loaded = {line.split()[0] for line in (read(root, "proc/modules") or "").splitlines() if line}
    there = loaded.union(on_disk or ())
    missing = {}
    for feature, (options, modules) in KERNEL_FEATURES.items():
        states = {config.get(option) for option in options} if config is not None else set()
        if not ("y" in states or there.intersection(modules)) and (modules or states == {None}):
            missing[feature] = states
    lacking = {}
    for feature, states in missing.items():
        options, modules = KERNEL_FEATURES[feature]
        option = " or ".join("CONFIG_" + option for option in options)
        if "m" in states:
            lacking[feature] = "{} is m, but {}".format(option, why_missing(root, release, modules))
        elif config is not None:
            module = " (module {})".format(" or ".join(modules)) if modules else ""
            lacking[feature] = "{} is not set{}".format(option, module)
        elif on_disk is not None:
            lacking[feature] = "{} ({}; the kernel does not show its configuration)".format(
                why_missing(root, release, modules), option
            )
    return lacking


def missing_modules(
    root: str, release: str, config: Optional[Dict[str, str]], lacking: Iterable[str]
) -> Optional[Dict[str, Any]]:
    """The directory with all modules of this kernel, if it is missing and features are lacking for that.

    `path` is the directory, `kernels` the releases that have one, `features` those of `lacking` that are
    modules. `config` is what kernel_config() returns.
    """
    there = kernels(root)
    features = sorted(
        feature
        for feature in lacking
        if config is not None and "m" in [config.get(option) for option in KERNEL_FEATURES[feature][0]]
    )
    if release in there or not features:
        return None
    return {"path": "/lib/modules/" + release, "kernels": there, "features": features}
