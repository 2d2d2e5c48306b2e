package config_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
)

// reloadable returns the fields with a tag by which they can change while the daemon runs.
func reloadable(prefix string, t reflect.Type, all bool) (paths []string) {
	for f := range t.Fields() {
		name := f.Tag.Get("json")
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
