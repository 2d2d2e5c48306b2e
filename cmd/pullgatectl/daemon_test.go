package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
	d := &daemon{dir: dir, socket: filepath.Join(dir, "admin.sock"), served: make(chan struct{}), answers: map[string][]string{}}
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
