package gate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// signedRegistry is the beginning of the names that the policy about signatures of a world is for.
const signedRegistry = "repo.test/"

// A modelNotary holds what is signed, and by which key the policy requires it. The rule: a container starts on an image
// only if the image, at the repository of its name, met the policy at the creation of the container or at its start;
// except for pods that are exempt, and for containers that the pod has started from the same image.
type modelNotary struct {
	w      *modelWorld
	key    int
	signed map[content]int // the key by which a content is signed, 0 for none
	down   bool
	// met are the facts that it has stated, and started the contents of the containers that pods have started.
	met     map[fact]bool
	started map[string][]content
	chain   *admission.Chain
	state   *policyclient.EndorserState
}

// A fact says that a content met the policy with a key, at a repository.
type fact struct {
	pair

	key int
}

func newModelNotary(w *modelWorld) *modelNotary {
	return &modelNotary{w: w, key: 1, signed: map[content]int{}, met: map[fact]bool{}, started: map[string][]content{}}
}

func (n *modelNotary) Verify(_ context.Context, r policyclient.VerifyRequest) (v requirement.Report, err error) {
	if n.down {
		return v, policyclient.ErrNotReached
	}
	c, repository := contentOf(r.ImageID), imageref.New(r.Name).Repository()
	for _, hash := range r.Requirements {
		result := requirement.Result{Requirement: hash, Met: hash == n.hashOf(n.signed[c])}
		if result.Met {
			n.met[fact{pair{c, repository}, n.signed[c]}] = true
		} else {
			result.Reason, result.Message = "SIGNATURE_MISSING", "not signed"
		}
		v.Results = append(v.Results, result)
	}
	return v, nil
}

func (n *modelNotary) set() *requirement.Set { return ruleOfKey(n.key) }

func ruleOfKey(key int) *requirement.Set {
	p, err := requirement.ParsePattern(signedRegistry+"*", requirement.KyvernoSyntax)
	if err != nil {
		panic(err)
	}
	return requirement.NewSet("", &requirement.Policies{Rules: []requirement.Rule{{
		Policy: "signed", Images: []requirement.Pattern{p},
		Requirement: &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: fmt.Append(nil,
			key), Hash: "sha256"}}},
	}}})
}

func (n *modelNotary) hashOf(key int) string { return ruleOfKey(key).Rules()[0].Hash }

// begin is called when pullgated starts: what it had in memory is lost.
func (n *modelNotary) begin() {
	n.chain, n.state = nil, policyclient.NewEndorserState()
	n.apply()
}

// apply makes the policy that of the running gate.
func (n *modelNotary) apply() {
	e := policyclient.NewEndorser(n.set(), policyclient.EndorserOptions{
		Store: n.w.store, Verifier: n, State: n.state, PolicyHash: fmt.Sprint(n.key),
	})
	rules := admission.Rules{
		PolicyHash: fmt.Sprint(n.key), ExemptStaticPods: true, ExemptNamespaces: []string{systemNamespace},
		Validators: []admission.Named{{Name: admission.SignatureValidator, Validator: e}},
	}
	if n.chain == nil {
		n.chain = admission.New(rules, nil)
	}
	n.chain.Set(rules)
	n.w.gate.SetAdmission(&gate.Admission{Chain: n.chain, KubeletRoot: "/var/lib/kubelet", Endorser: e})
}

// change executes an opSign.
func (n *modelNotary) change(o op) {
	switch o.n % 8 {
	case 0:
		n.key++
		n.apply()
	case 1:
		delete(n.signed, o.content)
	case 2:
		n.down = !n.down
	default:
		n.signed[o.content] = n.key
	}
}

// honest makes all images signed for a pod that must run, and lets denials be forgotten. It returns what undoes that.
func (n *modelNotary) honest() func() {
	signed, down := n.signed, n.down
	n.signed, n.down = map[content]int{}, false
	for c := content(1); c <= allContents; c++ {
		n.signed[c] = n.key
	}
	time.Sleep(11 * time.Second)
	return func() { n.signed, n.down = signed, down }
}

// starts compares a container that starts with the rule.
func (n *modelNotary) starts(p *modelPod, c *modelContainer) {
	own := c.real[0]
	defer func() { n.started[p.uid] = append(n.started[p.uid], own) }()
	if p.source != "api" || p.namespace == systemNamespace || slices.Contains(n.started[p.uid], own) {
		return
	}
	for i, on := range c.real {
		name := c.asked[i]
		if !strings.HasPrefix(name, signedRegistry) {
			continue // of another registry, or not known: the names under which the pod has asked count
		}
		at := pair{on, repositoryOf(name)}
		if !n.met[fact{at, c.key}] && !n.met[fact{at, n.key}] {
			n.w.fail("signatures: a container of %s on %v starts as %s, which did not meet the policy", p.uid, on, name)
		}
	}
}
