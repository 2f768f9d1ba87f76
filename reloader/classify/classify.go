package classify

import (
	"fmt"
	"slices"
)

// Class is what it takes to bring a change into a pod that runs.
type Class string

const (
	// None says that the change does not reach the pod, or must not.
	None Class = "None"
	// Refresh says that the kubelet renews the files; a change of the pod's
	// annotations makes it do so at once.
	Refresh Class = "Refresh"
	// Restart says that only new containers consume the change.
	Restart Class = "Restart"
)

// Change is how an object changed.
type Change struct {
	// Kind and Name of the object.
	Kind, Name string
	// Keys that were changed, added or removed. Without any, nothing changed.
	Keys []string
	// Gone are those of Keys that exist no longer. While a key is gone that a pod
	// requires by name, the kubelet leaves its volume as it is and starts no new
	// container (or mounts an empty directory in place of a file): class None.
	Gone []string
	// Deleted says that the object exists no longer, with the same consequences.
	Deleted bool
	// Immutable says that the object is immutable, and Recreated that another object
	// of this name was there before.
	Immutable, Recreated bool
}

// Verdict is what a change means for a pod.
type Verdict struct {
	// Class is what to do.
	Class Class
	// Reason says why, in a clause without values; it can follow a colon.
	Reason string
	// Uses are those that decide; none if the pod does not consume the change.
	Uses []Use
}

// Classify says what it takes to bring a change into a pod with these uses, as
// [Uses] returns them. It goes by key: a key that is only a file restarts nobody
// who has another key in a variable. If any use of the change needs a restart,
// the whole pod does.
func Classify(uses []Use, change Change) Verdict {
	var refresh, restart, withheld []Use
	for _, use := range uses {
		keys := change.of(use)
		switch {
		case len(keys) == 0:
		case change.breaks(use, keys):
			withheld = append(withheld, use)
		case use.How == File && !change.Immutable:
			refresh = append(refresh, use)
		case use.How == Init && !change.Immutable && covered(uses, use, keys):
		default:
			restart = append(restart, use)
		}
	}
	refresh = apart(refresh, withheld)
	switch {
	case len(withheld) > 0 && len(refresh) == 0:
		return Verdict{None, change.text(withheld[0]) + " is gone and required: the pod keeps what it has, and a new one would not run", withheld}
	case len(restart) > 0 && len(withheld) == 0:
		return Verdict{Restart, change.why(restart[0]), restart}
	case len(refresh) > 0:
		return Verdict{Refresh, fmt.Sprintf("%s is a file in volume %s of container %s", change.text(refresh[0]), refresh[0].Volume, refresh[0].Container), refresh}
	default:
		return Verdict{Class: None, Reason: fmt.Sprintf("the pod does not consume what changed in %s %s", change.Kind, change.Name)}
	}
}

// of returns the keys of the change that are used.
func (c Change) of(use Use) []string {
	if use.Kind != c.Kind || use.Name != c.Name {
		return nil
	}
	var keys []string
	for _, key := range c.Keys {
		if use.consumes(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// breaks says whether the change took away what the use requires.
func (c Change) breaks(use Use, keys []string) bool {
	if use.Optional {
		return false
	}
	if c.Deleted {
		return true
	}
	return use.Key != "" && slices.Contains(keys, use.Key) && slices.Contains(c.Gone, use.Key)
}

// apart returns the uses in volumes that the kubelet can still renew: it renews all
// of a volume or nothing.
func apart(uses, broken []Use) []Use {
	return slices.DeleteFunc(uses, func(use Use) bool {
		return slices.ContainsFunc(broken, func(b Use) bool { return b.Volume == use.Volume })
	})
}

// covered says whether running containers have all of the keys as files.
func covered(uses []Use, use Use, keys []string) bool {
	for _, key := range keys {
		if !slices.ContainsFunc(uses, func(other Use) bool {
			return other.How == File && other.Kind == use.Kind && other.Name == use.Name && other.consumes(key)
		}) {
			return false
		}
	}
	return true
}

// text names what is used of the object.
func (c Change) text(use Use) string {
	switch {
	case use.Key != "":
		return fmt.Sprintf("key %s of %s %s", use.Key, c.Kind, c.Name)
	case len(c.Keys) == 1:
		return fmt.Sprintf("key %s of %s %s", c.Keys[0], c.Kind, c.Name)
	default:
		return fmt.Sprintf("%s %s", c.Kind, c.Name)
	}
}

// why says why a use needs a restart.
func (c Change) why(use Use) string {
	if c.Immutable && c.Recreated {
		return fmt.Sprintf("%s %s is immutable and was replaced: kubelets keep the old content while a pod on their node refers to it, "+
			"so that even a new pod can get it; give the new content a new name", c.Kind, c.Name)
	}
	text := c.text(use)
	switch use.How {
	case SubPath:
		return fmt.Sprintf("%s is mounted by subPath in container %s", text, use.Container)
	case Init:
		return fmt.Sprintf("%s is a file of init container %s only", text, use.Container)
	case Env:
		return fmt.Sprintf("%s is in the environment of container %s", text, use.Container)
	default:
		return fmt.Sprintf("%s is immutable: kubelets do not renew its files", text)
	}
}
