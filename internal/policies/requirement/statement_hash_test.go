package requirement_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// Endorsements by statements that earlier versions have written stay valid.
func TestHashOfStatementsIsThatOfEarlierVersions(t *testing.T) {
	a := key("a")
	r := a.Attesting(&requirement.Statement{PredicateType: "t", Conditions: []requirement.Conditions{
		{All: []requirement.Condition{{Key: "{{ b }}", Operator: "Equals", Value: 1.0}, {Key: "{{ a }}", Operator: "AnyIn"}}},
		{Any: []requirement.Condition{{Key: "{{ a }}", Operator: "NotEquals", Value: "x", Message: "m"}}},
	}})
	const want = "v1:202e6f1a92782b568ea4c514d3672d10f13f94afff0d2cb197363367b52880b5"
	if got := r.Hash("root"); got != want {
		t.Errorf("hash %s; want %s", got, want)
	}
}

// Operators, values and which of all and any it is are part of the hash of conditions on images; messages and places
// are not.
func TestHashOfConditionsOnImages(t *testing.T) {
	hash := func(list ...requirement.Conditions) string {
		r := signed(requirement.Signer{Image: &requirement.Validation{Conditions: list}})
		return r.Hash("")
	}
	c := requirement.Condition{Key: "{{ a }}", Operator: "Equals", Value: "x", Message: "m", At: "spec"}
	same, operator, value := c, c, c
	same.Message, same.At = "n", "other"
	operator.Operator, value.Value = "NotEquals", "y"
	all := func(c ...requirement.Condition) requirement.Conditions { return requirement.Conditions{All: c} }
	if hash(all(c)) != hash(all(same)) || hash(all(c), all(value)) != hash(all(value), all(c)) {
		t.Error("a message, a place or the order changes the hash")
	}
	seen := map[string]bool{hash(): true}
	for _, list := range [][]requirement.Conditions{
		{all(c)}, {all(operator)}, {all(value)}, {{Any: []requirement.Condition{c}}}, {all(c), all(value)}, {all(c, value)},
	} {
		if h := hash(list...); seen[h] {
			t.Errorf("%+v: the same hash as others", list)
		} else {
			seen[h] = true
		}
	}
}
