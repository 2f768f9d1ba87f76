// Command bench measures what the operator adds to the tool that it runs, with
// runners in pods: in ratios within one run where it can, since machines are noisy
// and absolute times say little.
package main

import (
	"context"
	"flag"

	"github.com/terrace-dev/terrace/test/bench/measure"
)

// sizes say how much is measured.
type sizes struct{ runs, objects, namespaces, secrets, pods int }

var bench = measure.Bench[*lab, *sizes]{
	File:  "terraform.json",
	Open:  newLab,
	Close: func(_ context.Context, l *lab) error { return l.close() },
	Parts: []measure.Part[*lab, *sizes]{{Name: "empty", Measure: emptyCluster},
		{Name: "real", Measure: realTool},
		{Name: "restart", Measure: restarts},
		{Name: "stub", Measure: stubTool},
		{Name: "memory", Measure: fullCluster},
	},
}

func main() {
	n := &sizes{namespaces: 10}
	flag.IntVar(&n.runs, "runs", 7, "how often each step with the real tool is repeated; medians are shown")
	flag.IntVar(&n.objects, "objects", 1000, "how many objects the stub tool is run for")
	flag.IntVar(&n.secrets, "secrets", 10000, "how many Secrets are not ours")
	flag.IntVar(&n.pods, "pods", 2000, "how many Pods are not ours")
	bench.Main(n)
}
