package harness

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/controlplane"
)

const (
	// ManagerNamespace is where config/ installs the manager.
	ManagerNamespace = "terrace-system"
	// managerAccount is whom it runs as.
	managerAccount = "terrace-manager"
	// tokenLife is longer than anything here runs.
	tokenLife = 7 * 24 * time.Hour
)

// InstallManager installs what the manager needs but the manager itself: its
// namespace and config/rbac. It returns the path of a kubeconfig with a token of
// its ServiceAccount alone: a manager that is started with it may do what the
// shipped roles allow, and nothing else. The file goes when the control plane stops.
// It may be called again.
func InstallManager(ctx context.Context, plane *controlplane.ControlPlane) (kubeconfig string, err error) {
	c, err := client.New(plane.Config, client.Options{})
	if err != nil {
		return "", err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ManagerNamespace}}
	if err := client.IgnoreAlreadyExists(c.Create(ctx, namespace)); err != nil {
		return "", err
	}
	if _, err := Apply(ctx, c, filepath.Join("config", "rbac"), ""); err != nil {
		return "", err
	}
	clients, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		return "", err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLife.Seconds()))}}
	request, err = clients.CoreV1().ServiceAccounts(ManagerNamespace).CreateToken(ctx, managerAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of %s: %w", managerAccount, err)
	}
	kubeconfig = filepath.Join(filepath.Dir(plane.Kubeconfig), "manager.kubeconfig")
	if err := writeKubeconfig(kubeconfig, plane.Config, request.Status.Token); err != nil {
		return "", err
	}
	return kubeconfig, awaitRoles(ctx, kubeconfig)
}

func writeKubeconfig(path string, server *rest.Config, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: server.Host, CertificateAuthorityData: server.CAData}
	config.AuthInfos["manager"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "manager", Namespace: ManagerNamespace}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}

// awaitRoles waits until the API server knows the bindings that were just made: it
// learns of them by watching itself.
func awaitRoles(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, need := range []authorizationv1.ResourceAttributes{
		{Verb: "list", Group: "infra.terrace.dev", Resource: "terraforms"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: ManagerNamespace},
		{Verb: "create", Resource: "secrets", Namespace: ManagerNamespace},
	} {
		for {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need}}
			review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("the manager may not %s %s: %w", need.Verb, need.Resource, err)
			}
			if review.Status.Allowed {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the manager may not %s %s: %w", need.Verb, need.Resource, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
