package harness

import (
	"context"

	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/kubelet"
)

// RunnerImage is the image of runner pods, as the kubelet of StartKubelet knows it.
const RunnerImage = "terrace-runner:test"

// StartKubelet starts a test kubelet that plays runner pods. Their image has a
// runner, default bin/runner, and OpenTofu, default bin/tofu, with the providers of
// bin/providers. Logs go to dir. edit may change what the kubelet does, for
// example add images.
func StartKubelet(ctx context.Context, plane *controlplane.ControlPlane, dir, runner, tofu string, edit ...func(*kubelet.Options)) (*kubelet.Kubelet, error) {
	program, err := RunnerProgram(runner, tofu)
	if err != nil {
		return nil, err
	}
	options := kubelet.Options{Config: plane.Config, Dir: dir, Programs: map[string][]string{RunnerImage: program}}
	for _, f := range edit {
		f(&options)
	}
	return kubelet.Start(ctx, options)
}

// RunnerProgram is an image for a test kubelet: a runner, default bin/runner, with
// OpenTofu, default bin/tofu. Real images have it on their PATH.
func RunnerProgram(runner, tofu string) ([]string, error) {
	var err error
	if runner == "" {
		if runner, err = Bin("runner"); err != nil {
			return nil, err
		}
	}
	if tofu == "" {
		if tofu, err = Bin("tofu"); err != nil {
			return nil, err
		}
	}
	cliConfig, err := Bin("providers", "cli.tfrc")
	if err != nil {
		return nil, err
	}
	return []string{runner, "--tofu-path=" + tofu, "--tool-cli-config=" + cliConfig}, nil
}
