package reloader

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
)

// KeyName is the entry of a key's Secret that holds the bytes which [ParseKey] takes.
const KeyName = "key"

// keySize is the length of a key in bytes: HMAC-SHA-256 gains nothing from a longer one.
const keySize = 32

// Lengths of what is shown of an HMAC, in characters of 5 bits.
const (
	digestLength = 20
	keyIDLength  = 8
)

// What an HMAC is taken for is part of its input, so that a value cannot be made to look like a sum.
const (
	domainID    = "terrace.dev/reloader/v1/id"
	domainValue = "terrace.dev/reloader/v1/value"
	domainSum   = "terrace.dev/reloader/v1/sum"
)

// encoding has lower case letters and digits only, which are valid wherever Kubernetes takes a name or a label.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// KeySecretName is the name of the Secret that holds the key of the ConfigReload called name, in the same namespace.
func KeySecretName(name string) string {
	return "terrace-reload-" + name
}

// Key makes digests that tell nothing about content to whoever lacks it, not even about a password that is easy to guess. Formatting
// a key shows its ID only. Use [NewKey] or [ParseKey]: the zero Key is no key, and the methods that digest panic on it, since
// everybody knows it. Compare keys by [Key.ID], not with ==.
type Key struct {
	// fmt calls no methods on unexported fields, so a struct that holds a key in one would show the bytes, even behind one pointer.
	secret **[keySize]byte
}

// NewKey makes a random key.
func NewKey() Key {
	var secret [keySize]byte
	_, _ = rand.Read(secret[:]) // never fails: it ends the program if the system has no randomness
	return keyOf(secret)
}

// ParseKey is the reverse of [Key.Bytes]. Anything but 32 bytes, and 32 zeros, is an error, which does not repeat what was given.
func ParseKey(data []byte) (Key, error) {
	if len(data) != keySize {
		return Key{}, fmt.Errorf("a key has %d bytes, this has %d", keySize, len(data))
	}
	secret := [keySize]byte(data)
	if secret == [keySize]byte{} {
		return Key{}, errors.New("a key of zeros protects nothing")
	}
	return keyOf(secret), nil
}

func keyOf(secret [keySize]byte) Key {
	hidden := &secret
	return Key{secret: &hidden}
}

// Bytes are the 32 bytes to keep in a Secret; none for the zero Key.
func (k Key) Bytes() []byte {
	if k.IsZero() {
		return nil
	}
	return slices.Clone((*k.secret)[:])
}

// IsZero tells whether this is the zero Key, which is none.
func (k Key) IsZero() bool {
	return k.secret == nil
}

// ID tells one key from another. It has 8 characters of [a-z2-7] and may be shown to anybody; the zero Key has "none".
func (k Key) ID() string {
	if k.IsZero() {
		return "none"
	}
	return encoded(k.mac(domainID))[:keyIDLength]
}

// Format writes the ID, whatever the verb: a key that gets into a message or a log must not get out with it.
func (k Key) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "Key(%s)", k.ID())
}

// Digest is that of one value: 20 characters of [a-z2-7], 100 bits. Equal values have equal digests under one key only.
func (k Key) Digest(content []byte) string {
	mac := k.mac(domainValue)
	_, _ = mac.Write(content)
	return encoded(mac)[:digestLength]
}

// Entry is one of the values that a sum covers.
type Entry struct {
	// Name is what the value is known by, such as "Secret/db/password" or the path of a file in a volume.
	Name string
	// Digest is that of the value; see [Key.Digest]. An empty one stands for a value that is not there.
	Digest string
}

// Sum is the digest of several values with their names, whatever their order: 20 characters of [a-z2-7]. No two sets of entries
// run into one another, since every part goes in with its length. The sum of nothing is a digest like any other.
func (k Key) Sum(entries []Entry) string {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int {
		if order := strings.Compare(a.Name, b.Name); order != 0 {
			return order
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	mac := k.mac(domainSum)
	for _, entry := range sorted {
		writeString(mac, entry.Name)
		writeString(mac, entry.Digest)
	}
	return encoded(mac)[:digestLength]
}

// mac starts an HMAC for one purpose.
func (k Key) mac(domain string) hash.Hash {
	if k.IsZero() {
		panic("reloader: a digest under the zero key would be a bare hash; use NewKey or ParseKey")
	}
	mac := hmac.New(sha256.New, (*k.secret)[:])
	writeString(mac, domain)
	return mac
}

func writeString(mac hash.Hash, text string) {
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
	_, _ = mac.Write([]byte(text))
}

func encoded(mac hash.Hash) string {
	return encoding.EncodeToString(mac.Sum(nil))
}
