package daemon_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
)

// The two fields apply to the decision, over the socket of the built binary: a proof that is an hour and a half old,
// while the registry does not answer.
func TestValidityAndGraceOverTheSocket(t *testing.T) {
	for _, tc := range []struct {
		settings    string
		asked, runs bool
		reason      string // that is counted
	}{
		{"", false, true, "proved"},
		{"credentialValidity: 2h", false, true, "proved"},
		{"credentialValidity: 1h", true, false, "proof_expired"},
		{"credentialValidity: 1h\nregistryUnavailableGrace: 20m", true, false, "proof_expired"},
		{"credentialValidity: 1h\nregistryUnavailableGrace: 1h", true, true, "proved_in_grace"},
	} {
		t.Run(strings.ReplaceAll(tc.settings, "\n", ", "), func(t *testing.T) {
			r := criproxytest.NewRuntime(t)
			r.SetImages(criproxytest.Image{ID: id1, Names: []string{app}})
			r.Do(func(r *criproxytest.Runtime) {
				r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
					return criproxytest.Image{}, status.Error(codes.Unknown,
						"failed to resolve reference: dial tcp 127.0.0.1:1: connect: connection refused")
				}
			})
			p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true", tc.settings)
			p.provedBefore(90 * time.Minute)
			p.start()
			k := p.kubelet()
			x := k.Pod("carol")
			if got := k.Precheck(x, app); got != "" {
				t.Fatalf("pre-check = %q; want it hidden, her credential is not known yet", got)
			}
			id, err := k.Pull(t.Context(), x, app, "good")
			if (err == nil && id == id1) != tc.runs || (r.Calls("PullImage") > 0) != tc.asked {
				t.Errorf("pull = %q, %v, the registry was asked %d times; want the image: %v, asked: %v", id, err,
					r.Calls("PullImage"), tc.runs, tc.asked)
			}
			verdict := map[bool]string{true: "Allow", false: "Reverify"}[tc.runs]
			if p.metric(`pullgate_verdicts_total{call="PullImage",reason="`+tc.reason+`",verdict="`+verdict+`"}`) == 0 {
				t.Errorf("no verdict by %s is counted", tc.reason)
			}
		})
	}
}

// provedBefore makes a store with a proof of that age.
func (p *process) provedBefore(age time.Duration) {
	p.t.Helper()
	testkit.Must(p.t, os.MkdirAll(p.path("state"), 0o700))
	s, _, err := records.Open(p.path("state/records.db"), records.Options{})
	testkit.Must(p.t, err)
	key, err := credential.CreateKey(p.path("state/node.key"))
	testkit.Must(p.t, err)
	err = s.Prove(records.Intent{}, records.Result{
		Pair:       records.Pair{ImageID: id1, Repository: strings.TrimSuffix(app, ":1")},
		Credential: key.ID(credential.New(credential.Login{Username: "tenant", Password: "good"})), At: time.Now().Add(-age),
	})
	testkit.Must(p.t, err)
	testkit.Must(p.t, s.Close())
}
