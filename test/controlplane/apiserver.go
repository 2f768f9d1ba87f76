package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// serviceAccountIssuer is the issuer, and the audience, of service account tokens.
const serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"

// etcdArgs has etcd listen on Unix sockets only: no ports, nobody else.
func etcdArgs(dir *workDir) []string {
	peer := "unix://" + dir.file("peer")
	return []string{
		"--name=default",
		"--data-dir=" + dir.file("etcd"),
		"--listen-client-urls=" + etcdURL(dir),
		"--advertise-client-urls=" + etcdURL(dir),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func etcdURL(dir *workDir) string { return "unix://" + dir.file("client") }

// apiServerArgs writes the files that the API server reads and returns its arguments.
func apiServerArgs(dir *workDir, keys *pki, port int, opts Options) ([]string, error) {
	if err := keys.writeFiles(dir); err != nil {
		return nil, err
	}
	args := []string{
		"--etcd-servers=" + etcdURL(dir),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--permit-port-sharing", // see reservePort
		"--tls-cert-file=" + dir.file(servingCertFile),
		"--tls-private-key-file=" + dir.file(servingKeyFile),
		"--client-ca-file=" + dir.file(caFile),
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + serviceAccountIssuer,
		"--service-account-key-file=" + dir.file(accountKeyFile),
		"--service-account-signing-key-file=" + dir.file(accountKeyFile),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged",
		"--endpoint-reconciler-type=none",
		"--profiling=false",
	}
	if !opts.ServiceAccountAdmission {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if opts.AuditLog != "" {
		policy := dir.file("audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+opts.AuditLog, "--audit-log-mode=blocking")
	}
	return append(args, opts.APIServerArgs...), nil
}

// waitReady returns when the API server is ready and has created the default
// namespace, or when one of the processes ends.
func waitReady(ctx context.Context, config *rest.Config, processes ...*process) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		last := checkReady(ctx, client, core, config.Host)
		if last == nil {
			return nil
		}
		for _, p := range processes {
			select {
			case <-p.done:
				return p.failure()
			default:
			}
		}
		select {
		case <-ctx.Done():
			server := processes[len(processes)-1]
			return fmt.Errorf("the API server is not ready: %w:\n%s", errors.Join(ctx.Err(), last), server.tail())
		case <-ticker.C:
		}
	}
}

func checkReady(ctx context.Context, client *http.Client, core corev1client.CoreV1Interface, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s", response.Status)
	}
	_, err = core.Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}
