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
	whole.HTTPS = config.HTTPS{
		Listen: ":9443", CertFile: "/tls/tls.crt", KeyFile: "/tls/tls.key",
		ClientCAFile: "/tls/ca.crt", ClientCAFiles: map[string]string{"two": "/tls/two.crt"},
	}
	whole.PodTemplates = []config.PodTemplate{
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.worker.template"},
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.master.template"},
	}
	whole.Kubeconfig = "/etc/pullgate/kubeconfig"
	whole.Kubeconfigs = map[string]string{"two": "/etc/pullgate/two"}
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
https: {listen: ":9443", certFile: /tls/tls.crt, keyFile: /tls/tls.key, clientCAFile: /tls/ca.crt,
  clientCAFiles: {two: /tls/two.crt}}
podTemplates:
- {group: batch.example.org, resource: trainings, path: spec.worker.template}
- {group: batch.example.org, resource: trainings, path: spec.master.template}
kubeconfig: /etc/pullgate/kubeconfig
kubeconfigs: {two: /etc/pullgate/two}
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

func TestParsePolicydRefuses(t *testing.T) {
	refuses(t, "testdata/refused-policyd.txt", policydHeader, func(data []byte) error {
		c, err := config.ParsePolicyd(data)
		if !cmp.Equal(c, config.Policyd{}) {
			t.Errorf("%s: a part of it is returned: %+v", data, c)
		}
		return err
	})
}

func TestTooManyClusters(t *testing.T) {
	text := policydHeader + "https: {listen: ':9443', certFile: /a, keyFile: /b}\nkubeconfigs:\n"
	for i := range 51 {
		if _, err := config.ParsePolicyd([]byte(text)); err != nil {
			t.Fatalf("%d clusters: %v", i, err)
		}
		text += fmt.Sprintf("  c%d: /c%d\n", i, i)
	}
	const want = "kubeconfigs: Too many: 51: must have at most 50 items"
	if _, err := config.ParsePolicyd([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("51 clusters: %v; want %s", err, want)
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
	if _, err := config.LoadPolicyd(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, config.ErrInvalid) {
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
			want = map[reflect.Kind]string{reflect.String: "`\"\"`", reflect.Slice: "`[]`", reflect.Map: "`{}`"}[f.value.Kind()]
		}
		if f.path == "https.certFile" || f.path == "https.keyFile" { // required with https.listen
			want = ""
		}
		if row == "" || strings.TrimSpace(row) != want {
			t.Errorf("docs/pullgate-policyd.md: default of %s = %q; want %q", f.path, strings.TrimSpace(row), want)
		}
	}
}
