package integration_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// managerUser is whom the shipped manager is to the API server.
const managerUser = "system:serviceaccount:terrace-system:terrace-manager"

// unusedRights are shipped rights that no test uses, and why they are there.
var unusedRights = map[string]string{
	"get kustomizations.kustomize.toolkit.fluxcd.io everywhere": "the kind is not installed here, so that nobody asks for an object; spec.dependsOn may name it",
	"update secrets. in terrace-system":                         "authorities are rotated in namespaces of their own here, with copies of this role",
	"patch events. in terrace-system":                           "the election of a leader sends an event again only if it is the same as one before",
	"get helmreleases.helm.toolkit.fluxcd.io everywhere":        "the kind is not installed here, so that nobody asks for an object; spec.dependsOn may name it",
}

// confidential are the values that tests put into Secrets for modules.
var confidential sync.Map

// judge looks, when all tests have ended, at what no single one of them can see: all
// that managers asked the API server for, and where secrets ended up.
func judge(ctx context.Context) error {
	events, err := controlplane.ReadAuditLog(suite.audit)
	if err != nil {
		return err
	}
	events = slices.DeleteFunc(events, func(e controlplane.AuditEvent) bool {
		return e.User.Username != managerUser || e.ObjectRef == nil || e.ImpersonatedUser != nil
	})
	problems := []error{judgeRequests(events), judgeSecrecy(ctx)}
	if only := flag.Lookup("test.run"); only == nil || only.Value.String() == "" {
		problems = append(problems, judgeRights(events))
	}
	return errors.Join(problems...)
}

// judgeRequests finds requests that managers must not make.
func judgeRequests(events []controlplane.AuditEvent) error {
	found := map[string]error{}
	for _, e := range events {
		ref := e.ObjectRef
		_, home := homes.Load(ref.Namespace)
		home = home || ref.Namespace == harness.ManagerNamespace
		what := ""
		switch {
		case e.ResponseStatus.Code == 403 && e.Annotations[decision] != "allow":
			what = "its role does not allow"
		case e.ResponseStatus.Code == 403 && e.Verb != "create":
			what = "admission does not allow" // what it creates may be refused: by a quota, say
		case ref.Resource == "secrets" && !home && e.Verb != "create":
			what = "concerns a tenant's Secret, which it may create only"
		case ref.Resource == "secrets" && home && ref.Name != authority.SecretName:
			what = "concerns a Secret of its own namespace that is not its authority"
		case ref.Resource == "configmaps":
			what = "concerns a ConfigMap"
		default:
			continue
		}
		found[e.Verb+ref.APIGroup+ref.Resource+ref.Subresource+what] = fmt.Errorf("the manager sent a request that %s: %s %s (%d)", what, e.Verb, e.RequestURI, e.ResponseStatus.Code)
	}
	return join(found)
}

func TestObjectsCanDependOnWhatTheManagerMayRead(t *testing.T) {
	t.Parallel()
	for kind, version := range map[string]string{
		infrav1.TerraformKind: "", infrav1.KubesprayClusterKind: "", infrav1.ConfigReloadKind: "",
		sourcev1.GitRepositoryKind: sourcev1.GroupVersion.String(), sourcev1.OCIRepositoryKind: sourcev1.GroupVersion.String(),
		sourcev1.BucketKind: sourcev1.GroupVersion.String(), sourcev1.ExternalArtifactKind: sourcev1.GroupVersion.String(),
	} {
		l := unopened(t)
		l.create(greeting, func(o *infrav1.Terraform) {
			o.Spec.DependsOn = []infrav1.DependencyReference{{APIVersion: version, Kind: kind, Name: "absent"}}
		})
		_, message := l.awaitReason(meta.DependencyNotReadyReason)
		l.wantMessage(message, kind, "does not exist")
	}
}

// decision is the annotation with what RBAC said.
const decision = "authorization.k8s.io/decision"

func join(found map[string]error) error {
	var all []error
	for _, err := range found {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// right is one verb of one rule.
type right struct{ namespace, group, resource, verb string }

func (r right) String() string {
	where := "in " + r.namespace
	if r.namespace == "" {
		where = "everywhere"
	}
	return fmt.Sprintf("%s %s.%s %s", r.verb, r.resource, r.group, where)
}

// judgeRights finds shipped rights that nobody used and nobody excuses, and excuses for
// what is not shipped any more.
func judgeRights(events []controlplane.AuditEvent) error {
	shipped, err := shippedRights()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, e := range events {
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		for _, namespace := range []string{"", e.ObjectRef.Namespace} {
			used[right{namespace, e.ObjectRef.APIGroup, resource, e.Verb}.String()] = true
		}
	}
	found := map[string]error{}
	excuses := maps.Clone(unusedRights)
	for _, r := range shipped {
		name := r.String()
		if _, excused := unusedRights[name]; !used[name] && !excused {
			found[name] = fmt.Errorf("config/rbac grants the manager what no test needs: %s", name)
		}
		delete(excuses, name)
	}
	for name := range excuses {
		found[name] = fmt.Errorf("config/rbac does not grant %s any more, and yet it is excused", name)
	}
	return join(found)
}

// shippedRights are all that config/rbac grants the manager.
func shippedRights() (all []right, err error) {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return nil, err
	}
	for _, file := range []string{"role.yaml", "leader_election.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "config", "rbac", file))
		if err != nil {
			return nil, err
		}
		for document := range strings.SplitSeq(string(text), "---\n") {
			role := &rbacv1.Role{} // a ClusterRole looks the same
			if err := yaml.Unmarshal([]byte(document), role); err != nil {
				return nil, err
			}
			for _, rule := range role.Rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							all = append(all, right{role.Namespace, group, resource, verb})
						}
					}
				}
			}
		}
	}
	return all, nil
}

// judgeSecrecy finds values of Secrets in logs, and keys of authorities anywhere but in
// their Secrets.
func judgeSecrecy(ctx context.Context) error {
	keys, err := authorityKeys(ctx)
	if err != nil {
		return err
	}
	inObjects, err := searchObjects(ctx, keys)
	if err != nil {
		return err
	}
	confidential.Range(func(value, _ any) bool {
		keys["the value of a Secret"] = append(keys["the value of a Secret"], []byte(value.(string)))
		return true
	})
	inLogs, err := searchLogs(keys)
	return errors.Join(inObjects, inLogs, err)
}

// needles are what must not be found, by what it is.
type needles map[string][][]byte

func (n needles) in(place string, text []byte) error {
	var problems []error
	for what, forms := range n {
		for _, form := range forms {
			if bytes.Contains(text, form) {
				problems = append(problems, fmt.Errorf("%s is in %s", what, place))
				break
			}
		}
	}
	return errors.Join(problems...)
}

// authorityKeys are the private keys of all authorities, in all forms that they may take.
func authorityKeys(ctx context.Context) (needles, error) {
	found := needles{}
	namespaces := []string{harness.ManagerNamespace}
	homes.Range(func(home, _ any) bool {
		namespaces = append(namespaces, home.(string))
		return true
	})
	for _, namespace := range namespaces {
		secret := &corev1.Secret{}
		err := suite.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: authority.SecretName}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		what := "the key of the authority in " + namespace
		for block, rest := pem.Decode(secret.Data["ca.key"]); block != nil; block, rest = pem.Decode(rest) {
			// The beginning of each key is the same: what kind it is.
			found[what] = append(found[what], disguises(block.Bytes[36:68])...)
			lines := bytes.Split(pem.EncodeToMemory(block), []byte("\n"))
			found[what] = append(found[what], disguises(lines[2])...)
		}
		if names := secret.Data["names.key"]; len(names) > 0 {
			found[what] = append(found[what], disguises(names)...)
		}
	}
	if len(found[("the key of the authority in "+harness.ManagerNamespace)]) == 0 {
		return nil, errors.New("the authority of the shared managers was not found")
	}
	return found, nil
}

// disguises are the forms in which a text may stand within another one.
func disguises(secret []byte) [][]byte {
	forms := [][]byte{secret, []byte(hex.EncodeToString(secret))}
	for offset, damaged := range []int{0, 2, 3} {
		shifted := append(make([]byte, offset), secret...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := encoding.EncodeToString(shifted)
			forms = append(forms, []byte(text[damaged:len(text)-2]))
		}
	}
	return forms
}

func TestASecretIsFoundInWhateverItIsHidden(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	wanted := needles{"it": disguises([]byte(secret))}
	for before := range 4 {
		for after := range 4 {
			text := strings.Repeat("<", before) + secret + strings.Repeat(">", after)
			for form, hidden := range map[string]string{
				"plain": text, "hex": hex.EncodeToString([]byte(text)),
				"base64": base64.StdEncoding.EncodeToString([]byte(text)), "base64 for URLs": base64.URLEncoding.EncodeToString([]byte(text)),
			} {
				if wanted.in("a text", []byte("x "+hidden+" y")) == nil {
					t.Errorf("%s in %s, with %d before and %d after it, is not found", secret, form, before, after)
				}
			}
		}
	}
	if err := wanted.in("another text", []byte(secret[1:])); err != nil {
		t.Error(err)
	}
}

// searchObjects looks through all objects that the API server has.
func searchObjects(ctx context.Context, wanted needles) (problems, err error) {
	config := rest.CopyConfig(suite.plane.Config)
	config.WarningHandlerWithContext = rest.NoWarnings{} // of kinds that are deprecated
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			all, err := objects.Resource(group.WithResource(resource.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", resource.Name, err)
			}
			for i := range all.Items {
				problems = errors.Join(problems, searchObject(&all.Items[i], wanted))
			}
		}
	}
	return problems, nil
}

func searchObject(object *unstructured.Unstructured, wanted needles) error {
	if _, home := homes.Load(object.GetNamespace()); object.GetName() == authority.SecretName && (home || object.GetNamespace() == harness.ManagerNamespace) {
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if object.GetKind() == "Secret" {
		secret := &corev1.Secret{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, secret); err != nil {
			return err
		}
		for _, value := range secret.Data {
			text = append(append(text, '\n'), value...)
		}
	}
	return wanted.in(fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName()), text)
}

// searchLogs looks through all that managers, runners and the API server's audit wrote.
func searchLogs(wanted needles) (problems, err error) {
	found := 0
	err = filepath.WalkDir(suite.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".log") {
			return err
		}
		found++
		text, err := os.ReadFile(path)
		problems = errors.Join(problems, wanted.in(path, text))
		return err
	})
	if err == nil && found < 3 {
		err = fmt.Errorf("only %d logs were found", found)
	}
	return problems, err
}
