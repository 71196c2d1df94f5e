# SPDX-License-Identifier: Apache-2.0
# Prints what a run must leave as it is when it has nothing to do: settings and programs, when the services were
# started, Docker's runtime, images and running containers of Docker and of K3s' containerd. Runs on a board as root.
places="/etc /opt /usr/local /var/lib/jetson-k3s /run/jetson-k3s"
find $places -xdev -printf '%p %y %m %u:%g %s %T@ %l\n' 2>/dev/null | sort
for unit in docker containerd k3s k3s-agent; do
  systemctl show --property=LoadState,UnitFileState,ExecMainStartTimestampMonotonic "$unit" | sed "s/^/$unit /"
done
if systemctl --quiet is-active docker; then
  docker info --format 'default runtime {{.DefaultRuntime}}'
  docker image ls --all --no-trunc --format 'image {{.ID}} {{.Repository}}:{{.Tag}}' | sort
  docker ps --no-trunc --format 'container {{.ID}} {{.Names}}' | sort
fi
if [ -S /run/k3s/containerd/containerd.sock ]; then
  k3s ctr image ls --quiet | sed 's/^/image /' | sort
  k3s ctr task ls | sed -n 's,^\(.*[^ ]\) *RUNNING$,task \1,p' | sort
fi
