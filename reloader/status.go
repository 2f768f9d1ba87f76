package reloader

import "time"

// StatusPath is where an agent serves its [Status], as JSON, to GET.
const StatusPath = "/status"

// MaxStatusBytes bounds the JSON of a [Status]. Agents stay below it, and who asks need not read on.
const MaxStatusBytes = 64 << 10

// Status is what the agent in a pod knows about the content of the pod's volumes.
type Status struct {
	// Dirs are the directories that the agent watches, in the order in which it was given them.
	Dirs []DirStatus `json:"dirs"`
	// Applied tells whether the application runs with the content observed in Dirs. It is false while an action is awaited or failing. An agent
	// that only reports and does nothing has nothing to apply, and it stays false.
	Applied bool `json:"applied"`
	// AppliedAt is when the last action succeeded, by the clock of the node; nothing if none has yet.
	AppliedAt time.Time `json:"appliedAt,omitzero"`
	// Error is why content cannot be read or applied at present. It holds no content.
	Error string `json:"error,omitempty"`
}

// DirStatus is one directory of a [Status].
type DirStatus struct {
	// Dir is the path of the directory as the agent was given it.
	Dir string `json:"dir"`
	// Observed is the digest of the files that are there, without that of the expectation; see [Key.Snapshot]. It is empty without a key and before
	// the first look.
	Observed string `json:"observed,omitempty"`
	// Expected is [Stamp.Expect] of the stamp found in the directory, empty if there is none.
	Expected string `json:"expected,omitempty"`
	// KeyID is that of the key of Observed.
	KeyID string `json:"keyID,omitempty"`
	// Verified tells whether there is an expectation, made with the same key, and it is met.
	Verified bool `json:"verified"`
	// At is when this was observed, by the clock of the node; nothing before the first look.
	At time.Time `json:"at,omitzero"`
}
