package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/terrace-dev/terrace/internal/pki"
)

// credentialsFile is where renewed credentials outlive the process, below the data directory.
const credentialsFile = "credentials.json"

// bundle is what the manager issued, as PEM. It is kept in one file, so that
// certificate and key always belong together.
type bundle struct {
	Certificate []byte `json:"tls.crt"`
	Key         []byte `json:"tls.key"`
	Authorities []byte `json:"ca.crt"`
}

// keychain has the credentials that the runner serves with.
type keychain struct {
	name string // the runner's
	file string // for renewed credentials
	now  func() time.Time
	log  *slog.Logger

	current atomic.Pointer[pki.Credentials]
	mu      sync.Mutex // orders renewals
}

// openKeychain takes the pod's Secret in tlsDir, or what the manager sent since and
// dataDir keeps, whichever is valid and expires later. The Secret never changes,
// so it may have expired by the time a container is restarted.
func openKeychain(tlsDir, dataDir, name string, now func() time.Time, log *slog.Logger) (*keychain, error) {
	k := &keychain{name: name, file: filepath.Join(dataDir, credentialsFile), now: now, log: log}
	mounted, mountedErr := k.parse(readMounted(tlsDir))
	renewed, renewedErr := k.parse(readRenewed(k.file))
	if renewedErr != nil && !errors.Is(renewedErr, fs.ErrNotExist) {
		log.Info("renewed credentials are of no use", "file", k.file, "reason", renewedErr.Error())
	}
	if mountedErr != nil && renewedErr == nil {
		log.Info("the pod's Secret is of no use, renewed credentials are", "directory", tlsDir, "reason", mountedErr.Error())
	}
	switch {
	case mountedErr != nil && renewedErr != nil:
		return nil, fmt.Errorf("no valid credentials for %s: in %s: %w; renewed ones: %w; the manager replaces the pod", name, tlsDir, mountedErr, renewedErr)
	case mountedErr != nil || renewedErr == nil && expiry(renewed).After(expiry(mounted)):
		k.current.Store(renewed)
	default:
		k.current.Store(mounted)
	}
	return k, nil
}

func readMounted(dir string) (bundle, error) {
	var b bundle
	for name, content := range map[string]*[]byte{"tls.crt": &b.Certificate, "tls.key": &b.Key, "ca.crt": &b.Authorities} {
		var err error
		if *content, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return b, err
		}
	}
	return b, nil
}

func readRenewed(file string) (bundle, error) {
	var b bundle
	text, err := os.ReadFile(file)
	if err == nil && json.Unmarshal(text, &b) != nil {
		err = errors.New("they are not what this program wrote") // the decoder's error may quote them
	}
	return b, err
}

func (k *keychain) parse(b bundle, err error) (*pki.Credentials, error) {
	if err != nil {
		return nil, err
	}
	return pki.ParseServer(b.Certificate, b.Key, b.Authorities, k.name, k.now())
}

func expiry(credentials *pki.Credentials) time.Time { return credentials.Certificates[0].Leaf.NotAfter }

// source implements pki.Source.
func (k *keychain) source() (*pki.Credentials, error) { return k.current.Load(), nil }

// rotate takes new credentials for connections to come. That they cannot be kept
// for the next process is no reason to refuse them.
func (k *keychain) rotate(certificate, key, authorities []byte) error {
	b := bundle{Certificate: certificate, Key: key, Authorities: authorities}
	credentials, err := k.parse(b, nil)
	if err != nil {
		k.log.Error("the manager's new credentials were refused", "reason", err.Error())
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current.Store(credentials)
	if err := k.keep(b); err != nil {
		k.log.Error("renewed credentials cannot be kept; a restarted container will not have them", "reason", err.Error())
	}
	k.log.Info("credentials were renewed", "expires", expiry(credentials).UTC().Format(time.RFC3339))
	return nil
}

// keep replaces the file at once or not at all.
func (k *keychain) keep(b bundle) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(k.file), credentialsFile+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // gone if all went well
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), k.file)
}
