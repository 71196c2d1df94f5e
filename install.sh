#!/bin/sh
# Makes one NVIDIA Jetson a K3s node whose pods ask for nvidia.com/gpu, and proves it. The work is done by the playbooks.
set -eu
typed_in=$PWD
cd "$(dirname "$0")"

usage() {
    cat <<'END'
usage: ./install.sh [OPTION...] USER@HOST     from a computer with Python 3.10 to 3.13 and SSH
       sudo ./install.sh [OPTION...] local    on the board itself (JetPack 6 or newer)

Without options the board becomes a K3s server of its own. The same command again goes on where it was cut off.

  --offline BUNDLE    install from this bundle (docs/offline.md); without it the board needs the Internet
  --agent-of SERVER   join the cluster of this board, which `inventory` has: its name there
  --check             only report what would stand in the way
  --dry-run           only show what would be changed
  --uninstall         remove K3s from the board, with its pods and volumes, after a question
  --yes               with --uninstall: do not ask
  --help              this text

The board is written to `inventory`, so that every playbook can be used afterwards (docs/install.md). A board that
`inventory` has is found there by its address. A hostname that belongs to another address is refused.
END
}

die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
step() { printf '\n==> %s\n' "$*"; }

bundle='' server='' action=install target='' yes=''
while [ $# -gt 0 ]; do
    case $1 in
        --offline) [ $# -gt 1 ] || die "--offline needs a bundle's directory"; bundle=$2; shift ;;
        --agent-of) [ $# -gt 1 ] || die "--agent-of needs the name of the server in ./inventory"; server=$2; shift ;;
        --check | --dry-run | --uninstall) action=${1#--} ;;
        --yes) yes=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) die "$1 is no option: see ./install.sh --help" ;;
        *) [ -z "$target" ] || die "one board at a time: $target or $1"; target=$1 ;;
    esac
    shift
done
[ -n "$target" ] || { usage >&2; exit 2; }
[ -z "$yes" ] || [ "$action" = uninstall ] || die "--yes belongs to --uninstall: nothing else asks"
case $target in
    local) [ "$(id -u)" = 0 ] || die "on the board itself it has to be root: sudo ./install.sh local" ;;
    ?*@?*) ;;
    *) die "$target has no user: write USER@HOST, such as jetson@192.168.1.11" ;;
esac
trap 'trap - INT; printf "\ninstall.sh: interrupted; the same command goes on from here\n" >&2; exit 130' INT

on_board='' # what to type before a command for the board
[ "$target" = local ] || on_board="ssh $target "
remote() { if [ "$target" = local ]; then sh -c "$1"; else ssh -o BatchMode=yes "$target" "$1" < /dev/null; fi }

if [ "$target" != local ] && ! remote true 2>/dev/null; then
    step "SSH to $target asks for a password: a key for it"
    [ -t 0 ] || die "$target does not answer by SSH, or wants a password. Try: ssh $target"
    [ -n "$(find ~/.ssh -name 'id_*.pub' 2>/dev/null)" ] || ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
    { ssh-copy-id "$target" && remote true; } || die "$target does not answer by SSH, or refuses the password. Try: ssh $target"
fi

release=$(remote 'cat /etc/nv_tegra_release' 2>/dev/null) || die "$target is no Jetson with NVIDIA's L4T: it has no /etc/nv_tegra_release"
l4t=$(printf '%s\n' "$release" | sed -n 's/^# R\([0-9]*\).*/\1/p' | head -n 1)
[ -n "$l4t" ] || die "$target: /etc/nv_tegra_release does not begin with '# R' and a number"
[ "$l4t" -ge 32 ] || die "$target has L4T R$l4t. JetPack 4.4 (R32.4) and newer can be used: flash the board"
[ "$target" != local ] || [ "$l4t" -ge 36 ] ||
    die "JetPack $((l4t < 35 ? 4 : 5)) has too old a Python for Ansible: run ./install.sh USER@BOARD on another computer"
hostname=$(remote hostname | tr '[:upper:]' '[:lower:]')
# It goes into files here, and a board may say anything.
case $hostname in
    '' | *[!a-z0-9.-]* | [!a-z0-9]*) die "$target has no usable hostname. On the board: sudo hostnamectl set-hostname jetson-1" ;;
esac
ask=''
[ "$target" = local ] || remote 'sudo -n true' 2>/dev/null || ask=--ask-become-pass
[ -z "$ask" ] || [ -t 0 ] || die "sudo on $target asks for a password, and there is no terminal to type it"

if [ -n "$bundle" ]; then
    case $bundle in /*) ;; *) bundle=$typed_in/$bundle ;; esac
    [ -e "$bundle/SHA256SUMS" ] || die "$bundle is no bundle: it has no SHA256SUMS (docs/offline.md)"
    bundle=$(cd "$bundle" && pwd)
fi

step "Ansible in .venv"
if [ "$l4t" -lt 35 ]; then # JetPack 4's Python 3.6
    sh tools/bootstrap.sh ansible-2.16 ||
        die "JetPack 4 needs ansible-core 2.16, which runs with Python 3.10 to 3.12: install one of them, and remove .venv"
else
    sh tools/bootstrap.sh refresh
fi

removal=''
[ "$action" != uninstall ] || removal=--uninstall
# It says what is wrong with a board that it refuses.
name=$(.venv/bin/python -m tools.install_board --target "$target" --hostname "$hostname" --l4t "$l4t" \
    ${server:+--agent-of "$server"} ${bundle:+--bundle "$bundle"} ${removal:+"$removal"} ${yes:+--yes}) || exit 1
# Some tasks for the board are on a server of its cluster.
if [ -z "$ask" ] && .venv/bin/ansible -i inventory server -b -m raw -a true 2>&1 | grep -q 'Missing sudo password'; then
    ask=--ask-become-pass
    [ -t 0 ] || die "sudo on a server of $name's cluster asks for a password, and there is no terminal to type it"
fi
play() {
    .venv/bin/ansible-playbook -i inventory ${ask:+"$ask"} ${bundle:+-e "{\"jetson_k3s_bundle\": \"$bundle\"}"} \
        --limit "$name" "$@"
}

if [ "$action" = uninstall ]; then
    step "K3s leaves $name"
    play playbooks/reset.yml -e "k3s_reset_cluster=$name" # confirmed above
    exit
fi
case $action in
    check) play playbooks/preflight.yml; exit ;;
    dry-run) play playbooks/site.yml --check --diff; exit ;;
esac
step "$name becomes a node"
play playbooks/site.yml || die "$name is not ready. Each message above names its fix; then run the same command again"
printf '\n%s\n%s\n%s\n' "Node:  $name (${on_board}sudo k3s kubectl get nodes)" \
    "Proof: reports/$name.json and reports/index.html: a pod got the GPU and computed on it, and the next one waited for it" \
    "Next:  ${on_board}sudo k3s kubectl apply --filename - < docs/examples/gpu-job.yaml"
