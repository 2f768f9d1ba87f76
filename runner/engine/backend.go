package engine

import (
	"encoding/json"
	"errors"
	"fmt"
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

// stateKey is where the kubernetes backend keeps the state in its Secret.
const stateKey = "tfstate"

// stateSecret is the name of the Secret in which the kubernetes backend keeps the state.
func (op *operation) stateSecret() string { return stateSecret(op.object) }

func stateSecret(object *infrav1.Terraform) string {
	return "tfstate-" + object.GetWorkspace() + "-" + object.GetSecretSuffix()
}

// secretPlace begins the name of a place that is a Secret; see statePlace.
const secretPlace = "Secret "

// placeKeys are the settings of backends that say where a state is, as opposed to
// how to get there (documentation of the backends of OpenTofu 1.12).
var placeKeys = []string{
	"address", "bucket", "container_name", "conn_str", "endpoint", "hostname", "key", "name", "namespace", "organization",
	"path", "prefix", "region", "schema_name", "secret_suffix", "storage_account_name", "tablestore_table", "workspace_dir",
	"workspace_key_prefix",
}

// statePlace names where the state is kept; "" while that is not known. Of other
// backends than kubernetes it takes a digest, since an address may hold a password.
func (op *operation) statePlace() string {
	if op.object.UsesKubernetesBackend() {
		return secretPlace + op.stateSecret()
	}
	if op.workspace == nil {
		return ""
	}
	saved, err := op.workspace.backend()
	if err != nil || saved.Type == "" {
		return ""
	}
	var places [][]byte
	for _, key := range placeKeys {
		text, _ := json.Marshal(saved.Config[key]) // of decoded JSON
		places = append(places, text)
	}
	return fmt.Sprintf("backend %s (%x), workspace %s", saved.Type, op.record.digest(places...)[:8], op.object.GetWorkspace())
}

// checkState refuses to leave a state behind: everything in it would be created
// once more, and nobody would look after the old resources.
func (op *operation) checkState() error {
	if op.stateMoved() {
		old, place := op.record.State, op.statePlace()
		return terminal(infrav1.BackendChangedReason, "the state is in %s, but the spec now says %s; take the change back, or move the state there and set the annotation reconcile.fluxcd.io/forceAt", old, place)
	}
	return nil
}

// stateMoved says whether the spec names another place for the state than the one that holds it.
func (op *operation) stateMoved() bool {
	old, place := op.record.State, op.statePlace()
	return old != "" && place != "" && old != place
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
