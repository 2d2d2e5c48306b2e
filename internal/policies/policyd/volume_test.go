package policyd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd"
	"github.com/pullgate/pullgate/internal/testkit"
)

// volume writes a version of a folder as a kubelet writes a volume of a ConfigMap or a Secret, and switches to it.
func (p *process) volume(name, version string, contents map[string]string) {
	p.Helper()
	dir, data := p.path(name), "..2026_11_22_19_00_00."+version
	errs := []error{os.MkdirAll(dir, 0o777), os.Chmod(dir, 0o777), os.Mkdir(filepath.Join(dir, data), 0o755)}
	for file, content := range contents {
		errs = append(errs, os.WriteFile(filepath.Join(dir, data, file), []byte(content), 0o644))
		if err := os.Symlink("..data/"+file, filepath.Join(dir, file)); !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.Symlink(data, dir+"/..data_tmp"), os.Rename(dir+"/..data_tmp", dir+"/..data"))
	testkit.Must(p, errors.Join(errs...))
}

// In a pod, the configuration, the policies and the certificate are volumes. They are read again when the kubelet
// replaces them.
func TestVolumesOfAPod(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	p := prepare(t)
	first, second := newAuthority(t), newAuthority(t)
	cert, next := issue(t, first), issue(t, second)
	p.https(cert)
	p.volume("pod-tls", "1", map[string]string{"tls.crt": string(cert.Certificate), "tls.key": string(cert.Key)})
	p.volume("pod-policies", "1", map[string]string{"policy.yaml": noHostNetwork})
	p.volume("pod-config", "1", map[string]string{"policyd.yaml": `
apiVersion: config.pullgate.dev/v1alpha1
kind: PolicydConfiguration
policies: ` + p.path("pod-policies") + `
https: {listen: "127.0.0.1:0", certFile: ` + p.path("pod-tls/tls.crt") + `, keyFile: ` + p.path("pod-tls/tls.key") + `}
metrics: {listen: "localhost:0"}
`})
	c := testkit.Value(config.LoadPolicyd(p.path("pod-config/policyd.yaml")))(t)
	if _, err := policyd.Examine(t.Context(), c); err != nil {
		t.Errorf("Examine = %v; want nil", err)
	}
	p.config = c
	p.start()
	answer := func(a *testkit.Authority) string { return p.judge(trusting(a), onNetwork) }
	if text := answer(first); !strings.Contains(text, "no-host-network") {
		t.Fatalf("answer %s\n%s", text, p.log)
	}
	renamed := strings.Replace(noHostNetwork, "no-host-network", "second", 1)
	p.volume("pod-policies", "2", map[string]string{"policy.yaml": renamed})
	p.volume("pod-tls", "2", map[string]string{"tls.crt": string(next.Certificate), "tls.key": string(next.Key)})
	p.until("the second version", func() bool { return strings.Contains(answer(second), "second") })
	p.has("pullgate_policyd_policies_last_reload_success 1")

	// A folder that is not a volume is not accepted with such a mode.
	testkit.Must(t, os.Chmod(p.path("policies"), 0o777))
	c.Policies = p.path("policies")
	if _, err := policyd.Examine(t.Context(), c); err == nil {
		t.Error("Examine = nil for a folder that everyone can write to; want an error")
	}
}
