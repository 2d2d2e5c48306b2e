package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestSafeRemovesTerminalControls(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"a name":                  {"registry.example/team-a/app:1.4", "registry.example/team-a/app:1.4"},
		"another script":          {"регистр/приложение", "регистр/приложение"},
		"a colour":                {"\x1b[31mred", `\u001b[31mred`},
		"the title of the window": {"\x1b]0;owned\a", `\u001b]0;owned\u0007`},
		"a line feed":             {"a\nb\r", `a\u000ab\u000d`},
		"a tab":                   {"a\tb", `a\u0009b`},
		"delete":                  {"a\x7f", `a\u007f`},
		"C1 as UTF-8":             {"a\u009b31m", `a\u009b31m`},
		"C1 as a bare byte":       {"a\x9b31m", `a\x9b31m`},
		"right-to-left override":  {"a\u202eb", `a\u202eb`},
		"invisible characters":    {"a\u200bb\ufeff", `a\u200bb\ufeff`},
		"a tag":                   {"a\U000e0041", `a\U000e0041`},
		"a line separator":        {"a\u2028b", `a\u2028b`},
		"the replacement itself":  {"a\ufffdb", "a\ufffdb"},
		"nothing":                 {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cli.Safe(tc.in); got != tc.want {
				t.Errorf("Safe(%q) = %q; want %q", tc.in, got, tc.want)
			}
		})
	}
}

func TestParseAge(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"59s": 59 * time.Second, "90m": 90 * time.Minute, "5m10s": 310 * time.Second, "3d4h": 76 * time.Hour, "30d": 720 * time.Hour,
		"1y": 8760 * time.Hour, "2y10d": 17760 * time.Hour, "1y1h": 8761 * time.Hour,
	} {
		if got, err := cli.ParseAge(s); err != nil || got != want {
			t.Errorf("ParseAge(%s) = %v, %v; want %v", s, got, err, want)
		}
	}
}

func TestParseAgeRefuses(t *testing.T) {
	for _, s := range []string{"", "d", "-1d", "0s", "3", "1d-2h", "4h3d", "a week", "99999999d", "1.5d", "1d1d"} {
		if got, err := cli.ParseAge(s); err == nil {
			t.Errorf("ParseAge(%q) = %v, nil; want an error", s, got)
		}
	}
}

func TestSizeTakesTheLargestUnit(t *testing.T) {
	for want, n := range map[string]int64{"0 B": 0, "1023 B": 1023, "1.0 KiB": 1024, "1.5 MiB": 3 << 19, "2.0 GiB": 2 << 30, "4096.0 TiB": 4 << 50} {
		if got := cli.Size(n); got != want {
			t.Errorf("Size(%d) = %s; want %s", n, got, want)
		}
	}
}

// hostile contains all characters that Safe escapes, and the special characters of the formats.
const hostile = "a\x1b[31m\n\t\u009b\u202e\U000e0041\"'\\: #{}\u0085"

func TestMessagesAreSafeAndComplete(t *testing.T) {
	message := &adminv1.ListIntentsResponse{Intents: []*adminv1.Intent{
		{Id: 7, Name: hostile, Repository: "no", Begun: timestamppb.New(time.Unix(1, 0))},
		{Name: "1:20", Repository: "7"},
		{Name: "two\nlines\n", Repository: ""},
	}}
	for name, format := range map[string]struct {
		write func() ([]byte, error)
		read  func([]byte, any) error
	}{
		"json":      {func() ([]byte, error) { return cli.JSON(message) }, json.Unmarshal},
		"json line": {func() ([]byte, error) { return cli.JSONLine(message) }, json.Unmarshal},
		"yaml":      {func() ([]byte, error) { return cli.YAML(message) }, yaml.Unmarshal},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := format.write()
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range string(out) {
				if r != '\n' && cli.Safe(string(r)) != string(r) {
					t.Errorf("%q stands at %d in\n%q", r, i, out)
				}
			}
			var back struct {
				Intents []struct{ ID, Name, Repository, Begun string }
				Token   *string `json:"nextPageToken" yaml:"nextPageToken"`
			}
			if err := format.read(out, &back); err != nil {
				t.Fatalf("%v in\n%s", err, out)
			}
			if got := back.Intents; len(got) != 3 || got[0].Name != hostile || got[0].Repository != "no" || got[0].ID != "7" ||
				got[0].Begun != "1970-01-01T00:00:01Z" || got[1].Name != "1:20" || got[2].Name != "two\nlines\n" {
				t.Errorf("%q comes back from\n%s", got, out)
			}
			if back.Token == nil {
				t.Errorf("an empty text is not there:\n%s", out)
			}
		})
	}
}

func TestYAMLQuotesStringsOfOtherTypes(t *testing.T) {
	out, err := cli.YAML(&adminv1.ListIntentsResponse{Intents: []*adminv1.Intent{{Id: 7, Name: "registry.example/a", Repository: "no"}}})
	const want = "intents:\n- id: \"7\"\n  name: registry.example/a\n  repository: \"no\"\nnextPageToken: \"\"\n"
	if err != nil || string(out) != want {
		t.Errorf("YAML =\n%s, %v; want\n%s", out, err, want)
	}
}

func TestPageMakesEverythingSafe(t *testing.T) {
	for _, colours := range []bool{false, true} {
		p := &cli.Page{Colours: colours}
		p.Line("a %s", hostile)
		p.Paint(cli.Bad, "b %s", hostile)
		p.Text(hostile, "c\n"+hostile)
		p.Prose("- ", "d %s", hostile)
		p.PaintProse(cli.Good, hostile, "e")
		p.Table([]string{"F" + hostile, "G"}, [][]string{{hostile, ""}})
		p.Row(cli.Heed, []string{hostile, ""}, []int{8, 1})
		out := string(p.Take())
		for _, own := range []cli.Colour{cli.Bad, cli.Good, cli.Heed, cli.Bold, "\x1b[0m"} {
			if strings.Contains(out, string(own)) != colours {
				t.Errorf("colours %v, and %q in\n%q", colours, own, out)
			}
			out = strings.ReplaceAll(out, string(own), "")
		}
		if got := strings.ReplaceAll(out, "\n", ""); cli.Safe(got) != got {
			t.Errorf("the page holds\n%q", out)
		}
	}
}

func TestTableIsAsWideAsItsCells(t *testing.T) {
	p := &cli.Page{}
	p.Table([]string{"NAME", "N"}, [][]string{{"приложение", "1"}, {"", "22"}, {"x", ""}})
	const want = "NAME        N\nприложение  1\n-           22\nx           -\n"
	if got := string(p.Take()); got != want {
		t.Errorf("the table is\n%s; want\n%s", got, want)
	}
}

func TestProseIsWrappedBelowItsBeginning(t *testing.T) {
	p := &cli.Page{}
	p.Prose("  - ", "%s", strings.Repeat("word ", 30)+"end")
	p.Prose("", "%s", strings.Repeat("x", 120))
	page := string(p.Take())
	lines := strings.Split(page, "\n")
	narrow := &cli.Page{Width: 30}
	narrow.Prose("- ", "Use `pullgatectl preloaded accept IMAGE` to open the image to every pod.")
	if got, want := string(narrow.Take()), "- Use `pullgatectl preloaded accept IMAGE`\n  to open the image to every\n  pod.\n"; got != want {
		t.Errorf("the narrow page is\n%s; want\n%s", got, want)
	}
	if len(lines) != 4 || len(lines[0]) > 90 || !strings.HasPrefix(lines[1], "    word") || !strings.HasSuffix(lines[1], "end") || len(lines[2]) != 120 {
		t.Errorf("the page is\n%s", page)
	}
}
