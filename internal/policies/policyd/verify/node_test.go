package verify_test

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
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
	keys := []*ecdsa.PrivateKey{sigstoretest.NewKey(t)}
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
			case 2:
				inCEL := validating(t, keys, noDigest+"\nmatchImageReferences: [{glob: '"+glob+"'}]", signedInCEL)
				policies = append(policies, strings.Replace(inCEL, "{name: p}", "{name: "+name+"}", 1))
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
			findings, undetermined := w.Judge(t.Context(), w.rules, "team", []string{image}, false, verify.Unselected{})
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

// A verifyingNode is a node whose verifications are those of a verifier.
type verifyingNode struct {
	*node

	verifier *verify.Verifier
	endorser *policyclient.Endorser
}

// newVerifyingNode returns a node and a webhook with the same policies and verifier.
func newVerifyingNode(t *testing.T, c config.Policyd, v *verify.Verifier, resolve func(_, _ string) (string, error),
	policies ...string,
) *verifyingNode {
	t.Helper()
	w := &world{}
	w.Service, w.rules, w.requirements = newService(t, verify.ServiceOptions{
		Config: c, Verify: v.Verify, Resolve: resolve,
	}, policies...)
	n := &verifyingNode{node: &node{w, map[endorsed]bool{}}, verifier: v}
	n.endorser = policyclient.NewEndorser(w.requirements, policyclient.EndorserOptions{
		Store: n, Verifier: n, State: policyclient.NewEndorserState(),
	})
	return n
}

// use pulls an image and starts a container, and returns why each is refused; "" if it is not.
func (n *verifyingNode) use(t *testing.T, image, id string) (pull, start string) {
	t.Helper()
	s := admission.Subject{
		Pod: admission.Pod{Namespace: "team"}, Container: &admission.Container{Name: "c", Image: admission.Set(image)},
		Image: admission.Image{ID: id, Requested: imageref.New(image)},
	}
	pull = refusal(n.endorser.PullVerifier(admission.Pull{}).Validate(t.Context(), s))
	return pull, refusal(n.endorser.Validate(t.Context(), s))
}

func (n *verifyingNode) Verify(ctx context.Context, r policyclient.VerifyRequest) (requirement.Report, error) {
	var want []*requirement.Rule
	rules := n.requirements.Rules()
	for i := range rules {
		if slices.Contains(r.Requirements, rules[i].Hash) {
			want = append(want, &rules[i])
		}
	}
	image := verify.Image{Name: imageref.New(r.Name), ID: r.ImageID, Digests: r.Digests}
	return n.verifier.Verify(ctx, image, want, admission.Login{}, false)
}

// refusal returns the reason of findings that do not admit; "" if they do, or if there are none.
func refusal(findings []admission.Finding) string {
	if len(findings) == 0 {
		return ""
	}
	reason, _ := admission.DecisionOf(findings).Refusal()
	return string(reason)
}

// generatedRule returns the fields of an entry of verifyImages.
func generatedRule(r *rand.Rand, key string) (fields string) {
	some := func(text string) bool {
		if r.IntN(2) == 0 {
			return false
		}
		fields += text
		return true
	}
	attestors := fmt.Sprintf("[{entries: [{keys: {publicKeys: %q}}]}]", key)
	conditions := []string{
		"{key: \"{{ request.object.metadata.labels.team || '' }}\", operator: Equals, value: ''}",
		"{key: '{{ image.config.config.User }}', operator: AnyIn, value: [root, '0']}",
		"{key: \"{{ image.config.config.User || 'root' }}\", operator: Equals, value: root}",
		"{key: '{{ image.repository }}', operator: Equals, value: team/app}",
	}
	if some(", attestors: " + attestors) {
		conditions = append(conditions, "{key: '{{ length(signatures) }}', operator: LessThan, value: 2}")
	}
	if some(fmt.Sprintf(", attestations: [{type: %q, attestors: %s, conditions: [{all: [{key: '{{ scanner }}', "+
		"operator: Equals, value: trivy}, {key: \"{{ time_since('', timestamp, '') }}\", operator: LessThan, value: 24h}], "+
		"any: [{key: '{{ Results[].Vulnerabilities[?Score > `8.0`][] | length(@) }}', operator: Equals, value: 0}, "+
		"{key: '{{ accepted }}', operator: Equals, value: true}]}]}]", scanType, attestors)) {
		conditions = append(conditions,
			"{key: \"{{ length(attestations[?predicate.scanner == 'trivy']) }}\", operator: LessThan, value: 2}")
	}
	if i := r.IntN(2 * len(conditions)); i < len(conditions)+4 {
		i = max(0, i-4) // of which the first is more frequent
		fields += fmt.Sprintf(", validate: {message: m, deny: {conditions: {%s: [%s]}}}", []string{"all", "any"}[r.IntN(2)],
			conditions[i])
	}
	if fields == "" || r.IntN(3) == 0 {
		fields += ", verifyDigest: true, mutateDigest: true"
	}
	return fields
}

// Rules with conditions on attestations, images and pods, and signatures that are read: as for
// TestTheNodeAnswersAsTheWebhook.
func TestTheNodeAnswersAsTheWebhookToConditions(t *testing.T) {
	key, other := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	public, c := string(sigstoretest.PublicPEM(t, key)), config.DefaultPolicyd()
	repositoryNames := []string{"a.test/app", "a.test/team/app", "b.test/team/app", "b.test/x", "down.test/app"}
	admitted, denied, open, ofPods := 0, 0, 0, 0
	for range 150 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 1))
		stored, images := repositories{}, map[string]image{}
		for _, name := range repositoryNames[:4] {
			user := []string{"root", "1000", "0"}[r.IntN(3)]
			m, i := withConfig(t, []string{`{"config":{}}`, `{"os":"linux","config":{"User":"` + user + `"}}`}[r.IntN(2)])
			if r.IntN(4) > 0 {
				attachKey(t, m, i.index, []*ecdsa.PrivateKey{key, key, other}[r.IntN(3)])
			}
			for range r.IntN(3) {
				scan{
					age: time.Duration(r.IntN(40)) * time.Hour, score: 5 + 4*float64(r.IntN(2)),
					scanner: []string{"trivy", "trivy", "other"}[r.IntN(3)],
				}.attach(t, m, i.index, []*ecdsa.PrivateKey{key, key, other}[r.IntN(3)], r.IntN(2) == 0)
			}
			stored[name], images[name] = m, i
		}
		var policies []string
		unmatched := []string{"", ", default: deny", ", default: allow"}[r.IntN(3)]
		for i := range 1 + r.IntN(3) {
			policies = append(policies, fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p%d}
spec:
  validationFailureAction: %s
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod], namespaces: [%s]}}]}
    verifyImages: [{imageReferences: ['%s']%s%s}]
`, i, []string{"Enforce", "Enforce", "Audit"}[r.IntN(3)], []string{"team", "'*'", "other"}[r.IntN(3)],
				[]string{"a.test/*", "*/team/*", "*"}[r.IntN(3)], unmatched, generatedRule(r, public)))
		}
		v := testkit.Value(verify.New(verify.Options{Open: stored.open, Limits: c.Limits}))(t)
		v.SetPlatform("linux/amd64")
		n := newVerifyingNode(t, c, v, func(repository, _ string) (string, error) {
			if i, ok := images[repository]; ok {
				return i.index, nil
			}
			return "", registry.ErrUnavailable
		}, policies...)
		for _, name := range repositoryNames {
			i := images[name]
			reference := name + []string{":1", "@" + i.index}[r.IntN(2)]
			if i.index == "" {
				reference = name + ":1"
			}
			findings, undetermined := n.judge(t, reference)
			webhook := refusal(findings)
			findings, _ = n.JudgeObject(t.Context(), n.rules, verify.Object{
				Namespace: "team", Operation: "CREATE", Images: []string{reference},
				JSON: []byte([]string{`{"metadata":{"labels":{"team":"a"}}}`, `{"metadata":{}}`}[r.IntN(2)]),
			})
			pod := refusal(findings)
			pull, start := n.use(t, reference, i.id)
			switch {
			case len(undetermined) > 0:
				open++
			case (webhook == "") != (start == ""):
				t.Errorf("seed %d: %s: the webhook says %q, the node %q at the pull and %q at the start; policies %s", seed,
					reference, webhook, pull, start, policies)
			case pod != "":
				ofPods++
			case webhook == "":
				admitted++
			default:
				denied++
			}
		}
	}
	t.Logf("%d admitted, %d denied, %d of them for the pod, %d not determined", admitted, denied+ofPods, ofPods, open)
	if admitted < 50 || denied < 50 || open < 5 || ofPods < 5 {
		t.Error("want enough of each")
	}
}

// What a validation in CEL says is in the denial of a pull, and in the finding that pullgatectl explain shows then.
func TestDenialsByCELSayWhy(t *testing.T) {
	w := newWorld(t, validating(t, []*ecdsa.PrivateKey{sigstoretest.NewKey(t)}, noDigest, attestedInCEL, freshInCEL))
	w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
		m, i := withImage(t)
		return newCheck(m, i, w.requirements.Rules()[0].Requirement).result(t), nil
	}
	n := &node{w, map[endorsed]bool{}}
	e := policyclient.NewEndorser(w.requirements, policyclient.EndorserOptions{
		Store: n, Verifier: n, State: policyclient.NewEndorserState(),
	})
	image := repository + ":1"
	s := admission.Subject{
		Pod: admission.Pod{Namespace: "team"}, Container: &admission.Container{Name: "c", Image: admission.Set(image)},
		Image: admission.Image{ID: "sha256:1", Requested: imageref.New(image)},
	}
	_, pull := admission.DecisionOf(e.PullVerifier(admission.Pull{}).Validate(t.Context(), s)).Refusal()
	_, explained := admission.DecisionOf(e.Validate(t.Context(), s)).Refusal()
	const why = "the image does not meet its conditions: failed; no attestation scan by a"
	if !strings.Contains(pull, "policy p is not met: ") || !strings.Contains(pull, why) ||
		!strings.Contains(explained, "the last verification denied it (ATTESTATION_MISSING): ") ||
		!strings.Contains(explained, why) {
		t.Errorf("the pull: %s\nexplained: %s\nwant %q", pull, explained, why)
	}
}
