package verify_test

import (
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// A corpus makes rules with verifyImages, and images with signatures and attestations.
type corpus struct {
	*rand.Rand
	testing.TB
	keys []*ecdsa.PrivateKey
}

func (c *corpus) one(of ...string) string { return of[c.IntN(len(of))] }

// attestors returns a set of attestors. Two sets of a rule have different keys.
func (c *corpus) attestors(keys []*ecdsa.PrivateKey, depth int) string {
	var entries []string
	for len(keys) > 0 {
		n := 1
		if depth > 0 && len(keys) > 1 && c.IntN(3) == 0 {
			n += c.IntN(len(keys))
			entries = append(entries, "{attestor: "+c.attestors(keys[:n], depth-1)+"}")
		} else {
			entries = append(entries, "{keys: {publicKeys: "+pemOf(c, keys[0])+"}}")
		}
		keys = keys[n:]
	}
	return fmt.Sprintf("{count: %d, entries: [%s]}", c.IntN(len(entries)+1), strings.Join(entries, ", "))
}

func (c *corpus) some() []*ecdsa.PrivateKey {
	order := c.Perm(len(c.keys))
	var keys []*ecdsa.PrivateKey
	for _, i := range order[:1+c.IntN(len(order))] {
		keys = append(keys, c.keys[i])
	}
	return keys
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

func (c *corpus) rule() string {
	var fields []string
	if c.IntN(4) > 0 {
		fields = append(fields, "attestors: ["+c.attestors(c.some(), 2)+"]")
	}
	var attestations []string
	for i := range corpusTypes {
		if c.IntN(2) == 0 && len(fields) > 0 {
			continue
		}
		text := "{type: '" + corpusType(i) + "', attestors: [" + c.attestors(c.some()[:1], 0) + "]"
		if c.IntN(3) > 0 {
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
	return "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {validationFailureAction: " +
		"Enforce, " +
		"rules: [{name: r, match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ['*'], " +
		strings.Join(fields, ", ") + "}]}]}\n"
}

func (c *corpus) value() any {
	all := []any{
		"trivy", "x", "", 1.5, true, nil, []any{"trivy", 1.0}, []any{}, map[string]any{"b": "trivy"}, "5", "true",
	}
	return all[c.IntN(len(all))]
}

func (c *corpus) evidence(m *memory, i image) {
	for _, key := range c.keys {
		if c.IntN(2) == 0 {
			attachKey(c, m, i.index, key)
		}
		for range c.IntN(3) {
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
			m.attach(c, i.index, sigstoretest.BundleJSON(c, sigstoretest.KeyBundle(c, key, payload)), nil)
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
	c := &corpus{Rand: rand.New(rand.NewPCG(seed, 0)), TB: t}
	for range 4 {
		c.keys = append(c.keys, sigstoretest.NewKey(t))
	}
	met, rounds := 0, 150
	if testkit.Raced || testing.Short() {
		rounds = 40
	}
	const images = 4
	for range rounds {
		text := c.rule()
		file := policyfiles.File{Name: "a.yaml", Data: []byte(text)}
		from := testkit.Value(policyfiles.LoadKyverno([]policyfiles.File{file}, time.Now()))(t)
		documents, _, err := policyfiles.ConvertKyverno(file, time.Now())
		if err != nil {
			t.Fatalf("SEED=%d: %v\n%s", seed, err, text)
		}
		to := testkit.Value(policyfiles.LoadIVP([]policyfiles.File{{Name: "b.yaml", Data: documents[0]}}, time.Now()))(t)
		for _, rules := range [][]requirement.Rule{from.Rules, to.Rules} {
			if err := condition.Check(rules); err != nil {
				t.Fatalf("SEED=%d: %v\n%s\n%s", seed, err, text, documents[0])
			}
		}
		for range images {
			m, i := withImage(t)
			c.evidence(m, i)
			results := newCheck(m, i, from.Rules[0].Requirement, to.Rules[0].Requirement).report(t).Results
			if results[0].Met {
				met++
			}
			if results[0].Met != results[1].Met {
				t.Fatalf("SEED=%d: %+v\n%+v\n%s\n%s", seed, results[0], results[1], text, documents[0])
			}
		}
	}
	if met < rounds*images/20 || met > rounds*images*19/20 {
		t.Errorf("SEED=%d: %d of %d images meet their rule; the corpus says little", seed, met, rounds*images)
	}
}
