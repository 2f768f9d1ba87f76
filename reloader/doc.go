// Package reloader brings changed ConfigMaps and Secrets into running programs.
//
// It has two halves. For applications, [Watch] calls back whenever the files of mounted volumes have other content, with one
// consistent [Snapshot] of them. It needs no Kubernetes API, no permissions and no particular pod; see docs/reloader-library.md.
//
// For the ConfigReload kind, [Key], [Stamp] and [Status] are what the operator, the pods and the agents in them agree on: digests that tell
// nothing to whoever lacks the key, the annotation that the operator writes on a pod, and what an agent answers.
//
// The package knows no Kubernetes types; reloader/classify does.
package reloader
