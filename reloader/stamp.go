package reloader

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Annotations. What follows a prefix is the name of a ConfigReload, so those names have at most 63 characters.
const (
	// AnnotationPrefix starts the annotation of a pod that holds a [Stamp].
	AnnotationPrefix = "reload.infra.terrace.dev/"
	// RestartAnnotationPrefix starts the annotation of a pod template whose change restarts the workload's pods.
	RestartAnnotationPrefix = "restart.infra.terrace.dev/"
	// AgentPortAnnotation names the port, in decimal, at which the agent in a pod answers GET /status with a [Status].
	AgentPortAnnotation = AnnotationPrefix + "agent-port"
)

const stampVersion = "v1"

// MaxStampLength bounds what [ParseStamp] looks at, in bytes. Real stamps have less than half of it.
const MaxStampLength = 256

var stampPart = regexp.MustCompile(`^[a-z0-9]+$`)

// Stamp is what the operator writes on a pod when it has the kubelet look at the pod's volumes again:
//
//	v1.<key ID>.<digest>.<attempt>[.n][.e<expected digest>]
//
// It holds no time, so that writing it again for the same content and attempt changes nothing.
type Stamp struct {
	// KeyID is that of the [Key] of the digests. Stamps under other keys say nothing.
	KeyID string
	// Digest covers everything that the pod reads from the sources as files.
	Digest string
	// Attempt counts the times that the kubelet was made to look for this digest, from 1.
	Attempt int
	// Notified tells that the application was told of this digest, if it is told at all.
	Notified bool
	// Expect is what [Key.Snapshot] yields in the pod's expectation volume once the content has arrived. It is empty for a pod without one.
	Expect string
}

// String is what [ParseStamp] takes. A stamp without digest is none, and its text is empty.
func (s Stamp) String() string {
	if s.Digest == "" {
		return ""
	}
	parts := []string{stampVersion, s.KeyID, s.Digest, strconv.Itoa(s.Attempt)}
	if s.Notified {
		parts = append(parts, "n")
	}
	if s.Expect != "" {
		parts = append(parts, "e"+s.Expect)
	}
	return strings.Join(parts, ".")
}

// ParseStamp reads the value of an annotation. It accepts exactly what [Stamp.String] makes of stamps with a digest: everything else, which
// includes the empty text and versions to come, is an error.
func ParseStamp(text string) (Stamp, error) {
	if len(text) > MaxStampLength {
		return Stamp{}, fmt.Errorf("a stamp has at most %d characters, this has %d", MaxStampLength, len(text))
	}
	parts := strings.Split(text, ".")
	if len(parts) < 4 || parts[0] != stampVersion {
		return Stamp{}, fmt.Errorf("%q is no stamp: want %s.<key ID>.<digest>.<attempt>[.n][.e<expected digest>]", text, stampVersion)
	}
	attempt, err := strconv.Atoi(parts[3])
	if err != nil || attempt < 1 {
		return Stamp{}, fmt.Errorf("%q is no stamp: the attempt is a number from 1", text)
	}
	stamp := Stamp{KeyID: parts[1], Digest: parts[2], Attempt: attempt}
	rest := parts[4:]
	if len(rest) > 0 && rest[0] == "n" {
		stamp.Notified, rest = true, rest[1:]
	}
	if len(rest) > 0 {
		stamp.Expect = strings.TrimPrefix(rest[0], "e")
	}
	if err := stamp.validate(); err != nil {
		return Stamp{}, fmt.Errorf("%q is no stamp: %w", text, err)
	}
	if stamp.String() != text { // leading zeros, parts too many or in another order
		return Stamp{}, fmt.Errorf("%q is no stamp: the same is written as %q", text, stamp)
	}
	return stamp, nil
}

func (s Stamp) validate() error {
	if !stampPart.MatchString(s.KeyID) {
		return errors.New("the key ID has other characters than a-z and 0-9")
	}
	if !stampPart.MatchString(s.Digest) || (s.Expect != "" && !stampPart.MatchString(s.Expect)) {
		return errors.New("a digest has other characters than a-z and 0-9")
	}
	return nil
}
