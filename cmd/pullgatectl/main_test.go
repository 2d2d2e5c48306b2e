package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// now is the time of the program under test; the answers have times in the days before it.
const now = "2026-07-01T12:00:00Z"

func TestMain(m *testing.M) {
	program := func() { os.Exit(run(os.Args, consoleAtNow(), machineOfTest())) }
	testscript.Main(leakless{m}, map[string]func(){"pullgatectl": program, "kubectl-pullgate": program})
}

// leakless fails if a test has left a goroutine behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// consoleAtNow returns the console of the process, with another clock.
func consoleAtNow() *cli.Console {
	c := cli.System()
	c.Now = func() time.Time {
		t, err := time.Parse(time.RFC3339, now)
		if err != nil {
			panic(err)
		}
		return t
	}
	return c
}

// machineOfTest returns a machine whose root is a folder.
func machineOfTest() machine {
	return machine{
		node: doctor.Node{
			Host: doctor.Host{Root: os.Getenv("NODE"), Command: systemctl}, Now: consoleAtNow().Now,
			Disk:        func(string) (disk.Stats, error) { return disk.Stats{Bytes: 2 << 30, Free: 1 << 30}, nil },
			ClockInStep: func() (bool, error) { return true, nil },
		},
		enabler: nodeenable.Enabler{Host: doctor.Host{Root: os.Getenv("NODE_ROOT")}, Settle: time.Millisecond},
	}
}

// systemctl answers as on a node with a kubelet.service that does not run.
func systemctl(_ context.Context, name string, args ...string) ([]byte, error) {
	if name != "systemctl" || len(args) < 4 {
		return nil, fmt.Errorf("unexpected command %s %v", name, args)
	}
	var out []string
	for _, unit := range args[3:] {
		state := "LoadState=not-found\nActiveState=inactive"
		if unit == "kubelet.service" {
			state = "LoadState=loaded\nActiveState=inactive\nFragmentPath=/etc/systemd/system/kubelet.service\nDropInPaths="
		}
		out = append(out, "Id="+unit+"\n"+state+"\n")
	}
	return []byte(strings.Join(out, "\n")), nil
}

// `UPDATE=1 go test` writes the output into the scripts, for review before a commit.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	store := testkit.Value(filepath.Abs("../../internal/records/testdata/format-1.db"))(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(2 * time.Minute), // for a program that hangs
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			d, err := startDaemon(filepath.Join("testdata", "answers"))
			if err != nil {
				return err
			}
			env.Defer(func() {
				d.stop()
				_ = os.RemoveAll(d.dir)
			})
			env.Values["daemon"] = d
			a, err := startAPI(filepath.Join("testdata", "api"), d.dir)
			if err != nil {
				return err
			}
			env.Defer(a.server.Close)
			env.Values["api"] = a
			env.Setenv("KUBECONFIG", a.kubeconfig)
			env.Setenv("PULLGATECTL_ENDPOINT", "unix://"+d.socket)
			env.Setenv("SOCKET", d.socket)
			env.Setenv("STORE", store)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise hundreds of programs take a second more each
			return nil
		},
		Condition: func(name string) (bool, error) { return name == "root" && os.Geteuid() == 0, nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":   testkit.Status,
			"answer":   answer,
			"requests": requests,
			"hang-up":  hangUp,
			"clean":    clean,
			"terminal": terminal,
			"await":    await,
			"paths":    paths,
		},
	})
}

func daemonOf(ts *testscript.TestScript) *daemon {
	d, ok := ts.Value("daemon").(*daemon)
	if !ok {
		ts.Fatalf("no daemon was started")
	}
	return d
}

// answer makes the daemon answer the next call of a method with the first file, the one after with the next, and all
// others with the last.
func answer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: answer method file...")
	}
	texts := make([]string, 0, len(args)-1)
	for _, file := range args[1:] {
		texts = append(texts, ts.ReadFile(file))
	}
	ts.Check(daemonOf(ts).answer(args[0], texts...))
}

// requests writes the requests to the daemon since the last call into a file.
func requests(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: requests file")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(daemonOf(ts).asked()), 0o600))
}

// hangUp ends the daemon and leaves its socket.
func hangUp(ts *testscript.TestScript, _ bool, _ []string) { daemonOf(ts).stop() }

// clean checks that the output of the last program has no control characters.
func clean(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: clean")
	}
	for _, stream := range []string{"stdout", "stderr"} {
		for _, r := range ts.ReadFile(stream) {
			if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\u202e\u200b\ufeff\ufffd", r)) {
				ts.Fatalf("%q is on %s", r, stream)
			}
		}
	}
}

// await waits until the text that matches a pattern has the given number of bytes: await 100 out.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await bytes pattern")
	}
	want, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		files, err := filepath.Glob(ts.MkAbs(args[1]))
		ts.Check(err)
		for _, f := range files {
			if info, err := os.Stat(f); err == nil && info.Size() >= want {
				return
			}
		}
		if time.Now().After(end) {
			ts.Fatalf("%v do not get %d bytes", files, want)
		}
	}
}

// A daemon serves the admin API on a real socket with prepared answers. An answer is lines of JSON: each is a message,
// {"error": {"code": "…", "message": "…"}}, or {"wait": true}, which waits until the caller disconnects.
type daemon struct {
	dir, socket string
	methods     protoreflect.MethodDescriptors
	server      *grpc.Server
	served      chan struct{}

	mu       sync.Mutex
	answers  map[string][]string // the next ones, by method
	requests bytes.Buffer
}

// startDaemon starts a daemon with its answers in files that have the names of methods.
func startDaemon(answers string) (*daemon, error) {
	dir, err := os.MkdirTemp("", "ctl") // the path of a test's folder may be too long for a socket
	if err != nil {
		return nil, err
	}
	d := &daemon{
		dir: dir, socket: filepath.Join(dir, "admin.sock"), served: make(chan struct{}),
		answers: map[string][]string{},
	}
	d.methods = adminv1.File_pullgate_admin_v1_pull_records_proto.Services().Get(0).Methods()
	files, err := filepath.Glob(filepath.Join(answers, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if err := d.answer(strings.TrimSuffix(filepath.Base(f), ".json"), string(text)); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // like a daemon that was killed
	d.server = grpc.NewServer(grpc.UnknownServiceHandler(d.handle))
	go func() {
		defer close(d.served)
		_ = d.server.Serve(l)
	}()
	return d, nil
}

// stop ends the daemon and leaves its socket.
func (d *daemon) stop() {
	d.server.Stop()
	<-d.served
}

func (d *daemon) answer(method string, texts ...string) error {
	if d.methods.ByName(protoreflect.Name(method)) == nil {
		return fmt.Errorf("unknown method %q", method)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[method] = texts
	return nil
}

func (d *daemon) asked() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.requests.String()
	d.requests.Reset()
	return all
}

// handle answers any method.
func (d *daemon) handle(_ any, stream grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(stream)
	method := d.methods.ByName(protoreflect.Name(path[strings.LastIndex(path, "/")+1:]))
	if method == nil {
		return status.Error(codes.Unimplemented, path)
	}
	request := dynamicpb.NewMessage(method.Input())
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	lines, err := d.next(string(method.Name()), request)
	if err != nil {
		return err
	}
	for {
		var line json.RawMessage
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := d.send(stream, method, line); err != nil {
			return err
		}
	}
}

// next records a request and returns the answer to it.
func (d *daemon) next(method string, request proto.Message) (*json.Decoder, error) {
	raw, err := protojson.Marshal(request)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests.WriteString(method + " ")
	if err := json.Compact(&d.requests, raw); err != nil {
		return nil, err
	}
	d.requests.WriteString("\n")
	texts := d.answers[method]
	if len(texts) == 0 {
		return nil, status.Error(codes.Unimplemented, "no answer for "+method)
	}
	if len(texts) > 1 {
		d.answers[method] = texts[1:]
	}
	return json.NewDecoder(strings.NewReader(texts[0])), nil
}

func (*daemon) send(stream grpc.ServerStream, method protoreflect.MethodDescriptor, line []byte) error {
	var order struct {
		Wait  bool
		Error *struct {
			Code    codes.Code
			Message string
		}
	}
	_ = json.Unmarshal(line, &order)
	if order.Wait {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if order.Error != nil {
		return status.Error(order.Error.Code, order.Error.Message)
	}
	m := dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal(line, m); err != nil {
		return status.Errorf(codes.Internal, "the script's answer to %s: %v", method.Name(), err)
	}
	return stream.SendMsg(m)
}

// terminal runs a program on a separate terminal, types a text once the screen shows a word, and compares its exit
// code. The file "screen" contains the output of the terminal. ^C and ^D are typed as control characters.
//
//	terminal code word text program [argument...]
func terminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: terminal code word text program [argument...]")
	}
	ours, theirs, err := openTerminal()
	ts.Check(err)
	defer func() { _ = ours.Close() }()
	path, err := exec.LookPath(args[3])
	ts.Check(err)
	cmd := exec.Command(path, args[4:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "PULLGATECTL_ENDPOINT="+ts.Getenv("PULLGATECTL_ENDPOINT"), "TERM="+ts.Getenv("TERM"),
		"NO_COLOR="+ts.Getenv("NO_COLOR"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ts.Check(cmd.Start())
	ts.Check(theirs.Close())
	watchdog := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()

	typed := strings.NewReplacer("^C", "\x03", "^D", "\x04", `\n`, "\n").Replace(args[2])
	var screen strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := ours.Read(buf)
		screen.Write(buf[:n])
		if typed != "" && strings.Contains(screen.String(), args[1]) {
			_, err := io.WriteString(ours, typed)
			ts.Check(err)
			typed = ""
		}
		if err != nil { // EIO once no process has the terminal open
			break
		}
	}
	got := "0"
	if failure, ok := errors.AsType[*exec.ExitError](cmd.Wait()); ok {
		got = strconv.Itoa(failure.ExitCode())
	}
	text := strings.ReplaceAll(screen.String(), "\r\n", "\n")
	ts.Check(os.WriteFile(ts.MkAbs("screen"), []byte(text), 0o600))
	if got != args[0] {
		ts.Fatalf("%v exits with %s; want %s; the terminal shows\n%s", args[3:], got, args[0], text)
	}
}

// openTerminal returns both ends of a new terminal.
func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	n, err := unix.IoctlGetUint32(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, theirs, nil
}

const docs = "../../docs"

// The output in the manual is the real output. `UPDATE=1 go test` writes it again.
func TestManualShowsWhatIsPrinted(t *testing.T) {
	pages := map[string]int{
		"pullgatectl.md": 6, "restrictions.md": 1, "require-signatures.md": 1, "allow-scanned-images.md": 1,
		"pin-digests.md": 2, "verify-custom-resources.md": 1, "leaked-credential.md": 2, "troubleshooting.md": 1,
		"tenants.md": 1, "report.md": 1,
	}
	for page, commands := range pages {
		t.Run(page, func(t *testing.T) { testPage(t, filepath.Join(docs, page), commands) })
	}
}

// testPage runs the commands of a page in the folder of the manual, and compares what they print with the page.
func testPage(t *testing.T, manual string, atLeast int) {
	t.Helper()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq on this machine")
	}
	d := testkit.Value(startDaemon(filepath.Join("testdata", "answers")))(t)
	t.Cleanup(func() {
		d.stop()
		_ = os.RemoveAll(d.dir)
	})
	a := testkit.Value(startAPI(filepath.Join("testdata", "api"), d.dir))(t)
	t.Cleanup(a.server.Close)
	raw := testkit.Value(os.ReadFile(manual))(t)
	var want strings.Builder
	inside, ran := false, 0
	for line := range strings.Lines(string(raw)) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console\n"
		case inside && !isCommand:
			continue // it was output
		}
		want.WriteString(line)
		if inside && isCommand {
			want.WriteString(printed(t, d, a, command))
			ran++
		}
	}
	if ran < atLeast {
		t.Errorf("%s shows %d commands; want at least %d", manual, ran, atLeast)
	}
	if string(raw) == want.String() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s does not show what is printed; it would be\n%s", manual, want.String())
	}
	testkit.Must(t, os.WriteFile(manual, []byte(want.String()), 0o644))
}

// The policy in each page about signatures is the one that is tested there.
func TestSignaturePagesShowTheirPolicies(t *testing.T) {
	for example, name := range map[string]string{
		"signature/policies/team-a.yaml":    "require-signatures.md",
		"attestation/policies/scanned.yaml": "allow-scanned-images.md",
		"digest/policies/pinned.yaml":       "pin-digests.md",
		"mutate/policies/scan-time.yaml":    "pin-digests.md",
		"custom/policies/tekton.yaml":       "verify-custom-resources.md",
	} {
		page := testkit.Value(os.ReadFile(filepath.Join(docs, name)))(t)
		policy, err := os.ReadFile(filepath.Join(docs, "examples", example))
		if err != nil || !strings.Contains(string(page), "```yaml\n"+string(policy)+"```\n") {
			t.Errorf("%s does not show %s, %v", name, policy, err)
		}
	}
}

// printed returns what a shell shows for a command, whatever its exit code.
func printed(t *testing.T, d *daemon, a *api, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = docs
	cmd.Env = append(os.Environ(), cli.EndpointVariable+"=unix://"+d.socket, "KUBECONFIG="+a.kubeconfig,
		"PATH="+cluster(t)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out)
}

// cluster returns a folder with a kubectl with the plugin, for a cluster of two nodes, and an ssh for which each of
// them is this machine.
func cluster(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"kubectl": "#!/bin/sh\n[ \"$1\" = pullgate ] && shift && exec kubectl-pullgate \"$@\"\n" +
			"echo node/node-1\necho node/node-2\n",
		"ssh": "#!/bin/sh\nshift\nexec sh -c \"$*\"\n",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700))
	}
	return dir
}
