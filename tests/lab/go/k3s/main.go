// SPDX-License-Identifier: Apache-2.0

// K3s as one static program. A release wraps the same packages in an archive that unpacks itself, with containerd,
// runc, the CNI plugins and host tools beside them: a virtual board has those from Debian.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/docker/docker/pkg/reexec"
	"github.com/k3s-io/k3s/pkg/cli/agent"
	"github.com/k3s-io/k3s/pkg/cli/cert"
	"github.com/k3s-io/k3s/pkg/cli/cmds"
	"github.com/k3s-io/k3s/pkg/cli/etcdsnapshot"
	"github.com/k3s-io/k3s/pkg/cli/secretsencrypt"
	"github.com/k3s-io/k3s/pkg/cli/server"
	"github.com/k3s-io/k3s/pkg/configfilearg"
	"github.com/k3s-io/k3s/pkg/ctr"
	"github.com/k3s-io/k3s/pkg/kubectl"
	"github.com/kubernetes-sigs/cri-tools/cmd/crictl"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli"
)

// clients are programs of their own: they parse their arguments themselves.
var clients = map[string]func(){"crictl": crictl.Main, "ctr": ctr.Main, "kubectl": kubectl.Main}

func main() {
	if reexec.Init() {
		return
	}
	name := filepath.Base(os.Args[0])
	if _, linked := clients[name]; !linked && len(os.Args) > 1 {
		name = os.Args[1]
		if _, named := clients[name]; named {
			os.Args = os.Args[1:]
		}
	}
	if client, known := clients[name]; known {
		client()
		return
	}
	app := cmds.NewApp()
	app.Commands = []cli.Command{
		cmds.NewServerCommand(server.Run),
		cmds.NewAgentCommand(agent.Run),
		cmds.NewEtcdSnapshotCommand(etcdsnapshot.Save, cmds.NewEtcdSnapshotSubcommands(
			etcdsnapshot.Delete, etcdsnapshot.List, etcdsnapshot.Prune, etcdsnapshot.Save)),
		cmds.NewSecretsEncryptCommand(cli.ShowAppHelp, cmds.NewSecretsEncryptSubcommands(
			secretsencrypt.Status, secretsencrypt.Enable, secretsencrypt.Disable,
			secretsencrypt.Prepare, secretsencrypt.Rotate, secretsencrypt.Reencrypt)),
		cmds.NewCertCommand(cmds.NewCertSubcommands(cert.Run)),
	}
	if err := app.Run(configfilearg.MustParse(os.Args)); err != nil && !errors.Is(err, context.Canceled) {
		logrus.Fatal(err)
	}
}
