package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiConfig is the pod's own API access: KUBECONFIG if it is set, else that of its ServiceAccount.
func (o *options) apiConfig() (*rest.Config, error) {
	if o.kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("API access by %s: %w", envKubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("API access of the pod's ServiceAccount (is its token mounted?): %w", err)
	}
	return config, nil
}

// ownAccess hands out the pod's API access for its own namespace and
// ServiceAccount; nobody gets it to act for another one.
func (o *options) ownAccess(_ context.Context, namespace, serviceAccount string) (*rest.Config, error) {
	if namespace != o.namespace {
		return nil, fmt.Errorf("this runner works for namespace %s, not for %s", o.namespace, namespace)
	}
	if o.serviceAccount != "" && serviceAccount != o.serviceAccount {
		return nil, fmt.Errorf("this runner acts as ServiceAccount %s, not as %s", o.serviceAccount, serviceAccount)
	}
	return o.apiConfig()
}

// makeHome makes the home directory: git, ssh and the tools want one, and a volume is empty at first.
func (o *options) makeHome() error {
	if o.home == "" {
		return nil
	}
	return os.MkdirAll(o.home, 0o700)
}
