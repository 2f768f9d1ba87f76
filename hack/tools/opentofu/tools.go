//go:build tools

// Package tools pins the OpenTofu that the tests and the quickstart run. It is a
// module of its own, so that none of its dependencies reach the product.
package tools

import _ "github.com/opentofu/opentofu/cmd/tofu"
