// Package classify says how a pod consumes ConfigMaps and Secrets, and so what it
// takes to bring a change into the pod while it runs: an update of its volumes, a
// restart, or nothing. All of it is computed from the pod's spec; nothing here
// talks to a cluster.
//
// What the kubelet renews decides:
//
//   - A volume (configMap, secret, or either as a source of a projected volume)
//     that a running container mounts whole is renewed in place: [File].
//   - A mount by subPath or subPathExpr stays bound to the files of the container's
//     start: [SubPath].
//   - Variables are resolved when a container starts: [Env].
//   - An init container has run; what it made of its files stays: [Init]. It counts
//     only if no running container has the same key as a file. An init container
//     with restartPolicy Always is a running container.
//   - An immutable object is cached by the kubelet as long as a pod of the node
//     refers to it.
//
// An ephemeral container counts by the volumes it mounts whole. A restart would
// not renew it but end it, so that what only a restart renews is no use there.
//
// These are no uses: a volume that no container mounts (the kubelet does not even
// set it up), imagePullSecrets (read at each pull), Secrets that a volume driver
// gets (nodePublishSecretRef of a CSI volume and the like: what a driver makes of
// them is between it and its backend), the projected service account token and
// certificates (the kubelet renews them by their lifetime), and fileKeyRef (it
// reads a file of a volume).
package classify
