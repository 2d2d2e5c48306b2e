package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestRulesAreThoseOfTheConfiguration(t *testing.T) {
	c := config.Default()
	c.Exempt.StaticPods, c.Exempt.Namespaces = true, []string{"kube-system"}
	c.CredentialValidity, c.RegistryUnavailableGrace = "2h", "20m"
	got := rules(c)
	if !got.ExemptStaticPods || got.Validity != 2*time.Hour || got.Grace != 20*time.Minute ||
		!slices.Equal(got.ExemptNamespaces, []string{"kube-system"}) {
		t.Errorf("rules %+v; want what the configuration says", got)
	}
}

func TestWarningOfRuntimeCredentials(t *testing.T) {
	const warning = "set runtimeCredentials: perNamespace"
	root := t.TempDir()
	logged := func(setting string) string {
		var out strings.Builder
		c := config.Default()
		c.RuntimeCredentials = setting
		warnOfRuntimeCredentials(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))), c, root)
		return out.String()
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(root, "/etc/crio/auth"), 0o755))
	if got := logged(config.RuntimeCredentialsNone); got != "" {
		t.Errorf("with the empty directory that CRI-O makes: %s; want nothing", got)
	}
	testkit.Must(t, os.Mkdir(filepath.Join(root, "/etc/crio/auth/in-use"), 0o700))
	if got := logged(config.RuntimeCredentialsNone); !strings.Contains(got, warning) ||
		!strings.Contains(got, "/etc/crio/auth") {
		t.Errorf("with auth files that were used: %q; want a warning that names the directory", got)
	}
	if got := logged(config.RuntimeCredentialsPerNamespace); got != "" {
		t.Errorf("with runtimeCredentials: perNamespace: %s; want nothing", got)
	}
}
