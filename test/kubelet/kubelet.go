// Package kubelet is a test kubelet: it plays pods with real processes against a
// real API server, where there is no kubelet, scheduler or container engine. What
// a pod's owner can see is as on a real node: volumes, status, signals and grace,
// restarts, eviction. What a container is not is isolated: it has the files, the
// network and the user of this process. On Linux its hostname is the pod's name.
//
// Of a pod it knows containers (no init containers, probes or hooks), volumes of
// the kinds secret, configMap, emptyDir, projected, downwardAPI and hostPath, and
// env. Paths of mounts are translated where they occur in arguments and env.
package kubelet

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// NodeName is the node that pods are bound to. There is no Node object.
	NodeName = "test-node"

	// Mark is the variable in the environment of every process that a kubelet
	// starts; its value is the pod's UID.
	Mark = "TERRACE_TEST_POD"

	// retryInterval is the time between two looks at what a pod waits for.
	retryInterval = 100 * time.Millisecond
)

// nodeLabels are what spec.nodeSelector is compared with.
var nodeLabels = labels.Set{
	corev1.LabelHostname: NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
}

// Options say what a kubelet does.
type Options struct {
	// Config of the API server, with an administrator's rights. Required.
	Config *rest.Config

	// Dir is where the pods' logs go; it is created, and stays. Required.
	Dir string

	// Programs are the images: what an image runs, as program and first arguments,
	// before the pod's own. Other images cannot be pulled.
	Programs map[string][]string

	// Env is set in all containers, before the pod's own.
	Env map[string]string

	// Namespace is the only one that is looked after; default all.
	Namespace string

	// LabelSelector selects pods, once and for all when they are first seen.
	// Default: app.kubernetes.io/component=runner. Every pod: "!none".
	LabelSelector string

	// Backoff is the delay before the first restart of a container; it doubles up
	// to five seconds. Default 10 ms; a real kubelet's is 10 s.
	Backoff time.Duration

	// EvictionGrace bounds the time between SIGTERM and SIGKILL of an eviction,
	// which does not care for the pod's own. Default one second.
	EvictionGrace time.Duration

	// Log is told what the kubelet does, a line each. Default: nobody.
	Log io.Writer
}

// Kubelet is a running test kubelet. Its methods may be called from any goroutine.
type Kubelet struct {
	options     Options
	selector    labels.Selector
	client      kubernetes.Interface
	server      string
	authorities []byte // of the server, PEM
	ctx         context.Context
	cancel      context.CancelFunc
	work        string // of the pods' files
	isolation   isolation
	threads     *spawner
	addresses   addresses
	routines    sync.WaitGroup
	stop        func()

	mu      sync.Mutex
	pods    map[types.UID]*pod
	started map[types.NamespacedName]int
	rules   rules
	serial  int
	logging sync.Mutex
}

// Start starts a kubelet and returns when it knows all pods. It works until Stop,
// or until ctx ends; Stop must be called all the same.
func Start(ctx context.Context, options Options) (*Kubelet, error) {
	if options.LabelSelector == "" {
		options.LabelSelector = "app.kubernetes.io/component=runner"
	}
	if options.Backoff == 0 {
		options.Backoff = 10 * time.Millisecond
	}
	if options.EvictionGrace == 0 {
		options.EvictionGrace = time.Second
	}
	if options.Log == nil {
		options.Log = io.Discard
	}
	k := &Kubelet{
		options: options, pods: map[types.UID]*pod{}, started: map[types.NamespacedName]int{}, rules: newRules(),
	}
	var err error
	if k.selector, err = labels.Parse(options.LabelSelector); err != nil {
		return nil, err
	}
	if k.options.Dir, err = filepath.Abs(options.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(k.options.Dir, 0o700); err != nil {
		return nil, err
	}
	// Short, because the paths of sockets, which providers make in the temporary
	// directory of their pod, have at most 107 bytes.
	if k.work, err = os.MkdirTemp("", "kubelet-"); err != nil {
		return nil, err
	}
	if k.isolation, err = findIsolation(); err != nil {
		k.logf("containers share this machine's hostname: %v", err)
	}
	k.ctx, k.cancel = context.WithCancel(ctx)
	k.threads = newSpawner()
	if err := k.watch(); err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

// watch starts to observe pods.
func (k *Kubelet) watch() error {
	config := rest.CopyConfig(k.options.Config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return err
	}
	k.server, k.authorities = config.Host, config.CAData
	config.QPS, config.UserAgent = -1, "test-kubelet"
	dialer := &dialer{}
	config.Dial = dialer.dial
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	k.stop = sync.OnceFunc(func() {
		k.cancel()
		k.routines.Wait()
		dialer.close()
		k.threads.close()
		if err := os.RemoveAll(k.work); err != nil {
			k.logf("%v", err)
		}
	})
	if k.client, err = kubernetes.NewForConfigAndClient(config, client); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithNamespace(k.options.Namespace))
	// All pods, whatever their labels are: a pod whose labels change goes on.
	informer := factory.Core().V1().Pods().Informer()
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		k.logf("watching pods: %v", err)
	})
	if err != nil {
		return err
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { k.observe(nil, o) }, UpdateFunc: k.observe, DeleteFunc: k.vanish,
	})
	if err != nil {
		return err
	}
	k.routines.Go(func() { informer.RunWithContext(k.ctx) })
	if !cache.WaitForCacheSync(k.ctx.Done(), handler.HasSynced) {
		return fmt.Errorf("listing pods: %w", context.Cause(k.ctx))
	}
	return nil
}

// dialer makes connections of the kubelet's own and closes them with it. That they
// are idle would not do: it takes HTTP/2 a moment to see that a watch has ended.
type dialer struct {
	mu          sync.Mutex
	connections []net.Conn
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.connections = append(d.connections, connection)
	}
	return connection, err
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.connections {
		_ = c.Close()
	}
}

// observe tells the pod what it looks like now.
func (k *Kubelet) observe(before, after any) {
	object, ok := after.(*corev1.Pod)
	if !ok {
		return
	}
	// Between two lists a pod may have gone and come back under the same name.
	if old, ok := before.(*corev1.Pod); ok && old.UID != object.UID {
		k.vanish(old)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[object.UID]; p != nil {
		p.observe(object)
		return
	}
	if k.ctx.Err() != nil || !k.selector.Matches(labels.Set(object.Labels)) {
		return
	}
	k.serial++
	p := newPod(k, object, filepath.Join(k.work, strconv.Itoa(k.serial)))
	k.pods[object.UID] = p
	k.routines.Go(p.run)
}

// vanish tells the pod that its object is gone.
func (k *Kubelet) vanish(o any) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[object.UID]; p != nil {
		p.vanish()
	}
}

// Stop kills everything that the kubelet started, without grace, and returns when
// it is gone. The pods' objects stay as they are, as those of a node without power;
// a kubelet that is started later starts their containers again.
func (k *Kubelet) Stop() {
	if k.stop == nil { // it did not come to anything
		k.cancel()
		k.threads.close()
		_ = os.RemoveAll(k.work)
		return
	}
	k.stop()
}

func (k *Kubelet) logf(format string, args ...any) {
	k.logging.Lock()
	defer k.logging.Unlock()
	fmt.Fprintf(k.options.Log, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}
