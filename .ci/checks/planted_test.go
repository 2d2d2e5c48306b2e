package checks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pullgate/pullgate"

// A plant is one file that breaks one rule, or with want "" keeps to the rules.
type plant struct {
	rule   string // the line of the house rules
	file   string
	source string
	linter string // the linter that has to find it
	want   string // a part of its message
}

// imports is the source of a file that imports a package and does nothing else.
func imports(file, path string) string {
	name := filepath.Base(filepath.Dir(file))
	return fmt.Sprintf("// Package %s is planted.\npackage %s\n\nimport _ %q // planted\n", name, name, path)
}

// up is an import that points up, or sideways, or through a wall.
func up(from, to, want string) plant {
	return placed(from, to, "depguard", want)
}

// down is an import that is allowed.
func down(from, to string) plant {
	return placed(from, to, "", "")
}

func placed(from, to, linter, want string) plant {
	path := to
	if first, _, _ := strings.Cut(to, "/"); !strings.Contains(first, ".") && first != "log" && first != "math" && first != "net" {
		path = module + "/" + to
	}
	file := fmt.Sprintf("%s/to%s/planted.go", from, strings.NewReplacer("/", "", ".", "", "-", "").Replace(to))
	return plant{rule: from + " imports " + to, file: file, source: imports(file, path), linter: linter, want: want}
}

// body is a violation inside a package of its own.
func body(rule, file, linter, want, source string) plant {
	name := filepath.Base(filepath.Dir(file))
	return plant{
		rule: rule, file: file, linter: linter, want: want,
		source: fmt.Sprintf("// Package %s is planted.\npackage %s\n\n%s", name, name, source),
	}
}

const (
	bolt = "go.etcd.io/bbolt"
	grpc = "google.golang.org/grpc"
	cri  = "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// plants has one violation of each rule that .golangci.yml is there to hold, and beside them what
// the same rules must let through.
func plants() []plant {
	return slices.Concat(directions(), walls(), shapes())
}

// directions has one import against each rule, and beside them what the rules must let through.
func directions() []plant {
	return []plant{
		up("internal/atomicfile", "pkg/credential", "mechanics import nothing"),
		up("internal/verification", "internal/config", "mechanics import nothing"),
		up("pkg/credential", "pkg/imageref", "no other package of this module but mechanics"),
		down("pkg/credential", "internal/atomicfile"),
		up("pkg/records", "pkg/policy", "policy judges"),
		down("pkg/records", "pkg/credential"),
		up("pkg/tracker", "internal/podindex", "tracker imports records"),
		down("pkg/tracker", "pkg/records"),
		up("pkg/criproxy", "pkg/tracker", "a proxy and nothing else"),
		up("pkg/admission", "pkg/policy", "admission combines answers"),
		down("pkg/admission", "pkg/imageref"),
		up("pkg/added", "pkg/policy", "a promise to other programs"),
		up("pkg/podview", "pkg/policy", "podview is a leaf"),
		down("pkg/podview/apiview", "pkg/podview"),
		down("pkg/podview/apiview", "k8s.io/api/core/v1"),
		up("pkg/restriction", "pkg/podview/apiview", "knows of no source"),
		up("pkg/restriction", "k8s.io/api/core/v1", "talked to in internal/podsource"),
		down("pkg/restriction", "pkg/podview"),
		down("pkg/restriction", "internal/strictyaml"),
		up("pkg/requirement", "pkg/policy", "it verifies nothing"),
		up("pkg/requirement/kyverno", "net/http", "it asks no server"),
		down("pkg/requirement/kyverno", "pkg/requirement"),
		down("pkg/requirement/cip", "internal/strictyaml"),
		up("internal/gate", "internal/metrics", "declares the interfaces of everything else"),
		down("internal/gate", "internal/podindex"),
		down("internal/gate", "pkg/tracker"),
		up("internal/config", "internal/daemon", "neither the daemon nor a command"),
		up("internal/cli", "pkg/policy", "imports nothing but that API"),
		down("internal/cli", "proto/pullgate/admin/v1"),
		up("internal/cli/output", "internal/cli", "output knows of no command"),
		up("internal/podfile", "pkg/restriction", "imports nothing that judges"),
		down("internal/podfile", "pkg/podview/apiview"),
		down("internal/podfile", "k8s.io/api/core/v1"),
		up("internal/policyd/webhook", "pkg/records", "imports the chain, views"),
		down("internal/policyd/webhook", "pkg/restriction"),
		down("internal/policyd/webhook", "internal/podfile"),
		down("internal/policyd/webhook", "k8s.io/client-go/rest"),
		down("internal/policyd/webhook", "k8s.io/api/core/v1"),
		up("internal/imagepolicy", "internal/policyd/review", "imports nothing that asks a backend"),
		up("internal/imagepolicy", "net/http", "has no client of them"),
		down("internal/imagepolicy", "internal/strictyaml"),
		up("internal/imagerule", "internal/policyd", "knows of no verifier"),
		down("internal/imagerule", "pkg/requirement"),
		up("internal/imagereview", "internal/gate", "knows of no gate"),
		up("internal/imagereview", "internal/policyd/review", "another process"),
		down("internal/imagereview", "internal/policyclient"),
		up("internal/policyd/review", "pkg/podview", "knows of no pod view"),
		down("internal/policyd/review", "internal/imagepolicy"),
		down("internal/policyd/review", "k8s.io/client-go/rest"),
		up("internal/policyd/webhook", "github.com/sigstore/sigstore-go/pkg/verify", "verified in internal/policyd/verify"),
		up("internal/policyd/verify/registry", "github.com/sigstore/sigstore-go/pkg/bundle", "verified in internal/policyd/verify"),
		up("internal/policyd/verify/registry", "pkg/requirement", "knows of no policy and no signature"),
		down("internal/policyd/verify/registry", "pkg/credential"),
		down("internal/policyd/verify/registry", "github.com/google/go-containerregistry/pkg/name"),
		up("internal/policyd/webhook", "github.com/google/go-containerregistry/pkg/name", "asked in internal/policyd/verify"),
		up("internal/daemon", "internal/policyd/review", "is another process"),
		up("internal/kubeletconf", "internal/config", "work where pullgated does not"),
		up("internal/doctor", "pkg/records", "doctor looks from outside"),
		down("internal/doctor", "pkg/records/offline"),
		down("internal/daemon", "internal/decisionlog"),
		up("internal/daemon", "internal/policyd", "another process"),
		up("cmd/pullgated", "internal/policyd/metrics", "another process"),
		up("internal/gate", "internal/policyclient", "declares the interfaces of everything else"),
		down("internal/daemon", "internal/policyclient"),
		down("cmd/pullgate-policyd", "internal/policyd"),
		up("internal/policyd", "internal/daemon", "neither the daemon nor a command"),
		up("internal/policyd/metrics", "pkg/tracker", "nothing of pullgated"),
		up("internal/policyd/review", grpc, "gRPC stays at the edge"),
		down("internal/policyd/manifests", "pkg/admission/files"),
		up("internal/policyclient", "internal/policyd", "another process"),
		up("internal/policyclient", "internal/config", "the generated client and nothing else"),
		down("internal/policyclient", "proto/pullgate/policy/v1"),
		up("internal/sockets", "internal/config", "imports mechanics alone"),
		down("internal/sockets", "internal/atomicfile"),
		up("proto", "pkg/policy", "generated code imports nothing"),
		up("cmd/pullgated", "pkg/tracker", "commands are thin"),
		down("cmd/pullgated", "internal/daemon"),
		up("e2e", "pkg/records", "e2e is a black box"),
		down("e2e", "pkg/criproxy/criproxytest"),
		up("e2e/podsource", "internal/podindex", "and imports nothing else"),
		up("e2e/podsecurity", "internal/podindex", "and imports nothing else"),
		up("e2e/podviews", "internal/podindex", "and imports nothing else"),
		{
			rule: "tests of the gate import no more than image reviews", file: "internal/gate/direction/planted_test.go", linter: "depguard", want: "tests of gate",
			source: "package direction\n\nimport _ \"" + module + "/internal/metrics\"\n",
		},
		{
			rule: "tests keep to the same directions", file: "pkg/records/direction/planted_test.go", linter: "depguard", want: "policy judges",
			source: "package direction\n\nimport _ \"" + module + "/pkg/tracker\"\n",
		},
		{
			rule: "tests of a leaf import no more than leaves", file: "pkg/policy/direction/planted_test.go", linter: "depguard", want: "tests of credential",
			source: "package direction\n\nimport _ \"" + module + "/pkg/records\"\n",
		},
	}
}

func walls() []plant {
	return []plant{
		up("internal/daemon", bolt, "bbolt stays in records"),
		down("pkg/records", bolt),
		up("pkg/tracker", grpc+"/codes", "gRPC stays at the edge"),
		down("pkg/criproxy", grpc),
		up("internal/daemon", cri, "CRI types stay in criproxy and gate"),
		down("pkg/criproxy", cri),
		up("internal/daemon", "k8s.io/client-go/rest", "talked to in internal/podsource"),
		up("internal/daemon", "k8s.io/api/core/v1", "talked to in internal/podsource"),
		up("internal/daemon", "k8s.io/apimachinery/pkg/types", "talked to in internal/podsource"),
		down("internal/podsource", "k8s.io/client-go/rest"),
		up("internal/daemon", "log", "klog"),
		up("internal/daemon", "math/rand", "math/rand/v2"),
		body("os.Exit is called by main alone", "internal/daemon/exits/exits.go", "forbidigo", "only main may exit",
			"import \"os\"\n\n// Exits exits.\nfunc Exits() { os.Exit(1) }\n"),
		body("os.Exit under another name", "internal/daemon/exitsas/exitsas.go", "forbidigo", "only main may exit",
			"import system \"os\"\n\n// Exits exits.\nfunc Exits() { system.Exit(1) }\n"),
		body("os.Exit of another package", "internal/daemon/exitssys/exitssys.go", "forbidigo", "only main may exit",
			"import \"syscall\"\n\n// Exits exits.\nfunc Exits() { syscall.Exit(1) }\n"),
		{
			rule: "os.Exit beside main.go", file: "cmd/exitsbeside/flags.go", linter: "forbidigo", want: "only main may exit",
			source: "// Command exitsbeside is planted.\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n",
		},
		{
			rule: "main may exit", file: "cmd/exitsmain/main.go",
			source: "// Command exitsmain is planted.\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n",
		},
		{
			rule: "TestMain may exit", file: "internal/daemon/testmain/main_test.go",
			source: "package testmain\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestMain(m *testing.M) { os.Exit(m.Run()) }\n",
		},
		body("klog's global functions", "internal/daemon/logs/logs.go", "forbidigo", "klog.FromContext",
			"import \"k8s.io/klog/v2\"\n\n// Logs logs.\nfunc Logs() { klog.InfoS(\"x\") }\n"),
		body("klog exits as well", "internal/daemon/fatal/fatal.go", "forbidigo", "klog.FromContext",
			"import \"k8s.io/klog/v2\"\n\n// Fatal exits.\nfunc Fatal() { klog.Fatalf(\"x\") }\n"),
		body("a contextual logger", "internal/daemon/logger/logger.go", "", "",
			"import (\n\t\"context\"\n\n\t\"k8s.io/klog/v2\"\n)\n\n// Logs logs.\nfunc Logs(ctx context.Context) { klog.FromContext(ctx).V(2).Info(\"x\", \"image\", \"y\") }\n"),
		body("key-value pairs come in pairs", "internal/daemon/odd/odd.go", "loggercheck", "odd number",
			"import (\n\t\"context\"\n\n\t\"k8s.io/klog/v2\"\n)\n\n// Logs logs.\nfunc Logs(ctx context.Context) { klog.FromContext(ctx).Info(\"x\", \"image\") }\n"),
		body("time.After", "internal/daemon/after/after.go", "forbidigo", "cannot be stopped",
			"import \"time\"\n\n// After waits.\nfunc After() { <-time.After(time.Second) }\n"),
		body("grpc.Dial", "internal/daemon/dials/dials.go", "forbidigo", "use grpc.NewClient",
			"import \"google.golang.org/grpc\"\n\n// Dial dials.\nfunc Dial() (*grpc.ClientConn, error) {\n\treturn grpc.Dial(\"x\") //nolint:staticcheck // planted\n}\n"),
	}
}

func shapes() []plant {
	all := []plant{
		body("no globals", "internal/daemon/globals/globals.go", "gochecknoglobals", "seen is a global variable", "var seen = map[string]bool{}\n"),
		body("no init", "internal/daemon/inits/inits.go", "gochecknoinits", "don't use `init`", "func init() {}\n"),
		body("no package changes another package's variables", "internal/daemon/reassigns/reassigns.go", "reassign", "reassigning variable",
			"import \"os\"\n\n// Set sets.\nfunc Set() { os.Args = nil }\n"),
		body("interfaces hold one to three methods", "internal/daemon/bloats/bloats.go", "interfacebloat", "more than 3 methods",
			"// B bloats.\ntype B interface{ A(); B(); C(); D() }\n"),
		body("constructors return concrete types", "internal/daemon/returns/returns.go", "ireturn", "returns interface",
			"// I is one.\ntype I interface{ A() }\n\ntype i struct{}\n\nfunc (i) A() {}\n\n// New makes one.\nfunc New() I { return i{} }\n"),
		body("a function fits one screen", "internal/daemon/scrolls/scrolls.go", "revive", "function-length",
			"// F is planted.\nfunc F(i int) int {\n"+strings.Repeat("\ti++\n", 120)+"\treturn i\n}\n"),
		body("the folder has the package's name", "internal/daemon/named/named.go", "revive", "package-directory-mismatch", ""),
		{rule: "every package has a package comment", file: "internal/daemon/mute/mute.go", linter: "revive", want: "package-comments", source: "package mute\n"},
		body("what is exported is documented", "internal/daemon/mumbles/mumbles.go", "revive", "exported", "func Mumble() {}\n"),
		body("a nolint names a linter and a reason", "internal/daemon/excuses/excuses.go", "nolintlint", "nolint", "// F is planted.\nfunc F() {} //nolint\n"),
		body("an error is not dropped", "internal/daemon/drops/drops.go", "errcheck", "not checked",
			"import \"os\"\n\n// Drop drops.\nfunc Drop(f *os.File) { defer f.Close() }\n"),
		body("a context is not kept", "internal/daemon/keeps/keeps.go", "containedctx", "context.Context",
			"import \"context\"\n\n// K keeps.\ntype K struct{ Ctx context.Context }\n"),
		body("a new verdict is handled everywhere", "internal/daemon/misses/misses.go", "exhaustive", "missing cases",
			"// V is a verdict.\ntype V uint8\n\n// All of them.\nconst (\n\tReverify V = iota\n\tAllow\n)\n\n// F misses one.\nfunc F(v V) bool {\n\tswitch v {\n\tcase Allow:\n\t\treturn true\n\tdefault:\n\t\treturn false\n\t}\n}\n"),
	}
	for i := range all {
		if all[i].want == "package-directory-mismatch" {
			all[i].source = "// Package other is planted.\npackage other\n"
		}
	}
	for _, name := range []string{"util", "common", "types", "helpers", "model"} {
		all = append(all, body("no package called "+name, "internal/daemon/"+name+"/"+name+".go", "revive", "package-naming", ""))
	}
	return all
}

// stubs are the packages that planted imports lead to.
func stubs() []string {
	return []string{
		"internal/atomicfile", "internal/strictyaml", "pkg/podview", "pkg/podview/apiview", "pkg/restriction", "pkg/requirement", "pkg/credential", "pkg/imageref", "pkg/policy", "pkg/records", "pkg/tracker",
		"internal/gate", "internal/podfile", "internal/podindex", "internal/podsource", "internal/decisionlog", "internal/cli", "internal/metrics", "internal/config", "internal/imagepolicy",
		"internal/policyd", "internal/policyd/metrics", "internal/policyd/review", "internal/policyclient", "internal/daemon", "pkg/admission/files", "pkg/records/offline",
		"pkg/criproxy/criproxytest", "proto/pullgate/admin/v1", "proto/pullgate/policy/v1",
	}
}

// TestLintFindsPlantedViolations runs golangci-lint with the project's configuration over a module
// of the same path that breaks every rule once. The checkout is only read.
func TestLintFindsPlantedViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds golangci-lint")
	}
	// Folders that are named like ours: a glob that is not anchored would match them.
	dir := filepath.Join(t.TempDir(), "proto", "pkg", "records", "checkout")
	all := plants()
	files := map[string]string{}
	for _, s := range stubs() {
		name := filepath.Base(s)
		files[s+"/stub.go"] = fmt.Sprintf("// Package %s is a stub.\npackage %s\n", name, name)
	}
	for _, p := range all {
		if _, taken := files[p.file]; taken {
			t.Fatalf("%s: %s is planted twice", p.rule, p.file)
		}
		files[p.file] = p.source
	}
	for _, name := range []string{".golangci.yml", "go.mod", "go.sum"} {
		files[name] = read(t, filepath.Join(root, name))
	}
	mod := strings.Replace(files["go.mod"], "module "+module+"\n", "module "+module+"/e2e\n\nreplace "+module+" => ../\n\nrequire "+module+" v0.0.0\n", 1)
	files["e2e/go.mod"], files["e2e/go.sum"] = mod, files["go.sum"]
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}

	issues := append(lint(t, dir, ""), lint(t, dir, "e2e")...)
	for _, p := range all {
		t.Run(strings.ReplaceAll(p.rule, "/", "-"), func(t *testing.T) {
			here := issues.of(p.file)
			switch {
			case p.linter == "" && len(here) > 0:
				t.Errorf("%s is allowed, but lint reports %q", p.rule, here)
			case p.linter != "" && !here.have(p.linter, p.want):
				t.Errorf("lint reports %q; want %s to find %q", here, p.linter, p.want)
			}
		})
	}
}

type issue struct {
	FromLinter, Text string
	Pos              struct{ Filename string }
}

func (i issue) String() string { return i.FromLinter + ": " + i.Text }

type issues []issue

func (all issues) of(file string) issues {
	var here issues
	for _, i := range all {
		if i.Pos.Filename == file {
			here = append(here, i)
		}
	}
	return here
}

func (all issues) have(linter, text string) bool {
	return slices.ContainsFunc(all, func(i issue) bool { return i.FromLinter == linter && strings.Contains(i.Text, text) })
}

// lint runs golangci-lint in the folder sub of a checkout and returns what it finds, with file
// names from the checkout's root.
func lint(t *testing.T, dir, sub string) issues {
	t.Helper()
	tools, err := filepath.Abs(filepath.Join(root, ".ci", "tools.mod"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tools, "golangci-lint", "run",
		"--config", filepath.Join(dir, ".golangci.yml"), "--issues-exit-code=0", "--output.json.path=stdout", "--show-stats=false", "./...")
	cmd.Dir = filepath.Join(dir, sub)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("golangci-lint in %s: %v\n%s%s", sub, err, out, &stderr)
	}
	var report struct {
		Issues issues
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("golangci-lint in %s: %v\n%s%s", sub, err, out, &stderr)
	}
	for i, found := range report.Issues {
		if found.FromLinter == "typecheck" {
			t.Fatalf("what is planted does not compile: %s: %s", found.Pos.Filename, found.Text)
		}
		if !strings.HasPrefix(found.Pos.Filename, sub) {
			report.Issues[i].Pos.Filename = sub + "/" + found.Pos.Filename
		}
	}
	return report.Issues
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
