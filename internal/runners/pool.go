// Package runners keeps the pods in which runners live: one for all objects of a
// namespace that ask for the same pod. It makes them, connects to them, renews their
// certificates, and removes them when they are idle.
package runners

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/runner"
)

const (
	// ManagerLabel names the manager, or shard of it, that looks after a runner.
	ManagerLabel = infrav1.GroupName + "/manager"
	// groupLabel is the digest of what objects asked for; those with the same share a pod.
	groupLabel = infrav1.GroupName + "/runner"
	// idleAnnotation is how long the pod stays without work, and
	// authoritiesAnnotation names the authorities that it trusted in the beginning.
	idleAnnotation        = infrav1.GroupName + "/idle-timeout"
	authoritiesAnnotation = infrav1.GroupName + "/authorities"

	// DefaultStartTimeout is how long a pod may take until its runner answers.
	DefaultStartTimeout = 5 * time.Minute
	// connectTimeout is how long a runner may take to answer once its container runs.
	connectTimeout = 30 * time.Second
	// linger is how long any pod stays after an operation: a plan is usually
	// followed by its apply at once.
	linger = 3 * time.Second
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create

// Options set up a Pool.
type Options struct {
	// Client creates and deletes pods and creates their Secrets.
	Client client.Client
	// Reader reads pods from the API server itself.
	Reader client.Reader
	// Cache watches the pods, and only those, that Labels selects.
	Cache cache.Cache
	// Authority signs certificates and gives out names.
	Authority *authority.Store
	// Manager is the value of ManagerLabel: managers with different ones do not see
	// one another's pods.
	Manager string
	// Image of the runner's container.
	Image string
	// StartTimeout is how long a pod may take until its runner answers; default DefaultStartTimeout.
	StartTimeout time.Duration
	// AllowUnrestricted allows pods that the Pod Security Standard restricted forbids.
	AllowUnrestricted bool
	// ServiceAccount returns the account that an object's runner has.
	ServiceAccount func(obj *infrav1.Terraform) string
}

// Labels are those of the pods of one manager.
func Labels(manager string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "terrace", "app.kubernetes.io/component": "runner", "app.kubernetes.io/managed-by": "terrace",
		ManagerLabel: manager,
	}
}

// Pool knows all runner pods of this manager.
type Pool struct {
	options Options
	wake    chan struct{} // there is something for the loop to look at
	synced  chan struct{} // closed when all pods that are there are known

	creating singleflight.Group // by group

	mu   sync.Mutex
	pods map[types.NamespacedName]*pod
}

// New returns a pool without pods; Start makes it look for those that are there.
func New(options Options) *Pool {
	options.StartTimeout = cmp.Or(options.StartTimeout, DefaultStartTimeout)
	return &Pool{
		options: options, wake: make(chan struct{}, 1), synced: make(chan struct{}), pods: map[types.NamespacedName]*pod{},
	}
}

func (p *Pool) labels() map[string]string { return Labels(p.options.Manager) }

// pod is one runner pod. The pool's lock guards it.
type pod struct {
	name    types.NamespacedName
	uid     types.UID
	group   string
	created time.Time
	idle    time.Duration // how long it stays without work

	state   state
	changed chan struct{} // closed at the next change of state

	leases    int
	idleSince time.Time
	retiring  bool // no new operation comes here
	served    bool // it has answered before
	made      bool // by this pool, with its Secret

	client     *runner.Client
	reached    bool      // the latest call to it was answered
	generation string    // of the authorities that it trusts
	postponed  time.Time // the loop leaves it alone until then
}

// serverName is the name in the runner's certificate.
func serverName(name types.NamespacedName) string { return name.Name + "." + name.Namespace }

// Start watches the pods until the context ends.
func (p *Pool) Start(ctx context.Context) error {
	informer, err := p.options.Cache.GetInformer(ctx, &corev1.Pod{})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watching runner pods: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.observe(object) },
		UpdateFunc: func(_, object any) { p.observe(object) },
		DeleteFunc: func(object any) { p.forget(object) },
	})
	if err != nil {
		return fmt.Errorf("watching runner pods: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		close(p.synced)
		p.loop(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.pods {
		known.disconnect()
	}
	return nil
}

// NeedLeaderElection keeps the pods to the leader.
func (p *Pool) NeedLeaderElection() bool { return true }

// observe notes what a pod looks like now.
func (p *Pool) observe(object any) {
	seen, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known(seen)
	if next := stateOf(seen); next != known.state {
		known.become(next)
	}
	p.poke()
}

// known returns the pod of that name and uid; the caller holds the lock.
func (p *Pool) known(seen *corev1.Pod) *pod {
	name := client.ObjectKeyFromObject(seen)
	if known, ok := p.pods[name]; ok && known.uid == seen.UID {
		return known
	} else if ok {
		known.become(state{Phase: gone, Reason: infrav1.RunnerFailedReason, Message: "the pod was deleted"})
	}
	idle, err := time.ParseDuration(seen.Annotations[idleAnnotation])
	if err != nil {
		idle = infrav1.DefaultRunnerIdleTimeout
	}
	fresh := &pod{
		name: name, uid: seen.UID, group: seen.Labels[groupLabel], created: seen.CreationTimestamp.Time, idle: idle,
		changed: make(chan struct{}), idleSince: time.Now(), state: stateOf(seen), generation: seen.Annotations[authoritiesAnnotation],
	}
	p.pods[name] = fresh
	return fresh
}

// forget notes that a pod is gone.
func (p *Pool) forget(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	seen, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := client.ObjectKeyFromObject(seen)
	if known, ok := p.pods[name]; ok && known.uid == seen.UID {
		known.become(state{Phase: gone, Reason: infrav1.RunnerFailedReason, Message: "the pod was deleted"})
		delete(p.pods, name)
	}
}

// become changes the state and tells those who wait for it; the caller holds the lock.
func (k *pod) become(next state) {
	if next.Phase == gone || next.IP != k.state.IP {
		k.disconnect()
	}
	k.state = next
	close(k.changed)
	k.changed = make(chan struct{})
}

// disconnect closes the connection; the caller holds the lock.
func (k *pod) disconnect() {
	if k.client != nil {
		_ = k.client.Close()
		k.client, k.reached = nil, false
	}
}

// poke lets the loop look again.
func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Runner returns a lease of the runner for the object's next operation. A pod is
// created if none fits; the lease waits for it. Errors are of the kinds of package reconcile.
func (p *Pool) Runner(ctx context.Context, obj *infrav1.Terraform) (operation.Runner, error) {
	design, group, err := p.design(obj, p.options.ServiceAccount(obj))
	if err != nil {
		return nil, err
	}
	select { // a manager that has just started must not overlook a warm runner
	case <-p.synced:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	idle := obj.Spec.Runner.GetIdleTimeout()
	if found, err := p.lease(ctx, obj.Namespace, group, idle); err != nil {
		return nil, err
	} else if found != nil {
		return found, nil
	}
	made, err, _ := p.creating.Do(obj.Namespace+"/"+group, func() (any, error) {
		if found, err := p.lease(ctx, obj.Namespace, group, idle); err != nil {
			return nil, err
		} else if found != nil {
			found.Release()
			return found.pod, nil
		}
		created, err := p.create(ctx, design, idle)
		if err != nil {
			return nil, err
		}
		log.FromContext(ctx).Info("created a runner pod", "pod", created.Name)
		p.mu.Lock()
		defer p.mu.Unlock()
		known := p.known(created)
		known.made = true
		return known, nil
	})
	if err != nil {
		return nil, err
	}
	known, ok := made.(*pod)
	if !ok {
		return nil, fmt.Errorf("creating a runner pod made %T", made)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(known, idle), nil
}

// lease takes a pod of the group that is there already, the latest one; nil if there
// is none. Labels make no runner: whoever may create pods in the namespace can copy
// them. So only pods whose name this installation gave out count.
func (p *Pool) lease(ctx context.Context, namespace, group string, idle time.Duration) (*lease, error) {
	for _, known := range p.candidates(namespace, group) {
		issued, err := p.options.Authority.Issued(ctx, namespace, known.name.Name)
		if err != nil {
			return nil, err
		}
		if !issued {
			continue
		}
		if leased := p.takeIf(known, group, idle); leased != nil {
			return leased, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// candidates are the pods of the group, the latest first.
func (p *Pool) candidates(namespace, group string) []*pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*pod
	for _, known := range p.pods {
		if known.name.Namespace == namespace && known.fits(group) {
			found = append(found, known)
		}
	}
	slices.SortFunc(found, func(a, b *pod) int { return b.created.Compare(a.created) })
	return found
}

// takeIf makes a lease of a pod if it still fits, else nil.
func (p *Pool) takeIf(known *pod, group string, idle time.Duration) *lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !known.fits(group) {
		return nil
	}
	return p.take(known, idle)
}

// fits says whether the pod takes another operation of the group; the caller holds the lock.
func (k *pod) fits(group string) bool {
	return k.group == group && !k.retiring && k.state.Phase <= running
}

// take makes a lease; the caller holds the lock.
func (p *Pool) take(known *pod, idle time.Duration) *lease {
	known.leases++
	known.idle = max(known.idle, idle)
	return &lease{pool: p, pod: known}
}

// Named returns a lease of the runner with this name, which an operation was given
// to before. If its pod is gone the lease says so: operation.ErrLost.
func (p *Pool) Named(ctx context.Context, namespace, name string) (operation.Runner, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	p.mu.Lock()
	known, ok := p.pods[key]
	p.mu.Unlock()
	if !ok {
		// What was not seen yet may be there all the same. No name: it was given to none.
		seen := &corev1.Pod{}
		found := name != ""
		if found {
			err := p.options.Reader.Get(ctx, key, seen)
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("looking for runner pod %s: %w", key, err)
			}
			found = err == nil
		}
		if !found || seen.Labels[ManagerLabel] != p.options.Manager {
			known = &pod{name: key, changed: make(chan struct{}), state: state{Phase: gone, Message: "the pod is gone"}}
		} else {
			p.mu.Lock()
			known = p.known(seen)
			p.mu.Unlock()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attach(known), nil
}

// attach makes a lease for an operation that the runner has already; the caller holds the lock.
func (p *Pool) attach(known *pod) *lease {
	l := p.take(known, 0)
	l.started = true
	return l
}

// Abandoned says whether the host was a runner of this installation in this
// namespace, and its pod is gone: then nothing it held is in use any more.
func (p *Pool) Abandoned(ctx context.Context, namespace, host string) (bool, error) {
	issued, err := p.options.Authority.Issued(ctx, namespace, host)
	if err != nil || !issued {
		return false, err
	}
	seen := &corev1.Pod{}
	err = p.options.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: host}, seen)
	if err == nil {
		return stateOf(seen).Phase == gone, nil
	}
	return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}
