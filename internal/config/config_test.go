package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaults(t *testing.T) {
	golden, err := os.ReadFile("testdata/defaults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(config.Default())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), string(got)); diff != "" {
		t.Errorf("Default (-testdata/defaults.yaml +got):\n%s", diff)
	}
	c, err := config.Parse(golden)
	mustBe(t, "testdata/defaults.yaml", c, err, config.Default())
	if c.Policy().Mode() != policy.ModeNeverVerifyPreloadedImages {
		t.Errorf("policy %s; want the default", c.Policy().Mode())
	}
}

func TestLoadOfNothingGivesTheDefaults(t *testing.T) {
	c, found, err := config.Load(filepath.Join(t.TempDir(), "absent.yaml"))
	mustBe(t, "absent file", c, err, config.Default())
	if found {
		t.Error("an absent file was found")
	}
	for name, content := range map[string]string{
		"empty": "", "newline": "\n", "comments": "# pullgate\n# listen: x\n", "marker": "---\n", "comment and marker": "# x\n---\n# y\n",
		"null": "null\n", "braces": "{}\n", "header only": header,
	} {
		c, found, err := config.Load(write(t, content))
		mustBe(t, name, c, err, config.Default())
		if !found {
			t.Errorf("%s: the file was not found", name)
		}
	}
	c, _, err = config.Load(write(t, header+"exempt:\nlisten:\nkubeletSkipsAlwaysPrecheck:\nregistryOutageFallback: null\nmetrics: {listen: null}\n"))
	mustBe(t, "null values", c, err, config.Default())
}

func TestLoadTellsWhatCannotBeRead(t *testing.T) {
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

// The operator made the link, so that the defaults would be a surprise.
func TestLoadOfALinkToNothingIsAnError(t *testing.T) {
	link := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.Symlink("absent.yaml", link); err != nil {
		t.Fatal(err)
	}
	if _, found, err := config.Load(link); !errors.Is(err, fs.ErrNotExist) || found {
		t.Errorf("Load = %v, found: %v; want ErrNotExist", err, found)
	}
}

func TestParseTakesEveryField(t *testing.T) {
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
nodeCredentials: {dockerConfigFiles: [/root/.docker/config.json, /root/.dockercfg], listen: unix:///run/c.sock}
metrics: {listen: ""}
admin: {listen: unix:///run/a.sock}
decisionLog: {path: /var/log/decisions.log}
runtimeCredentials: perNamespace
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
			DockerConfigFiles: []string{"/root/.docker/config.json", "/root/.dockercfg"}, Listen: "unix:///run/c.sock",
		},
		RuntimeCredentials: "perNamespace",
		Admin:              config.Admin{Listen: "unix:///run/a.sock"},
		DecisionLog:        config.DecisionLog{Path: "/var/log/decisions.log"},
	})
	if v, g := c.CredentialValidity.Value(), c.RegistryUnavailableGrace.Value(); v != 24*time.Hour || g != 90*time.Minute {
		t.Errorf("validity %v, grace %v; want 24h and 1h30m", v, g)
	}
	if p := c.Policy(); p.Mode() != policy.ModeNeverVerifyAllowlistedImages || !p.Allowlisted("docker.io/library/busybox") || p.Allowlisted("repo.test/x") {
		t.Errorf("policy %s does not match what the file says", p.Mode())
	}
}

func TestParseFillsIn(t *testing.T) {
	c, err := config.Parse([]byte(header + "runtimeEndpoint: unix:///run/r.sock\nimagePullCredentialsVerificationPolicy: \"\"\n"))
	want := config.Default()
	want.RuntimeEndpoint, want.ImageEndpoint = "unix:///run/r.sock", "unix:///run/r.sock"
	mustBe(t, "runtimeEndpoint alone", c, err, want)

	for listen, beside := range map[string]string{"unix:///run/other/cri.sock": "unix:///run/other/", "unix:///a": "unix:///"} {
		for _, node := range []string{"", "nodeCredentials:\nadmin:\n", "nodeCredentials: {listen: }\nadmin: {listen: }\n", "nodeCredentials: {dockerConfigFiles: }\nadmin: {}\n"} {
			c, err := config.Parse([]byte(header + "listen: " + listen + "\n" + node))
			want := config.Default()
			want.Listen, want.NodeCredentials.Listen, want.Admin.Listen = listen, beside+"credentials.sock", beside+"admin.sock"
			mustBe(t, listen+" "+node, c, err, want)
		}
	}
	c, err = config.Parse([]byte(header + "nodeCredentials: {dockerConfigFiles: [], listen: \"\"}\n"))
	want = config.Default()
	want.NodeCredentials = config.NodeCredentials{DockerConfigFiles: []string{}}
	mustBe(t, "no node credentials", c, err, want)
	c, err = config.Parse([]byte(header + "listen: unix:///run/other/cri.sock\nadmin: {listen: \"\"}\n"))
	want = config.Default()
	want.Listen, want.NodeCredentials.Listen, want.Admin.Listen = "unix:///run/other/cri.sock", "unix:///run/other/credentials.sock", ""
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
		socket  = "; allowed is unix:// and an absolute path, as in unix:///run/containerd/containerd.sock"
		pattern = "; allowed is a repository, as in repo.test/team/app, or everything below a registry or a path, as in repo.test/team/*"
		modes   = " is none of [NeverVerify NeverVerifyPreloadedImages NeverVerifyAllowlistedImages AlwaysVerify]"
		label   = "; allowed is the name of a namespace: lower-case letters, digits and '-', at most 63"
		other   = "; allowed is another socket than those of listen and of the runtime"
		another = "; allowed is another socket than those of listen, of nodeCredentials.listen and of the runtime"
		file    = "; allowed is an absolute path, as in /var/lib/kubelet/config.json"
		address = `; allowed is host:port, as in 127.0.0.1:9471, or "" for no server`
		span    = "; allowed is 0s, or a duration from 1s to 87600h, as in 24h or 90m"
		fields  = "apiVersion, kind, listen, runtimeEndpoint, imageEndpoint, stateDir, noPullImageSecretRecheck, imagePullCredentialsVerificationPolicy, " +
			"preloadedImagesVerificationAllowlist, kubeletConfig, exempt, untrackedImages, allowRestores, kubeletSkipsAlwaysPrecheck, registryOutageFallback, credentialValidity, registryUnavailableGrace, nodeCredentials, runtimeCredentials, podSource, metrics, admin, decisionLog"
	)
	long := "unix:///" + strings.Repeat("a", 107)
	type refusal struct {
		yaml string // after the header
		want []string
	}
	cases := []refusal{
		{"listen: /run/a.sock", []string{`listen: "/run/a.sock" is not allowed` + socket}},
		{"listen: unix://run/a.sock", []string{`listen: "unix://run/a.sock" is not allowed` + socket}},
		{"listen: unix:/run/a.sock", []string{`listen: "unix:/run/a.sock" is not allowed` + socket}},
		{"listen: unix:///", []string{`listen: "unix:///" is not allowed` + socket}},
		{"listen: unix:///run/../a.sock", []string{`listen: "unix:///run/../a.sock" is not allowed` + socket}},
		{`listen: ""`, []string{`listen: "" is not allowed` + socket}},
		{"listen: tcp://127.0.0.1:1", []string{`listen: "tcp://127.0.0.1:1" is not allowed` + socket}},
		{"listen: " + long, []string{`listen: "` + long + `" is not allowed; allowed is a path of at most 107 bytes, which is what a socket address holds`}},
		{"listen: unix:///run/containerd/containerd.sock", []string{`listen: "unix:///run/containerd/containerd.sock" is not allowed; allowed is another socket than the runtime's own`}},
		{"imageEndpoint: unix:///run/pullgate/cri.sock", []string{`listen: "unix:///run/pullgate/cri.sock" is not allowed; allowed is another socket than the runtime's own`}},
		{"runtimeEndpoint: x", []string{`runtimeEndpoint: "x" is not allowed` + socket}},
		{"imageEndpoint: x", []string{`imageEndpoint: "x" is not allowed` + socket}},
		{"stateDir: var/lib", []string{`stateDir: "var/lib" is not allowed; allowed is an absolute path`}},
		{`stateDir: ""`, []string{`stateDir: "" is not allowed; allowed is an absolute path`}},
		{"untrackedImages: preloaded", []string{`untrackedImages: "preloaded" is not allowed; allowed is Preloaded or Verify`}},
		{"runtimeCredentials: PerNamespace", []string{`runtimeCredentials: "PerNamespace" is not allowed; allowed is none or perNamespace`}},
		{`runtimeCredentials: ""`, []string{`runtimeCredentials: "" is not allowed; allowed is none or perNamespace`}},
		{"runtimeCredentials: [perNamespace]", []string{`runtimeCredentials: [perNamespace] is of the wrong type; allowed is a string, in quotes`}},
		{`untrackedImages: ""`, []string{`untrackedImages: "" is not allowed; allowed is Preloaded or Verify`}},
		{"kubeletSkipsAlwaysPrecheck: maybe", []string{`kubeletSkipsAlwaysPrecheck: "maybe" is not allowed; allowed is auto, true or false`}},
		{`kubeletSkipsAlwaysPrecheck: ""`, []string{`kubeletSkipsAlwaysPrecheck: "" is not allowed; allowed is auto, true or false`}},
		{"kubeletSkipsAlwaysPrecheck: 1", []string{"kubeletSkipsAlwaysPrecheck: 1 is of the wrong type; allowed is auto, true or false"}},
		{"exempt: {namespaces: [ok, Kube-System]}", []string{`exempt.namespaces[1]: "Kube-System" is not allowed` + label}},
		{`exempt: {namespaces: ["*"]}`, []string{`exempt.namespaces[0]: "*" is not allowed` + label}},
		{`exempt: {namespaces: [""]}`, []string{`exempt.namespaces[0]: "" is not allowed` + label}},
		{"exempt: {namespaces: [null]}", []string{`exempt.namespaces[0]: "" is not allowed` + label}},
		{"exempt: {namespaces: [-a, a-, a.b]}", []string{`exempt.namespaces[0]: "-a" is not allowed` + label, `exempt.namespaces[1]: "a-" is not allowed` + label, `exempt.namespaces[2]: "a.b" is not allowed` + label}},
		{"exempt: {namespaces: [" + long[8:72] + "]}", []string{`exempt.namespaces[0]: "` + long[8:72] + `" is not allowed` + label}},
		{"podSource: x", []string{`podSource: "x" is of the wrong type; allowed is a mapping with the fields kubeconfig, nodeName`}},
		{"podSource: {kubeconfig: kubelet.conf}", []string{
			`podSource.kubeconfig: "kubelet.conf" is not allowed; allowed is an absolute path, as in /etc/kubernetes/kubelet.conf, or "" for no pod source`,
		}},
		{"podSource: {kubeconfig: /etc/kubelet.conf, nodeName: Node}", []string{
			`podSource.nodeName: "Node" is not allowed; allowed is the name of a node: lower-case letters, digits, '-' and '.', at most 253`,
		}},
		{"podSource: {nodeName: node}", []string{`podSource.nodeName: "node" is not allowed; allowed is "" without podSource.kubeconfig`}},
		{"metrics: {listen: 127.0.0.1}", []string{`metrics.listen: "127.0.0.1" is not allowed` + address}},
		{"metrics: {listen: '127.0.0.1:65536'}", []string{`metrics.listen: "127.0.0.1:65536" is not allowed` + address}},
		{"metrics: {listen: '127.0.0.1:http'}", []string{`metrics.listen: "127.0.0.1:http" is not allowed` + address}},
		{"decisionLog: {path: decisions.log}", []string{`decisionLog.path: "decisions.log" is not allowed; allowed is an absolute path, as in /var/log/pullgate/decisions.log, or "" for no file`}},
		{"decisionLog: {path: /var/log/}", []string{`decisionLog.path: "/var/log/" is not allowed; allowed is an absolute path, as in /var/log/pullgate/decisions.log, or "" for no file`}},
		{"decisionLog: /var/log/x", []string{`decisionLog: "/var/log/x" is of the wrong type; allowed is a mapping with the fields path`}},
		{"metrics: {listen: ':+80'}", []string{`metrics.listen: ":+80" is not allowed` + address}},
		{"metrics: {listen: ':-1'}", []string{`metrics.listen: ":-1" is not allowed` + address}},
		{"nodeCredentials: {listen: /run/c.sock}", []string{`nodeCredentials.listen: "/run/c.sock" is not allowed` + socket}},
		{"nodeCredentials: {listen: '" + long + "'}", []string{`nodeCredentials.listen: "` + long + `" is not allowed; allowed is a path of at most 107 bytes, which is what a socket address holds`}},
		{"nodeCredentials: {listen: 'unix:///run/pullgate/cri.sock'}", []string{`nodeCredentials.listen: "unix:///run/pullgate/cri.sock" is not allowed` + other}},
		{"nodeCredentials: {listen: 'unix:///run/containerd/containerd.sock'}", []string{`nodeCredentials.listen: "unix:///run/containerd/containerd.sock" is not allowed` + other}},
		{"imageEndpoint: unix:///run/i.sock\nnodeCredentials: {listen: 'unix:///run/i.sock'}", []string{`nodeCredentials.listen: "unix:///run/i.sock" is not allowed` + other}},
		{"admin: {listen: /run/a.sock}", []string{`admin.listen: "/run/a.sock" is not allowed` + socket}},
		{"admin: {listen: 'unix:///run/pullgate/cri.sock'}", []string{`admin.listen: "unix:///run/pullgate/cri.sock" is not allowed` + another}},
		{"admin: {listen: 'unix:///run/pullgate/credentials.sock'}", []string{`admin.listen: "unix:///run/pullgate/credentials.sock" is not allowed` + another}},
		{"imageEndpoint: unix:///run/i.sock\nadmin: {listen: 'unix:///run/i.sock'}", []string{`admin.listen: "unix:///run/i.sock" is not allowed` + another}},
		{"listen: unix:///run/admin.sock", []string{`admin.listen: "unix:///run/admin.sock" is not allowed` + another}},
		{"admin: unix:///run/a.sock", []string{`admin: "unix:///run/a.sock" is of the wrong type; allowed is a mapping with the fields listen`}},
		{"listen: unix:///run/credentials.sock", []string{`nodeCredentials.listen: "unix:///run/credentials.sock" is not allowed` + other}},
		{"nodeCredentials: {dockerConfigFiles: [/a, b, '', /c/../d, /]}", []string{
			`nodeCredentials.dockerConfigFiles[1]: "b" is not allowed` + file, `nodeCredentials.dockerConfigFiles[2]: "" is not allowed` + file,
			`nodeCredentials.dockerConfigFiles[3]: "/c/../d" is not allowed` + file, `nodeCredentials.dockerConfigFiles[4]: "/" is not allowed` + file,
		}},
		{"credentialValidity: 5m\nregistryUnavailableGrace: -1s", []string{`registryUnavailableGrace: "-1s" is not allowed` + span}},
		{"credentialValidity: 1d", []string{`credentialValidity: "1d" is not allowed` + span}},
		{"credentialValidity: ''", []string{`credentialValidity: "" is not allowed` + span}},
		{"credentialValidity: '24'", []string{`credentialValidity: "24" is not allowed` + span}},
		{"credentialValidity: 999ms", []string{`credentialValidity: "999ms" is not allowed` + span}},
		{"credentialValidity: 87600h1ns\nregistryUnavailableGrace: 2562048h", []string{
			`credentialValidity: "87600h1ns" is not allowed` + span, `registryUnavailableGrace: "2562048h" is not allowed` + span,
		}},
		{"registryUnavailableGrace: 1h", []string{`registryUnavailableGrace: "1h" is not allowed; allowed is 0s without credentialValidity, since no proof expires`}},
		{"credentialValidity: 24", []string{"credentialValidity: 24 is of the wrong type; allowed is a duration, as in 24h or 0s"}},
		{"imagePullCredentialsVerificationPolicy: Sometimes", []string{`imagePullCredentialsVerificationPolicy: "Sometimes"` + modes}},
		{"preloadedImagesVerificationAllowlist: [repo.test/a]", []string{"preloadedImagesVerificationAllowlist: needs NeverVerifyAllowlistedImages"}},
		{
			"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [repo.test/a, 'repo.test/a:1', null]",
			[]string{`preloadedImagesVerificationAllowlist[1]: "repo.test/a:1" is not allowed: no tag may be given` + pattern, `preloadedImagesVerificationAllowlist[2]: "" is not allowed: it is empty` + pattern},
		},
		// wrong types
		{"listen: 5", []string{"listen: 5 is of the wrong type; allowed is a string, in quotes"}},
		{"listen: {a: b}\nstateDir: [x]\nexempt: {staticPods: {}}", []string{
			"exempt.staticPods: map[] is of the wrong type; allowed is true or false", "listen: map[a:b] is of the wrong type; allowed is a string, in quotes",
			"stateDir: [x] is of the wrong type; allowed is a string, in quotes",
		}},
		{"registryOutageFallback: 'true'", []string{`registryOutageFallback: "true" is of the wrong type; allowed is true or false, without quotes`}},
		{"registryOutageFallback: 'yes'", []string{`registryOutageFallback: "yes" is of the wrong type; allowed is true or false`}},
		{"exempt: []", []string{"exempt: [] is of the wrong type; allowed is a mapping with the fields staticPods, namespaces"}},
		{"exempt: {namespaces: kube-system}", []string{`exempt.namespaces: "kube-system" is of the wrong type; allowed is a list`}},
		{"exempt: {namespaces: [[a], 1]}", []string{
			"exempt.namespaces[0]: [a] is of the wrong type; allowed is a string, in quotes",
			"exempt.namespaces[1]: 1 is of the wrong type; allowed is a string, in quotes",
		}},
		// unknown fields
		{"exempt: {pods: []}", []string{"exempt.pods: unknown field; allowed is staticPods, namespaces"}},
		{"Listen: unix:///run/a.sock", []string{"Listen: unknown field; did you mean listen?"}},
		{"metrics: {listn: x}\nadmn: {}", []string{"admn: unknown field; did you mean admin?", "metrics.listn: unknown field; did you mean listen?"}},
		{"apples: 1\npears: 1", []string{"apples: unknown field; allowed is " + fields, "pears: unknown field"}},
		{"policy: {}", []string{"policy: unknown field; allowed is " + fields}},
		// several at once
		{
			"listn: x\nstateDir: var/lib\nexempt: {namespaces: [A], staticPods: 1}\nmetrics: {port: 1}",
			[]string{
				"exempt.staticPods: 1 is of the wrong type; allowed is true or false",
				"listn: unknown field; did you mean listen?", "metrics.port: unknown field; allowed is listen",
				`stateDir: "var/lib" is not allowed; allowed is an absolute path`, `exempt.namespaces[0]: "A" is not allowed` + label,
			},
		},
	}
	for _, c := range cases {
		got, err := config.Parse([]byte(header + c.yaml + "\n"))
		want := "config: invalid:\n" + strings.Join(c.want, "\n")
		if err == nil || err.Error() != want || !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s:\n%v\nwant:\n%s", c.yaml, err, want)
		}
		if diff := cmp.Diff(config.Config{}, got, ignorePolicy); diff != "" {
			t.Errorf("%s: a part of it is returned:\n%s", c.yaml, diff)
		}
	}
}

func TestParseRefusesWhatIsNoConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"no header":            {"listen: unix:///run/a.sock\n", []string{`apiVersion: "" is not allowed; allowed is config.pullgate.dev/v1alpha1`, `kind: "" is not allowed; allowed is PullgateConfiguration`}},
		"apiVersion of others": {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: PullgateConfiguration\n", []string{`apiVersion: "kubelet.config.k8s.io/v1beta1" is not allowed; allowed is config.pullgate.dev/v1alpha1`}},
		"kind of others":       {"apiVersion: config.pullgate.dev/v1alpha1\nkind: KubeletConfiguration\n", []string{`kind: "KubeletConfiguration" is not allowed; allowed is PullgateConfiguration`}},
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
				t.Errorf("%s: %v; want it to say %q", name, err, want)
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
	if err != nil {
		f.Fatal(err)
	}
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
			return // printed beside it, the policy is given twice
		}
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := config.Parse(text)
		if err != nil || !slices.Equal(again.Exempt.Namespaces, c.Exempt.Namespaces) || !cmp.Equal(again, c, ignorePolicy, cmpopts.EquateEmpty()) {
			t.Errorf("%s\ndoes not parse to what it was printed from: %v", text, err)
		}
	})
}
