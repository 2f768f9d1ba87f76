package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// rootCA is the ConfigMap that a controller manager has in every namespace.
const rootCA = "kube-root-ca.crt"

func unlessOptional(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (p *pod) volumeDir(name string) string {
	for _, v := range p.latest.Load().Spec.Volumes {
		if v.Name == name && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	return filepath.Join(p.dir, name)
}

// mount fills the volumes that are not there yet. Once there, they stay as they
// are until the pod ends.
func (p *pod) mount() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	for i := range p.object.Spec.Volumes {
		v := &p.object.Spec.Volumes[i]
		if p.ready[v.Name] {
			continue
		}
		files, err := p.files(v)
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if v.HostPath == nil {
			if err := writeFiles(p.volumeDir(v.Name), files); err != nil {
				return err
			}
		}
		p.ready[v.Name] = true
	}
	return nil
}

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// files is what a volume is to hold.
func (p *pod) files(v *corev1.Volume) (map[string][]byte, error) {
	switch {
	case v.EmptyDir != nil, v.HostPath != nil:
		return nil, nil
	case v.Secret != nil:
		data, err := p.secret(v.Secret.SecretName, v.Secret.Optional)
		return selectKeys(data, v.Secret.Items, v.Secret.Optional, err)
	case v.ConfigMap != nil:
		data, err := p.configMap(v.ConfigMap.Name, v.ConfigMap.Optional)
		return selectKeys(data, v.ConfigMap.Items, v.ConfigMap.Optional, err)
	case v.DownwardAPI != nil:
		return p.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		all := map[string][]byte{}
		for i := range v.Projected.Sources {
			files, err := p.projected(v, &v.Projected.Sources[i])
			if err != nil {
				return nil, err
			}
			maps.Copy(all, files)
		}
		return all, nil
	}
	return nil, errors.New("the test kubelet does not know volumes of this kind")
}

func (p *pod) projected(v *corev1.Volume, source *corev1.VolumeProjection) (map[string][]byte, error) {
	switch {
	case source.ServiceAccountToken != nil:
		return p.token(v, source.ServiceAccountToken)
	case source.Secret != nil:
		data, err := p.secret(source.Secret.Name, source.Secret.Optional)
		return selectKeys(data, source.Secret.Items, source.Secret.Optional, err)
	case source.ConfigMap != nil:
		data, err := p.configMap(source.ConfigMap.Name, source.ConfigMap.Optional)
		return selectKeys(data, source.ConfigMap.Items, source.ConfigMap.Optional, err)
	case source.DownwardAPI != nil:
		return p.downward(source.DownwardAPI.Items)
	}
	return nil, errors.New("the test kubelet does not know projections of this kind")
}

// selectKeys chooses keys and their paths; without items it is all of them.
func selectKeys(data map[string][]byte, items []corev1.KeyToPath, optional *bool, err error) (map[string][]byte, error) {
	if err != nil || len(items) == 0 {
		return data, err
	}
	files := map[string][]byte{}
	for _, item := range items {
		content, found := data[item.Key]
		if !found && (optional == nil || !*optional) {
			return nil, fmt.Errorf("there is no key %q", item.Key)
		}
		if found {
			files[item.Path] = content
		}
	}
	return files, nil
}

func (p *pod) downward(items []corev1.DownwardAPIVolumeFile) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, item := range items {
		if item.FieldRef == nil {
			return nil, errors.New("the test kubelet knows fields only in downwardAPI volumes")
		}
		value, err := p.field(item.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		files[item.Path] = []byte(value)
	}
	return files, nil
}

// token requests a token of the pod's account, bound to the pod. One for the API
// server gets a kubeconfig beside it.
func (p *pod) token(v *corev1.Volume, source *corev1.ServiceAccountTokenProjection) (map[string][]byte, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.name, UID: p.uid},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	account := cmp.Or(p.object.Spec.ServiceAccountName, "default")
	response, err := p.k.client.CoreV1().ServiceAccounts(p.namespace).CreateToken(p.ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if source.Audience == "" {
		if err := p.writeKubeconfig(filepath.Join(p.volumeDir(v.Name), source.Path)); err != nil {
			return nil, err
		}
	}
	return map[string][]byte{source.Path: []byte(response.Status.Token)}, nil
}

// writeKubeconfig writes what stands in for the in-cluster configuration, whose
// place in the file system is fixed.
func (p *pod) writeKubeconfig(tokenFile string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server: p.k.server, CertificateAuthorityData: p.k.authorities,
	}
	config.AuthInfos["pod"] = &clientcmdapi.AuthInfo{TokenFile: tokenFile}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "pod", Namespace: p.namespace}
	config.CurrentContext = "test"
	p.kubeconfig = filepath.Join(p.dir, ".kubeconfig") // no volume has that name
	return clientcmd.WriteToFile(*config, p.kubeconfig)
}
