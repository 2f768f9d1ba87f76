package api_test

import "strings"

// fromSource replaces the inline module of the minimal sample.
const fromSource = "inline: null\nsourceRef: {kind: GitRepository, name: x}\n"

var terraformRules = map[string]ruleCase{
	"metadata.name must be at most 63 characters, because it becomes a label value": {
		accept: []string{""}, acceptName: strings.Repeat("n", 63),
		refuse: []string{""}, refuseName: strings.Repeat("n", 64),
	},
	"exactly one of sourceRef and inline must be set": {
		accept: []string{"{}", fromSource},
		refuse: []string{"inline: null", "sourceRef: {kind: GitRepository, name: x}"},
	},
	"cloud and backend exclude each other": {
		accept: []string{
			"cloud: {organization: o, workspace: {name: w}}",
			"backend: {none: {}}",
		},
		refuse: []string{"{cloud: {organization: o, workspace: {name: w}}, backend: {none: {}}}"},
	},
	"workspace and cloud.workspace.name exclude each other: with cloud.workspace.tags the workspace selects one of the tagged workspaces": {
		accept: []string{
			"{workspace: blue, cloud: {organization: o, workspace: {tags: [t]}}}",
			"{workspace: default, cloud: {organization: o, workspace: {name: w}}}",
		},
		refuse: []string{"{workspace: blue, cloud: {organization: o, workspace: {name: w}}}"},
	},
	"workspace must be a DNS label (lower-case letters, digits and dashes) with backend.kubernetes, because it becomes part of the name of a Secret": {
		accept: []string{
			"workspace: blue-1",
			"{workspace: Blue_1, backend: {custom: 'backend \"s3\" {}'}}",
			"{workspace: Blue_1, backend: {none: {}}}",
			"{workspace: Blue_1, cloud: {organization: o, workspace: {tags: [t]}}}",
		},
		refuse: []string{"workspace: Blue", "workspace: blue_1", "workspace: blue-", "{workspace: Blue, backend: {kubernetes: {}}}"},
	},
	"at most one of backend.kubernetes, backend.custom and backend.none may be set": {
		accept: []string{"backend: {}", "backend: {kubernetes: {}}", "backend: {custom: 'backend \"s3\" {}'}", "backend: {none: {}}"},
		refuse: []string{
			"backend: {kubernetes: {}, custom: 'backend \"s3\" {}'}",
			"backend: {kubernetes: {}, none: {}}",
			"backend: {custom: 'backend \"s3\" {}', none: {}}",
		},
	},
	"backend.configFrom needs backend.custom or backend.none: the settings of backend.kubernetes are the operator's": {
		accept: []string{
			"backend: {custom: 'backend \"s3\" {}', configFrom: [{kind: Secret, name: s, keys: [a]}]}",
			"backend: {none: {}, configFrom: [{kind: ConfigMap, name: s}]}",
		},
		refuse: []string{
			"backend: {configFrom: [{kind: Secret, name: s}]}",
			"backend: {kubernetes: {}, configFrom: [{kind: Secret, name: s}]}",
		},
	},
	"exactly one of cloud.workspace.name and cloud.workspace.tags must be set": {
		accept: []string{
			"cloud: {organization: o, workspace: {name: w, project: p}}",
			"cloud: {organization: o, workspace: {tags: [a, b], project: p}}",
		},
		refuse: []string{
			"cloud: {organization: o, workspace: {name: w, tags: [a]}}",
			"cloud: {organization: o, workspace: {project: p}}",
		},
	},
	"exactly one of variables[].value and variables[].valueFrom must be set (leave the variable out for null)": {
		accept: []string{
			"variables: [{name: a, value: text}, {name: b, value: 1.5}, {name: c, value: true}]",
			"variables: [{name: a, value: {x: [1, null]}}, {name: b, value: []}, {name: c, value: ''}]",
			"variables: [{name: a, value: false}, {name: b, value: 0}, {name: c, value: {}}]",
			"variables: [{name: a, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
		},
		refuse: []string{
			"variables: [{name: a}]",
			"variables: [{name: a, value: null}]",
			"variables: [{name: a, value: 1, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
			"variables: [{name: a, value: {x: 1}, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
		},
	},
	"variables[].name must not be one of the tool's reserved names: source, version, providers, count, for_each, lifecycle, depends_on, locals": {
		accept: []string{"variables: [{name: versions, value: 1}]"},
		refuse: []string{"variables: [{name: version, value: 1}]", "variables: [{name: locals, value: 1}]"},
	},
	"exactly one of valueFrom.secretKeyRef, valueFrom.configMapKeyRef and valueFrom.terraformOutput must be set": {
		accept: []string{
			"variables: [{name: a, valueFrom: {configMapKeyRef: {name: s, key: k}}}]",
			"variables: [{name: a, valueFrom: {terraformOutput: {name: t, output: o}}}]",
		},
		refuse: []string{
			"variables: [{name: a, valueFrom: {}}]",
			"variables: [{name: a, valueFrom: {secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: s, key: k}}}]",
			"variables: [{name: a, valueFrom: {secretKeyRef: {name: s, key: k}, terraformOutput: {name: t, output: o}}}]",
		},
	},
	"exactly one of files[].secretKeyRef and files[].configMapKeyRef must be set": {
		accept: []string{
			"files: [{path: a, secretKeyRef: {name: s, key: k}}]",
			"files: [{path: a, configMapKeyRef: {name: s, key: k}}]",
		},
		refuse: []string{
			"files: [{path: a}]",
			"files: [{path: a, secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: s, key: k}}]",
		},
	},
	"files[].path must be a relative path of a file and must not contain '..'": {
		accept: []string{"files: [{path: a/..b/c.., secretKeyRef: {name: s, key: k}}]"},
		refuse: []string{
			"files: [{path: /etc/passwd, secretKeyRef: {name: s, key: k}}]",
			"files: [{path: ../a, secretKeyRef: {name: s, key: k}}]",
			"files: [{path: a/.., secretKeyRef: {name: s, key: k}}]",
			"files: [{path: a/, secretKeyRef: {name: s, key: k}}]",
		},
	},
	"the file names in inline must be relative paths of at most 255 characters without '..'": {
		accept: []string{"inline: {modules/a/main.tf: ''}"},
		refuse: []string{
			"inline: {/main.tf: ''}", "inline: {../main.tf: ''}", "inline: {a/../../main.tf: ''}", "inline: {a//b.tf: ''}",
			"inline: {" + strings.Repeat("n", 256) + ": ''}",
		},
	},
	"path must be relative and must not contain '..'": {
		accept: []string{"path: ./a/..b"},
		refuse: []string{"path: /a", "path: ../a", "path: a/../../b", "path: .."},
	},
	"variableFiles must be relative paths without '..'": {
		accept: []string{"variableFiles: [a.tfvars, env/b.tfvars]"},
		refuse: []string{"variableFiles: [a.tfvars, /b.tfvars]", "variableFiles: [../a.tfvars]"},
	},
	"approval.mode Never excludes approval.plan and approval.autoWhen": {
		accept: []string{
			"approval: {mode: Never}",
			"approval: {mode: Manual, plan: plan-12345678, autoWhen: 'true'}",
		},
		refuse: []string{
			"approval: {mode: Never, plan: plan-12345678}",
			"approval: {mode: Never, autoWhen: 'true'}",
		},
	},
	"planOptions.refreshOnly excludes planOptions.refresh false": {
		accept: []string{"planOptions: {refreshOnly: true}", "planOptions: {refresh: false}", "planOptions: {refreshOnly: true, refresh: true}"},
		refuse: []string{"planOptions: {refreshOnly: true, refresh: false}"},
	},
	"planOptions.refreshOnly excludes planOptions.destroy": {
		accept: []string{"planOptions: {refreshOnly: false, destroy: true}", "planOptions: {refreshOnly: true, destroy: false}"},
		refuse: []string{"planOptions: {refreshOnly: true, destroy: true}"},
	},
	"planOptions.replace excludes planOptions.refreshOnly and planOptions.destroy": {
		accept: []string{"planOptions: {replace: [a.b]}", "planOptions: {replace: [], destroy: true}"},
		refuse: []string{"planOptions: {replace: [a.b], refreshOnly: true}", "planOptions: {replace: [a.b], destroy: true}"},
	},
	"planOptions.lockTimeout needs planOptions.lock": {
		accept: []string{"planOptions: {lockTimeout: 5s}", "planOptions: {lock: false}"},
		refuse: []string{"planOptions: {lockTimeout: 5s, lock: false}"},
	},
	"planOptions.lockTimeout must be at most 1h": {
		accept: []string{"planOptions: {lockTimeout: 1h}", "planOptions: {lockTimeout: 0s}"},
		refuse: []string{"planOptions: {lockTimeout: 61m}"},
	},
	"exactly one of healthChecks[].tcp and healthChecks[].http must be set": {
		accept: []string{
			"healthChecks: [{name: a, tcp: {address: 'host:22'}}]",
			"healthChecks: [{name: a, http: {url: 'https://host'}, expression: status == 200}]",
		},
		refuse: []string{
			"healthChecks: [{name: a}]",
			"healthChecks: [{name: a, tcp: {address: 'host:22'}, http: {url: 'https://host'}}]",
		},
	},
	"healthChecks[].timeout must be between 1s and 10m": {
		accept: []string{"healthChecks: [{name: a, tcp: {address: 'host:22'}, timeout: 1s}]", "healthChecks: [{name: a, tcp: {address: 'host:22'}, timeout: 10m}]"},
		refuse: []string{"healthChecks: [{name: a, tcp: {address: 'host:22'}, timeout: 999ms}]", "healthChecks: [{name: a, tcp: {address: 'host:22'}, timeout: 11m}]"},
	},
	"interval must be at least 1s": {
		accept: []string{"interval: 1s", "interval: 1h30m"},
		refuse: []string{"interval: 999ms", "interval: 0s"},
	},
	"retryInterval must be at least 100ms": {
		accept: []string{"retryInterval: 100ms"},
		refuse: []string{"retryInterval: 99ms"},
	},
	"retryInterval must not be longer than maxRetryInterval": {
		accept: []string{"{retryInterval: 1m, maxRetryInterval: 60s}", "maxRetryInterval: 30s"},
		refuse: []string{"{retryInterval: 2m, maxRetryInterval: 90s}", "maxRetryInterval: 29s", "retryInterval: 61m"},
	},
	"timeout must be between 1s and 24h": {
		accept: []string{"timeout: 1s", "timeout: 24h"},
		refuse: []string{"timeout: 500ms", "timeout: 25h"},
	},
	"runner.idleTimeout must be at most 24h": {
		accept: []string{"runner: {idleTimeout: 0s}", "runner: {idleTimeout: 24h}"},
		refuse: []string{"runner: {idleTimeout: 24h1s}"},
	},
}

var terraformBounds = map[string]ruleCase{
	"an interval is required": {
		accept: []string{"interval: 1m"},
		refuse: []string{"interval: null"}, message: "spec.interval: Required value",
	},
	"a duration has a unit": {
		accept: []string{"interval: 1.5h"},
		refuse: []string{"interval: '10'", "interval: 10 m", "interval: -1m", "interval: 1d"}, message: "spec.interval: Invalid value",
	},
	"a duration is text": {
		accept: []string{"timeout: 10s"},
		refuse: []string{"timeout: 10"}, message: "spec.timeout in body must be of type string",
	},
	"a source is of a kind that has artifacts": {
		accept: []string{
			fromSource,
			"{inline: null, sourceRef: {kind: OCIRepository, name: x}}",
			"{inline: null, sourceRef: {kind: Bucket, name: x, namespace: other}}",
			"{inline: null, sourceRef: {kind: ExternalArtifact, name: x}}",
		},
		refuse: []string{"{inline: null, sourceRef: {kind: HelmRepository, name: x}}"}, message: "spec.sourceRef.kind: Unsupported value",
	},
	"an inline module has a file": {
		accept: []string{"inline: {main.tf: ''}"},
		refuse: []string{"inline: {main.tf: null}"}, message: "spec.inline",
	},
	"the tool is one of two": {
		accept: []string{"tool: OpenTofu", "tool: Terraform"},
		refuse: []string{"tool: Pulumi"}, message: `spec.tool: Unsupported value: "Pulumi"`,
	},
	"the name of a variable is an identifier": {
		accept: []string{"variables: [{name: _a-b_C9, value: 1}]"},
		refuse: []string{"variables: [{name: 9a, value: 1}]", "variables: [{name: a.b, value: 1}]", "variables: [{name: '', value: 1}]"}, message: "spec.variables[0].name",
	},
	"the names of variables are unique": {
		accept: []string{"variables: [{name: a, value: 1}, {name: b, value: 1}]"},
		refuse: []string{"variables: [{name: a, value: 1}, {name: a, value: 2}]"}, message: "spec.variables[1]: Duplicate value",
	},
	"the prefix of variables begins an identifier and is short": {
		accept:  []string{"variablesFrom: [{kind: Secret, name: s, prefix: cloud_}]"},
		refuse:  []string{"variablesFrom: [{kind: Secret, name: s, prefix: 9_}]", "variablesFrom: [{kind: Secret, name: s, prefix: " + strings.Repeat("p", 65) + "}]"},
		message: "spec.variablesFrom[0].prefix",
	},
	"variables come from Secrets and ConfigMaps": {
		accept: []string{"variablesFrom: [{kind: ConfigMap, name: s, format: JSON}]"},
		refuse: []string{"variablesFrom: [{kind: Terraform, name: s}]"}, message: "spec.variablesFrom[0].kind: Unsupported value",
	},
	"the paths of files are unique": {
		accept:  []string{"files: [{path: a, secretKeyRef: {name: s, key: k}}, {path: b, secretKeyRef: {name: s, key: k}}]"},
		refuse:  []string{"files: [{path: a, secretKeyRef: {name: s, key: k}}, {path: a, secretKeyRef: {name: t, key: k}}]"},
		message: "spec.files[1]: Duplicate value",
	},
	"the mode of a file is made of permission bits": {
		accept: []string{"files: [{path: a, secretKeyRef: {name: s, key: k}, mode: 0}]", "files: [{path: a, secretKeyRef: {name: s, key: k}, mode: 511}]"},
		refuse: []string{"files: [{path: a, secretKeyRef: {name: s, key: k}, mode: 512}]", "files: [{path: a, secretKeyRef: {name: s, key: k}, mode: -1}]"}, message: "spec.files[0].mode",
	},
	"an approved plan is named by its id": {
		accept: []string{"approval: {plan: plan-" + strings.Repeat("a", 64) + "}", "approval: {plan: plan-01234567}"},
		refuse: []string{
			"approval: {plan: plan-1234567}", "approval: {plan: plan-1234567G}", "approval: {plan: auto}",
			"approval: {plan: main-12345678}", "approval: {plan: plan-" + strings.Repeat("a", 65) + "}",
		},
		message: "spec.approval.plan",
	},
	"the mode of approval is one of three": {
		accept: []string{"approval: {mode: Auto}"},
		refuse: []string{"approval: {mode: auto}"}, message: "spec.approval.mode: Unsupported value",
	},
	"destruction needs an approval or not": {
		accept: []string{"approval: {destroy: Required}", "approval: {destroy: NotRequired}"},
		refuse: []string{"approval: {destroy: Auto}"}, message: "spec.approval.destroy: Unsupported value",
	},
	"the names of policies are unique": {
		accept: []string{"policies: [{name: a, expression: 'true'}, {name: b, expression: 'true', action: RequireApproval}]"},
		refuse: []string{"policies: [{name: a, expression: 'true'}, {name: a, expression: 'false'}]"}, message: "spec.policies[1]: Duplicate value",
	},
	"parallelism has bounds": {
		accept: []string{"planOptions: {parallelism: 1}", "planOptions: {parallelism: 256}"},
		refuse: []string{"planOptions: {parallelism: 0}", "planOptions: {parallelism: 257}"}, message: "spec.planOptions.parallelism",
	},
	"the mode of drift is one of three": {
		accept: []string{"drift: {mode: Report}", "drift: {mode: Disabled, ignore: [a.b]}"},
		refuse: []string{"drift: {mode: Ignore}"}, message: "spec.drift.mode: Unsupported value",
	},
	"an object to write outputs to is named once": {
		accept: []string{"outputs: [{kind: Secret, name: a}, {kind: ConfigMap, name: a}]"},
		refuse: []string{"outputs: [{kind: Secret, name: a}, {kind: Secret, name: a}]"}, message: "spec.outputs[1]: Duplicate value",
	},
	"a published output is named once": {
		accept: []string{"publishOutputs: [nodes, endpoint]"},
		refuse: []string{"publishOutputs: [nodes, nodes]"}, message: "spec.publishOutputs[1]: Duplicate value",
	},
	"the url of a health check has a scheme": {
		accept: []string{"healthChecks: [{name: a, http: {url: '${outputs.url}'}}]"},
		refuse: []string{"healthChecks: [{name: a, http: {url: host/healthz}}]"}, message: "spec.healthChecks[0].http.url",
	},
	"the deletion policy is one of two": {
		accept: []string{"deletionPolicy: Destroy", "deletionPolicy: Orphan"},
		refuse: []string{"deletionPolicy: Delete"}, message: "spec.deletionPolicy: Unsupported value",
	},
	"the id of a lock is not an option of the command line": {
		accept: []string{"stateLock: {forceUnlock: Never, id: 2b6a6738-5dd5-50d6-c0ae-f6352977666b}"},
		refuse: []string{"stateLock: {id: -force}", "stateLock: {id: a b}"}, message: "spec.stateLock.id",
	},
	"the pod template is metadata and spec": {
		accept: []string{"runner: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: runner}], anything: 1}}}"},
		refuse: []string{"runner: {template: {containers: []}}"}, message: `unknown field "spec.runner.template.containers"`,
	},
	"the spec of the pod template is an object": {
		accept: []string{"runner: {template: {spec: {}}}"},
		refuse: []string{"runner: {template: {spec: []}}", "runner: {template: {spec: text}}"}, message: "spec.runner.template.spec",
	},
	"the history is bounded": {
		accept: []string{"historyLimit: 0", "historyLimit: 50"},
		refuse: []string{"historyLimit: 51", "historyLimit: -1"}, message: "spec.historyLimit",
	},
}
