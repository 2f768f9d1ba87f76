package api_test

import "strings"

var clusterRules = map[string]ruleCase{
	"metadata.name must be a DNS label of at most 45 characters, because it begins the names of Jobs": {
		accept: []string{""}, acceptName: strings.Repeat("n", 45),
		refuse: []string{""}, refuseName: "with.a.dot",
	},
	"at least one of nodes and nodesFrom must be set": {
		accept: []string{"{}", "{nodes: null, nodesFrom: [{terraformRef: {name: t}}]}", "nodesFrom: [{terraformRef: {name: t}}]"},
		refuse: []string{"nodes: null"},
	},
	"each of nodes needs roles, and ip or ip6, unless nodesFrom adds them": {
		accept: []string{
			"nodes: {extra: {roles: [worker], ip6: 'fd00::1'}}",
			"{nodes: {extra: {user: debian}}, nodesFrom: [{terraformRef: {name: t}}]}",
		},
		refuse: []string{"nodes: {extra: {ip: 10.0.0.1}}", "nodes: {extra: {roles: [worker], accessIP: 10.0.0.1}}"},
	},
	"one of nodes needs control-plane among its roles, unless nodesFrom adds it": {
		accept: []string{"{nodes: {cp1: null}, nodesFrom: [{terraformRef: {name: t}}]}"},
		refuse: []string{"nodes: {cp1: null}"},
	},
	"the keys of nodes must be DNS labels: at most 63 lower-case letters, digits and dashes, without a dash at either end": {
		accept: []string{"nodes: {a-1: {roles: [worker], ip: 10.0.0.1}, " + strings.Repeat("n", 63) + ": {roles: [worker], ip: 10.0.0.2}}"},
		refuse: []string{
			"nodes: {Upper: {roles: [worker], ip: 10.0.0.1}}",
			"nodes: {under_score: {roles: [worker], ip: 10.0.0.1}}",
			"nodes: {'cp*': {roles: [worker], ip: 10.0.0.1}}",
			"nodes: {dash-: {roles: [worker], ip: 10.0.0.1}}",
			"nodes: {" + strings.Repeat("n", 64) + ": {roles: [worker], ip: 10.0.0.1}}",
		},
	},
	"endpoint and endpointFrom exclude each other": {
		accept: []string{"endpoint: {host: api.example.com}", "endpointFrom: {terraformRef: {name: t}}"},
		refuse: []string{"{endpoint: {host: api.example.com}, endpointFrom: {terraformRef: {name: t}}}"},
	},
	"network is immutable: a cluster keeps its plugin, CIDRs, families and dnsDomain for life": {
		update: "network: {plugin: cilium, podCIDR: 10.1.0.0/16}",
		accept: []string{
			"{network: {plugin: cilium, podCIDR: 10.1.0.0/16}, kubernetesVersion: 1.34.4}",
			"network: {plugin: cilium, podCIDR: 10.1.0.0/16, dnsDomain: cluster.local}", // its default
		},
		refuse: []string{
			"network: {plugin: calico, podCIDR: 10.1.0.0/16}",
			"network: {plugin: cilium}", // back to the default
			"network: null",
			"network: {plugin: cilium, podCIDR: 10.1.0.0/16, dnsDomain: example.local}",
			"network: {plugin: cilium, podCIDR: 10.1.0.0/16, families: [IPv4, IPv6]}",
		},
	},
	"network.podCIDR6 and network.serviceCIDR6 need IPv6 in network.families": {
		accept: []string{"network: {podCIDR6: 'fd00::/112', serviceCIDR6: 'fd01::/112', families: [IPv4, IPv6]}", "network: {families: [IPv6], podCIDR6: 'fd00::/112'}"},
		refuse: []string{"network: {podCIDR6: 'fd00::/112'}", "network: {serviceCIDR6: 'fd00::/112', families: [IPv4]}"},
	},
	"network.podCIDR must be an address range such as 10.233.64.0/18": {
		accept: []string{"network: {podCIDR: 10.0.0.0/16}", "network: {families: [IPv6], podCIDR: 'fd00::/64'}"},
		refuse: []string{"network: {podCIDR: 10.0.0.0}", "network: {podCIDR: 10.0.0.0/33}", "network: {podCIDR: ''}"},
	},
	"network.serviceCIDR must be an address range such as 10.233.0.0/18": {
		accept: []string{"network: {serviceCIDR: 10.0.0.0/16}"},
		refuse: []string{"network: {serviceCIDR: 10.0.0/16}"},
	},
	"network.podCIDR6 must be an IPv6 address range": {
		accept: []string{"network: {podCIDR6: 'fd00::/112', families: [IPv4, IPv6]}"},
		refuse: []string{"network: {podCIDR6: 10.0.0.0/16, families: [IPv4, IPv6]}", "network: {podCIDR6: 'fd00::', families: [IPv4, IPv6]}"},
	},
	"network.serviceCIDR6 must be an IPv6 address range": {
		accept: []string{"network: {serviceCIDR6: 'fd00::/112', families: [IPv4, IPv6]}"},
		refuse: []string{"network: {serviceCIDR6: 10.0.0.0/16, families: [IPv4, IPv6]}"},
	},
	"become.passwordSecretRef needs become.enabled": {
		accept: []string{"become: {passwordSecretRef: {name: s, key: k}}", "become: {enabled: false}"},
		refuse: []string{"become: {enabled: false, passwordSecretRef: {name: s, key: k}}"},
	},
	"upgrade.serial must be a number from 1 to 1000 or a percentage from 1% to 100%": {
		accept: []string{"upgrade: {serial: 1}", "upgrade: {serial: 1000}", "upgrade: {serial: 100%}"},
		refuse: []string{"upgrade: {serial: 0}", "upgrade: {serial: 1001}"},
	},
	"upgrade.drain.timeout must be between 1s and 24h": {
		accept: []string{"upgrade: {drain: {timeout: 1s}}", "upgrade: {drain: {timeout: 24h}}"},
		refuse: []string{"upgrade: {drain: {timeout: 0s}}", "upgrade: {drain: {timeout: 25h}}"},
	},
	"upgrade.drain.gracePeriod must be at most 24h": {
		accept: []string{"upgrade: {drain: {gracePeriod: 0s}}", "upgrade: {drain: {gracePeriod: 24h}}"},
		refuse: []string{"upgrade: {drain: {gracePeriod: 24h1m}}"},
	},
	"job.ttl must be at most 720h": {
		accept: []string{"job: {ttl: 0s}", "job: {ttl: 720h}"},
		refuse: []string{"job: {ttl: 721h}"},
	},
	"interval must be at least 1s": {
		accept: []string{"interval: 1s"},
		refuse: []string{"interval: 10ms"},
	},
	"timeout must be between 1s and 48h": {
		accept: []string{"timeout: 1s", "timeout: 48h"},
		refuse: []string{"timeout: 0s", "timeout: 49h"},
	},
}

var clusterBounds = map[string]ruleCase{
	"the Kubernetes version is exact": {
		accept: []string{"kubernetesVersion: 1.34.3", "kubernetesVersion: v1.34.3"},
		refuse: []string{
			"kubernetesVersion: '1.34'", "kubernetesVersion: 1.34.x", "kubernetesVersion: latest",
			"kubernetesVersion: 2.0.0", "kubernetesVersion: 1.34.3-rc.1", "kubernetesVersion: vv1.34.3",
		},
		message: "spec.kubernetesVersion: Invalid value",
	},
	"the Kubernetes version is text, so that 1.30 does not become 1.3": {
		accept: []string{"kubernetesVersion: 1.30.1"},
		refuse: []string{"kubernetesVersion: 1.30"}, message: "spec.kubernetesVersion in body must be of type string",
	},
	"the Kubespray release is exact or auto": {
		accept: []string{"kubespray: {release: v2.30.0}", "kubespray: {release: auto}"},
		refuse: []string{"kubespray: {release: master}", "kubespray: {release: 2.30.0}"}, message: "spec.kubespray.release",
	},
	"the roles of nodes are known": {
		accept:  []string{"nodes: {extra: {roles: [control-plane, worker, etcd], ip: 10.0.0.1}}"},
		refuse:  []string{"nodes: {extra: {roles: [master], ip: 10.0.0.1}}", "nodes: {extra: {roles: [kube_node], ip: 10.0.0.1}}"},
		message: "spec.nodes.extra.roles[0]: Unsupported value",
	},
	"a role is named once": {
		accept: []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1}}"},
		refuse: []string{"nodes: {extra: {roles: [worker, worker], ip: 10.0.0.1}}"}, message: "roles[1]: Duplicate value",
	},
	"the ip of a node is an IPv4 address": {
		accept:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, accessIP: 203.0.113.1}}"},
		refuse:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.256}}", "nodes: {extra: {roles: [worker], ip: host}}", "nodes: {extra: {roles: [worker], ip: 'fd00::1'}}"},
		message: "spec.nodes.extra.ip",
	},
	"the ip6 of a node is an IPv6 address": {
		accept: []string{"nodes: {extra: {roles: [worker], ip6: 'fd00::1', accessIP6: '2001:db8::1'}}"},
		refuse: []string{"nodes: {extra: {roles: [worker], ip6: 10.0.0.1}}", "nodes: {extra: {roles: [worker], ip6: 'fd00::g'}}"}, message: "spec.nodes.extra.ip6",
	},
	"the host of a node is no option of the command line": {
		accept:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, ansibleHost: a.example.com}}", "nodes: {extra: {roles: [worker], ip: 10.0.0.1, ansibleHost: '::1'}}"},
		refuse:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, ansibleHost: -oProxyCommand}}", "nodes: {extra: {roles: [worker], ip: 10.0.0.1, ansibleHost: 'a b'}}"},
		message: "spec.nodes.extra.ansibleHost",
	},
	"the port of a node is a port": {
		accept: []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, port: 65535}}"},
		refuse: []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, port: 0}}", "nodes: {extra: {roles: [worker], ip: 10.0.0.1, port: 65536}}"}, message: "spec.nodes.extra.port",
	},
	"a taint has an effect": {
		accept:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, taints: ['a=b:NoSchedule', 'example.com/a:NoExecute']}}"},
		refuse:  []string{"nodes: {extra: {roles: [worker], ip: 10.0.0.1, taints: ['a=b']}}", "nodes: {extra: {roles: [worker], ip: 10.0.0.1, taints: ['a=b:Never']}}"},
		message: "spec.nodes.extra.taints[0]",
	},
	"variables keep their types": {
		accept: []string{"{vars: {a: true, b: 1, c: [x], d: {e: f}}, nodes: {extra: {roles: [worker], ip: 10.0.0.1, vars: {a: {b: [1]}}}}}"},
		refuse: []string{"vars: [a]"}, message: "spec.vars in body must be of type object",
	},
	"nodes come from somewhere": {
		accept: []string{"nodesFrom: [{terraformRef: {name: t, namespace: other}, output: nodes}]"},
		refuse: []string{"nodesFrom: []"}, message: "spec.nodesFrom in body should have at least 1 items",
	},
	"a key is required for ssh": {
		accept: []string{"ssh: {secretRef: {name: s, key: id}}"},
		refuse: []string{"ssh: {secretRef: null}"}, message: "spec.ssh.secretRef: Required value",
	},
	"families are IPv4 and IPv6": {
		accept: []string{"network: {families: [IPv6, IPv4]}"},
		refuse: []string{"network: {families: [IPv5]}"}, message: "spec.network.families[0]: Unsupported value",
	},
	"etcd runs on the host": {
		accept: []string{"etcd: {deployment: host}"},
		refuse: []string{"etcd: {deployment: kubeadm}"}, message: "spec.etcd.deployment: Unsupported value",
	},
	"serial as text is a percentage": {
		accept: []string{"upgrade: {serial: 1%}", "upgrade: {serial: 99%}"},
		refuse: []string{"upgrade: {serial: 0%}", "upgrade: {serial: 101%}", "upgrade: {serial: '3'}"}, message: "spec.upgrade.serial",
	},
	"an approved plan is named by its id": {
		accept: []string{"approval: {mode: Manual, plan: plan-0123abcd}"},
		refuse: []string{"approval: {plan: auto}", "approval: {plan: plan-}"}, message: "spec.approval.plan",
	},
	"the mode of approval is one of three": {
		accept: []string{"approval: {mode: Auto}", "approval: {mode: Destructive}"},
		refuse: []string{"approval: {mode: Never}"}, message: "spec.approval.mode: Unsupported value",
	},
	"a hook belongs to an operation that exists": {
		accept: []string{"hooks: {before: [{operation: Scale, playbook: {configMapRef: {name: c}}}]}"},
		refuse: []string{"hooks: {before: [{operation: All, playbook: {configMapRef: {name: c}}}]}"}, message: "spec.hooks.before[0].operation: Unsupported value",
	},
	"the deletion policy is one of two": {
		accept: []string{"deletionPolicy: Reset"},
		refuse: []string{"deletionPolicy: Destroy"}, message: "spec.deletionPolicy: Unsupported value",
	},
	"forks have bounds": {
		accept: []string{"job: {forks: 1}", "job: {forks: 200}"},
		refuse: []string{"job: {forks: 0}", "job: {forks: 201}"}, message: "spec.job.forks",
	},
}
