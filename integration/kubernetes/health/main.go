// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command health is a container's program that answers gRPC's health checks: that it serves, unless the file of its
// second argument exists. The first one is the address.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

type server struct {
	grpc_health_v1.UnimplementedHealthServer
	file string
}

func (s server) Check(
	context.Context, *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if _, err := os.Stat(s.file); err == nil {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

func main() {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", os.Args[1])
	if err == nil {
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, server{file: os.Args[2]})
		err = s.Serve(listener)
	}
	fmt.Fprintln(os.Stderr, "health:", err)
	os.Exit(1)
}
