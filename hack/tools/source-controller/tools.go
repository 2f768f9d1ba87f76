//go:build tools

// Package tools keeps the source-controller of Flux in this module, which end to
// end tests run beside the operator.
package tools

import _ "github.com/fluxcd/source-controller"
