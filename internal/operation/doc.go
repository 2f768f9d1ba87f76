// Package operation keeps track of what runners are doing for objects, so that no
// reconciliation ever waits for a tool.
//
// A reconciliation starts an operation and returns. A goroutine per running
// operation starts it at the runner, uploads the source if the runner lacks it,
// watches the runner's events, and wakes the object up when the operation ended.
// The reconciliation then collects the result, writes it into status, and forgets
// the operation. Everything here is in memory: what must survive the manager
// stands in the object's status before the operation starts.
package operation
