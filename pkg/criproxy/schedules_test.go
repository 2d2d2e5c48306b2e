package criproxy_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// TestSchedules runs random schedules of calls twice at the same time, directly and through a proxy, and compares what
// the client and the runtime have seen. A schedule has calls, messages, cancels, deadlines, slow readers, and the end
// of connections from each side. PULLGATE_SCHEDULES is the number of schedules, PULLGATE_SCHEDULES_SEED the seed of the
// first.
func TestSchedules(t *testing.T) {
	schedules := uint64(2000)
	if testing.Short() {
		schedules = 200
	}
	seed := rand.Uint64()
	for name, value := range map[string]*uint64{"PULLGATE_SCHEDULES": &schedules, "PULLGATE_SCHEDULES_SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			var err error
			if *value, err = strconv.ParseUint(text, 10, 64); err != nil {
				t.Fatal(name, err)
			}
		}
	}
	t.Logf("PULLGATE_SCHEDULES_SEED=%d", seed)
	var next atomic.Uint64
	var workers errgroup.Group
	for range 8 * runtime.GOMAXPROCS(0) { // they mostly wait for each other's messages
		direct, proxied := newRig(t, false), newRig(t, true)
		workers.Go(func() error {
			defer direct.close()
			defer proxied.close()
			for !t.Failed() {
				at := next.Add(1) - 1
				if at >= schedules {
					break
				}
				var got, want []string
				var both sync.WaitGroup
				both.Go(func() { want = direct.play(seed + at) })
				both.Go(func() { got = proxied.play(seed + at) })
				both.Wait()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("PULLGATE_SCHEDULES=1 PULLGATE_SCHEDULES_SEED=%d: direct and proxied differ (-direct +proxied):\n%s",
						seed+at, diff)
				}
			}
			return nil
		})
	}
	_ = workers.Wait() // they report to t
}

// patience bounds each wait of a schedule. It is no measurement: a busy machine takes its time.
const patience = 2 * time.Minute

// A rig is a client and a runtime, with or without a proxy between them. It plays one schedule after the other.
type rig struct {
	t       *testing.T
	socket  string            // of the runtime
	kept    *net.UnixListener // of the proxies, one after the other; nil without
	stop    func()            // of the proxy
	stopped sync.WaitGroup    // runtimes that end in the background
	runtime *grpc.Server
	leaving []*grpc.Server // runtimes that have sent GOAWAY
	client  *grpc.ClientConn

	mu    sync.Mutex
	calls map[string]*scheduled // by the metadata "call"
	open  atomic.Int64          // calls at the runtime
}

// A scheduled call is what the client and the runtime have of it.
type scheduled struct {
	stream   grpc.ClientStream
	cancel   context.CancelFunc
	kind     string
	method   string
	slow     bool        // the client reads at the end only
	arrived  chan string // what the runtime sees, once
	commands chan func(grpc.ServerStream) error
	replies  chan string   // what a command of the runtime has seen
	ended    chan struct{} // the runtime's end of the call has ended
	unread   int
}

func newRig(t *testing.T, proxied bool) *rig {
	t.Helper()
	dir := criproxytest.SocketDir(t)
	r := &rig{t: t, socket: filepath.Join(dir, "runtime.sock"), calls: map[string]*scheduled{}}
	r.startRuntime()
	if proxied {
		var err error
		if r.kept, err = net.ListenUnix("unix", &net.UnixAddr{
			Net:  "unix",
			Name: filepath.Join(dir, "proxy.sock"),
		}); err != nil {
			t.Fatal(err)
		}
		r.startProxy()
	}
	r.connect()
	return r
}

func (r *rig) close() {
	_ = r.client.Close()
	if r.kept != nil {
		r.stop()
		_ = r.kept.Close()
	}
	r.stopped.Wait()
	r.runtime.Stop()
}

func (r *rig) startRuntime() {
	_ = os.Remove(r.socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: r.socket})
	if err != nil {
		r.t.Error(err)
		return
	}
	l.SetUnlinkOnClose(false) // the next runtime listens before this one has ended
	r.runtime = criproxytest.Serve(l, r.handle)
}

// startProxy starts a proxy on the socket that is kept.
func (r *rig) startProxy() {
	f, err := r.kept.File()
	if err != nil {
		r.t.Error(err)
		return
	}
	l, err := net.FileListener(f)
	if err := errors.Join(err, f.Close()); err != nil {
		r.t.Error(err)
		return
	}
	_, r.stop = serveOn(r.t, l, "unix://"+r.socket)
}

func (r *rig) connect() {
	endpoint := "unix://" + r.socket
	if r.kept != nil {
		endpoint = "unix://" + r.kept.Addr().String()
	}
	var err error
	r.client, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: patience}), // with no delay between attempts
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.ForceCodecV2(criproxytest.RawCodec{}),
			grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		r.t.Error(err)
	}
}

// settle waits until calls are answered again after an end of connections.
func (r *rig) settle() {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		_, err := criproxytest.CallRaw(metadata.AppendToOutgoingContext(ctx, "settle", "1"), r.client,
			runtimeapi.RuntimeService_Version_FullMethodName, nil)
		if err == nil {
			_, err = criproxytest.CallRaw(metadata.AppendToOutgoingContext(ctx, "settle", "1"), r.client,
				runtimeapi.ImageService_ImageStatus_FullMethodName, nil)
		}
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			r.t.Errorf("no call is answered again: %v", err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// handle answers a call as the schedule says.
func (r *rig) handle(_ any, stream grpc.ServerStream) error {
	r.open.Add(1)
	defer r.open.Add(-1)
	md, _ := metadata.FromIncomingContext(stream.Context())
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if len(md.Get("settle")) > 0 {
		return stream.SendMsg(&request)
	}
	r.mu.Lock()
	c := r.calls[strings.Join(md.Get("call"), "")]
	r.mu.Unlock()
	if c == nil { // the client has given up
		return stream.Context().Err()
	}
	defer close(c.ended)
	method, _ := grpc.MethodFromServerStream(stream)
	_, deadline := stream.Context().Deadline()
	c.arrived <- fmt.Sprint(method, " ", short(request), " deadline ", deadline, " ", md.Get("x-text"),
		fmt.Sprintf("%x", md.Get("x-some-bin")), md.Get("content-type"))
	for {
		select {
		case do := <-c.commands:
			if err := do(stream); !errors.Is(err, errGoOn) {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// errGoOn is returned by a command that does not end the call.
var errGoOn = errors.New("go on")

func short(m []byte) string { return fmt.Sprintf("%d bytes %x", len(m), sha256.Sum256(m)) }

// play runs the schedule of a seed and returns what it has seen.
func (r *rig) play(seed uint64) (seen []string) {
	p := &player{rig: r, rand: rand.New(rand.NewPCG(seed, 1)), prefix: strconv.FormatUint(seed, 10)}
	connections := p.rand.IntN(20) == 0 // rare, because it takes milliseconds
	for range 4 + p.rand.IntN(16) {
		switch n := p.rand.IntN(24); {
		case n < 8 || len(p.live) == 0:
			p.begin()
		case n < 15:
			p.message()
		case n < 19:
			p.end()
		case n < 21:
			p.cancel()
		case n < 22:
			p.deadline()
		case connections:
			p.breakConnections()
		}
	}
	for len(p.live) > 0 {
		p.end()
	}
	for began := time.Now(); r.open.Load() > 0; runtime.Gosched() {
		if time.Since(began) > patience {
			p.note("%d calls have not ended at the runtime", r.open.Load())
			break
		}
	}
	r.mu.Lock()
	clear(r.calls)
	r.mu.Unlock()
	return p.seen
}

// A player plays one schedule.
type player struct {
	*rig
	rand   *rand.Rand
	prefix string
	begun  int
	live   []*scheduled
	seen   []string
}

func (p *player) note(format string, args ...any) {
	p.seen = append(p.seen, fmt.Sprintf(format, args...))
}

// await returns what comes on a channel.
func (p *player) await(c *scheduled, from <-chan string) string {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case s := <-from:
		return s
	case <-late.C:
		return "nothing after " + patience.String() + " of " + c.method
	}
}

// size is small in most cases, and around the limits of frames and windows or large in some.
func (p *player) size() int {
	switch p.rand.IntN(16) {
	case 0:
		return 0
	case 1:
		return 16<<10 - 10 + p.rand.IntN(20)
	case 2:
		return 64<<10 - 10 + p.rand.IntN(20)
	case 3:
		return p.rand.IntN(300 << 10)
	}
	if p.rand.IntN(300) == 0 {
		return p.rand.IntN(5 << 20)
	}
	return p.rand.IntN(2000)
}

func (p *player) data() []byte {
	b := make([]byte, p.size())
	for i := 0; i < len(b); i += 1 + len(b)/16 {
		b[i] = byte(p.rand.Uint32())
	}
	return b
}

// start makes a call of a random kind.
func (p *player) start(ctx context.Context) *scheduled {
	p.begun++
	name := fmt.Sprintf("%s-%d", p.prefix, p.begun)
	c := &scheduled{
		arrived: make(chan string, 1), commands: make(chan func(grpc.ServerStream) error, 100),
		replies: make(chan string, 100), ended: make(chan struct{}),
	}
	desc := &grpc.StreamDesc{}
	switch p.rand.IntN(5) {
	case 0, 1:
		c.kind, c.method = "unary", runtimeapi.RuntimeService_ListContainers_FullMethodName
	case 2:
		c.kind, c.method = "unary", runtimeapi.ImageService_ImageStatus_FullMethodName // has a handler
	case 3:
		c.kind, c.method, desc.ServerStreams = "stream", runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, true
		c.slow = p.rand.IntN(4) == 0
	case 4:
		c.kind, c.method, desc.ServerStreams, desc.ClientStreams = "both", "/runtime.v1.RuntimeService/NotYetInvented", true,
			true
	}
	p.mu.Lock()
	p.calls[name] = c
	p.mu.Unlock()
	md := metadata.Pairs("call", name, "x-text", fmt.Sprint(p.rand.IntN(100)), "x-some-bin",
		string([]byte{byte(p.rand.Uint32()), 0, 0xff}))
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, md))
	hangs := time.AfterFunc(patience, cancel) // which shows as a difference
	c.cancel = func() { hangs.Stop(); cancel() }
	request := p.data()
	var err error
	if c.stream, err = p.client.NewStream(ctx, desc, c.method); err != nil {
		c.cancel()
		p.note("%s %v", c.method, status.Code(err))
		return nil
	}
	err = c.stream.SendMsg(&request)
	if err == nil && c.kind != "both" {
		err = c.stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		p.note("%s: request: %v", c.method, err)
	}
	return c
}

// begin makes a call, and waits until it is at the runtime.
func (p *player) begin() {
	ctx := context.WithoutCancel(p.t.Context())
	var stop context.CancelFunc = func() {}
	if p.rand.IntN(3) == 0 {
		ctx, stop = context.WithTimeout(ctx, time.Hour)
	}
	c := p.start(ctx)
	if c == nil {
		stop()
		return
	}
	cancel := c.cancel
	c.cancel = func() { cancel(); stop() }
	p.live = append(p.live, c)
	p.note("begin %s: %s", c.method, p.await(c, c.arrived))
}

func (p *player) pick() *scheduled { return p.live[p.rand.IntN(len(p.live))] }

// message sends a message of a stream, or early header.
func (p *player) message() {
	c, m := p.pick(), p.data()
	if c.kind == "unary" {
		return
	}
	if c.kind == "both" && p.rand.IntN(2) == 0 {
		if err := c.stream.SendMsg(&m); err != nil {
			p.note("%s: send: %v", c.method, err)
			return
		}
		c.commands <- func(s grpc.ServerStream) error {
			var got []byte
			err := s.RecvMsg(&got)
			c.replies <- fmt.Sprint("the runtime gets ", short(got), " ", err)
			return errGoOn
		}
		p.note("%s: %s", c.method, p.await(c, c.replies))
		return
	}
	c.commands <- func(s grpc.ServerStream) error {
		_ = s.SendMsg(&m) // an error shows at the client
		return errGoOn
	}
	if c.slow {
		c.unread++
		return
	}
	var got []byte
	err := c.stream.RecvMsg(&got)
	p.note("%s: the client gets %s %v", c.method, short(got), status.Code(err))
}

// end makes the runtime end a call with a random status, and reads what is left at the client.
func (p *player) end() {
	c := p.pick()
	md := metadata.Pairs("x-trailer", fmt.Sprint(p.rand.IntN(100)), "x-trailer-bin", "\x00\xff")
	answer, failure := p.data(), error(nil)
	if p.rand.IntN(3) == 0 {
		s := status.New(codes.Code(1+p.rand.IntN(16)), strings.Repeat("Ä % \n", p.rand.IntN(20)))
		if p.rand.IntN(2) == 0 {
			var err error
			if s, err = s.WithDetails(&errdetails.ErrorInfo{
				Domain: "runtime",
				Reason: fmt.Sprint(p.rand.IntN(100)),
			}); err != nil {
				p.t.Error(err)
			}
		}
		failure = s.Err()
	}
	isUnary := c.kind == "unary"
	withHeader := p.rand.IntN(2) == 0
	c.commands <- func(s grpc.ServerStream) error {
		if withHeader {
			// fails after the first message, with the same effect
			_ = s.SetHeader(metadata.Pairs("x-header", "one", "x-header", "two"))
		}
		s.SetTrailer(md)
		if isUnary && failure == nil {
			if err := s.SendMsg(&answer); err != nil {
				return err
			}
		}
		return failure
	}
	p.finish(c, everything)
}

// How much of the end of a call a schedule determines.
const (
	everything = iota
	codeAlone
	nothing
)

// finish reads a call to its end, and notes what the schedule determines.
func (p *player) finish(c *scheduled, determined int) {
	var messages []string
	var err error
	for err == nil {
		var got []byte
		if err = c.stream.RecvMsg(&got); err == nil {
			messages = append(messages, short(got))
			if c.kind == "unary" {
				break
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s := status.Convert(err)
	switch determined {
	case everything:
		header, _ := c.stream.Header()
		p.note("%s ends: %s %v %q %v, header %v, trailer %v", c.method, strings.Join(messages, ", "), s.Code(), s.Message(),
			s.Proto().GetDetails(), own(header), own(c.stream.Trailer()))
	case codeAlone:
		p.note("%s ends: %v", c.method, s.Code())
	}
	c.cancel()
	p.live = slices.DeleteFunc(p.live, func(other *scheduled) bool { return other == c })
	p.ends(c)
}

// ends waits for the end of the call at the runtime.
func (p *player) ends(c *scheduled) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-c.ended:
	case <-late.C:
		p.note("%s does not end at the runtime", c.method)
	}
}

// own drops what grpc adds for each connection.
func own(md metadata.MD) map[string][]string { // an MD prints no values
	md = md.Copy()
	md.Delete("content-type")
	return md
}

func (p *player) cancel() {
	c := p.pick()
	c.cancel()
	p.finish(c, codeAlone)
}

// deadline makes a call that the runtime does not answer in time. It may end before it is at the runtime.
func (p *player) deadline() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()),
		time.Duration(1+p.rand.IntN(5))*time.Millisecond)
	defer cancel()
	if c := p.start(ctx); c != nil {
		var got []byte
		p.note("%s %v", c.method, status.Code(c.stream.RecvMsg(&got)))
		c.cancel()
	}
}

// breakConnections ends connections from one side, suddenly or by GOAWAY.
func (p *player) breakConnections() {
	unaries := !slices.ContainsFunc(p.live, func(c *scheduled) bool { return c.kind != "unary" })
	switch n := p.rand.IntN(4); {
	case n == 0: // the runtime ends
		p.note("the runtime ends")
		p.runtime.Stop()
		for _, s := range p.leaving {
			s.Stop()
		}
		p.leaving = nil
		p.startRuntime()
		for len(p.live) > 0 {
			p.finish(p.live[0], codeAlone)
		}
	case n == 1: // the runtime sends GOAWAY, answers what it has, and another one takes its place
		p.note("the runtime sends GOAWAY")
		old := p.runtime
		p.leaving = append(p.leaving, old)
		p.startRuntime()
		p.stopped.Go(old.GracefulStop)
	case n == 2: // the client sends GOAWAY, and connects anew
		p.note("the client ends")
		_ = p.client.Close()
		for len(p.live) > 0 {
			p.finish(p.live[0], nothing) // Canceled, or Unavailable after GOAWAY of the runtime
		}
		p.connect()
	case unaries: // another proxy takes the place of the proxy, which sends GOAWAY after it has answered what it has
		p.note("another proxy")
		var stopped sync.WaitGroup
		if p.kept != nil {
			stopped.Go(p.stop)
			p.startProxy()
		}
		for len(p.live) > 0 {
			p.end()
		}
		stopped.Wait()
	}
	p.settle()
}
