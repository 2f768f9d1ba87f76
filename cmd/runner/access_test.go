package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "SERVER"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`

func writeKubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(kubeconfig, "SERVER", server)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheAccessIsThePodsOwn(t *testing.T) {
	t.Parallel()
	path := writeKubeconfig(t, "https://api.example:6443")
	for name, test := range map[string]struct {
		own                string // the pod's account, if it knows
		namespace, account string
		kubeconfig         string
		want               string // in the error
	}{
		"for its namespace":            {namespace: "apps", account: "terrace-runner", kubeconfig: path},
		"for its account":              {own: "terrace-runner", namespace: "apps", account: "terrace-runner", kubeconfig: path},
		"not for another namespace":    {namespace: "kube-system", account: "terrace-runner", kubeconfig: path, want: "not for kube-system"},
		"not for another account":      {own: "terrace-runner", namespace: "apps", account: "admin", kubeconfig: path, want: "not as admin"},
		"not with a file that is gone": {namespace: "apps", account: "terrace-runner", kubeconfig: "/nowhere", want: envKubeconfig},
		"not without any":              {namespace: "apps", account: "terrace-runner", want: "is its token mounted?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := &options{namespace: "apps", serviceAccount: test.own, kubeconfig: test.kubeconfig}
			config, err := opts.ownAccess(t.Context(), test.namespace, test.account)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want an error about %q", err, test.want)
				}
				return
			}
			if err != nil || config.Host != "https://api.example:6443" || config.Impersonate.UserName != "" {
				t.Errorf("got %v, %v", config, err)
			}
		})
	}
}
