package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// point is one write of the manager: the nth of its kind in a story.
type point struct {
	kind string
	nth  int
}

func (p point) String() string { return fmt.Sprintf("%s %d", p.kind, p.nth) }

// blow is what happens at a point.
type blow string

const (
	nothing blow = ""
	// killBefore kills the manager instead of forwarding, killAfter when the API
	// server has applied the write and before the manager hears of it.
	killBefore blow = "killed before"
	killAfter  blow = "killed after"
	// lostAnswer and brokenAnswer apply the write, and close the connection or answer 500.
	lostAnswer   blow = "no answer to"
	brokenAnswer blow = "500 after"
	// The others answer instead of forwarding.
	conflict    blow = "409 instead of"
	tooMany     blow = "429 instead of"
	unavailable blow = "503 instead of"
)

// proxy stands between a manager and the API server.
type proxy struct {
	*httptest.Server
	to      *url.URL
	via     http.RoundTripper
	forward *httputil.ReverseProxy
	own     string // the manager's namespace
	kill    func() // the manager, and start another one

	writes sync.WaitGroup // under way

	mu      sync.Mutex
	at      func(point) blow // the blow, which falls once
	arrived map[string]int   // writes by kind
	applied map[string]int   // those that the API server took
	order   []point
	struck  int
}

func newProxy(t *testing.T, own string, kill func(), at func(point) blow) *proxy {
	t.Helper()
	config := rest.AnonymousClientConfig(suite.plane.Config) // who the manager is it says itself
	via, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: to, via: via, own: own, kill: kill, at: at, arrived: map[string]int{}, applied: map[string]int{}}
	p.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     via,
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Server = httptest.NewUnstartedServer(p)
	p.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of every manager that is killed
	p.StartTLS()                                   // over plain HTTP no client sends its token
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return p
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	kind := p.kindOf(r, body)
	if kind == "" {
		p.forward.ServeHTTP(w, r)
		return
	}
	p.writes.Add(1)
	defer p.writes.Done()
	what := p.arrive(kind)
	switch what {
	case nothing:
		p.answer(w, p.apply(kind, r, body))
	case killBefore:
		p.kill()
		panic(http.ErrAbortHandler)
	case killAfter:
		p.apply(kind, r, body)
		p.kill()
		panic(http.ErrAbortHandler)
	case lostAnswer:
		p.apply(kind, r, body)
		panic(http.ErrAbortHandler)
	case brokenAnswer:
		p.apply(kind, r, body)
		refuse(w, http.StatusInternalServerError, "InternalError")
	case conflict:
		refuse(w, http.StatusConflict, "Conflict")
	case tooMany:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests")
	case unavailable:
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable")
	}
}

// arrive counts a write and returns what happens to it.
func (p *proxy) arrive(kind string) blow {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived[kind]++
	here := point{kind, p.arrived[kind]}
	p.order = append(p.order, here)
	what := p.at(here)
	if what != nothing {
		p.struck++
	}
	return what
}

// reply is what the API server answered.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// apply has the API server do it, whatever becomes of the manager meanwhile.
func (p *proxy) apply(kind string, r *http.Request, body []byte) reply {
	out, err := http.NewRequest(r.Method, p.to.Scheme+"://"+p.to.Host+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	response, err := p.via.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if response.StatusCode < 300 {
		p.mu.Lock()
		p.applied[kind]++
		p.mu.Unlock()
	}
	return reply{response.StatusCode, response.Header, text}
}

func (p *proxy) answer(w http.ResponseWriter, from reply) {
	maps.Copy(w.Header(), from.header)
	w.WriteHeader(from.code)
	_, _ = w.Write(from.body)
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"a fault of the test","reason":%q,"code":%d}`, reason, code)
}

// kindOf names the kind of write that a request is: verb, resource and, of the
// status, what it says about operations. It is empty for what is no write, for
// leases, events and reviews, and for notices of progress: they depend on the time
// that things take, and nothing depends on them.
func (p *proxy) kindOf(r *http.Request, body []byte) string {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return ""
	}
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
	parts := strings.Split(path, "/") // namespace, resource, name, subresource
	if len(parts) < 2 {
		return ""
	}
	kind := r.Method + " " + parts[1]
	switch parts[1] {
	case "leases", "events":
		return ""
	case "secrets":
		if parts[0] == p.own {
			kind += " of the manager"
		}
	}
	if len(parts) < 4 {
		return kind
	}
	what := statusWrite(body)
	if what == "" {
		return ""
	}
	return kind + "/" + parts[3] + " (" + what + ")"
}

// statusWrite says what a patch of a status says about operations.
func statusWrite(body []byte) string {
	var patch struct {
		Status struct {
			Operation *infrav1.OperationStatus `json:"operation"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return "unreadable"
	}
	switch operation := patch.Status.Operation; {
	case operation == nil:
		return "result"
	case operation.ID != "" && operation.Phase == infrav1.OperationPending:
		return strings.ToLower(string(operation.Type)) + " begins"
	default:
		return ""
	}
}

// seen returns what arrived, and how often the API server took what, when the
// manager has ended.
func (p *proxy) seen() (order []point, applied map[string]int) {
	p.writes.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order), maps.Clone(p.applied)
}

// strikes is how often a blow fell.
func (p *proxy) strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}
