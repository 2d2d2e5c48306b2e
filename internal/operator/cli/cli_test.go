package cli_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen returns the path of a socket; handle is called for every connection.
func listen(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "link"))(t) //nolint:usetesting // a socket's path must be short
	path := filepath.Join(dir, "s")
	l := testkit.Value(net.Listen("unix", path))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handle(conn)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return path
}

func never(context.Context, adminv1.PullRecordsClient) error { return errors.New("asked") }

func TestAskReportsWhyTheDaemonIsNotReached(t *testing.T) {
	unanswered := listen(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
	closing := listen(t, func(c net.Conn) { _ = c.Close() })
	http1 := listen(t, func(c net.Conn) {
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_ = c.Close()
	})
	dial := func(err error) func(context.Context, string) (net.Conn, error) {
		return func(context.Context, string) (net.Conn, error) { return nil, err }
	}
	for name, tc := range map[string]struct {
		link  cli.Link
		cause error
		hint  string
	}{
		"no socket": {cli.Link{Path: "/no/such.sock", Limit: time.Second}, syscall.ENOENT, "systemctl status pullgated"},
		"no answer": {cli.Link{Path: unanswered, Limit: 50 * time.Millisecond}, nil, "not that of the CRI"},
		"closed":    {cli.Link{Path: closing, Limit: time.Second}, nil, "not that of the CRI"},
		"HTTP/1":    {cli.Link{Path: http1, Limit: time.Second}, nil, "not that of the CRI"},
		"permission denied": {cli.Link{
			Path: "/s", Limit: time.Second, Dial: dial(os.NewSyscallError("connect", syscall.EACCES)),
		}, syscall.EACCES, "run it as root"},
		"connection refused": {
			cli.Link{Path: "/s", Dial: dial(syscall.ECONNREFUSED)}, syscall.ECONNREFUSED, "systemctl start pullgated",
		},
		"another error": {cli.Link{Path: "/s", Dial: dial(syscall.EPROTOTYPE)}, syscall.EPROTOTYPE, "--endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			err := tc.link.Ask(t.Context(), never)
			if took := time.Since(begun); took > 10*time.Second { // gRPC's own limit is 20 seconds
				t.Errorf("Ask took %v; want no more than the limit of %v", took, tc.link.Limit)
			}
			e, ok := errors.AsType[*cli.ExitError](err)
			if !ok || e.Code != cli.ExitNotReached || tc.cause != nil && !errors.Is(err, tc.cause) ||
				!strings.Contains(program.HintOf(err), tc.hint) || !strings.Contains(err.Error(), tc.link.Path) {
				t.Errorf("Ask = %v; want that %s is not reached, because of %v, and the hint %q", err, tc.link.Path, tc.cause,
					tc.hint)
			}
		})
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	unanswered := listen(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (cli.Link{Path: unanswered}).Ask(ctx, never); !errors.Is(err, context.Canceled) {
		t.Errorf("Ask = %v; want %v", err, context.Canceled)
	}
}

func TestPathAcceptsOnlyUnixSockets(t *testing.T) {
	for endpoint, want := range map[string]string{
		cli.Default:                           "/run/pullgate/admin.sock",
		"unix:///a":                           "/a",
		"unix://" + strings.Repeat("/a", 53):  strings.Repeat("/a", 53),
		"unix:///" + strings.Repeat("a", 107): "",
		"unix://a":                            "",
		"unix:/a":                             "",
		"/a":                                  "",
		"tcp://127.0.0.1:1":                   "",
		"127.0.0.1:1":                         "",
		"":                                    "",
	} {
		got, err := cli.Path("--endpoint", endpoint)
		if e, wrong := errors.AsType[*cli.ExitError](err); got != want || wrong != (want == "") || wrong &&
			(e.Code != cli.ExitUsage || program.HintOf(err) == "" || !strings.HasPrefix(e.Error(), "--endpoint ")) {
			t.Errorf("Path(%q) = %q, %v; want %q", endpoint, got, err, want)
		}
	}
}

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
		"59s": 59 * time.Second, "90m": 90 * time.Minute, "5m10s": 310 * time.Second, "3d4h": 76 * time.Hour,
		"30d": 720 * time.Hour,
		"1y":  8760 * time.Hour, "2y10d": 17760 * time.Hour, "1y1h": 8761 * time.Hour,
	} {
		if got, err := cli.ParseAge(s); err != nil || got != want {
			t.Errorf("ParseAge(%s) = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "d", "-1d", "0s", "3", "1d-2h", "4h3d", "a week", "99999999d", "1.5d", "1d1d"} {
		if got, err := cli.ParseAge(s); err == nil {
			t.Errorf("ParseAge(%q) = %v, nil; want an error", s, got)
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
			out := testkit.Value(format.write())(t)
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
	out := testkit.Value(cli.YAML(&adminv1.Mark{Pair: &adminv1.Pair{ImageId: "7", Repository: "no"}}))(t)
	testkit.Equal(t, "YAML", string(out), "origin: \"\"\npair:\n  imageId: \"7\"\n  repository: \"no\"\n")
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

func TestTheSameAnswerIsTheSameText(t *testing.T) {
	image := &adminv1.Image{
		Untracked: []string{"b", "a", "c"}, Marks: []*adminv1.Mark{{Pair: &adminv1.Pair{Repository: "d"}}},
	}
	first := ""
	for range 20 {
		p := &cli.Page{Now: time.Unix(0, 0).UTC()}
		p.Images(&adminv1.ListImagesResponse{Images: []*adminv1.Image{image}})
		p.Image(image)
		text := string(p.Take())
		first = cmp.Or(first, text)
		testkit.Equal(t, "another time", text, first)
	}
}

// The scripts of cmd/pullgatectl test the text of answers. The tests here cover the cases that scripts cannot reach.

// An empty answer, for example from an older daemon, is printed without a panic.
func TestEmptyAnswersHaveAMessage(t *testing.T) {
	for name, draw := range map[string]func(*cli.Page){
		"Status":       func(p *cli.Page) { p.Status(nil) },
		"Images":       func(p *cli.Page) { p.Images(&adminv1.ListImagesResponse{Images: []*adminv1.Image{nil}}) },
		"Image":        func(p *cli.Page) { p.Image(nil) },
		"Intents":      func(p *cli.Page) { p.Intents(&adminv1.ListIntentsResponse{Intents: []*adminv1.Intent{nil}}) },
		"Grants":       func(p *cli.Page) { p.Grants(&adminv1.ListGrantsResponse{Grants: []*adminv1.Grant{nil}}) },
		"Preloaded":    func(p *cli.Page) { p.Preloaded(&adminv1.ListPreloadedResponse{Marks: []*adminv1.Mark{nil}}) },
		"Explanation":  func(p *cli.Page) { p.Explanation(nil) },
		"Decision":     func(p *cli.Page) { p.Decision(nil) },
		"Trusting":     func(p *cli.Page) { p.Trusting(nil) },
		"Verification": func(p *cli.Page) { p.Verification(nil) },
		"Revocation": func(p *cli.Page) {
			p.Revocation(&adminv1.RevokeResponse{Grants: []*adminv1.Grant{nil}, Proofs: []*adminv1.RevokedProof{nil}})
		},
	} {
		p := &cli.Page{Now: time.Unix(0, 0).UTC()}
		draw(p)
		if len(p.Take()) == 0 {
			t.Errorf("%s of an empty list prints nothing", name)
		}
	}
}
