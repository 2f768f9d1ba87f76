package engine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// writeBackend writes the file that overrides the module's backend.
func (op *operation) writeBackend(w *workspace) error {
	backend := op.object.Spec.Backend
	switch {
	case op.object.UsesKubernetesBackend():
		settings := map[string]any{"namespace": op.object.Namespace, "secret_suffix": op.object.GetSecretSuffix()}
		if backend != nil && backend.Kubernetes != nil && len(backend.Kubernetes.Labels) > 0 {
			settings["labels"] = backend.Kubernetes.Labels
		}
		text, err := json.Marshal(map[string]any{"terraform": map[string]any{"backend": map[string]any{"kubernetes": settings}}})
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(w.module, "terrace_override.tf.json"), text)
	case backend != nil && backend.Custom != "":
		return writeFile(filepath.Join(w.module, "terrace_override.tf"), []byte("terraform {\n"+backend.Custom+"\n}\n"))
	}
	return nil
}

// stateSecret is the name of the Secret in which the kubernetes backend keeps the state.
func (op *operation) stateSecret() string {
	return "tfstate-" + op.object.GetWorkspace() + "-" + op.object.GetSecretSuffix()
}

// statePlace names where the state is kept. Credentials are not part of it, and
// what a module's own backend block says is the module's business.
func (op *operation) statePlace() string {
	place := "workspace " + op.object.GetWorkspace()
	switch backend := op.object.Spec.Backend; {
	case op.object.UsesKubernetesBackend():
		return "Secret " + op.stateSecret()
	case backend != nil && backend.Custom != "":
		return "spec.backend.custom " + hex.EncodeToString(op.record.digest([]byte(backend.Custom))[:8]) + ", " + place
	default:
		return "the module's own backend, " + place
	}
}

// checkState refuses to leave a state behind: everything in it would be created
// once more, and nobody would look after the old resources.
func (op *operation) checkState() error {
	place := op.statePlace()
	if old := op.record.State; old != "" && old != place && !op.request.GetPlan().GetForce() {
		return terminal(infrav1.BackendChangedReason, "the state is in %s, but the spec now says %s; take the change back, or move the state there and set the annotation reconcile.fluxcd.io/forceAt", old, place)
	}
	return nil
}

// settle remembers what belongs to the state, once the tool worked on it.
func (op *operation) settle(basis []byte) {
	op.record.Planned, op.record.Settled = basis, basis
	op.record.Tool, op.record.State = op.tool.name, op.statePlace()
}

// writeKubeconfig gives the tool the API access of the runner. The kubernetes
// backend takes its credentials from a file that the environment names, so that
// nothing of them gets into the workspace or a plan.
func (op *operation) writeKubeconfig() error {
	text, err := kubeconfig(op.config, op.object.Namespace)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(op.dir, "kubeconfig"), text)
}

func kubeconfig(config *rest.Config, namespace string) ([]byte, error) {
	if config.ExecProvider != nil || config.AuthProvider != nil {
		return nil, errors.New("API access through a credential plugin cannot be handed to the tool")
	}
	const name = "runner"
	user := clientcmdapi.NewAuthInfo()
	user.ClientCertificate, user.ClientCertificateData = config.CertFile, config.CertData
	user.ClientKey, user.ClientKeyData = config.KeyFile, config.KeyData
	user.Token, user.TokenFile = config.BearerToken, config.BearerTokenFile
	if user.TokenFile != "" {
		user.Token = "" // it would not be renewed
	}
	user.Username, user.Password = config.Username, config.Password
	user.Impersonate, user.ImpersonateGroups = config.Impersonate.UserName, config.Impersonate.Groups
	cluster := clientcmdapi.NewCluster()
	cluster.Server = config.Host
	cluster.InsecureSkipTLSVerify, cluster.TLSServerName = config.Insecure, config.ServerName
	cluster.CertificateAuthority, cluster.CertificateAuthorityData = config.CAFile, config.CAData
	context := clientcmdapi.NewContext()
	context.Cluster, context.AuthInfo, context.Namespace = name, name, namespace
	file := clientcmdapi.NewConfig()
	file.Clusters[name], file.AuthInfos[name], file.Contexts[name], file.CurrentContext = cluster, user, context, name
	return clientcmd.Write(*file)
}
