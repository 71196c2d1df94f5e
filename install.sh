#!/bin/sh
# Makes one NVIDIA Jetson a K3s node whose pods ask for nvidia.com/gpu, and proves it. This part reaches the board by
# SSH and makes .venv. The rest is tools/install.py, and the work is done by the playbooks.
set -eu
typed_in=$PWD
cd "$(dirname "$0")"

usage() {
    cat <<'END'
usage: ./install.sh [OPTION...] USER@HOST     from a computer with Python 3.10 to 3.14 and SSH
       sudo ./install.sh [OPTION...] local    on the board itself (JetPack 6 or newer)

Without options the board becomes a K3s server of its own. The same command again goes on where it was cut off.
On a terminal, the command says what will change and how to undo it, and asks. Without a terminal it says so and goes on.

  --offline BUNDLE    install from this bundle (docs/offline.md); without it the board needs the Internet
  --agent-of SERVER   join the cluster of this board, which `inventory` has: its name there
  --build-on-board    build the plugin's image on the board (JetPack 6 or newer), if this computer has neither Docker
                      nor Podman. That board then decides what runs on all boards that get this image
  --name NAME         give a new board this hostname; boards as flashed are all named alike
  --check             only report what would stand in the way
  --dry-run           only show what would be changed
  --uninstall         remove K3s from the board, with its pods and volumes, after a question
  --yes               answer every question with yes, also that of --uninstall
  --become-password-file FILE
                      sudo's password, for runs without a terminal; on a terminal it is asked for
  --help              this text

The board is written to `inventory`, so that every playbook can be used afterwards (docs/install.md). A board that
`inventory` has is found there by its address, or by its SSH host key if its address is new. The hostname of a board
that has another address is refused: add --name.

At the end there is a kubeconfig of your own, jetson-k3s.kubeconfig, and the next commands are printed.
END
}

die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
step() { printf '\n==> %s\n' "$*"; }

bundle='' server='' on_board='' name='' password_file='' action=install target='' yes=''
while [ $# -gt 0 ]; do
    case $1 in
        --offline) [ $# -gt 1 ] || die "--offline needs a bundle's directory"; bundle=$2; shift ;;
        --agent-of) [ $# -gt 1 ] || die "--agent-of needs the name of the server in ./inventory"; server=$2; shift ;;
        --name) [ $# -gt 1 ] || die "--name needs a hostname"; name=$2; shift ;;
        --become-password-file) [ $# -gt 1 ] || die "$1 needs a file"; password_file=$2; shift ;;
        --build-on-board) on_board=1 ;;
        --check | --dry-run | --uninstall) action=${1#--} ;;
        --yes) yes=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) die "$1 is no option: see ./install.sh --help" ;;
        *) [ -z "$target" ] || die "one board at a time: $target or $1"; target=$1 ;;
    esac
    shift
done
[ -n "$target" ] || { usage >&2; exit 2; }
case $target in
    # It goes into the inventory.
    *[!A-Za-z0-9@._:%-]* | *@*@*) die "$target is no USER@HOST: letters, digits and . : - _ only" ;;
    local) [ "$(id -u)" = 0 ] || die "on the board itself it has to be root: sudo ./install.sh local" ;;
    ?*@?*) command -v ssh >/dev/null || die "this computer has no ssh. Install its package: openssh-client" ;;
    *) die "$target has no user: write USER@HOST, such as jetson@192.168.1.11" ;;
esac
trap 'trap - INT; printf "\ninstall.sh: interrupted; the same command goes on from here\n" >&2; exit 130' INT

# ConnectTimeout ends a host that accepts the connection and stays silent, and ServerAlive one that stops later.
limits='-o ConnectTimeout=10 -o ServerAliveInterval=5'
# shellcheck disable=SC2086 # several words
remote() { if [ "$target" = local ]; then sh -c "$1"; else ssh -o BatchMode=yes $limits "$target" "$1" < /dev/null; fi; }

confirm() {
    [ -z "$yes" ] || return 0
    printf '%s [Y/n] ' "$1" >&2
    read -r answer || answer=no
    case $answer in '' | [Yy] | [Yy][Ee][Ss]) ;; *) die "Nothing was done" ;; esac
}

# Stops with SSH's reason, and what to do about it. A board may say anything, so control characters go.
unreachable() {
    printf 'install.sh: %s: %s\n' "$target" "$1" >&2
    printf '%s\n' "$said" | tr -d '\000-\010\013-\037\177' | sed -n '/[^ ]/s/^\(ssh: \)*/  ssh: /p' | tail -n 2 >&2
    exit 1
}

copy_key() {
    step "$target asks for a password. Ansible needs an SSH key instead"
    if [ -z "$(find ~/.ssh -name 'id_*.pub' 2>/dev/null)" ]; then
        confirm "You have no SSH key. Make ~/.ssh/id_ed25519 without a passphrase, and copy its public part to the board?"
        ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
    else
        confirm "Copy your public SSH key to the board?"
    fi
    # shellcheck disable=SC2086 # several words
    ssh-copy-id $limits "$target" || die "$target: the board refuses the password, or has no account ${target%%@*}. Try: ssh $target"
}

# Answers SSH's questions on a terminal, each of them once.
reach() {
    said=$(remote true 2>&1) && return
    case $said in
        *"HOST IDENTIFICATION HAS CHANGED"*)
            unreachable "the host key has changed: another board has this address, or the board was flashed again. If you know why, remove the old key: ssh-keygen -R ${target#*@}" ;;
        *"Host key verification failed"*)
            [ -t 0 ] && [ "$1" = first ] || unreachable "this computer does not know the board's host key yet. Run once, on a terminal, and answer its question: ssh $target"
            # The question alone. It is on the terminal, not on stderr.
            # shellcheck disable=SC2086 # several words
            ssh $limits -o PreferredAuthentications=none "$target" true 2>/dev/null || :
            reach known ;;
        *"Permission denied ("*password* | *"Permission denied ("*keyboard-interactive*)
            [ -t 0 ] && [ "$1" != copied ] || unreachable "the board asks for a password, or has no account ${target%%@*}. If the account is right, copy your key: ssh-copy-id $target. If your key has a passphrase: ssh-add"
            copy_key
            reach copied ;;
        *"Permission denied"* | *"Too many authentication failures"*)
            unreachable "the board accepts none of your SSH keys for the account ${target%%@*}, and no password. If the account is right, add your public key to ~/.ssh/authorized_keys there. If your key has a passphrase: ssh-add" ;;
        *"Could not resolve"*) unreachable "no host has this name. Check it, or write the board's IP address" ;;
        *"Connection refused"*)
            unreachable "the host is there, but no SSH server answers. On the board: sudo systemctl enable --now ssh" ;;
        *"timed out"* | *"not responding"* | *"No route to host"* | *"is unreachable"* | *"Host is down"*)
            unreachable "no answer in time. Check the address, that the board is on, and its network" ;;
        *) unreachable "SSH fails. Try: ssh $target" ;;
    esac
}
[ "$target" = local ] || reach first

release=$(remote 'cat /etc/nv_tegra_release' 2>/dev/null) || {
    [ "$target" = local ] || reach copied # if it was SSH that failed
    die "$target is no Jetson with NVIDIA's L4T: it has no /etc/nv_tegra_release"
}
release=$(printf '%s\n' "$release" | grep '^# R[0-9]' | head -n 1) || :
l4t=$(printf '%s\n' "$release" | sed -n 's/^# R\([0-9]*\).*/\1/p')
[ -n "$l4t" ] || die "$target: /etc/nv_tegra_release does not begin with '# R' and a number"
[ "$l4t" -ge 32 ] || die "$target has L4T R$l4t. JetPack 4.4 (R32.4) and newer can be used: flash the board"
[ "$target" != local ] || [ "$l4t" -ge 36 ] ||
    die "JetPack $((l4t < 35 ? 4 : 5)) has too old a Python for Ansible: run ./install.sh USER@BOARD on another computer"

case $bundle in '' | /*) ;; *) bundle=$typed_in/$bundle ;; esac
step "Ansible in .venv"
newest='' # ansible-core that reaches the board's Python, and with it that of each newer board (docs/compatibility.md)
[ "$l4t" -ge 36 ] || newest=-2.19 # JetPack 5: 3.8
[ "$l4t" -ge 35 ] || newest=-2.16 # JetPack 4: 3.6
sh tools/bootstrap.sh "refresh$newest" "$bundle" ||
    die "$target needs Ansible on this computer. JetPack 4 needs ansible-core 2.16, and JetPack 5 needs 2.19 or 2.16"
.venv/bin/python -m tools.install --target "$target" --release "$release" --typed-in "$typed_in" --action "$action" \
    ${server:+--agent-of "$server"} ${bundle:+--bundle "$bundle"} ${name:+--name "$name"} ${yes:+--yes} \
    ${on_board:+--build-on-board} ${password_file:+--become-password-file "$password_file"}
