#!/bin/sh
# bootstrap.sh LIST [BUNDLE]: creates .venv, with wheels of which tools/requirements/LIST.txt has the hashes. The head of the list names
# the Pythons that it is for, and no other one installs it.
# ansible-2.16, ansible-2.19, ansible-2.20 and ansible-2.21 are what the playbooks need (docs/compatibility.md says for which boards).
# `ansible` is the newest of these for which this computer has a Python. `image` is what builds the plugin's image, `lock` what writes
# the lists. `dev` is what the tests and linters need: ansible-2.19, `image`, and the plugin of this checkout.
# bootstrap.sh refresh[-LINE] [BUNDLE]: `ansible` if .venv is missing, for install.sh, jetson-k3s and `make venv`. A .venv that is there
# keeps its list, and is installed again if the list is newer. With LINE, `ansible` and .venv are not newer than ansible-LINE.
# With the offline bundle BUNDLE, the wheels are taken from its directory `controller`, and from PyPI only if that has not all of them.
# On a bare Debian machine it installs python3-venv first (root and apt needed for that only).
set -eu
case ${2-} in
    '' | /*) wheels=${2:+$2/controller} ;;
    *) wheels=$PWD/$2/controller ;;
esac
cd "$(dirname "$0")/.."

# The lists that will do, the best one first.
case $1 in
    ansible | refresh) lists='ansible-2.21 ansible-2.20 ansible-2.19 ansible-2.16' ;;
    refresh-2.19) lists='ansible-2.19 ansible-2.16' ;;
    refresh-2.16) lists=ansible-2.16 ;;
    *) lists=$1 ;;
esac
case $1 in
    refresh*)
        there=$(cat .venv/.ansible 2>/dev/null) || there=''
        case $there in
            ansible) there=ansible-2.19 ;; # its former name
            '') [ ! -e .venv/.dev ] || there=ansible-2.19 ;;
        esac
        case " $lists " in
            *" $there "*)
                lists=$there
                newer=$(find -H .venv/.ansible .venv/.dev -newer "tools/requirements/$there.txt" 2>/dev/null) || :
                [ -z "$newer" ] || [ ! -x .venv/bin/python ] || exit 0
                ;;
        esac
        ;;
esac

candidates='.venv/bin/python python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3'
pythons() { sed -n 's/^# For Python //p' "tools/requirements/$1.txt"; }
version() {
    "$1" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Sets `lock` and `python`: the best list for which there is a Python, and that Python.
choose() {
    for lock in $lists; do
        for python in $candidates; do
            found=$(version "$python") || continue
            case " $(pythons "$lock") " in *" $found "*) return 0 ;; esac
        done
    done
    return 1
}

if ! choose; then
    if ! version python3 >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get -o DPkg::Lock::Timeout=300 update -q
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends python3 python3-venv
    fi
    if ! choose; then
        here=$(for one in $candidates; do version "$one" || :; done | sort -u | tr '\n' ' ')
        {
            echo "error: this computer has ${here:+Python }${here:-no Python 3 }with the module venv. Needed is one of these:"
            for lock in $lists; do echo "  for tools/requirements/$lock.txt: Python $(pythons "$lock")"; done
            echo "Debian and Ubuntu have the module in a package: sudo apt-get install python3-venv"
        } >&2
        exit 1
    fi
fi

# A .venv that is there stays, unless its Python does not run or is another one.
[ "$python" = .venv/bin/python ] || "$python" -m venv --clear .venv
install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}
listed() {
    install --require-hashes --requirement "tools/requirements/$lock.txt" "$@"
}
case $lock in
    ansible-*) echo "Installing Ansible in .venv (tools/requirements/$lock.txt)" ;;
    dev) install --require-hashes --requirement tools/requirements/pip.txt ;;
esac
if [ ! -d "$wheels" ]; then
    listed
elif ! listed --no-index --find-links "$wheels"; then
    echo "$wheels has not all wheels for this computer's Python. Trying PyPI" >&2
    listed
fi
# One ansible-core is installed at a time: that of `dev` is 2.19.
case $lock in
    ansible-2.19) marker=ansible ;;
    ansible-*) marker=ansible; rm -f .venv/.dev ;;
    dev)
        # With the setuptools of the list: pip would otherwise download one.
        install --no-deps --no-build-isolation --no-index --editable .
        marker=dev; rm -f .venv/.ansible
        ;;
    *) marker=$lock ;;
esac
echo "$lock" > ".venv/.$marker"
