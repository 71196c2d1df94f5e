module jetson-k3s/lab/cni

go 1.19

// The last release with the plugin flannel, under a name of its own.
replace jetson-k3s/lab/flannel => github.com/containernetworking/plugins v0.9.1

require (
	github.com/containernetworking/plugins v1.1.1
	jetson-k3s/lab/flannel v0.9.1
)

require (
	github.com/Microsoft/go-winio v0.4.17 // indirect
	github.com/Microsoft/hcsshim v0.8.20 // indirect
	github.com/alexflint/go-filemutex v1.1.0 // indirect
	github.com/buger/jsonparser v1.1.1 // indirect
	github.com/containerd/cgroups v1.0.1 // indirect
	github.com/containernetworking/cni v1.0.1 // indirect
	github.com/coreos/go-iptables v0.6.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/groupcache v0.0.0-20200121045136-8c9f03a8e57e // indirect
	github.com/mattn/go-shellwords v1.0.12 // indirect
	github.com/networkplumbing/go-nft v0.2.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/safchain/ethtool v0.0.0-20210803160452-9aa261dae9b1 // indirect
	github.com/sirupsen/logrus v1.8.1 // indirect
	github.com/vishvananda/netlink v1.1.1-0.20210330154013-f5de75959ad5 // indirect
	github.com/vishvananda/netns v0.0.0-20210104183010-2eb08e3e575f // indirect
	go.opencensus.io v0.22.3 // indirect
	golang.org/x/sys v0.0.0-20210809222454-d867a43fc93e // indirect
)
