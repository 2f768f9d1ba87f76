package engine

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/terrace-dev/terrace/runner"
)

// message is one line of a tool's -json output, as far as we use it
// (machine-readable UI, versions 1.0 to 1.2).
type message struct {
	Level      string      `json:"@level"`
	Text       string      `json:"@message"`
	Type       string      `json:"type"`
	Diagnostic *diagnostic `json:"diagnostic"`
	Hook       *hook       `json:"hook"`
	Changes    *struct {
		Add, Change, Remove int32
	} `json:"changes"`
	Outputs map[string]outputMessage `json:"outputs"`
}

// hook is what happens to one resource.
type hook struct {
	Resource struct {
		Address  string `json:"addr"`
		Type     string `json:"resource_type"`
		Provider string `json:"implied_provider"`
	} `json:"resource"`
	Action  string `json:"action"`
	IDKey   string `json:"id_key"`
	IDValue string `json:"id_value"`
}

// outputMessage is an output after an apply; Value is absent when it is sensitive.
type outputMessage struct {
	Sensitive bool            `json:"sensitive"`
	Type      json.RawMessage `json:"type"`
	Value     json.RawMessage `json:"value"`
}

// diagnostic is an error or a warning in the tool's own words.
type diagnostic struct {
	Severity string `json:"severity"`
	Summary  string `json:"summary"`
	Detail   string `json:"detail"`
	Address  string `json:"address"`
	Range    *struct {
		Filename string `json:"filename"`
		Start    struct {
			Line int `json:"line"`
		} `json:"start"`
	} `json:"range"`
}

// maxLine bounds a message that goes to a condition, in bytes.
const maxLine = 700

// line is the diagnostic in one line: place, summary, first paragraph of the detail.
func (d diagnostic) line() string {
	text := d.Summary
	if detail, _, _ := strings.Cut(strings.TrimSpace(d.Detail), "\n\n"); detail != "" {
		text += ": " + strings.Join(strings.Fields(detail), " ")
	}
	if d.Range != nil && d.Range.Filename != "" {
		text = fmt.Sprintf("%s:%d: %s", d.Range.Filename, d.Range.Start.Line, text)
	} else if d.Address != "" {
		text = d.Address + ": " + text
	}
	return truncate(text, maxLine)
}

// same says whether two diagnostics speak of the same thing at the same place.
func (d diagnostic) same(other diagnostic) bool {
	if d.Summary != other.Summary || (d.Range == nil) != (other.Range == nil) {
		return false
	}
	return d.Range == nil || *d.Range == *other.Range
}

func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-3], "") + "..."
}

// messages reads a tool's -json output, passes it on and keeps what the
// operation needs at the end. terraform-exec writes whole lines.
type messages struct {
	report runner.Reporter
	redact func(diagnostic) diagnostic

	mu          sync.Mutex
	diagnostics []diagnostic
	outputs     map[string]outputMessage
	completed   []message // resources that were created, changed or deleted
	started     int
	changes     [3]int32 // added, changed, destroyed
}

func (op *operation) newMessages() *messages {
	return &messages{report: op.report, redact: op.redactDiagnostic}
}

// Write implements io.Writer.
func (m *messages) Write(line []byte) (int, error) {
	var msg message
	if json.Unmarshal(line, &msg) != nil {
		return len(line), nil // not JSON: a tool's warning about its own configuration
	}
	if msg.Hook == nil {
		msg.Hook = &hook{} // a provisioner may write into the tool's stdout, too
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch msg.Type {
	case "version":
		return len(line), nil
	case "diagnostic":
		if msg.Diagnostic != nil {
			m.diagnostics = append(m.diagnostics, m.redact(*msg.Diagnostic))
		}
	case "apply_start":
		m.started++
		m.report.Progress(msg.Hook.Resource.Address, msg.Hook.Action, false)
	case "apply_complete":
		m.completed = append(m.completed, msg)
		m.report.Progress(msg.Hook.Resource.Address, msg.Hook.Action, true)
	case "outputs":
		m.outputs = msg.Outputs
	case "change_summary":
		if msg.Changes != nil {
			m.changes = [3]int32{msg.Changes.Add, msg.Changes.Change, msg.Changes.Remove}
		}
	}
	m.report.Log(msg.Level, msg.Text)
	return len(line), nil
}

func (m *messages) bySeverity(severity string) []diagnostic {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []diagnostic
	for _, d := range m.diagnostics {
		if d.Severity == severity {
			found = append(found, d)
		}
	}
	return found
}

func (m *messages) errors() []diagnostic { return m.bySeverity("error") }

// warnings returns at most ten warnings, one line each.
func (m *messages) warnings() []string {
	var lines []string
	for _, d := range m.bySeverity("warning") {
		if len(lines) == 10 {
			break
		}
		lines = append(lines, d.line())
	}
	return lines
}

// ansi matches the colour codes that some tools print in spite of -no-color.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// firstErrorLine finds the tool's first error in its words for people.
func firstErrorLine(stderr string) string {
	for line := range strings.Lines(ansi.ReplaceAllString(stderr, "")) {
		line = strings.TrimSpace(strings.TrimLeft(line, "│╷╵ "))
		if text, found := strings.CutPrefix(line, "Error: "); found {
			return truncate(text, maxLine)
		}
	}
	return ""
}
