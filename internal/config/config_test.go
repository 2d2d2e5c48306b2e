package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/pkg/policy"
)

const header = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"

var ignorePolicy = cmpopts.IgnoreUnexported(config.Config{})

func mustBe(t *testing.T, what string, got config.Config, err error, want config.Config) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v; want nil", what, err)
	} else if diff := cmp.Diff(want, got, ignorePolicy); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestDefaults(t *testing.T) {
	golden, err := os.ReadFile("testdata/defaults.yaml")
	must(t, err)
	got, err := yaml.Marshal(config.Default())
	must(t, err)
	if diff := cmp.Diff(string(golden), string(got)); diff != "" {
		t.Errorf("Default (-testdata/defaults.yaml +got):\n%s", diff)
	}
	c, err := config.Parse(golden)
	mustBe(t, "testdata/defaults.yaml", c, err, config.Default())
	if c.Policy().Mode() != policy.ModeNeverVerifyPreloadedImages {
		t.Errorf("policy %s; want the default", c.Policy().Mode())
	}
}

func TestLoadReturnsTheDefaults(t *testing.T) {
	c, found, err := config.Load(filepath.Join(t.TempDir(), "absent.yaml"))
	mustBe(t, "absent file", c, err, config.Default())
	if found {
		t.Error("an absent file was found")
	}
	c, found, err = config.Load(write(t, header))
	mustBe(t, "header only", c, err, config.Default())
	if !found {
		t.Error("header only: the file was not found")
	}
	c, _, err = config.Load(write(t, header+"exempt:\nlisten:\nkubeletSkipsAlwaysPrecheck:\nregistryOutageFallback: null\nmetrics: {listen: null}\n"))
	mustBe(t, "null values", c, err, config.Default())
}

// An incomplete write must not end shadow mode.
func TestAFileWithoutFieldsIsInvalid(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "newline": "\n", "comments": "# pullgate\n# listen: x\n", "marker": "---\n", "comment and marker": "# x\n---\n# y\n",
		"null": "null\n", "braces": "{}\n",
	} {
		_, _, err := config.Load(write(t, content))
		_, policydErr := config.ParsePolicyd([]byte(content))
		for _, err := range []error{err, policydErr} {
			if !errors.Is(err, config.ErrInvalid) || !strings.HasSuffix(err.Error(), "apiVersion: Required value: the file has no field") {
				t.Errorf("%s: %v; want that apiVersion is required", name, err)
			}
		}
	}
}

func TestLoadReportsUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := config.Load(dir); !errors.Is(err, syscall.EISDIR) || errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Load of a directory = %v; want EISDIR with the path", err)
	}
	if _, _, err := config.Load(filepath.Join(write(t, ""), "x")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Load below a file = %v; want ENOTDIR", err)
	}
	for size, ok := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		_, _, err := config.Load(write(t, header+strings.Repeat("#", size-len(header))))
		if (err == nil) != ok || !ok && (!errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "more than 1048576 bytes")) {
			t.Errorf("Load of %d bytes = %v; want it taken: %v", size, err, ok)
		}
	}
}

// The operator made the link, so the operator does not expect the defaults.
func TestLoadOfADanglingLinkIsAnError(t *testing.T) {
	link := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.Symlink("absent.yaml", link))
	if _, found, err := config.Load(link); !errors.Is(err, fs.ErrNotExist) || found {
		t.Errorf("Load = %v, found: %v; want ErrNotExist", err, found)
	}
}

func TestParseReadsEveryField(t *testing.T) {
	c, err := config.Parse([]byte(header + `
listen: unix:///run/p.sock
runtimeEndpoint: unix:///run/crio/crio.sock
imageEndpoint: unix:///run/images.sock
stateDir: /srv/pullgate
noPullImageSecretRecheck: true
imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages
preloadedImagesVerificationAllowlist: [repo.test/team/*, busybox]
exempt: {staticPods: false, namespaces: [kube-system, a1]}
untrackedImages: Verify
kubeletSkipsAlwaysPrecheck: "true"
registryOutageFallback: false
credentialValidity: 24h
registryUnavailableGrace: 1h30m
nodeCredentials: {dockerConfigFiles: [/root/.docker/config.json, /root/.dockercfg]}
metrics: {listen: ""}
admin: {listen: unix:///run/a.sock}
decisionLog: {path: /var/log/decisions.log}
runtimeCredentials: perNamespace
admission:
  policies: /etc/pullgate/policies
  enforce: false
  exempt: {staticPods: false, namespaces: [a2]}
  unjudged: Refuse
  namespaceLabels: /etc/pullgate/namespaces.yaml
  kubeletRoot: /data/kubelet
  recheckRestarts: true
  trustedRoot: /etc/pullgate/root.json
  endorsementValidity: 24h
  policydSocket: unix:///run/policyd.sock
`))
	mustBe(t, "every field", c, err, config.Config{
		APIVersion: config.APIVersion, Kind: config.Kind,
		Listen: "unix:///run/p.sock", RuntimeEndpoint: "unix:///run/crio/crio.sock", ImageEndpoint: "unix:///run/images.sock",
		StateDir: "/srv/pullgate", NoPullImageSecretRecheck: true,
		ImagePullCredentialsVerificationPolicy: "NeverVerifyAllowlistedImages",
		PreloadedImagesVerificationAllowlist:   []string{"repo.test/team/*", "busybox"},
		Exempt:                                 config.Exempt{Namespaces: []string{"kube-system", "a1"}},
		UntrackedImages:                        "Verify", KubeletSkipsAlwaysPrecheck: "true",
		CredentialValidity: "24h", RegistryUnavailableGrace: "1h30m",
		NodeCredentials: config.NodeCredentials{
			DockerConfigFiles: []string{"/root/.docker/config.json", "/root/.dockercfg"},
		},
		RuntimeCredentials: "perNamespace",
		Admin:              config.Admin{Listen: "unix:///run/a.sock"},
		DecisionLog:        config.DecisionLog{Path: "/var/log/decisions.log"},
		Admission: config.Admission{
			Policies: "/etc/pullgate/policies", Exempt: config.Exempt{Namespaces: []string{"a2"}}, Unjudged: config.UnjudgedRefuse,
			NamespaceLabels: "/etc/pullgate/namespaces.yaml", KubeletRoot: "/data/kubelet", RecheckRestarts: true, TrustedRoot: "/etc/pullgate/root.json", EndorsementValidity: "24h",
			PolicydSocket: "unix:///run/policyd.sock",
		},
	})
	if v, g := c.CredentialValidity.Value(), c.RegistryUnavailableGrace.Value(); v != 24*time.Hour || g != 90*time.Minute {
		t.Errorf("validity %v, grace %v; want 24h and 1h30m", v, g)
	}
	if p := c.Policy(); p.Mode() != policy.ModeNeverVerifyAllowlistedImages || !p.Allowlisted("docker.io/library/busybox") || p.Allowlisted("repo.test/x") {
		t.Errorf("policy %s does not match the file", p.Mode())
	}
}

func TestParseFillsIn(t *testing.T) {
	c, err := config.Parse([]byte(header + "runtimeEndpoint: unix:///run/r.sock\nimagePullCredentialsVerificationPolicy: \"\"\n"))
	want := config.Default()
	want.RuntimeEndpoint, want.ImageEndpoint = "unix:///run/r.sock", "unix:///run/r.sock"
	mustBe(t, "runtimeEndpoint alone", c, err, want)

	for listen, beside := range map[string]string{"unix:///run/other/cri.sock": "unix:///run/other/", "unix:///a": "unix:///"} {
		for _, node := range []string{"", "nodeCredentials:\nadmin:\n", "admin: {listen: }\n", "nodeCredentials: {dockerConfigFiles: }\nadmin: {}\n"} {
			c, err := config.Parse([]byte(header + "listen: " + listen + "\n" + node))
			want := config.Default()
			want.Listen, want.Admin.Listen = listen, beside+"admin.sock"
			mustBe(t, listen+" "+node, c, err, want)
		}
	}
	c, err = config.Parse([]byte(header + "nodeCredentials: {dockerConfigFiles: []}\n"))
	want = config.Default()
	want.NodeCredentials = config.NodeCredentials{DockerConfigFiles: []string{}}
	mustBe(t, "no node credentials", c, err, want)
	c, err = config.Parse([]byte(header + "listen: unix:///run/other/cri.sock\nadmin: {listen: \"\"}\n"))
	want = config.Default()
	want.Listen, want.Admin.Listen = "unix:///run/other/cri.sock", ""
	mustBe(t, "no admin API", c, err, want)
}

func TestKubeletSkipsAlwaysPrecheck(t *testing.T) {
	for value, want := range map[string]config.Tristate{
		"true": config.True, "false": config.False, `"true"`: config.True, `"false"`: config.False, "yes": config.True, "off": config.False,
		"auto": config.Auto, `"auto"`: config.Auto, "": config.Auto, "null": config.Auto,
	} {
		if c, err := config.Parse([]byte(header + "kubeletSkipsAlwaysPrecheck: " + value)); err != nil || c.KubeletSkipsAlwaysPrecheck != want {
			t.Errorf("%q = %q, %v; want %q, nil", value, c.KubeletSkipsAlwaysPrecheck, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const (
		socket  = ": must be unix:// and an absolute path, as in unix:///run/containerd/containerd.sock"
		pattern = "; allowed is a repository, as in repo.test/team/app, or everything below a registry or a path, as in repo.test/team/*"
		modes   = `: supported values: "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"`
		port    = ": the port must be a number from 0 to 65535"
		label   = `: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`
		other   = ": must be another socket than those of listen and of the runtime"
		file    = ": must be an absolute path, as in /var/lib/kubelet/config.json"
		address = `: must be host:port, as in 127.0.0.1:9471, or "" for no server`
		span    = ": must be 0s, or a duration from 1s to 87600h, as in 24h or 90m"
	)
	long := "unix:///" + strings.Repeat("a", 107)
	type refusal struct {
		yaml string // after the header
		want []string
	}
	cases := []refusal{
		{"listen: /run/a.sock", []string{`listen: Invalid value: "/run/a.sock"` + socket}},
		{"listen: unix://run/a.sock", []string{`listen: Invalid value: "unix://run/a.sock"` + socket}},
		{"listen: unix:/run/a.sock", []string{`listen: Invalid value: "unix:/run/a.sock"` + socket}},
		{"listen: unix:///", []string{`listen: Invalid value: "unix:///"` + socket}},
		{"listen: unix:///run/../a.sock", []string{`listen: Invalid value: "unix:///run/../a.sock"` + socket}},
		{`listen: ""`, []string{`listen: Invalid value: ""` + socket}},
		{"listen: tcp://127.0.0.1:1", []string{`listen: Invalid value: "tcp://127.0.0.1:1"` + socket}},
		{"listen: " + long, []string{`listen: Invalid value: "` + long + `": the path must have at most 107 bytes`}},
		{"listen: unix:///run/containerd/containerd.sock", []string{`listen: Invalid value: "unix:///run/containerd/containerd.sock": must be another socket than the runtime's`}},
		{"imageEndpoint: unix:///run/pullgate/cri.sock", []string{`listen: Invalid value: "unix:///run/pullgate/cri.sock": must be another socket than the runtime's`}},
		{"runtimeEndpoint: x", []string{`runtimeEndpoint: Invalid value: "x"` + socket}},
		{"imageEndpoint: x", []string{`imageEndpoint: Invalid value: "x"` + socket}},
		{"stateDir: var/lib", []string{`stateDir: Invalid value: "var/lib": must be an absolute path`}},
		{`stateDir: ""`, []string{`stateDir: Invalid value: "": must be an absolute path`}},
		{"untrackedImages: preloaded", []string{`untrackedImages: Unsupported value: "preloaded": supported values: "Preloaded", "Verify"`}},
		{"runtimeCredentials: PerNamespace", []string{`runtimeCredentials: Unsupported value: "PerNamespace": supported values: "none", "perNamespace"`}},
		{`runtimeCredentials: ""`, []string{`runtimeCredentials: Unsupported value: "": supported values: "none", "perNamespace"`}},
		{"runtimeCredentials: [perNamespace]", []string{`runtimeCredentials: Invalid type: array: must be a string, in quotes`}},
		{`untrackedImages: ""`, []string{`untrackedImages: Unsupported value: "": supported values: "Preloaded", "Verify"`}},
		{"kubeletSkipsAlwaysPrecheck: maybe", []string{`kubeletSkipsAlwaysPrecheck: Unsupported value: "maybe": supported values: "auto", "true", "false"`}},
		{`kubeletSkipsAlwaysPrecheck: ""`, []string{`kubeletSkipsAlwaysPrecheck: Unsupported value: "": supported values: "auto", "true", "false"`}},
		{"kubeletSkipsAlwaysPrecheck: 1", []string{"kubeletSkipsAlwaysPrecheck: Unsupported value: \"1\": supported values: \"auto\", \"true\", \"false\""}},
		{"exempt: {namespaces: [ok, Kube-System]}", []string{`exempt.namespaces[1]: Invalid value: "Kube-System"` + label}},
		{`exempt: {namespaces: ["*"]}`, []string{`exempt.namespaces[0]: Invalid value: "*"` + label}},
		{`exempt: {namespaces: [""]}`, []string{`exempt.namespaces[0]: Invalid value: ""` + label}},
		{"exempt: {namespaces: [null]}", []string{`exempt.namespaces[0]: Invalid value: ""` + label}},
		{"exempt: {namespaces: [-a, a-, a.b]}", []string{`exempt.namespaces[0]: Invalid value: "-a"` + label, `exempt.namespaces[1]: Invalid value: "a-"` + label, `exempt.namespaces[2]: Invalid value: "a.b": must not contain dots`}},
		{"exempt: {namespaces: [" + long[8:72] + "]}", []string{`exempt.namespaces[0]: Invalid value: "` + long[8:72] + `": must be no more than 63 characters`}},
		{"podSource: x", []string{`podSource: Invalid type: string: must be a mapping with the fields kubeconfig, nodeName`}},
		{"podSource: {kubeconfig: kubelet.conf}", []string{
			`podSource.kubeconfig: Invalid value: "kubelet.conf": must be an absolute path, as in /etc/kubernetes/kubelet.conf, or "" for no pod source`,
		}},
		{"podSource: {kubeconfig: /etc/kubelet.conf, nodeName: Node}", []string{
			`podSource.nodeName: Invalid value: "Node": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		}},
		{"podSource: {nodeName: node}", []string{`podSource.nodeName: Invalid value: "node": must be "" without podSource.kubeconfig`}},
		{"metrics: {listen: 127.0.0.1}", []string{`metrics.listen: Invalid value: "127.0.0.1"` + address}},
		{"metrics: {listen: '127.0.0.1:65536'}", []string{`metrics.listen: Invalid value: "127.0.0.1:65536"` + port}},
		{"metrics: {listen: '127.0.0.1:http'}", []string{`metrics.listen: Invalid value: "127.0.0.1:http"` + port}},
		{"decisionLog: {path: decisions.log}", []string{`decisionLog.path: Invalid value: "decisions.log": must be an absolute path, as in /var/log/pullgate/decisions.log, or "" for no file`}},
		{"decisionLog: {path: /var/log/}", []string{`decisionLog.path: Invalid value: "/var/log/": must be an absolute path, as in /var/log/pullgate/decisions.log, or "" for no file`}},
		{"decisionLog: /var/log/x", []string{`decisionLog: Invalid type: string: must be a mapping with the fields path`}},
		{"metrics: {listen: ':+80'}", []string{`metrics.listen: Invalid value: ":+80"` + port}},
		{"metrics: {listen: ':-1'}", []string{`metrics.listen: Invalid value: ":-1"` + port}},
		{"admin: {listen: /run/a.sock}", []string{`admin.listen: Invalid value: "/run/a.sock"` + socket}},
		{"admin: {listen: 'unix:///run/pullgate/cri.sock'}", []string{`admin.listen: Invalid value: "unix:///run/pullgate/cri.sock"` + other}},
		{"imageEndpoint: unix:///run/i.sock\nadmin: {listen: 'unix:///run/i.sock'}", []string{`admin.listen: Invalid value: "unix:///run/i.sock"` + other}},
		{"admission: {trustedRoot: root.json}", []string{`admission.trustedRoot: Invalid value: "root.json": must be an absolute path, as in /etc/pullgate/trusted_root.json, or "" for none`}},
		{"admission: {endorsementValidity: 1ms}", []string{`admission.endorsementValidity: Invalid value: "1ms": must be 0s, or a duration from 1s to 87600h, as in 24h or 90m`}},
		{"admission: {policydSocket: /run/p.sock}", []string{`admission.policydSocket: Invalid value: "/run/p.sock"` + socket}},
		{"admission: {policydSocket: ''}", []string{`admission.policydSocket: Invalid value: ""` + socket}},
		{"admission: {policydSocket: '" + long + "'}", []string{`admission.policydSocket: Invalid value: "` + long + `": the path must have at most 107 bytes`}},
		{"admission: {policydSocket: 'unix:///run/pullgate/admin.sock'}", []string{`admission.policydSocket: Invalid value: "unix:///run/pullgate/admin.sock": must be another socket than those of listen, of admin.listen and of the runtime`}},
		{"admin: {listen: '" + long + "'}", []string{`admin.listen: Invalid value: "` + long + `": the path must have at most 107 bytes`}},
		{"admin: {listen: 'unix:///run/containerd/containerd.sock'}", []string{`admin.listen: Invalid value: "unix:///run/containerd/containerd.sock"` + other}},
		{"listen: unix:///run/admin.sock", []string{`admin.listen: Invalid value: "unix:///run/admin.sock"` + other}},
		{"admin: unix:///run/a.sock", []string{`admin: Invalid type: string: must be a mapping with the fields listen`}},
		{"nodeCredentials: {dockerConfigFiles: [/a, b, '', /c/../d, /]}", []string{
			`nodeCredentials.dockerConfigFiles[1]: Invalid value: "b"` + file, `nodeCredentials.dockerConfigFiles[2]: Invalid value: ""` + file,
			`nodeCredentials.dockerConfigFiles[3]: Invalid value: "/c/../d"` + file, `nodeCredentials.dockerConfigFiles[4]: Invalid value: "/"` + file,
		}},
		{"credentialValidity: 5m\nregistryUnavailableGrace: -1s", []string{`registryUnavailableGrace: Invalid value: "-1s"` + span}},
		{"credentialValidity: 1d", []string{`credentialValidity: Invalid value: "1d"` + span}},
		{"credentialValidity: ''", []string{`credentialValidity: Invalid value: ""` + span}},
		{"credentialValidity: '24'", []string{`credentialValidity: Invalid value: "24"` + span}},
		{"credentialValidity: 999ms", []string{`credentialValidity: Invalid value: "999ms"` + span}},
		{"credentialValidity: 87600h1ns\nregistryUnavailableGrace: 2562048h", []string{
			`credentialValidity: Invalid value: "87600h1ns"` + span, `registryUnavailableGrace: Invalid value: "2562048h"` + span,
		}},
		{"registryUnavailableGrace: 1h", []string{`registryUnavailableGrace: Invalid value: "1h": must be 0s without credentialValidity and admission.endorsementValidity, because nothing expires`}},
		{"credentialValidity: 24", []string{"credentialValidity: Invalid type: number: must be a duration, as in 24h or 0s"}},
		{"imagePullCredentialsVerificationPolicy: Sometimes", []string{`imagePullCredentialsVerificationPolicy: Unsupported value: "Sometimes"` + modes}},
		{"preloadedImagesVerificationAllowlist: [repo.test/a]", []string{"preloadedImagesVerificationAllowlist: needs NeverVerifyAllowlistedImages"}},
		{
			"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [repo.test/a, 'repo.test/a:1', null]",
			[]string{`preloadedImagesVerificationAllowlist[1]: "repo.test/a:1" is not allowed: no tag may be given` + pattern, `preloadedImagesVerificationAllowlist[2]: "" is not allowed: it is empty` + pattern},
		},
		{
			"admission: {policies: policies, unjudged: Deny, namespaceLabels: /a/, kubeletRoot: '', exempt: {namespaces: [ok, A]}}", []string{
				`admission.policies: Invalid value: "policies": must be an absolute path, as in /etc/pullgate/policies, or "" for no policies`,
				`admission.exempt.namespaces[1]: Invalid value: "A"` + label,
				`admission.unjudged: Unsupported value: "Deny": supported values: "Ignore", "Refuse"`,
				`admission.namespaceLabels: Invalid value: "/a/": must be an absolute path, as in /etc/pullgate/namespaces.yaml, or "" for no file`,
				`admission.kubeletRoot: Invalid value: "": must be an absolute path, as in /var/lib/kubelet`,
			},
		},
		// wrong types
		{"admission: {enforce: 'no', exempt: {staticPod: true}}", []string{
			"admission.enforce: Invalid type: string: must be true or false, without quotes", "admission.exempt.staticPod: unknown field; did you mean staticPods?",
		}},
		{"admission: /etc/pullgate/policies", []string{"admission: Invalid type: string: must be a mapping with the fields policies, enforce, exempt, unjudged, namespaceLabels, kubeletRoot, recheckRestarts, trustedRoot, endorsementValidity, policydSocket"}},
		{"listen: 5", []string{"listen: Invalid type: number: must be a string, in quotes"}},
		{"stateDir: x\nlisten: {a: b}", []string{"listen: Invalid type: object: must be a string, in quotes", `stateDir: Invalid value: "x": must be an absolute path`}},
		{"exempt: {staticPods: {}}", []string{"exempt.staticPods: Invalid type: object: must be true or false"}},
		{"stateDir: [x]", []string{"stateDir: Invalid type: array: must be a string, in quotes"}},
		{"registryOutageFallback: 'true'", []string{`registryOutageFallback: Invalid type: string: must be true or false, without quotes`}},
		{"registryOutageFallback: 'yes'", []string{`registryOutageFallback: Invalid type: string: must be true or false, without quotes`}},
		{"exempt: []", []string{"exempt: Invalid type: array: must be a mapping with the fields staticPods, namespaces"}},
		{"exempt: {namespaces: kube-system}", []string{`exempt.namespaces: Invalid type: string: must be a list`}},
		{"exempt: {namespaces: [[a]]}", []string{"exempt.namespaces[0]: Invalid type: array: must be a string, in quotes", `exempt.namespaces[0]: Invalid value: ""` + label}},
		{"exempt: {namespaces: [ok, 1]}", []string{"exempt.namespaces[1]: Invalid type: number: must be a string, in quotes", `exempt.namespaces[1]: Invalid value: ""` + label}},
		// unknown fields
		{"exempt: {pods: []}", []string{"exempt.pods: unknown field; known are staticPods, namespaces"}},
		{"Listen: unix:///run/a.sock", []string{"Listen: unknown field; did you mean listen?"}},
		{"metrics: {listn: x}\nadmn: {}", []string{"admn: unknown field; did you mean admin?", "metrics.listn: unknown field; did you mean listen?"}},
		{"apples: 1\npears: 1", []string{"apples: unknown field", "pears: unknown field"}},
		{"policy: {}", []string{"policy: unknown field"}},
		{"nodeCredentials: {listen: unix:///run/c.sock}", []string{"nodeCredentials.listen: unknown field; known are dockerConfigFiles"}},
		{"a.b: 1\nexempt: {x.y: 1}\nmetrics.listen: x", []string{"a.b: unknown field", "exempt.x.y: unknown field; known are staticPods, namespaces", "metrics.listen: unknown field"}},
		// several at once
		{
			"listn: x\nstateDir: var/lib\nexempt: {namespaces: [A]}\nmetrics: {port: 1}",
			[]string{
				"listn: unknown field; did you mean listen?", "metrics.port: unknown field; known are listen",
				`stateDir: Invalid value: "var/lib": must be an absolute path`, `exempt.namespaces[0]: Invalid value: "A"` + label,
			},
		},
	}
	lines := regexp.MustCompile(`(?m) \(line [0-9]+\)$`) // TestErrorsNameLines
	for _, c := range cases {
		got, err := config.Parse([]byte(header + c.yaml + "\n"))
		want := "config: invalid:\n" + strings.Join(c.want, "\n")
		if err == nil || lines.ReplaceAllString(err.Error(), "") != want || !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s:\n%v\nwant, without the lines:\n%s", c.yaml, err, want)
		}
		if diff := cmp.Diff(config.Config{}, got, ignorePolicy); diff != "" {
			t.Errorf("%s: a part of it is returned:\n%s", c.yaml, diff)
		}
	}
}

func TestErrorsNameLines(t *testing.T) {
	const data = header + "listn: x\nstateDir: var/lib\nexempt:\n  namespaces:\n  - ok\n  - A\nimagePullCredentialsVerificationPolicy: Sometimes\n"
	_, err := config.Parse([]byte(data))
	if err == nil {
		t.Fatal("Parse = nil; want errors")
	}
	for _, want := range []string{
		"listn: unknown field; did you mean listen? (line 3)\n", "must be an absolute path (line 4)\n", "?') (line 8)\n", `"AlwaysVerify" (line 9)`,
	} {
		if !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("Parse = %v\nwant %q in it", err, want)
		}
	}
	// The value is a default, so that no line of the file has it.
	if _, err := config.Parse([]byte(header + "listen: unix:///run/admin.sock\n")); err == nil || strings.Contains(err.Error(), "(line") {
		t.Errorf("Parse = %v; want an error without a line", err)
	}
}

func TestParseRefusesOtherDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"no header":            {"listen: unix:///run/a.sock\n", []string{`apiVersion: Unsupported value: "": supported values: "config.pullgate.dev/v1alpha1"`, `kind: Unsupported value: "": supported values: "PullgateConfiguration"`}},
		"apiVersion of others": {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: PullgateConfiguration\n", []string{`apiVersion: Unsupported value: "kubelet.config.k8s.io/v1beta1": supported values: "config.pullgate.dev/v1alpha1"`}},
		"kind of others":       {"apiVersion: config.pullgate.dev/v1alpha1\nkind: KubeletConfiguration\n", []string{`kind: Unsupported value: "KubeletConfiguration": supported values: "PullgateConfiguration"`}},
		"duplicate key":        {header + "listen: unix:///run/a.sock\nlisten: unix:///run/b.sock\n", []string{`line 4: key "listen" already set`}},
		"duplicate inside":     {header + "metrics:\n  listen: ':1'\n  listen: ':2'\n", []string{`line 5: key "listen" already set`}},
		"list":                 {"- a\n", []string{"array"}},
		"text":                 {"hello\n", []string{"string"}},
		"no YAML":              {"a: [\n", []string{"line 1"}},
		"tab":                  {"a:\n\tb: 1\n", []string{"line 2"}},
		"two documents":        {header + "---\n" + header, []string{"more than one document"}},
		"second without end":   {header + "---", []string{"more than one document"}},
		"second is broken":     {header + "---\na: [\n", []string{"more than one document"}},
		"marker, two":          {"---\n" + header + "---\nnoPullImageSecretRecheck: true\n", []string{"more than one document"}},
		"first is empty":       {"---\n---\n" + header, []string{"more than one document"}},
		"ended, then more":     {header + "...\n---\nlisten: x\n", []string{"more than one document"}},
		"marker with a value":  {header + "--- {listen: x}\n", []string{"more than one document"}},
		"binary":               {"\x00\x01\x02", []string{"control characters"}},
	} {
		_, err := config.Parse([]byte(c.yaml))
		if !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want it to contain %q", name, err, want)
			}
		}
	}
	for name, text := range map[string]string{
		"marker":        "---\n" + header,
		"comment first": "# x\n\n---\n" + header,
		"end":           header + "...\n",
		"dashes":        header + "stateDir: |-\n  /a\n  ---\n", // a name of two lines
		"CRLF":          strings.ReplaceAll(header, "\n", "\r\n"),
		"byte order":    "\ufeff" + header,
		"longest path":  header + "listen: unix:///" + strings.Repeat("a", 106),
	} {
		if _, err := config.Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v; want nil", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	golden, err := os.ReadFile("testdata/defaults.yaml")
	must(f, err)
	for _, s := range []string{"", header, string(golden), header + "---\n", "a: &a [*a]", header + "exempt: {namespaces: [a]}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data)
		if err != nil {
			if !errors.Is(err, config.ErrInvalid) {
				t.Errorf("Parse = %v; want ErrInvalid", err)
			}
			return
		}
		if c.KubeletConfig != "" {
			return // the printed configuration would set the policy twice
		}
		text, err := yaml.Marshal(c)
		must(t, err)
		again, err := config.Parse(text)
		if err != nil || !slices.Equal(again.Exempt.Namespaces, c.Exempt.Namespaces) || !cmp.Equal(again, c, ignorePolicy, cmpopts.EquateEmpty()) {
			t.Errorf("%s\ndoes not parse to what it was printed from: %v", text, err)
		}
	})
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
