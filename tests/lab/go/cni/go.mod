module jetson-k3s/lab/cni

go 1.19

// The last release with the plugin flannel, under a name of its own.
replace jetson-k3s/lab/flannel => github.com/containernetworking/plugins v0.9.1

require (
	github.com/containernetworking/plugins v1.2.0
	jetson-k3s/lab/flannel v0.9.1
)

require (
	github.com/alexflint/go-filemutex v1.2.0 // indirect
	github.com/containernetworking/cni v1.1.2 // indirect
	github.com/coreos/go-iptables v0.6.0 // indirect
	github.com/mattn/go-shellwords v1.0.12 // indirect
	github.com/networkplumbing/go-nft v0.2.0 // indirect
	github.com/safchain/ethtool v0.2.0 // indirect
	github.com/vishvananda/netlink v1.2.1-beta.2 // indirect
	github.com/vishvananda/netns v0.0.0-20210104183010-2eb08e3e575f // indirect
	golang.org/x/sys v0.4.0 // indirect
)
