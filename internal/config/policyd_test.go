package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/config"
)

const policydHeader = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\n"

func TestParsePolicyd(t *testing.T) {
	whole := config.DefaultPolicyd()
	whole.Policies = "/etc/pullgate/policies"
	whole.Node.Listen = "unix:///run/pullgate/policy.sock"
	whole.Metrics.Listen = ""
	whole.HTTPS = config.HTTPS{Listen: ":9443", CertFile: "/tls/tls.crt", KeyFile: "/tls/tls.key", ClientCAFile: "/tls/ca.crt"}
	whole.PodTemplates = []config.PodTemplate{
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.worker.template"},
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.master.template"},
	}
	whole.Kubeconfig = "/etc/pullgate/kubeconfig"
	whole.TrustedRoot = "/etc/pullgate/trusted_root.json"
	whole.Registries.HostsDir = "/etc/containerd/certs.d"
	whole.Credentials = config.CredentialsNode
	whole.NodeCredentials.DockerConfigFiles = []string{"/etc/pullgate/a.json"}
	whole.Bundles = "/etc/pullgate/bundles"
	whole.Limits = config.SignatureLimits{Signatures: 1, Bytes: "64Ki", Time: "1s"}
	for name, tc := range map[string]struct {
		text string
		want config.Policyd
	}{
		"header only": {policydHeader, config.DefaultPolicyd()},
		"every field": {policydHeader + `
policies: /etc/pullgate/policies
node: {listen: "unix:///run/pullgate/policy.sock"}
metrics: {listen: ""}
https: {listen: ":9443", certFile: /tls/tls.crt, keyFile: /tls/tls.key, clientCAFile: /tls/ca.crt}
podTemplates:
- {group: batch.example.org, resource: trainings, path: spec.worker.template}
- {group: batch.example.org, resource: trainings, path: spec.master.template}
kubeconfig: /etc/pullgate/kubeconfig
trustedRoot: /etc/pullgate/trusted_root.json
registries: {hostsDir: /etc/containerd/certs.d}
credentials: Node
nodeCredentials: {dockerConfigFiles: [/etc/pullgate/a.json]}
bundles: /etc/pullgate/bundles
limits: {signatures: 1, bytes: 64Ki, time: 1s}
`, whole},
	} {
		got, err := config.ParsePolicyd([]byte(tc.text))
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestParsePolicydReportsAllErrors(t *testing.T) {
	_, err := config.ParsePolicyd([]byte(`
apiVersion: config.pullgate.dev/v1
kind: PullgateConfiguration
policies: policies
node: {listen: /run/policy.sock}
metrics: {listen: "9472"}
https: {listen: "host:x", keyFile: tls.key, cert: a}
podTemplates:
- {group: Batch, resource: trainings.x, path: spec..template}
- {group: a.b, resource: c, path: d}
- {group: a.b, resource: c, path: d}
kubeconfig: kubeconfig
trustedRoot: trusted_root.json
registries: {hostsDir: certs.d, hostDir: /x}
credentials: pull
nodeCredentials: {dockerConfigFiles: [a.json]}
bundles: ../bundles
limits: {signatures: 201, bytes: 8, time: 61s, byte: 1}
webhook: {}
`))
	if !errors.Is(err, config.ErrInvalid) {
		t.Fatalf("ParsePolicyd = %v; want ErrInvalid", err)
	}
	for _, want := range []string{
		`apiVersion: Unsupported value: "config.pullgate.dev/v1": supported values: "config.pullgate.dev/v1alpha1"`,
		`kind: Unsupported value: "PullgateConfiguration": supported values: "PolicydConfiguration"`,
		`policies: Invalid value: "policies": must be an absolute path, as in /etc/pullgate/policies`,
		`node.listen: Invalid value: "/run/policy.sock": must be unix:// and an absolute path`,
		`metrics.listen: Invalid value: "9472": must be host:port, as in 127.0.0.1:9472`,
		`https.listen: Invalid value: "host:x": the port must be a number`,
		`https.certFile: Invalid value: "": must be an absolute path, as in /etc/pullgate/tls/tls.crt`,
		`https.keyFile: Invalid value: "tls.key": must be an absolute path`,
		`https.cert: unknown field; known are listen, certFile, keyFile, clientCAFile`,
		`podTemplates[0].group: Invalid value: "Batch"`, `podTemplates[0].resource: Invalid value: "trainings.x"`,
		`podTemplates[0].path: Invalid value: "spec..template": must be names of fields`,
		`podTemplates[2]: Duplicate value: "a.b/c d"`,
		`kubeconfig: Invalid value: "kubeconfig": must be an absolute path`, `webhook: unknown field`,
		`trustedRoot: Invalid value: "trusted_root.json": must be an absolute path, as in /etc/pullgate/trusted_root.json`,
		`registries.hostsDir: Invalid value: "certs.d": must be an absolute path, as in /etc/containerd/certs.d`,
		`registries.hostDir: unknown field; did you mean hostsDir?`,
		`credentials: Unsupported value: "pull": supported values: "Pull", "Node", "None"`,
		`nodeCredentials.dockerConfigFiles[0]: Invalid value: "a.json": must be an absolute path`,
		`bundles: Invalid value: "../bundles": must be an absolute path`,
		`limits.signatures: Invalid value: 201: must be a number from 1 to 200`,
		`limits.bytes: Invalid value: "8": must be a size from 64Ki to 64Mi, as in 8Mi`,
		`limits.time: Invalid value: "61s": must be a duration from 1s to 60s`,
		`limits.byte: unknown field; did you mean bytes?`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("errors do not have %s:\n%v", want, err)
		}
	}
}

func TestParsePolicydOfOneError(t *testing.T) {
	for text, want := range map[string]string{
		"https: {certFile: /a}": `https.certFile: Invalid value: "/a": must be "" without https.listen`,
		"https: {listen: '127.0.0.1:9472', certFile: /a, keyFile: /b}": "must be another address than that of metrics.listen",
		"node: {listen: unix:///" + strings.Repeat("x", 107) + "}":     "the path must have at most 107 bytes",
		"limits: {bytes: 63Ki}":                "limits.bytes: Invalid value: \"63Ki\": must be a size from 64Ki to 64Mi, as in 8Mi",
		"limits: {bytes: 65Mi}":                "must be a size from 64Ki to 64Mi",
		"limits: {bytes: -1Mi}":                "must be a size from 64Ki to 64Mi",
		"limits: {bytes: 99999999999999999Mi}": "must be a size from 64Ki to 64Mi",
		"limits: {bytes: many}":                "must be a size from 64Ki to 64Mi",
		"limits: {signatures: 0}":              "must be a number from 1 to 200",
		"limits: {signatures: many}":           "limits.signatures: Invalid type: string: must be a whole number",
		"limits: {time: 0s}":                   "must be a duration from 1s to 60s",
		"policies: [a]":                        "policies: Invalid type: array: must be a string, in quotes",
		"podTemplates: [spec.template]":        "podTemplates[0]: Invalid type: string: must be a mapping with the fields group, resource, path",
		"kind: x":                              "kind",
		strings.Repeat("#", 1<<20+1):           "more than 1048576 bytes",

		"podTemplates: [{resource: c, path: d}]":                                                       `podTemplates[0].group: Invalid value: ""`,
		"podTemplates: [{group: a.b, resource: Worker, path: d}]":                                      `podTemplates[0].resource: Invalid value: "Worker"`,
		"podTemplates: [{group: apps, resource: jobs}, {group: apps, resource: deployments, path: a}]": "podTemplates[1].resource: Invalid value: \"deployments\": the pod templates of this resource are always judged",
		"podTemplates: [{group: a.b, resource: c}]":                                                    `podTemplates[0].path: Invalid value: ""`,
		"podTemplates: [{group: a.b, resource: c, path: .d}]":                                          `podTemplates[0].path: Invalid value: ".d"`,
		"podTemplates: [{group: a.b, resource: c, path: d.$e}]":                                        `podTemplates[0].path: Invalid value: "d.$e"`,
		"podTemplates: [{group: a.b, resource: c, path: 'd[0]'}]":                                      `podTemplates[0].path: Invalid value: "d[0]"`,
		"podTemplates: [{group: a.b, resource: c, path: " + strings.Repeat("a.", 16) + "a}]":           "must have at most 16 segments",
	} {
		if !strings.HasPrefix(text, "kind") {
			text = policydHeader + text
		}
		if c, err := config.ParsePolicyd([]byte(text)); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), want) || !cmp.Equal(c, config.Policyd{}) {
			t.Errorf("%.80s: %v; want %s", text, err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"8Mi": 8 << 20, "64Ki": 64 << 10, "'100000'": 100_000, "100000": 100_000} {
		c, err := config.ParsePolicyd([]byte(policydHeader + "limits: {bytes: " + text + "}"))
		if err != nil || c.Limits.Bytes.Value() != want {
			t.Errorf("%s: %d, %v; want %d", text, c.Limits.Bytes.Value(), err, want)
		}
	}
}

func TestLoadPolicyd(t *testing.T) {
	if _, err := config.LoadPolicyd(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, config.ErrInvalid) {
		t.Errorf("absent: %v; want not found", err)
	}
	if c, err := config.LoadPolicyd(write(t, policydHeader)); err != nil || c.Metrics.Listen != "127.0.0.1:9472" {
		t.Errorf("LoadPolicyd = %+v, %v; want the defaults", c, err)
	}
}

// docs/pullgate-policyd.md has every field, with its default.
func TestPolicydFieldsAreDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/pullgate-policyd.md")
	must(t, err)
	_, table, _ := strings.Cut(string(data), "\n## Configuration\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, f := range fieldsOf("", reflect.ValueOf(config.DefaultPolicyd())) {
		if f.path == "apiVersion" || f.path == "kind" {
			continue
		}
		row := ""
		for line := range strings.Lines(table) {
			if cells := strings.Split(line, "|"); len(cells) > 3 && strings.Contains(cells[1], "`"+f.path+"`") {
				row = cells[2]
			}
		}
		want := fmt.Sprintf("`%v`", f.value)
		if f.value.Kind() == reflect.Slice && f.value.Len() > 0 {
			want = "`[" + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(f.value), "[]")), ", ") + "]`"
		}
		if f.value.IsZero() {
			want = map[reflect.Kind]string{reflect.String: "`\"\"`", reflect.Slice: "`[]`"}[f.value.Kind()]
		}
		if f.path == "https.certFile" || f.path == "https.keyFile" { // required with https.listen
			want = ""
		}
		if row == "" || strings.TrimSpace(row) != want {
			t.Errorf("docs/pullgate-policyd.md: default of %s = %q; want %q", f.path, strings.TrimSpace(row), want)
		}
	}
}
