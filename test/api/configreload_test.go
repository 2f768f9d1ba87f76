package api_test

import "strings"

var reloadRules = map[string]ruleCase{
	"metadata.name must be at most 63 characters, because it becomes a label value": {
		accept: []string{""}, acceptName: strings.Repeat("n", 63),
		refuse: []string{""}, refuseName: strings.Repeat("n", 64),
	},
	"exactly one of sources[].name and sources[].selector must be set": {
		accept: []string{"sources: [{kind: Secret, name: s}, {kind: ConfigMap, selector: {matchLabels: {a: b}}}, {kind: Secret, selector: {}}]"},
		refuse: []string{"sources: [{kind: Secret}]", "sources: [{kind: Secret, name: s, selector: {matchLabels: {a: b}}}]"},
	},
	"exactly one of targets[].workloadRef, targets[].podSelector and targets[].consumers must be set": {
		accept: []string{"targets: [{workloadRef: {kind: Deployment, name: d}}, {podSelector: {}}, {consumers: {}}]"},
		refuse: []string{
			"targets: [{}]",
			"targets: [{workloadRef: {kind: Deployment, name: d}, podSelector: {}}]",
			"targets: [{podSelector: {}, consumers: {}}]",
			"targets: [{workloadRef: {kind: Deployment, name: d}, consumers: {}}]",
		},
	},
	"restart.when InWindow needs windows": {
		accept: []string{
			"{restart: {when: InWindow}, windows: [{schedule: '@daily', duration: 1h}]}",
			"restart: {when: Always}",
			"windows: [{schedule: '@daily', duration: 1h}]",
		},
		refuse: []string{"restart: {when: InWindow}", "{restart: {when: InWindow}, windows: []}"},
	},
	"refresh.rebumpAfter must be between 100ms and 5m": {
		accept: []string{"refresh: {rebumpAfter: 100ms}", "refresh: {rebumpAfter: 5m}"},
		refuse: []string{"refresh: {rebumpAfter: 99ms}", "refresh: {rebumpAfter: 301s}"},
	},
	"notify.http.timeout must be between 100ms and 1m": {
		accept: []string{"notify: {http: {port: 80, timeout: 100ms}}", "notify: {http: {port: 80, timeout: 1m}}"},
		refuse: []string{"notify: {http: {port: 80, timeout: 50ms}}", "notify: {http: {port: 80, timeout: 61s}}"},
	},
	"debounce.quiet must be at most 1m": {
		accept: []string{"debounce: {quiet: 0s}", "debounce: {quiet: 60s}"},
		refuse: []string{"debounce: {quiet: 61s}"},
	},
	"debounce.spacing must be at most 1h": {
		accept: []string{"debounce: {spacing: 0s}", "debounce: {spacing: 60m}"},
		refuse: []string{"debounce: {spacing: 61m}"},
	},
	"limits.minInterval must be at most 24h": {
		accept: []string{"limits: {minInterval: 0s}", "limits: {minInterval: 24h}"},
		refuse: []string{"limits: {minInterval: 25h}"},
	},
	"windows[].duration must be between 1m and 168h": {
		accept: []string{"windows: [{schedule: '@weekly', duration: 1m}, {schedule: '0 3 * * *', duration: 168h}]"},
		refuse: []string{"windows: [{schedule: '@weekly', duration: 59s}]", "windows: [{schedule: '@weekly', duration: 169h}]"},
	},
}

var reloadBounds = map[string]ruleCase{
	"sources are ConfigMaps and Secrets": {
		accept: []string{"sources: [{kind: ConfigMap, name: s}]"},
		refuse: []string{"sources: [{kind: Pod, name: s}]"}, message: "spec.sources[0].kind: Unsupported value",
	},
	"keys are chosen by shell patterns": {
		accept: []string{"sources: [{kind: ConfigMap, name: s, keys: {include: ['*.yaml', 'a?'], exclude: [b]}}]"},
		refuse: []string{"sources: [{kind: ConfigMap, name: s, keys: {include: ['a/b']}}]", "sources: [{kind: ConfigMap, name: s, keys: {include: ['']}}]"}, message: "spec.sources[0].keys.include[0]",
	},
	"the strategy is one of four": {
		accept: []string{"strategy: Auto", "strategy: Refresh", "strategy: Restart", "strategy: Report"},
		refuse: []string{"strategy: Reload"}, message: "spec.strategy: Unsupported value",
	},
	"attempts have bounds": {
		accept: []string{"refresh: {attempts: 1}", "refresh: {attempts: 20}"},
		refuse: []string{"refresh: {attempts: 0}", "refresh: {attempts: 21}"}, message: "spec.refresh.attempts",
	},
	"verification is by an agent or not at all": {
		accept: []string{"refresh: {verify: Agent}", "refresh: {verify: None}"},
		refuse: []string{"refresh: {verify: Exec}"}, message: "spec.refresh.verify: Unsupported value",
	},
	"a restart is a rollout or an eviction": {
		accept: []string{"restart: {method: Rollout}", "restart: {method: Evict}"},
		refuse: []string{"restart: {method: Delete}"}, message: "spec.restart.method: Unsupported value",
	},
	"a notification needs a port": {
		accept: []string{"notify: {http: {port: 1}}"},
		refuse: []string{"notify: {http: {}}", "notify: {http: {port: 0}}", "notify: {http: {port: 65536}}"}, message: "spec.notify.http.port",
	},
	"the path of a notification is absolute": {
		accept: []string{"notify: {http: {port: 80, path: '/a?b=c'}}"},
		refuse: []string{"notify: {http: {port: 80, path: a}}", "notify: {http: {port: 80, path: '/a b'}}"}, message: "spec.notify.http.path",
	},
	"an expected status is an HTTP status": {
		accept: []string{"notify: {http: {port: 80, expectedStatus: 204}}"},
		refuse: []string{"notify: {http: {port: 80, expectedStatus: 99}}", "notify: {http: {port: 80, expectedStatus: 600}}"}, message: "spec.notify.http.expectedStatus",
	},
	"pods per second have bounds": {
		accept: []string{"limits: {podsPerSecond: 1}", "limits: {podsPerSecond: 1000}"},
		refuse: []string{"limits: {podsPerSecond: 0}", "limits: {podsPerSecond: 1001}"}, message: "spec.limits.podsPerSecond",
	},
	"concurrent restarts have bounds": {
		accept: []string{"limits: {maxConcurrentRestarts: 1}", "limits: {maxConcurrentRestarts: 100}"},
		refuse: []string{"limits: {maxConcurrentRestarts: 0}", "limits: {maxConcurrentRestarts: 101}"}, message: "spec.limits.maxConcurrentRestarts",
	},
	"the flap threshold is a number per time": {
		accept: []string{"limits: {flapThreshold: 6/h}", "limits: {flapThreshold: 1/m}", "limits: {flapThreshold: 9999/d}"},
		refuse: []string{"limits: {flapThreshold: '6'}", "limits: {flapThreshold: 0/h}", "limits: {flapThreshold: 6/s}"}, message: "spec.limits.flapThreshold",
	},
	"a schedule has five fields or is a macro": {
		accept: []string{"windows: [{schedule: '*/5 0-6 * * mon,tue', duration: 1h}]", "windows: [{schedule: '@hourly', duration: 1m}]"},
		refuse: []string{"windows: [{schedule: '0 0 * *', duration: 1h}]", "windows: [{schedule: '@every 1h', duration: 1m}]"}, message: "spec.windows[0].schedule",
	},
	"a time zone is a name": {
		accept: []string{"windows: [{schedule: '@daily', duration: 1h, timeZone: America/Argentina/Buenos_Aires}]", "windows: [{schedule: '@daily', duration: 1h, timeZone: Etc/GMT+1}]"},
		refuse: []string{"windows: [{schedule: '@daily', duration: 1h, timeZone: ../etc/passwd}]"}, message: "spec.windows[0].timeZone",
	},
}
