module jetson-k3s/lab/k3s-1.28.2

go 1.26.0

replace inet.af/tcpproxy => github.com/inetaf/tcpproxy v0.0.0-20200125044825-b6bb9b5b8252

require github.com/k3s-io/k3s v1.28.3-0.20230919131847-6330a5b49cfe
