package signatures_test

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"io"
	"log" //nolint:depguard // the registry takes its logger
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

type row struct {
	name string
	// attestors of the policy in Kyverno's dialect, and authorities in sigstore's; "" if the dialect cannot say it.
	attestors, authorities string
	expression             string // in CEL, about image; "" if there is none
	// sign makes the image of the row, an index if it returns one, and its signatures.
	sign func(*attempt)
	// accepted is what cosign says; nil is whether it verifies the image with its own key.
	accepted func(*attempt) error
	// reason of pullgate-policyd; "" if the image meets the rules.
	reason string
	// difference says why cosign's answer is another one.
	difference string
}

type attempt struct {
	*testing.T
	*oracle
	repository *signing.Repository
	image      node.Pushed
}

// An oracle is cosign, with the keys of the table.
type oracle struct {
	cosign *signing.Cosign
	public string // of cosign's key
	keys   [3]*ecdsa.PrivateKey

	authority   *sigstoretest.Authority
	trustedRoot []byte
	tb          testing.TB
}

func (o *oracle) key(i int) string { return string(sigstoretest.PublicPEM(o.tb, o.keys[i])) }

// Each row is judged by cosign and by pullgate-policyd, at a registry with the referrers API and at one without it.
// Shows: 002-R5, 002-22, 002-25, 002-54, 002-57
func TestOracle(t *testing.T) {
	if os.Getenv("NODES") != "matrix" {
		t.Skip("a part of make matrix")
	}
	cosign := testkit.Value(signing.NewCosign(t.Context(), t.TempDir()))(t)
	o := &oracle{cosign: cosign, authority: sigstoretest.NewAuthority(t), tb: t}
	o.trustedRoot = o.authority.TrustedRoot(t, nil)
	o.public = testkit.Value(cosign.Public())(t)
	for i := range o.keys {
		o.keys[i] = sigstoretest.NewKey(t)
	}
	debian := testkit.Value(node.StartRegistry(t.Context(), filepath.Join(t.TempDir(), "registry"), node.Alice()))(t)
	host.AtEnd(t, debian.Close)
	// That of go-containerregistry has the referrers API.
	quiet := registry.Logger(log.New(io.Discard, "", 0))
	referrers := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), quiet))
	t.Cleanup(referrers.Close)
	alice := node.Alice()
	for name, at := range map[string]struct {
		host  string
		login *node.Login
	}{
		"docker-registry":      {debian.Host(), &alice},
		"go-containerregistry": {strings.TrimPrefix(referrers.URL, "http://"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.compare(t, at.host, at.login)
		})
	}
}

func (o *oracle) compare(t *testing.T, host string, login *node.Login) {
	t.Helper()
	policies, conversions := map[string]string{}, 0
	rows := o.rows()
	for i, r := range rows {
		name, repository := fmt.Sprintf("row-%d", i), fmt.Sprintf("%s/row-%d/app", host, i)
		if r.attestors != "" {
			policies[name+"-kyverno"] = kyvernoPolicy(name, repository, r.attestors)
			// Conditions have no equivalent mostly.
			file := policyfiles.File{Name: name, Data: []byte(policies[name+"-kyverno"])}
			if converted, _, err := policyfiles.ConvertKyverno(file, time.Now()); err == nil {
				policies[name+"-converted"] = string(converted[0])
				conversions++
			}
		}
		if r.expression != "" {
			policies[name+"-cel"] = validatingPolicy(name+"-cel", repository, o.public, r.expression)
		}
		if r.authorities != "" {
			policies[name+"-sigstore"] = sigstorePolicy(name, repository, r.authorities)
		}
	}
	if conversions < len(rows)/3 {
		t.Errorf("%d of %d policies have a conversion", conversions, len(rows))
	}
	w := start(t, policies, o.trustedRoot)
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			repository := testkit.Value(signing.Open(fmt.Sprintf("%s/row-%d/app", host, i), login))(t)
			a := &attempt{T: t, oracle: o, repository: repository}
			a.image = testkit.Value(a.repository.Image(t.Context(), "1", t.Name()))(t)
			r.sign(a)
			accepted := r.accepted
			if accepted == nil {
				accepted = func(a *attempt) error {
					return o.cosign.Verify(a.Context(), a.repository, o.public, a.image.Digest)
				}
			}
			theirs := accepted(a)
			if (theirs == nil) != ((r.reason == "") != (r.difference != "")) {
				t.Errorf("cosign: %v; want reason %q, difference %q", theirs, r.reason, r.difference)
			}
			got := testkit.Value(w.verify(t.Context(), a.image, login))(t)
			for _, result := range got.Results {
				if result.Met != (r.reason == "") || result.Reason != r.reason {
					t.Errorf("pullgate-policyd: %+v; want reason %q; cosign: %v\n%+v", result, r.reason, theirs, got.Signatures)
				}
			}
		})
	}
}

// statement returns what is signed about the image of an attempt.
func (a *attempt) statement() []byte {
	return sigstoretest.Statement{Digests: []string{a.image.Digest}}.JSON(a)
}

// by returns whether cosign verifies the image of an attempt with a key.
func (a *attempt) by(ctx context.Context, public string) bool {
	return a.cosign.Verify(ctx, a.repository, public, a.image.Digest) == nil
}

func (a *attempt) must(err error) {
	a.Helper()
	testkit.Must(a.T, err)
}
