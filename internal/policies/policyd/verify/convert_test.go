package verify_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A corpus makes rules with verifyImages, and images with signatures and attestations.
type corpus struct {
	*rand.Rand
	testing.TB
	parties []*party
}

// A party signs with a key, or without one. A rule can name it by one of its entries.
type party struct {
	entries []string
	entry   string // that of this rule
	sign    func(payload []byte) *protobundle.Bundle
}

func newCorpus(t *testing.T, seed uint64) (c *corpus, trustedRoot []byte) {
	t.Helper()
	c = &corpus{Rand: rand.New(rand.NewPCG(seed, 0)), TB: t}
	for range 3 {
		key := sigstoretest.NewKey(t)
		by := "keys: {publicKeys: " + pemOf(t, key)
		c.parties = append(c.parties, &party{
			entries: []string{
				by + "}", by + ", rekor: {ignoreTlog: true}}", by + ", signatureAlgorithm: sha256}",
				by + c.one(", signatureAlgorithm: sha512}", ", rekor: {}}"), // do not count
			},
			sign: func(payload []byte) *protobundle.Bundle { return sigstoretest.KeyBundle(t, key, payload) },
		})
	}
	authority := sigstoretest.NewAuthority(t)
	for _, name := range []string{"a", "b"} {
		cert, key := authority.Certificate(t, func(o *sigstoretest.LeafOptions) { o.Subject = "https://" + name + ".test/x" })
		by := "keyless: {issuer: '" + sigstoretest.Issuer + "', subject"
		c.parties = append(c.parties, &party{
			entries: []string{
				by + ": 'https://" + name + ".test/x'}", by + ": 'https://" + name + "*'}",
				by + "RegExp: 'https://" + name + "[.]test/.'}", by + "RegExp: '" + name + "[.]test'}",
			},
			sign: func(payload []byte) *protobundle.Bundle {
				return authority.KeylessBundle(t, cert, key, payload, time.Now())
			},
		})
	}
	return c, authority.TrustedRoot(t, nil)
}

func (c *corpus) one(of ...string) string { return of[c.IntN(len(of))] }

// attestors returns a set of attestors. Two sets of a rule have different parties.
func (c *corpus) attestors(parties []*party, depth int) string {
	var entries []string
	for len(parties) > 0 {
		n := 1
		if depth > 0 && len(parties) > 1 && c.IntN(3) == 0 {
			n += c.IntN(len(parties))
			entries = append(entries, "{attestor: "+c.attestors(parties[:n], depth-1)+"}")
		} else {
			entries = append(entries, "{"+parties[0].entry+"}")
		}
		parties = parties[n:]
	}
	return fmt.Sprintf("{count: %d, entries: [%s]}", c.IntN(len(entries)+1), strings.Join(entries, ", "))
}

func (c *corpus) some() (parties []*party) {
	order := c.Perm(len(c.parties))
	for _, i := range order[:1+c.IntN(len(order))] {
		parties = append(parties, c.parties[i])
	}
	return parties
}

func (c *corpus) condition() string {
	path := c.one("name", "a.b", "list", "nothing", "number", "flag", "in")
	switch c.IntN(3) {
	case 0:
		return fmt.Sprintf("{key: '{{ length(%s) }}', operator: %s, value: %d}", path,
			c.one("Equals", "NotEquals", "LessThan", "LessThanOrEquals", "GreaterThan", "GreaterThanOrEquals"), c.IntN(4))
	case 1:
		return fmt.Sprintf("{key: \"{{ time_since('', %s, '') }}\", operator: %s, value: %s}", c.one("at", "later", path),
			c.one("LessThan", "DurationLessThanOrEquals", "GreaterThan", "DurationGreaterThanOrEquals"),
			c.one("1h", "24h", "-1h"))
	}
	return fmt.Sprintf("{key: '{{ %s }}', operator: %s, value: "+
		"%s}", path, c.one("Equals", "NotEquals"), c.one("trivy", "x", "a b"))
}

const corpusTypes = 2

func corpusType(i int) string { return fmt.Sprintf("https://example.com/type/%d", i) }

// rule returns a policy with a rule. Some have a part without an equivalent.
func (c *corpus) rule() (text string, convertible bool) {
	for _, p := range c.parties {
		p.entry = c.one(p.entries...)
	}
	var fields []string
	if c.IntN(4) > 0 {
		fields = append(fields, "attestors: ["+c.attestors(c.some(), 2)+"]")
	}
	var attestations []string
	for i := range corpusTypes {
		if c.IntN(3) > 0 && len(fields) > 0 {
			continue
		}
		text := "{type: '" + corpusType(i) + "', attestors: [" + c.attestors(c.some()[:1], 0) + "]"
		if c.IntN(2) > 0 {
			var list []string
			for range 1 + c.IntN(2) {
				list = append(list, c.condition())
			}
			text += ", conditions: [{" + c.one("all", "any") + ": [" + strings.Join(list, ", ") + "]}]"
		}
		attestations = append(attestations, text+"}")
	}
	if attestations != nil {
		fields = append(fields, "attestations: ["+strings.Join(attestations, ", ")+"]")
	}
	if convertible = c.IntN(10) > 0; !convertible {
		fields = append(fields, c.one("default: deny", "verifyDigest: true",
			"validate: {deny: {conditions: {any: [{key: '{{ image.config.os }}', operator: Equals, value: linux}]}}}"))
	}
	return "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {validationFailureAction: " +
			c.one("Enforce", "Audit") + ", rules: [{name: r, match: {any: [{resources: {kinds: [Pod]" +
			c.one("", ", namespaces: [a]", ", namespaces: [b, c]") + "}}]}" +
			c.one("", ", exclude: {any: [{resources: {namespaces: [a]}}]}") + ", verifyImages: [{imageReferences: [" +
			c.one("'*'", "'repo.test/*'", "'*/team/*', other.test/a") + "], " + strings.Join(fields, ", ") + "}]}]}\n",
		convertible
}

// applies describes for which images of which namespaces rules are, and whether they are enforced.
func applies(of *requirement.Policies) (all []string) {
	set := requirement.NewSet("", of)
	for _, namespace := range []string{"a", "b", "c", "d"} {
		for _, image := range []string{"repo.test/team/app:1", "repo.test/app", "other.test/a:2", "other.test/b"} {
			for _, r := range set.For(namespace, imageref.New(image)).Rules {
				all = append(all, fmt.Sprintf("%s %s %v", namespace, image, r.Mode))
			}
		}
	}
	return all
}

func (c *corpus) value() any {
	all := []any{
		"trivy", "x", "", 1.5, true, nil, []any{"trivy", 1.0}, []any{}, map[string]any{"b": "trivy"}, "5", "true",
	}
	return all[c.IntN(len(all))]
}

func (c *corpus) evidence(m *memory, i image) {
	for _, p := range c.parties {
		if c.IntN(4) > 0 {
			m.bundle(c, i.index, p.sign(about(c, i.index)))
		}
		for range 1 + c.IntN(2) {
			hours := func(n int) string { return time.Now().Add(time.Duration(n) * time.Hour).UTC().Format(time.RFC3339) }
			predicate := map[string]any{"at": hours(-c.IntN(30))}
			for _, name := range []string{"name", "a", "list", "number", "flag", "in", "later"} {
				if c.IntN(4) > 0 {
					predicate[name] = c.value()
				}
			}
			if c.IntN(4) == 0 {
				predicate["later"] = hours(1)
			}
			payload := testkit.Value(json.Marshal(map[string]any{
				"_type": "https://in-toto.io/Statement/v1", "predicateType": corpusType(c.IntN(corpusTypes)),
				"subject":   []any{map[string]any{"digest": map[string]string{"sha256": i.index[len("sha256:"):]}}},
				"predicate": predicate,
			}))(c)
			m.bundle(c, i.index, p.sign(payload))
		}
	}
}

// A rule and its conversion say the same about every image of a generated corpus. SEED repeats one.
func TestConversionsJudgeAlike(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SEED"); text != "" {
		seed = testkit.Value(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("SEED=%d", seed)
	c, trustedRoot := newCorpus(t, seed)
	met, refused, rounds := 0, 0, 60
	if testkit.Raced || testing.Short() {
		rounds = 25
	}
	const images = 4
	for range rounds {
		text, convertible := c.rule()
		file := policyfiles.File{Name: "a.yaml", Data: []byte(text)}
		from := testkit.Value(policyfiles.LoadKyverno([]policyfiles.File{file}, time.Now()))(t)
		documents, _, err := policyfiles.ConvertKyverno(file, time.Now())
		if (err == nil) != convertible {
			t.Fatalf("SEED=%d: %v; want a conversion: %v\n%s", seed, err, convertible, text)
		}
		if !convertible {
			refused++
			continue
		}
		to := testkit.Value(policyfiles.LoadIVP([]policyfiles.File{{Name: "b.yaml", Data: documents[0]}}, time.Now()))(t)
		for _, rules := range [][]requirement.Rule{from.Rules, to.Rules} {
			if err := condition.Check(rules); err != nil {
				t.Fatalf("SEED=%d: %v\n%s\n%s", seed, err, text, documents[0])
			}
		}
		if d := cmp.Diff(applies(from), applies(to)); d != "" {
			t.Fatalf("SEED=%d: for (-want +got)\n%s\n%s\n%s", seed, d, text, documents[0])
		}
		for range images {
			m, i := withImage(t)
			c.evidence(m, i)
			check := newCheck(m, i, from.Rules[0].Requirement, to.Rules[0].Requirement)
			check.options.TrustedRoot = trustedRoot
			results := check.report(t).Results
			if results[0].Met {
				met++
			}
			if results[0].Met != results[1].Met {
				t.Fatalf("SEED=%d: %+v\n%+v\n%s\n%s", seed, results[0], results[1], text, documents[0])
			}
		}
	}
	all := (rounds - refused) * images
	t.Logf("%d of %d images meet their rule, %d rules have no conversion", met, all, refused)
	if met < 5 || met > all-5 {
		t.Errorf("SEED=%d: the corpus says little", seed)
	}
}
