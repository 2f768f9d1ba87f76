package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// journal is a file that stands while an operation runs. A journal that is
// found at the start of another operation tells of one that was interrupted
// without a chance to release its state lock.
type journal struct {
	path  string
	alive *os.File // locked while the operation runs

	ID        string    `json:"id"`
	Hostname  string    `json:"hostname"`
	StartedAt time.Time `json:"startedAt"`
	// Interrupted operations whose lock may still stand.
	Interrupted []interruption `json:"interrupted,omitempty"`
}

// maxInterruptions bounds what is known of operations that were interrupted one after the other.
const maxInterruptions = 64

// interruption bounds the time in which an interrupted operation may have taken the lock.
type interruption struct {
	Hostname string    `json:"hostname"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
}

// openJournal writes the journal of an operation that is about to start tools. One
// that was begun before, by the id, is lost: it may have done a part. A
// lock on a file beside it, which ends with the process, tells a journal that was
// left behind from that of an operation that still runs, in another process.
func (op *operation) openJournal() error {
	if op.journal != nil {
		return nil
	}
	j := &journal{path: filepath.Join(op.dir, "operation.json")}
	var err error
	if j.alive, err = os.OpenFile(filepath.Join(op.dir, "operation.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(j.alive.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(retry(infrav1.RunnerFailedReason, err, "another process works on this object in the same directory"), j.alive.Close())
	}
	op.journal = j
	data, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && json.Unmarshal(data, j) == nil && j.ID != "" {
		begun := j.ID == op.request.GetId()
		j.interrupt(op.engine.started)
		if begun { // whoever asks again does not know how far it came
			j.ID = ""
			return errors.Join(lost("the runner ended while it worked on operation %s; it is not begun again", op.request.GetId()), j.save())
		}
	}
	j.ID, j.Hostname, j.StartedAt = op.request.GetId(), op.engine.options.Hostname, time.Now()
	return j.save()
}

// interrupt remembers that the journal's operation ended without releasing its lock.
func (j *journal) interrupt(at time.Time) {
	if at.Before(j.StartedAt) {
		at = time.Now()
	}
	if at.Before(j.StartedAt) { // the clock went back
		at = j.StartedAt.Add(24 * time.Hour)
	}
	j.Interrupted = append(j.Interrupted, interruption{Hostname: j.Hostname, From: j.StartedAt, To: at})
	j.Interrupted = j.Interrupted[max(0, len(j.Interrupted)-maxInterruptions):]
}

// locked says that the state lock was taken and released, so no older one stands any more.
func (j *journal) locked() { j.Interrupted = nil }

func (j *journal) save() error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return writeFile(j.path, data)
}

// close ends the journal; what is known of interrupted operations is kept.
func (j *journal) close() error {
	defer func() {
		// Closing alone would not do: a process that is being forked for another
		// operation has the file open until it executes its program.
		_ = syscall.Flock(int(j.alive.Fd()), syscall.LOCK_UN)
		_ = j.alive.Close()
	}()
	if len(j.Interrupted) == 0 {
		return os.Remove(j.path)
	}
	j.ID = ""
	return j.save()
}

// owns says whether one of the interrupted operations took the lock.
func (j *journal) owns(hostname string, created time.Time) bool {
	const rounding = time.Second
	for _, i := range j.Interrupted {
		if i.Hostname == hostname && created.After(i.From.Add(-rounding)) && created.Before(i.To.Add(rounding)) {
			return true
		}
	}
	return false
}

// writeFile replaces a private file as a whole.
func writeFile(path string, data []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
