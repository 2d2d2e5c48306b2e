package cli_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// The scripts of cmd/pullgatectl test the text of answers. The tests here cover the cases that scripts cannot reach.

func TestIDIsShortened(t *testing.T) {
	for _, tc := range []struct {
		id, short string
	}{
		{"", ""}, {"sha256:", ""}, {"sha256:abc", "abc"}, {"abc", "abc"}, {"sha256:0123456789abcdef", "0123456789ab"}, {"0123456789abcdef", "0123456789ab"},
	} {
		if got := (cli.View{}).ID(tc.id); got != tc.short {
			t.Errorf("ID(%q) = %q; want %q", tc.id, got, tc.short)
		}
		if got := (cli.View{WholeIDs: true}).ID(tc.id); got != tc.id {
			t.Errorf("the whole ID(%q) = %q; want it as it is", tc.id, got)
		}
	}
}

// An empty answer, for example from an older daemon, is printed without a panic.
func TestEmptyAnswersHaveAMessage(t *testing.T) {
	v := cli.View{Now: time.Unix(0, 0).UTC()}
	for name, draw := range map[string]func(*cli.Page){
		"Status":       func(p *cli.Page) { v.Status(p, nil) },
		"Images":       func(p *cli.Page) { v.Images(p, []*adminv1.Image{nil}) },
		"Image":        func(p *cli.Page) { v.Image(p, nil) },
		"Intents":      func(p *cli.Page) { v.Intents(p, []*adminv1.Intent{nil}) },
		"Grants":       func(p *cli.Page) { v.Grants(p, []*adminv1.Grant{nil}) },
		"Marks":        func(p *cli.Page) { v.Marks(p, []*adminv1.Mark{nil}) },
		"Explanation":  func(p *cli.Page) { v.Explanation(p, nil) },
		"Decision":     func(p *cli.Page) { v.Decision(p, nil) },
		"Trusting":     func(p *cli.Page) { v.Trusting(p, nil) },
		"Verification": func(p *cli.Page) { v.Verification(p, nil) },
		"Revocation": func(p *cli.Page) {
			v.Revocation(p, &adminv1.RevokeResponse{Grants: []*adminv1.Grant{nil}, Proofs: []*adminv1.RevokedProof{nil}})
		},
	} {
		p := &cli.Page{}
		draw(p)
		if len(p.Take()) == 0 {
			t.Errorf("%s of an empty list prints nothing", name)
		}
	}
}

func TestTheSameAnswerIsTheSameText(t *testing.T) {
	image := &adminv1.Image{Untracked: []string{"b", "a", "c"}, Marks: []*adminv1.Mark{{Pair: &adminv1.Pair{Repository: "d"}}}}
	v := cli.View{Now: time.Unix(0, 0).UTC()}
	var first string
	for range 20 {
		p := &cli.Page{}
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
