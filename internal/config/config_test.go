package config_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
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
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
)

const header = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"

var must = testkit.Must

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

// Shows: 001-10, 001-11, 001-23
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
	c, found, err := config.Load(filepath.Join(t.TempDir(), "absent.yaml"), false)
	mustBe(t, "absent file", c, err, config.Default())
	if found {
		t.Error("an absent file was found")
	}
	c, found, err = config.Load(write(t, header), false)
	mustBe(t, "header only", c, err, config.Default())
	if !found {
		t.Error("header only: the file was not found")
	}
	c, _, err = config.Load(write(t, header+"exempt:\nlisten:\nkubeletSkipsAlwaysPrecheck:\nregistryOutageFallback: "+
		"null\nmetrics: {listen: null}\n"), false)
	mustBe(t, "null values", c, err, config.Default())
	c, _, err = config.Load(write(t, header+"nodeCredentials: {namespaces: []}\n"), false)
	if err != nil || c.NodeCredentials.Namespaces == nil || len(c.NodeCredentials.Namespaces) > 0 {
		t.Errorf("an empty list is %#v, %v; want one that is not nil", c.NodeCredentials.Namespaces, err)
	}
}

// An incomplete write must not end shadow mode.
func TestAFileWithoutFieldsIsInvalid(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "newline": "\n", "comments": "# pullgate\n# listen: x\n", "marker": "---\n",
		"comment and marker": "# x\n---\n# y\n",
		"null":               "null\n", "braces": "{}\n",
	} {
		_, _, err := config.Load(write(t, content), false)
		_, policydErr := config.ParsePolicyd([]byte(content))
		for _, err := range []error{err, policydErr} {
			if !errors.Is(err, config.ErrInvalid) || !strings.HasSuffix(err.Error(),
				"apiVersion: Required value: the file has no field") {
				t.Errorf("%s: %v; want that apiVersion is required", name, err)
			}
		}
	}
}

func TestLoadReportsUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := config.Load(dir, false); !errors.Is(err, syscall.EISDIR) || errors.Is(err, config.ErrInvalid) ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("Load of a directory = %v; want EISDIR with the path", err)
	}
	if _, _, err := config.Load(filepath.Join(write(t, ""), "x"), false); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Load below a file = %v; want ENOTDIR", err)
	}
	for size, ok := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		_, _, err := config.Load(write(t, header+strings.Repeat("#", size-len(header))), false)
		if (err == nil) != ok || !ok && (!errors.Is(err, config.ErrInvalid) ||
			!strings.Contains(err.Error(), "more than 1048576 bytes")) {
			t.Errorf("Load of %d bytes = %v; want it taken: %v", size, err, ok)
		}
	}
}

// The operator made the link, so the operator does not expect the defaults.
func TestLoadOfADanglingLinkIsAnError(t *testing.T) {
	link := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.Symlink("absent.yaml", link))
	if _, found, err := config.Load(link, false); !errors.Is(err, fs.ErrNotExist) || found {
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
nodeCredentials: {dockerConfigFiles: [/root/.docker/config.json, /root/.dockercfg], namespaces: [a3]}
podSource: {kubeconfig: /etc/kubelet.conf, nodeName: node-1, nodeCondition: false, nodeReport: true, podEvents: false}
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
  recheckEndorsements: 6h
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
			DockerConfigFiles: []string{"/root/.docker/config.json", "/root/.dockercfg"}, Namespaces: []string{"a3"},
		},
		RuntimeCredentials: "perNamespace",
		PodSource:          config.PodSource{Kubeconfig: "/etc/kubelet.conf", NodeName: "node-1", NodeReport: "true"},
		Admin:              config.Admin{Listen: "unix:///run/a.sock"},
		DecisionLog:        config.DecisionLog{Path: "/var/log/decisions.log"},
		Admission: config.Admission{
			Policies: "/etc/pullgate/policies", Exempt: config.Exempt{Namespaces: []string{"a2"}},
			Unjudged:        config.UnjudgedRefuse,
			NamespaceLabels: "/etc/pullgate/namespaces.yaml", KubeletRoot: "/data/kubelet", RecheckRestarts: true,
			TrustedRoot: "/etc/pullgate/root.json", EndorsementValidity: "24h",
			RecheckEndorsements: "6h",
			PolicydSocket:       "unix:///run/policyd.sock",
		},
	})
	if v, g := c.CredentialValidity.Value(), c.RegistryUnavailableGrace.Value(); v != 24*time.Hour || g != 90*time.Minute {
		t.Errorf("validity %v, grace %v; want 24h and 1h30m", v, g)
	}
	if p := c.Policy(); p.Mode() != policy.ModeNeverVerifyAllowlistedImages ||
		!p.Allowlisted("docker.io/library/busybox") || p.Allowlisted("repo.test/x") {
		t.Errorf("policy %s does not match the file", p.Mode())
	}
}

func TestParseFillsIn(t *testing.T) {
	c, err := config.Parse([]byte(header + "runtimeEndpoint: " +
		"unix:///run/r.sock\nimagePullCredentialsVerificationPolicy: \"\"\n"))
	want := config.Default()
	want.RuntimeEndpoint, want.ImageEndpoint = "unix:///run/r.sock", "unix:///run/r.sock"
	mustBe(t, "runtimeEndpoint alone", c, err, want)

	for listen, beside := range map[string]string{
		"unix:///run/other/cri.sock": "unix:///run/other/",
		"unix:///a":                  "unix:///",
	} {
		for _, node := range []string{
			"", "nodeCredentials:\nadmin:\n", "admin: {listen: }\n",
			"nodeCredentials: {dockerConfigFiles: }\nadmin: {}\n",
		} {
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
		"true": "true", "false": "false", `"true"`: "true", `"false"`: "false", "yes": "true", "off": "false",
		"auto": "auto", `"auto"`: "auto", "": "auto", "null": "auto",
	} {
		if c, err := config.Parse([]byte(header + "kubeletSkipsAlwaysPrecheck: " + value)); err != nil ||
			c.KubeletSkipsAlwaysPrecheck != want {
			t.Errorf("%q = %q, %v; want %q, nil", value, c.KubeletSkipsAlwaysPrecheck, err, want)
		}
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

// refuses compares what parse says about each document of a file with the lines below it, which begin with ">". The
// documents are separated by empty lines, and have the header unless they begin with their own.
func refuses(t *testing.T, file, header string, parse func([]byte) error) {
	t.Helper()
	want, err := os.ReadFile(file)
	must(t, err)
	var got []string
	for block := range strings.SplitSeq(strings.TrimSpace(string(want)), "\n\n") {
		document := regexp.MustCompile(`(?m)^>.*\n`).ReplaceAllString(block+"\n", "")
		own := header
		if strings.HasPrefix(document, "apiVersion") {
			own = ""
		}
		err := parse([]byte(own + document))
		if !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", document, err)
			continue
		}
		said := regexp.MustCompile(`/[^ ]*/kubelet\.yaml`).ReplaceAllString(err.Error(), "FILE")
		got = append(got, document+"> "+strings.ReplaceAll(said, "\n", "\n> ")+"\n")
	}
	if *update {
		must(t, os.WriteFile(file, []byte(strings.Join(got, "\n")), 0o644))
	}
	testkit.Equal(t, file, strings.Join(got, "\n"), string(want))
}

func TestParseRefuses(t *testing.T) {
	refuses(t, "testdata/refused.txt", header, func(data []byte) error {
		c, err := config.Parse(data)
		if diff := cmp.Diff(config.Config{}, c, ignorePolicy); diff != "" {
			t.Errorf("%s: a part of it is returned:\n%s", data, diff)
		}
		return err
	})
}

func TestParseRefusesOtherDocuments(t *testing.T) {
	const two = "more than one document"
	for name, c := range map[string]struct{ yaml, want string }{
		"no header": {
			"listen: unix:///run/a.sock\n",
			`apiVersion: Unsupported value: "": supported values: "config.pullgate.dev/v1alpha1"` + "\n" +
				`kind: Unsupported value: "": supported values: "PullgateConfiguration"`,
		},
		"list":                {"- a\n", "array"},
		"text":                {"hello\n", "string"},
		"no YAML":             {"a: [\n", "line 1"},
		"tab":                 {"a:\n\tb: 1\n", "line 2"},
		"two documents":       {header + "---\n" + header, two},
		"second without end":  {header + "---", two},
		"second is broken":    {header + "---\na: [\n", two},
		"marker, two":         {"---\n" + header + "---\nlisten: x\n", two},
		"first is empty":      {"---\n---\n" + header, two},
		"ended, then more":    {header + "...\n---\nlisten: x\n", two},
		"marker with a value": {header + "--- {listen: x}\n", two},
		"binary":              {"\x00\x01\x02", "control characters"},
	} {
		_, err := config.Parse([]byte(c.yaml))
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want ErrInvalid with %q", name, err, c.want)
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
	for _, s := range []string{
		"", header, string(golden), header + "---\n", "a: &a [*a]",
		header + "exempt: {namespaces: [a]}",
	} {
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
		if err != nil || !slices.Equal(again.Exempt.Namespaces, c.Exempt.Namespaces) ||
			!cmp.Equal(again, c, ignorePolicy, cmpopts.EquateEmpty()) {
			t.Errorf("%s\ndoes not parse to what it was printed from: %v", text, err)
		}
	})
}

// reloadable returns the fields with a tag by which they can change while the daemon runs.
func reloadable(prefix string, t reflect.Type, all bool) (paths []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		yes := all || f.Tag.Get("reload") == "yes"
		switch {
		case name == "":
		case f.Type.Kind() == reflect.Struct:
			paths = append(paths, reloadable(prefix+name+".", f.Type, yes)...)
		case yes:
			paths = append(paths, prefix+name)
		}
	}
	return paths
}

func TestManualListsReloadableFields(t *testing.T) {
	var got []string
	for line := range strings.Lines(under(t, "What a reload takes over")) {
		if strings.HasPrefix(line, "- ") {
			got = append(got, quoted(line)...)
		}
	}
	want := reloadable("", reflect.TypeFor[config.Config](), false)
	if !slices.Equal(got, want) {
		t.Errorf("docs/configuration.md lists as reloadable\n%v\nwant\n%v", got, want)
	}
}

func TestNeedRestart(t *testing.T) {
	for _, c := range []struct {
		running, next string
		want          []string
	}{
		{"", "", nil},
		{"nodeCredentials: {dockerConfigFiles: []}", "nodeCredentials: {dockerConfigFiles: []}", nil},
		{"imagePullCredentialsVerificationPolicy: AlwaysVerify", "exempt: {staticPods: false, namespaces: [a]}", nil},
		{"", "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: " +
			"[a/b]", nil},
		{"", "credentialValidity: 24h\nregistryUnavailableGrace: 1h", nil},
		{"", "admission: {policies: /p, recheckEndorsements: 10m}\nregistryUnavailableGrace: 1h", nil},
		{"", "noPullImageSecretRecheck: true", []string{"noPullImageSecretRecheck"}},
		{"", "runtimeEndpoint: unix:///run/r.sock", []string{"runtimeEndpoint", "imageEndpoint"}},
		{
			"", "admission: {policydSocket: unix:///run/p.sock, policies: /p, enforce: false, exempt: {namespaces: [a]}}",
			[]string{"admission.policydSocket"},
		},
		{
			"", "listen: unix:///run/a/cri.sock\ndecisionLog: {path: /a}\nexempt: {staticPods: false}",
			[]string{"listen", "admin.listen", "decisionLog.path"},
		},
		{
			"nodeCredentials: {dockerConfigFiles: [/a]}", "nodeCredentials: {dockerConfigFiles: [/a, /b]}",
			[]string{"nodeCredentials.dockerConfigFiles"},
		},
	} {
		running, err1 := config.Parse([]byte(header + c.running))
		next, err2 := config.Parse([]byte(header + c.next))
		must(t, errors.Join(err1, err2))
		if got := config.NeedRestart(running, next); !slices.Equal(got, c.want) {
			t.Errorf("NeedRestart(%q, %q) = %v; want %v", c.running, c.next, got, c.want)
		}
	}
}

// Every field is either applied by a reload, or reported to need a restart.
func TestEveryFieldIsReloadedOrNeedsARestart(t *testing.T) {
	live := reloadable("", reflect.TypeFor[config.Config](), false)
	for i, f := range fieldsOf("", reflect.ValueOf(config.Default())) {
		next := config.Default()
		v := fieldsOf("", reflect.ValueOf(&next).Elem())[i].value
		switch v.Kind() { //nolint:exhaustive // these are the kinds of fields
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Slice:
			v.Set(reflect.ValueOf([]string{"another"}))
		default:
			v.SetString("another")
		}
		want := []string{f.path}
		if slices.Contains(live, f.path) {
			want = nil
		}
		if got := config.NeedRestart(config.Default(), next); !slices.Equal(got, want) {
			t.Errorf("%s: NeedRestart = %v; want %v", f.path, got, want)
		}
		inForce := config.Default()
		if want == nil {
			inForce = next
		}
		if got := config.Reloaded(config.Default(), next); !reflect.DeepEqual(got, inForce) {
			t.Errorf("%s: Reloaded = %+v; want %+v", f.path, got, inForce)
		}
	}
}

func TestLoadOfARequiredFile(t *testing.T) {
	if _, _, err := config.Load(filepath.Join(t.TempDir(), "absent.yaml"), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of an absent file = %v; want that it is absent", err)
	}
	c, _, err := config.Load(write(t, header), true)
	mustBe(t, "header only", c, err, config.Default())
}
