package classify_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/terrace-dev/terrace/reloader/classify"
)

// FuzzStrip looks for a pod that is another one to the classifier once it was
// stripped. Its seeds are pods of
// every kind that the cross product has.
func FuzzStrip(f *testing.F) {
	for i, use := range crossProduct() {
		if i%7 != 0 { // prime to the length of every dimension: all of their values occur
			continue
		}
		seed, err := json.Marshal(use.spec())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	rich, err := json.Marshal(parse(f, richSpec))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(rich)
	f.Fuzz(func(t *testing.T, data []byte) {
		spec := &corev1.PodSpec{}
		if json.Unmarshal(data, spec) != nil {
			t.Skip("no spec")
		}
		stripped := spec.DeepCopy()
		classify.Strip(stripped)
		uses, again := classify.Uses(spec), classify.Uses(stripped)
		if !slices.Equal(uses, again) {
			t.Fatalf("the uses were\n%s\nand are\n%s", lines(uses), lines(again))
		}
		for _, change := range of(uses) {
			if was, is := classify.Classify(uses, change), classify.Classify(again, change); !reflect.DeepEqual(was, is) {
				t.Fatalf("%+v was %+v and is %+v", change, was, is)
			}
		}
		volumes, problem := classify.Expectation(spec, annotation)
		volumesAfter, problemAfter := classify.Expectation(stripped, annotation)
		if problem != problemAfter || !reflect.DeepEqual(volumes, volumesAfter) {
			t.Fatalf("the expectation was %+v, %q and is %+v, %q", volumes, problem, volumesAfter, problemAfter)
		}
		twice := stripped.DeepCopy()
		classify.Strip(twice)
		if !reflect.DeepEqual(stripped, twice) {
			t.Fatal("stripping twice takes more out than stripping once")
		}
	})
}

// of returns changes of what is used, and one of another key.
func of(uses []classify.Use) []classify.Change {
	var all []classify.Change
	for _, use := range uses {
		for _, keys := range [][]string{{use.Key}, {"another"}, {use.Key, "another"}} {
			change := classify.Change{Kind: use.Kind, Name: use.Name, Keys: keys}
			all = append(all, change)
			change.Gone = keys
			all = append(all, change)
			change.Immutable = true
			all = append(all, change)
		}
	}
	return all
}
