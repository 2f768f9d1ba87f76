// Package reconcile is the skeleton that Terrace's controllers share: phases over
// a scope, four kinds of errors, one place that turns an outcome into conditions,
// and one writer of status.
//
// A controller reads its object, makes a Patcher, runs its phases with Run, and
// hands what came out to Summarize. Phases set the conditions of their own domain;
// Ready, Reconciling and Stalled are set by Summarize alone.
package reconcile
