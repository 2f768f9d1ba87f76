package engine

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/terrace-dev/terrace/runner"
)

const (
	// minHidden is the shortest value that is worth hiding, in bytes: shorter
	// ones would tear words apart and are guessed anyway.
	minHidden = 6
	// hidden stands where a value was.
	hidden = "(sensitive)"
)

// redactor replaces values that came from Secrets, in the forms in which they may
// appear. The tools hide what they know to be sensitive; a provider's error
// message may not.
type redactor struct {
	words    []string // the longest first, so that no part of one shows beside a shorter one
	replacer *strings.Replacer
}

func newRedactor(secrets []string) *redactor {
	r := &redactor{}
	seen := map[string]bool{}
	for _, secret := range secrets {
		for _, word := range forms(secret) {
			if len(word) >= minHidden && !seen[word] {
				seen[word] = true
				r.words = append(r.words, word)
			}
		}
	}
	slices.SortFunc(r.words, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(r.words))
	for _, word := range r.words {
		pairs = append(pairs, word, hidden)
	}
	r.replacer = strings.NewReplacer(pairs...)
	return r
}

// forms are the ways in which a secret may be written: as it is, line by line, on
// one line, inside of JSON, in a URL, encoded, and each of its values if it is JSON.
func forms(secret string) []string {
	parts := append([]string{secret, strings.TrimSpace(secret), oneLine(secret)}, strings.Split(secret, "\n")...)
	var decoded any
	if json.Unmarshal([]byte(secret), &decoded) == nil {
		parts = append(parts, leaves(decoded)...)
	}
	var found []string
	for _, part := range parts {
		part = strings.TrimSpace(part)
		quoted, _ := json.Marshal(part) // a string, with < > & escaped, as Go and the tools write it
		found = append(found, part, unquoted(quoted), escaper.Replace(part), url.QueryEscape(part), url.PathEscape(part),
			base64.StdEncoding.EncodeToString([]byte(part)))
	}
	return found
}

// escaper quotes as HCL does, for example in the address of an instance.
var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)

func unquoted(text []byte) string { return string(text[1 : len(text)-1]) }

// leaves are the strings in a decoded JSON value.
func leaves(value any) []string {
	var found []string
	switch v := value.(type) {
	case string:
		found = append(found, v)
	case []any:
		for _, part := range v {
			found = append(found, leaves(part)...)
		}
	case map[string]any:
		for _, part := range v {
			found = append(found, leaves(part)...)
		}
	}
	return found
}

// redact also drops control characters, which could steer a terminal.
func (r *redactor) redact(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return -1
		}
		return c
	}, ansi.ReplaceAllString(text, ""))
	if r == nil {
		return text
	}
	return r.replacer.Replace(text)
}

// holds says whether a text shows a secret.
func (r *redactor) holds(text string) bool {
	return r != nil && slices.ContainsFunc(r.words, func(word string) bool { return strings.Contains(text, word) })
}

// hide makes values known as secret, besides those known already.
func (op *operation) hide(secrets ...string) {
	op.secrets = append(op.secrets, secrets...)
	op.redactor.Store(newRedactor(op.secrets))
}

func (op *operation) redact(text string) string { return op.redactor.Load().redact(text) }

// redactDiagnostic redacts a diagnostic before anything is cut out of it.
func (op *operation) redactDiagnostic(d diagnostic) diagnostic {
	d.Summary, d.Detail, d.Address = op.redact(d.Summary), op.redact(d.Detail), op.redact(d.Address)
	return d
}

// redactMessage redacts every string of a result.
func (op *operation) redactMessage(message proto.Message) {
	op.redactFields(message.ProtoReflect())
}

func (op *operation) redactFields(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				if field.MapValue().Kind() == protoreflect.StringKind {
					value.Map().Set(key, protoreflect.ValueOfString(op.redact(v.String())))
				}
				return true
			})
		case field.IsList():
			for i := range value.List().Len() {
				switch field.Kind() {
				case protoreflect.StringKind:
					value.List().Set(i, protoreflect.ValueOfString(op.redact(value.List().Get(i).String())))
				case protoreflect.MessageKind:
					op.redactFields(value.List().Get(i).Message())
				default:
				}
			}
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(op.redact(value.String())))
		case field.Kind() == protoreflect.MessageKind:
			op.redactFields(value.Message())
		}
		return true
	})
}

// redactedReporter redacts what an operation says while it runs.
type redactedReporter struct {
	op *operation
	to runner.Reporter
}

// Phase implements runner.Reporter.
func (r redactedReporter) Phase(name string) { r.to.Phase(name) }

// Log implements runner.Reporter.
func (r redactedReporter) Log(level, text string) { r.to.Log(level, r.op.redact(text)) }

// Progress implements runner.Reporter.
func (r redactedReporter) Progress(address, action string, done bool) {
	r.to.Progress(r.op.redact(address), action, done)
}
