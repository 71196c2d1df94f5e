module jetson-k3s/lab/k3s-1.25.4

go 1.26.0

replace inet.af/tcpproxy => github.com/inetaf/tcpproxy v0.0.0-20200125044825-b6bb9b5b8252

require github.com/k3s-io/k3s v1.25.5-0.20221115215439-0dc63334c0db
