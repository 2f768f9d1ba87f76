//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// component is a program of the node. Its name is that of its log too.
type component struct {
	name    string
	program string
	args    []string
	// ready fails until the component serves.
	ready func(context.Context) error
}

// Programs that are taken from bin/. Those of Debian are in the node's root.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

// programDir is where the node finds them.
const programDir = nodeDir + "/programs/"

// foundation are the components that others cannot start without.
func (s *site) foundation() []component {
	return []component{
		{
			name:    "etcd",
			program: programDir + "etcd",
			args: []string{
				"--data-dir=" + nodeDir + "/etcd",
				"--listen-client-urls=http://127.0.0.1:2379",
				"--advertise-client-urls=http://127.0.0.1:2379",
				"--listen-peer-urls=http://127.0.0.1:2380",
				"--unsafe-no-fsync",
			},
			ready: serves("http://127.0.0.1:2379/health"),
		},
		{
			name:    "containerd",
			program: "/usr/bin/containerd",
			args:    []string{"--config=" + nodeDir + "/config/containerd.toml"},
			ready:   listens(containerdSocket),
		},
		{
			name:    "kube-apiserver",
			program: programDir + "kube-apiserver",
			args: []string{
				"--etcd-servers=http://127.0.0.1:2379",
				"--bind-address=0.0.0.0",
				"--secure-port=6443",
				"--advertise-address=" + s.NodeIP.String(),
				"--service-cluster-ip-range=" + s.Services.String(),
				"--authorization-mode=Node,RBAC",
				"--enable-admission-plugins=NodeRestriction",
				"--allow-privileged",
				"--audit-policy-file=" + nodeDir + "/config/audit.yaml",
				"--audit-log-path=" + nodeDir + "/log/audit.log",
				"--client-ca-file=" + pkiFile("ca.crt"),
				"--tls-cert-file=" + pkiFile("kube-apiserver.crt"),
				"--tls-private-key-file=" + pkiFile("kube-apiserver.key"),
				"--kubelet-client-certificate=" + pkiFile("kubelet-client.crt"),
				"--kubelet-client-key=" + pkiFile("kubelet-client.key"),
				"--kubelet-certificate-authority=" + pkiFile("ca.crt"),
				"--kubelet-preferred-address-types=InternalIP",
				"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
				"--service-account-key-file=" + pkiFile("service-accounts.key"),
				"--service-account-signing-key-file=" + pkiFile("service-accounts.key"),
			},
			ready: serves("https://127.0.0.1:6443/readyz"),
		},
	}
}

// others are the components that need the foundation.
func (s *site) others() []component {
	return []component{
		controller("kube-controller-manager", "https://127.0.0.1:10257/healthz",
			"--service-account-private-key-file="+pkiFile("service-accounts.key"),
			"--root-ca-file="+pkiFile("ca.crt"),
			"--cluster-signing-cert-file="+pkiFile("ca.crt"),
			"--cluster-signing-key-file="+pkiFile("ca.key"),
			"--use-service-account-credentials",
			"--allocate-node-cidrs=false",
		),
		controller("kube-scheduler", "https://127.0.0.1:10259/healthz"),
		{
			name:    "kubelet",
			program: programDir + "kubelet",
			args: []string{
				"--config=" + nodeDir + "/config/kubelet.yaml",
				"--kubeconfig=" + pkiFile("kubelet.kubeconfig"),
				"--node-ip=" + s.NodeIP.String(),
				"--hostname-override=" + s.Name,
			},
			ready: serves("http://127.0.0.1:10248/healthz"),
		},
		{
			name:    "kube-proxy",
			program: programDir + "kube-proxy",
			args:    []string{"--config=" + nodeDir + "/config/kube-proxy.yaml"},
			ready:   serves("http://" + s.NodeIP.String() + ":10256/livez"),
		},
	}
}

// controller is a component that only calls the API server.
func controller(name, health string, args ...string) component {
	kubeconfig := pkiFile(name + ".kubeconfig")
	return component{
		name:    name,
		program: programDir + name,
		args: append([]string{
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
		}, args...),
		ready: serves(health),
	}
}

func pkiFile(name string) string { return nodeDir + "/pki/" + name }

// serves returns a check that an address answers with success.
func serves(url string) func(context.Context) error {
	client := &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // some make up a certificate, and nothing is told to them
		},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, response.Status)
		}
		return nil
	}
}

// listens returns a check that somebody takes connections at a socket.
func listens(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return connection.Close()
	}
}
