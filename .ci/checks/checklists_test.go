package checks_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// item finds a row of docs/checklists.md: an ID, a sentence, and what shows that the sentence is true.
	item = regexp.MustCompile(`(?m)^\| (\d{3}-R?\d+) \| (.*) \| (.*) \|$`)
	// tag finds the IDs that a comment on a test, or in it, says that the test shows: "// Shows: 000-01, 002-R5".
	tag = regexp.MustCompile(`(?m)^// Shows: (.*)$`)
	// byHand finds what a row can have in the place of tests.
	byHand = regexp.MustCompile(`^(Not here|Not shown|Page): .`)
)

// The tests in docs/checklists.md are those with tags. UPDATE=1 rewrites them.
func TestChecklistsNameTheirTests(t *testing.T) {
	shown := map[string][]string{}
	walk(t, os.DirFS(root), ".go", func(name, src string) {
		if strings.HasSuffix(name, "_test.go") && tag.MatchString(strings.ReplaceAll(src, "\t", "")) {
			for id, tests := range tagged(t, name, src) {
				shown[id] = append(shown[id], tests...)
			}
		}
	})
	page := filepath.Join(root, "docs", "checklists.md")
	was := read(t, page)
	is, wrong := fill(was, shown)
	for _, why := range wrong {
		t.Error(why)
	}
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(page, []byte(is), 0o644))
	} else if is != was {
		t.Error("docs/checklists.md does not name the tests that have tags: " +
			"cd .ci/checks && UPDATE=1 go test -count=1 -run TestChecklists .")
	}
}

// tagged returns, for each ID of a tag in a file, links to the functions with it.
func tagged(t *testing.T, name, src string) map[string][]string {
	t.Helper()
	fset, all := token.NewFileSet(), map[string][]string{}
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	must(t, err)
	for _, group := range f.Comments {
		for _, c := range group.List {
			m := tag.FindStringSubmatch(c.Text)
			if m == nil {
				continue
			}
			function := enclosing(f, c)
			if function == "" {
				t.Errorf("%v: the tag is neither in a function nor its comment", fset.Position(c.Pos()))
			}
			link := "[" + function + "](../" + name + ")"
			for id := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(all[id], link) {
					all[id] = append(all[id], link)
				}
			}
		}
	}
	return all
}

// enclosing returns the name of the function that a comment is in or belongs to.
func enclosing(f *ast.File, c *ast.Comment) string {
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || c.End() > function.End() {
			continue
		}
		if function.Doc != nil && c.Pos() >= function.Doc.Pos() || c.Pos() > function.Pos() {
			return function.Name.Name
		}
	}
	return ""
}

// fill returns a page with the tests of each item, and what is wrong with items and tags.
func fill(page string, shown map[string][]string) (filled string, wrong []string) {
	known := map[string]bool{}
	filled = item.ReplaceAllStringFunc(page, func(row string) string {
		m := item.FindStringSubmatch(row)
		id, sentence, by := m[1], m[2], m[3]
		if known[id] {
			wrong = append(wrong, id+" is there twice")
		}
		known[id] = true
		if tests := shown[id]; len(tests) > 0 {
			by = strings.Join(tests, ", ")
		} else if !byHand.MatchString(by) {
			wrong = append(wrong, id+": no test has its tag; write Page:, Not here: or Not shown: and why")
		}
		return "| " + id + " | " + sentence + " | " + by + " |"
	})
	for id, tests := range shown {
		if !known[id] {
			wrong = append(wrong, strings.Join(tests, ", ")+": no item has the ID "+id)
		}
	}
	return filled, wrong
}

func TestFillOfChecklists(t *testing.T) {
	const page = "| item | a | b |\n| 000-01 | One. | Not shown: no time |\n| 000-R2 | Two. | [TestGone](x_test.go) |\n"
	src := "package x\n\n// Comment.\n// Shows: 000-01, 000-R2\nfunc TestA() {}\n\nfunc TestB() {\n\t// Shows: 000-01\n}\n"
	filled, wrong := fill(page, tagged(t, "a/x_test.go", src))
	const a, b = "[TestA](../a/x_test.go)", "[TestB](../a/x_test.go)"
	want := strings.NewReplacer("Not shown: no time", a+", "+b, "[TestGone](x_test.go)", a).Replace(page)
	if filled != want || len(wrong) > 0 {
		t.Errorf("%q\n%s\nwant\n%s", wrong, filled, want)
	}
	for _, tc := range []struct {
		page  string
		shown map[string][]string
	}{
		{page, nil}, // a test that is gone
		{page, map[string][]string{"000-R2": {a}, "000-3": {a}}}, // an ID that is not known
		{page + "| 000-01 | Again. | Page: x |\n", map[string][]string{"000-R2": {a}}},
	} {
		if _, wrong := fill(tc.page, tc.shown); len(wrong) != 1 {
			t.Errorf("%s, %v: %q; want one error", tc.page, tc.shown, wrong)
		}
	}
}
