// SPDX-License-Identifier: Apache-2.0

// One executable that is five Kubernetes programs, chosen by the name it is called by (K3s is built the same way): most of
// their code is the same, so one file is a quarter of the size of five and is compiled and linked once. Put into the
// source tree as cmd/hyperkube/main.go, the name this had in Kubernetes up to 1.18.
package main

import (
	goflag "flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 kubelet.NewKubeletCommand,
		"kubectl":                 kubectl.NewDefaultKubectlCommand,
	}
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "hyperkube: called as %q; call it by a link named after one of its programs\n", name)
		os.Exit(2)
	}
	rand.Seed(time.Now().UnixNano())
	command := program()
	pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	if name == "kubectl" {
		pflag.CommandLine.AddGoFlagSet(goflag.CommandLine)
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := command.Execute(); err != nil {
		logs.FlushLogs()
		os.Exit(1)
	}
}
