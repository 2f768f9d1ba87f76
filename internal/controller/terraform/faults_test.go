package terraform

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// fault is what becomes of a request to the API server.
type fault func(next http.RoundTripper, request *http.Request) (*http.Response, error)

var errReset = errors.New("connection reset by the test")

// dropped requests never arrive.
func dropped(http.RoundTripper, *http.Request) (*http.Response, error) { return nil, errReset }

// unanswered requests arrive, and nobody hears of it.
func unanswered(next http.RoundTripper, request *http.Request) (*http.Response, error) {
	if response, err := next.RoundTrip(request); err == nil {
		_ = response.Body.Close()
	}
	return nil, errReset
}

// answered requests do not arrive and get this answer.
func answered(code int, reason string) fault {
	return func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
		body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"injected","reason":%q,"code":%d}`, reason, code)
		return &http.Response{
			StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request, ContentLength: int64(len(body)),
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body)),
		}, nil
	}
}

// faults hurts chosen requests of a manager.
type faults struct {
	mu    sync.Mutex
	fault fault
	is    func(path, body string) bool
	left  int
}

// hurt lets the next so many patches that are meant end in a fault.
func (f *faults) hurt(times int, with fault, is func(path, body string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.is, f.left = with, is, times
}

func (f *faults) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if with := f.meant(request); with != nil {
			return with(next, request)
		}
		return next.RoundTrip(request)
	})
}

func (f *faults) meant(request *http.Request) fault {
	if request.Method != http.MethodPatch || request.GetBody == nil {
		return nil
	}
	reader, err := request.GetBody()
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(reader)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || f.left == 0 || !f.is(request.URL.Path, string(body)) {
		return nil
	}
	f.left--
	return f.fault
}

// statusWrite are patches of a status that contain a text.
func statusWrite(text string) func(path, body string) bool {
	return func(path, body string) bool {
		return strings.HasSuffix(path, "/status") && strings.Contains(body, text)
	}
}

// release is the patch that removes the finalizer.
func release(path, body string) bool {
	return strings.HasSuffix(path, "/terraforms/a") && strings.Contains(body, `"finalizers":null`)
}

// story of an object: what its history says, the oldest first.
func story(obj *infrav1.Terraform) string {
	var text string
	for _, entry := range obj.Status.History {
		text = fmt.Sprintf("%s %s, ", entry.Type, entry.Result) + text
	}
	return strings.TrimSuffix(text, ", ")
}

func TestAFinalizerThatCannotBeRemovedMeansNoSecondDestruction(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]fault{"reset": dropped, "internal error": answered(http.StatusInternalServerError, "InternalError")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.engine.on(inTurn(changes(planA), noChanges()), nil, nil)
			obj := w.ready(w.create(w.terraform("a").auto().destroy()))
			w.faults.hurt(2, with, release)
			w.delete(obj)
			w.gone(obj)
			if n := len(w.engine.destroys()); n != 1 || w.faults.left != 0 {
				t.Errorf("%d destructions, %d faults left, want 1 and none:\n%s", n, w.faults.left, w.engine.story())
			}
		})
	}
}

func TestHistoryIsTrueWhateverBecomesOfWrites(t *testing.T) {
	t.Parallel()
	intent, result := statusWrite(`"type":"Apply"`), statusWrite(`"applied":{`)
	for name, test := range map[string]struct {
		with fault
		is   func(path, body string) bool
	}{
		"the intent is not written":                  {dropped, intent},
		"the intent is refused":                      {answered(http.StatusInternalServerError, "InternalError"), intent},
		"the intent is written and not acknowledged": {unanswered, intent},
		"the result is not written":                  {dropped, result},
		"the result is written and not acknowledged": {unanswered, result},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.faults.hurt(1, test.with, test.is)
			w.engine.on(always(changes(planA)), nil, nil)
			obj := w.create(w.terraform("a").auto())
			obj = w.until(obj, "applied", func(o *infrav1.Terraform) bool { return o.Status.Applied != nil && conditions.IsReady(o) })
			if got := story(obj); got != "Plan Succeeded, Apply Succeeded" || len(w.engine.applies()) != 1 || w.faults.left != 0 {
				t.Errorf("history %q, %d faults left\n%s", got, w.faults.left, w.engine.story())
			}
		})
	}
}

func TestAStatusThatIsRefusedIsTrimmed(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]fault{
		"too large": answered(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge"),
		"invalid":   answered(http.StatusUnprocessableEntity, "Invalid"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.faults.hurt(5, with, statusWrite(`"resources":[`))
			w.engine.on(inTurn(changes(planA), noChanges()), nil, nil)
			obj := w.create(w.terraform("a").auto())
			obj = w.until(obj, "applied", func(o *infrav1.Terraform) bool { return o.Status.Applied != nil && o.Status.Operation == nil })
			if len(obj.Status.Resources) > 0 || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "refused") {
				t.Errorf("not trimmed:\n%s", describe(obj))
			}
			w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
			w.ready(obj)
		})
	}
	t.Run("and blocks no deletion", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.ready(w.create(w.terraform("a").auto().destroy()))
		w.faults.hurt(1<<20, answered(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge"), func(path, _ string) bool {
			return strings.HasSuffix(path, "/status") && len(w.engine.destroys()) == 0
		})
		w.delete(obj)
		w.gone(obj)
		if len(w.engine.destroys()) != 1 {
			t.Errorf("want one destruction:\n%s", w.engine.story())
		}
	})
}

func TestOrphanedObjectsAreForgottenByTheRunner(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.delete(obj)
	w.gone(obj)
	w.eventually(func() bool { return len(w.engine.forgets()) == 1 }, w.engine.story)
	if forget := w.engine.forgets()[0]; forget.object.UID != obj.UID || forget.request.GetType() != runnerpb.OperationType_OPERATION_TYPE_FORGET {
		t.Errorf("forgot %v", forget.request)
	}
}
