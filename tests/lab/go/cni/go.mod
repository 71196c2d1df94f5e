module jetson-k3s/lab/cni

go 1.19

// The last release with the plugin flannel, and a library that knows CNI 1.0.0, which K3s asks for.
require (
	github.com/containernetworking/cni v1.1.2
	github.com/containernetworking/plugins v0.9.1
)

require (
	github.com/alexflint/go-filemutex v0.0.0-20171022225611-72bdc8eae2ae // indirect
	github.com/coreos/go-iptables v0.5.0 // indirect
	github.com/j-keck/arping v0.0.0-20160618110441-2cf9dc699c56 // indirect
	github.com/mattn/go-shellwords v1.0.3 // indirect
	github.com/safchain/ethtool v0.0.0-20190326074333-42ed695e3de8 // indirect
	github.com/vishvananda/netlink v1.1.1-0.20201029203352-d40f9887b852 // indirect
	github.com/vishvananda/netns v0.0.0-20200728191858-db3c7e526aae // indirect
	golang.org/x/sys v0.0.0-20210423082822-04245dca01da // indirect
)
