module jetson-k3s/lab/cni-flannel

go 1.26.0

// The last release of the plugins with flannel's own, and a library that knows CNI 1.0.0, which K3s asks for.
tool github.com/containernetworking/plugins/plugins/meta/flannel

require (
	github.com/containernetworking/cni v1.1.2 // indirect
	github.com/containernetworking/plugins v0.9.1 // indirect
)
