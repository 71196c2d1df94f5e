# SPDX-License-Identifier: Apache-2.0
"""Which variant of iptables works on a board: each is tried with rules such as those of Docker and K3s.

The attempt runs in a network namespace of its own, which ends with it. The kernel may load modules for it, as
it does when Docker starts. Therefore the other variant is tried only where the present one fails.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
from typing import TYPE_CHECKING, Callable, Dict, Optional, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import parse_version

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

OTHER = {"nft": "legacy", "legacy": "nft"}
ADDRESSES = {"iptables": "192.0.2.1", "ip6tables": "2001:db8::1"}  # for documentation (RFC 5737, RFC 3849)
RULES = {
    "filter": "--append FORWARD --match conntrack --ctstate RELATED,ESTABLISHED --jump ACCEPT",
    "nat": "--append POSTROUTING --match addrtype --src-type LOCAL --jump MASQUERADE",
    "raw": "--append PREROUTING --destination {address} --jump DROP",
}
# Without these Docker and kube-proxy do not start. Docker 28 also uses raw.
NEEDED = ("filter", "nat")
# Features of the kernel that a table needs (jetson_kernel.KERNEL_FEATURES), and those of its rule.
FEATURES = {
    ("iptables", "nft"): "nf_tables nf_tables_ipv4 nft_compat nft_chain_nat",
    ("ip6tables", "nft"): "nf_tables nf_tables_ipv6 nft_compat nft_chain_nat",
    ("iptables", "legacy"): "iptable_{table}",
    ("ip6tables", "legacy"): "ip6table_{table}",
}
RULE_FEATURES = {"filter": "xt_conntrack", "nat": "xt_addrtype masquerade", "raw": ""}


Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors
Plan = Dict[str, Optional[str]]


class NotTried(Exception):  # noqa: N818 - nothing is wrong with iptables
    """The attempt itself was not possible; the text says why."""


def version_facts(text: str) -> Dict[str, Optional[str]]:
    """Version and backend from `iptables --version`; before 1.8 there was one variant only."""
    version = parse_version(r"v(\d+(?:\.\d+)+)", text)
    return {
        "version": version,
        "backend": parse_version(r"\((\w+)\)", text) or ("legacy" if version else None),
    }


def try_table(run: Run, argv: Sequence[str], family: str, table: str) -> Optional[str]:
    """Add a rule to the table; return the error, None if it worked."""
    rule = RULES[table].format(address=ADDRESSES[family]).split()
    code, _, errors = run([*argv, "--wait", "5", "--table", table, *rule])
    if code == 0:
        return None
    said = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("#")]
    if any(line.startswith("unshare:") or "xtables lock" in line for line in said):
        raise NotTried(said[0])
    return " ".join(said)[:300].rstrip(". ") or "exit status {}".format(code)


def failures(
    run: Run, argv: Sequence[str], family: str, variant: str, lacking: Dict[str, str]
) -> Dict[str, str]:
    """{table: what fails there}, with the features that the kernel lacks for it."""
    found = {}
    for table in RULES:
        error = try_table(run, argv, family, table)
        if error is not None:
            features = "{} {}".format(FEATURES[family, variant].format(table=table), RULE_FEATURES[table])
            reasons = [lacking[feature] for feature in features.split() if feature in lacking]
            place = "{}-{}, table {}".format(family, variant, table)
            found[table] = "{}: {}".format(place, "; ".join([error, *reasons]))
    return found


def needed(found: Dict[str, str]) -> Optional[str]:
    """Those of failures() that stop Docker or K3s, as one text; None without any."""
    return " | ".join(found[table] for table in NEEDED if table in found) or None


def other_variant(root: str, family: str, program: str, now: str) -> Optional[str]:
    """Path of the other variant, None where `update-alternatives --set` cannot choose it."""
    path = os.path.join("usr/sbin", "{}-{}".format(family, OTHER[now]))
    alternative = os.path.realpath(os.path.join(root, "etc/alternatives", family))
    chosen = os.path.realpath(program) == alternative and os.path.exists(os.path.join(root, path))
    return os.path.join("/", path) if chosen else None


def family_plan(
    module: "AnsibleModule", root: str, unshare: str, family: str, lacking: Dict[str, str]
) -> Optional[Plan]:
    """The plan for iptables or ip6tables; None if the board does not have it.

    `now` is the present variant. `choose` is the path of the variant to choose, None for no change, with the
    `reason`. `problem` has the failures after the change, and `raw` those of the table raw.
    """
    program = module.get_bin_path(family)
    if program is None:
        return None
    backend = version_facts(module.run_command([program, "--version"])[1])["backend"]
    now = "nft" if backend == "nf_tables" else "legacy"
    failing = failures(module.run_command, [unshare, "--net", program], family, now, lacking)
    plan = {"now": now, "choose": None, "reason": None, "problem": needed(failing), "raw": failing.get("raw")}
    other = other_variant(root, family, program, now)
    if plan["problem"] and other:
        argv = [unshare, "--net", os.path.join(root, other.lstrip("/"))]
        then = failures(module.run_command, argv, family, OTHER[now], lacking)
        problem = needed(then)
        if problem:
            plan["problem"] += " | " + problem
        else:
            plan.update(choose=other, reason=plan["problem"], problem=None, raw=then.get("raw"))
    return plan


def iptables_plan(module: "AnsibleModule", root: str, lacking: Dict[str, str]) -> Dict[str, Plan]:
    """{family: plan} of iptables, and of ip6tables where the kernel has IPv6. NotTried where there is none.

    `module` is the AnsibleModule, `lacking` what jetson_kernel.kernel_lacks() has found.
    """
    unshare = module.get_bin_path("unshare")
    if unshare is None:
        raise NotTried("the board has no program unshare (package util-linux)")
    ipv6 = os.path.exists(os.path.join(root, "proc/net/if_inet6"))
    plans = {
        family: family_plan(module, root, unshare, family, lacking)
        for family in (("iptables", "ip6tables") if ipv6 else ("iptables",))
    }
    return {family: plan for family, plan in plans.items() if plan}


def iptables_facts(module: "AnsibleModule", root: str, lacking: Dict[str, str]) -> Dict[str, Optional[str]]:
    """The board's iptables, and as text the changes of the plan and the remaining failures.

    Docker (since 27.0) and K3s with IPv4 alone start without a working ip6tables, so that is no problem.
    """
    program = module.get_bin_path("iptables")
    facts = version_facts(module.run_command([program, "--version"])[1] if program else "")
    facts["not_tried"] = None
    try:
        plans = iptables_plan(module, root, lacking)
    except NotTried as reason:
        plans, facts["not_tried"] = {}, str(reason)
    ipv4 = plans.get("iptables", {})
    facts["changes"] = " | ".join(plan["reason"] for plan in plans.values() if plan["reason"]) or None
    facts.update(problem=ipv4.get("problem"), raw=ipv4.get("raw"))
    return facts
