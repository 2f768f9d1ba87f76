package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terrace-dev/terrace/internal/reconcile"
)

func TestErrorsThatSayNothingAboutTheObjectAreTransient(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	request := func(err error) error { return &url.Error{Op: "Post", URL: "https://10.0.0.1/api/v1/pods", Err: err} }
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"another writer was faster":                {apierrors.NewConflict(pods, "a", errors.New("old")), true},
		"the API server has too much to do":        {apierrors.NewTooManyRequests("later", 1), true},
		"the API server is broken":                 {apierrors.NewInternalError(errors.New("etcd")), true},
		"the API server is not up":                 {request(os.NewSyscallError("connect", syscall.ECONNREFUSED)), true},
		"the API server went away before it spoke": {request(io.EOF), true},
		"the API server went away while it spoke":  {request(os.NewSyscallError("read", syscall.ECONNRESET)), true},
		"the manager ends":                         {context.Canceled, true},
		"the API server forbids it":                {apierrors.NewForbidden(pods, "a", errors.New("no")), false},
		"the API server finds it invalid":          {apierrors.NewBadRequest("what"), false},
		"something else went wrong":                {errors.New("bug"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := reconcile.IsTransient(fmt.Errorf("creating a pod: %w", test.err)); got != test.want {
				t.Errorf("transient = %v, want %v", got, test.want)
			}
		})
	}
}
