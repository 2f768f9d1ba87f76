// Command coredns is CoreDNS with no plugins but those that the cluster of the end
// to end tests needs. It is a module of its own, so that none of its dependencies
// reach the product.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order in which plugins see a request.
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
