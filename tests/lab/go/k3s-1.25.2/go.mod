module jetson-k3s/lab/k3s-1.25.2

go 1.26.0

replace inet.af/tcpproxy => github.com/inetaf/tcpproxy v0.0.0-20200125044825-b6bb9b5b8252

require github.com/k3s-io/k3s v1.25.3-0.20221007175439-934d01361402
