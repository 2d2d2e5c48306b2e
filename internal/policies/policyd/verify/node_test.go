package verify_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A node is pullgated on a node: the rules, the signatures and the registry are those of the world.
type node struct {
	*world

	endorsed map[endorsed]bool
}

type endorsed struct {
	records.Pair

	requirement string
}

func (n *node) Verify(_ context.Context, r policyclient.VerifyRequest) (v requirement.Report, _ error) {
	for _, hash := range r.Requirements {
		got, _ := n.verify(context.Background(), verify.Image{Name: imageref.New(r.Name), ID: r.ImageID})
		got.Requirement = hash
		v.Results = append(v.Results, got)
	}
	return v, nil
}

func (n *node) Endorse(all []records.Endorsement, _ func(records.Endorsement) bool) error {
	for _, e := range all {
		n.endorsed[endorsed{e.Pair, e.Requirement}] = true
	}
	return nil
}

func (n *node) Endorsed(p records.Pair, requirement string) (records.Endorsement, bool) {
	return records.Endorsement{Pair: p, Requirement: requirement}, n.endorsed[endorsed{p, requirement}]
}

func (n *node) RevokeEndorsements(records.EndorsementSelection) ([]records.Endorsement, error) {
	return nil, nil
}

// What the webhook admits, the node does not deny, unless the webhook says that it cannot judge an image. What it
// denies, the node denies too.
func TestTheNodeAnswersAsTheWebhook(t *testing.T) {
	admitted, denied, open := 0, 0, 0
	hosts := []string{"a.test", "b.test", "digest.test"}
	for range 200 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 1))
		var policies []string
		for i := range 1 + r.IntN(3) {
			name, glob := fmt.Sprint("p", i), hosts[r.IntN(2)]+[]string{"/**", "/team/*", "/**/app"}[r.IntN(3)]
			switch r.IntN(6) {
			case 0:
				policies = append(policies, static(name, glob, []string{"pass", "fail"}[r.IntN(2)]))
			case 1:
				policies = append(policies, signed(name, glob, "  mode: warn\n"))
			default:
				policies = append(policies, signed(name, glob, ""))
			}
		}
		if r.IntN(2) == 0 {
			policies = append(policies, fmt.Sprintf(digest, ""))
		}
		w := newWorld(t, policies...)
		w.verify = func(_ context.Context, image verify.Image) (requirement.Result, error) {
			switch repository := image.Name.Repository(); {
			case strings.HasSuffix(repository, "app"):
				return requirement.Result{Met: true}, nil
			case strings.HasSuffix(repository, "down"):
				return requirement.Result{Reason: requirement.RegistryUnavailable, Message: "down"}, nil
			default:
				return requirement.Result{Reason: requirement.SignatureMissing, Message: "none"}, nil
			}
		}
		n := &node{w, map[endorsed]bool{}}
		e := policyclient.NewEndorser(w.requirements, policyclient.EndorserOptions{
			Store: n, Verifier: n,
			State: policyclient.NewEndorserState(),
		})
		for range 10 {
			image := hosts[r.IntN(len(hosts))] + []string{"/app", "/team/app", "/team/other", "/x/y/app", "/down"}[r.IntN(5)] +
				[]string{"", ":1", "@" + someDigest}[r.IntN(3)]
			if r.IntN(10) == 0 {
				image = []string{"abcdef", someDigest, "A.test/app:B:C"}[r.IntN(3)]
			}
			findings, undetermined := w.Judge(t.Context(), w.rules, "team", []string{image}, false)
			webhook := len(findings) == 0 || admission.DecisionOf(findings).Admitted()
			s := admission.Subject{
				Pod: admission.Pod{Namespace: "team"}, Container: &admission.Container{Name: "c", Image: admission.Set(image)},
				Image: admission.Image{ID: "sha256:1", Requested: imageref.New(image)},
			}
			e.PullVerifier(admission.Pull{}).Validate(t.Context(), s)
			here := admission.DecisionOf(e.Validate(t.Context(), s))
			switch {
			case len(undetermined) > 0:
				open++
			case webhook != here.Admitted():
				_, text := here.Refusal()
				t.Errorf("seed %d: %s: the webhook admits: %v, %s; the node admits: %v, %s; policies %s", seed, image, webhook,
					describe(findings), here.Admitted(), text, policies)
			case webhook:
				admitted++
			default:
				denied++
			}
		}
	}
	if admitted < 200 || denied < 200 || open < 20 {
		t.Errorf("%d admitted, %d denied, %d not determined; want enough of each", admitted, denied, open)
	}
	t.Logf("%d admitted, %d denied, %d not determined", admitted, denied, open)
}
