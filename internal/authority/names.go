package authority

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	// NamePrefix is what the names of all runner pods begin with.
	NamePrefix = "terrace-runner-"
	// namePart is the length of either half of what follows: 50 bits.
	namePart = 10
)

// NewName returns a name for a runner pod of this namespace that nobody had before:
// a random part, and a code that proves where it comes from, see Issued.
func (s *Store) NewName(ctx context.Context, namespace string) (string, error) {
	current, err := s.current(ctx)
	if err != nil {
		return "", err
	}
	random := strings.ToLower(rand.Text()[:namePart])
	return NamePrefix + random + "-" + code(current.names, namespace, random), nil
}

// Issued says whether NewName returned this name for this namespace, in this or in
// any manager of the installation, so that a pod of that name is known to be gone if
// it does not exist. It says no if the Secret was lost since.
func (s *Store) Issued(ctx context.Context, namespace, name string) (bool, error) {
	rest, ok := strings.CutPrefix(name, NamePrefix)
	if !ok || len(rest) != namePart+1+namePart || rest[namePart] != '-' {
		return false, nil
	}
	current, err := s.current(ctx)
	if err != nil {
		return false, err
	}
	want := code(current.names, namespace, rest[:namePart])
	return hmac.Equal([]byte(want), []byte(rest[namePart+1:])), nil
}

// code proves that whoever made it has the key. A namespace holds no slash, so no two pairs are the same.
func code(key []byte, namespace, random string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(namespace + "/" + random))
	return strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil))[:namePart])
}
