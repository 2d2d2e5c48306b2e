package view_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// What answers look like is held by the scripts of cmd/pullgatectl. Here is what no script comes by.

func TestIDIsAsLongAsItIs(t *testing.T) {
	for _, tc := range []struct {
		id, short string
	}{
		{"", ""}, {"sha256:", ""}, {"sha256:abc", "abc"}, {"abc", "abc"}, {"sha256:0123456789abcdef", "0123456789ab"}, {"0123456789abcdef", "0123456789ab"},
	} {
		if got := (view.View{}).ID(tc.id); got != tc.short {
			t.Errorf("ID(%q) = %q; want %q", tc.id, got, tc.short)
		}
		if got := (view.View{WholeIDs: true}).ID(tc.id); got != tc.id {
			t.Errorf("the whole ID(%q) = %q; want it as it is", tc.id, got)
		}
	}
}

// An answer that holds nothing, as of a daemon that knows less than we do, is said and not stumbled over.
func TestEmptyAnswersAreSaid(t *testing.T) {
	v := view.View{Now: time.Unix(0, 0).UTC()}
	for name, draw := range map[string]func(*text.Page){
		"Status":       func(p *text.Page) { v.Status(p, nil) },
		"Images":       func(p *text.Page) { v.Images(p, []*adminv1.Image{nil}) },
		"Image":        func(p *text.Page) { v.Image(p, nil) },
		"Intents":      func(p *text.Page) { v.Intents(p, []*adminv1.Intent{nil}) },
		"Grants":       func(p *text.Page) { v.Grants(p, []*adminv1.Grant{nil}) },
		"Marks":        func(p *text.Page) { v.Marks(p, []*adminv1.Mark{nil}) },
		"Explanation":  func(p *text.Page) { v.Explanation(p, "", nil) },
		"Decision":     func(p *text.Page) { v.Decision(p, nil) },
		"Trusting":     func(p *text.Page) { v.Trusting(p, nil) },
		"Verification": func(p *text.Page) { v.Verification(p, nil) },
		"Revocation": func(p *text.Page) {
			v.Revocation(p, &adminv1.RevokeResponse{Grants: []*adminv1.Grant{nil}, Proofs: []*adminv1.RevokedProof{nil}})
		},
	} {
		p := &text.Page{}
		draw(p)
		if len(p.Take()) == 0 {
			t.Errorf("%s of nothing says nothing", name)
		}
	}
}

func TestTheSameAnswerIsTheSameText(t *testing.T) {
	image := &adminv1.Image{Untracked: []string{"b", "a", "c"}, Marks: []*adminv1.Mark{{Pair: &adminv1.Pair{Repository: "d"}}}}
	v := view.View{Now: time.Unix(0, 0).UTC()}
	var first string
	for range 20 {
		p := &text.Page{}
		v.Images(p, []*adminv1.Image{image})
		v.Image(p, image)
		got := string(p.Take())
		if first == "" {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" {
			t.Fatalf("another time it is\n%s", diff)
		}
	}
}
