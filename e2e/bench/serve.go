package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	mwitkow "github.com/mwitkow/grpc-proxy/proxy"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	siderolabs "github.com/siderolabs/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const limit = 16 << 20

// image is the one that the fake runtime has.
const image = "repo.test/team/app:1"

// The annotations of a pre-check.
const (
	seenAnnotation   = "kubernetes.io/config.seen"
	sourceAnnotation = "kubernetes.io/config.source"
)

// serve is the program of the runtime, of the splice and of the proxies that are libraries.
func serve(ctx context.Context, kind, listen, to string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var server *grpc.Server
	switch kind {
	case "runtime":
		images, err := strconv.Atoi(to)
		if err != nil {
			return err
		}
		if server, err = runtime(images); err != nil {
			return err
		}
	case "splice":
		return splice(ctx, l, to)
	default:
		if server, err = library(kind, to); err != nil {
			return err
		}
	}
	if err := server.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// library returns a server that forwards with one of the libraries.
func library(kind, to string) (*grpc.Server, error) {
	switch kind {
	case "mwitkow":
		//nolint:staticcheck // the codec of the library is one of the old kind
		conn, err := grpc.NewClient("unix://"+to, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.CallCustomCodec(mwitkow.Codec()), grpc.MaxCallRecvMsgSize(limit)))
		director := func(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return metadata.NewOutgoingContext(ctx, md.Copy()), conn, nil
		}
		//nolint:staticcheck // as above
		return grpc.NewServer(grpc.CustomCodec(mwitkow.Codec()), grpc.UnknownServiceHandler(mwitkow.TransparentHandler(director)), grpc.MaxRecvMsgSize(limit)), err
	case "siderolabs":
		conn, err := grpc.NewClient("unix://"+to, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(siderolabs.Codec()), grpc.MaxCallRecvMsgSize(limit)))
		backend := &siderolabs.SingleBackend{GetConn: func(ctx context.Context) (context.Context, *grpc.ClientConn, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return metadata.NewOutgoingContext(ctx, md.Copy()), conn, nil
		}}
		director := func(context.Context, string) (siderolabs.Mode, []siderolabs.Backend, error) {
			return siderolabs.One2One, []siderolabs.Backend{backend}, nil
		}
		return grpc.NewServer(grpc.ForceServerCodecV2(siderolabs.Codec()), grpc.UnknownServiceHandler(siderolabs.TransparentHandler(director)), grpc.MaxRecvMsgSize(limit)), err
	}
	return nil, fmt.Errorf("no target %q", kind)
}

// splice copies bytes between each connection and one of its own to the runtime.
func splice(ctx context.Context, l net.Listener, to string) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		conns.Go(func() {
			defer func() { _ = c.Close() }()
			up, err := (&net.Dialer{}).DialContext(ctx, "unix", to)
			if err != nil {
				return
			}
			var back sync.WaitGroup
			back.Go(func() { _, _ = io.Copy(c, up); _ = c.Close() })
			_, _ = io.Copy(up, c)
			_ = up.Close()
			back.Wait()
		})
	}
}

// events is the number of messages of the stream.
const events = 2000

// runtime returns the fake runtime: it answers each method with the same bytes. more is the number of images that it
// lists besides image.
func runtime(more int) (*grpc.Server, error) {
	i := &runtimeapi.Image{Id: imageID(0), RepoTags: []string{image}, Size: 1 << 20}
	images := &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{i}}
	for n := range more {
		images.Images = append(images.Images, &runtimeapi.Image{Id: imageID(n + 1), RepoTags: []string{repository(n+1) + ":1"}, Size: 1 << 20})
	}
	containers := &runtimeapi.ListContainersResponse{}
	sandboxes := &runtimeapi.ListPodSandboxResponse{}
	labels := map[string]string{"io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "team", "io.kubernetes.container.name": "main"}
	for n := range 300 {
		id := fmt.Sprintf("%064d", n)
		containers.Containers = append(containers.Containers, &runtimeapi.Container{Id: id, PodSandboxId: id, Image: &runtimeapi.ImageSpec{Image: image}, ImageRef: i.GetId(), Labels: labels})
	}
	for n := range 100 {
		id := fmt.Sprintf("%064d", n)
		sandboxes.Items = append(sandboxes.Items, &runtimeapi.PodSandbox{
			Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Uid: id, Name: "pod", Namespace: "team"}, Labels: labels,
			Annotations: map[string]string{seenAnnotation: "2026-11-22T08:00:00." + id[55:], sourceAnnotation: "api"},
		})
	}
	answers := map[string][]byte{}
	for method, m := range map[string]proto.Message{
		runtimeapi.RuntimeService_Version_FullMethodName:            &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RuntimeApiVersion: "v1"},
		runtimeapi.RuntimeService_Status_FullMethodName:             &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{}},
		runtimeapi.ImageService_ImageStatus_FullMethodName:          &runtimeapi.ImageStatusResponse{Image: i},
		runtimeapi.ImageService_ListImages_FullMethodName:           images,
		runtimeapi.RuntimeService_ListContainers_FullMethodName:     containers,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:     sandboxes,
		runtimeapi.RuntimeService_GetContainerEvents_FullMethodName: &runtimeapi.ContainerEventResponse{ContainerId: strings.Repeat("1", 64), CreatedAt: 1},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		answers[method] = b
	}
	return grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.MaxRecvMsgSize(limit), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var request []byte
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(s)
		answer, n := answers[method], 1
		if method == runtimeapi.RuntimeService_GetContainerEvents_FullMethodName {
			n = events
		}
		for range n {
			if err := s.SendMsg(&answer); err != nil {
				return err
			}
		}
		return nil
	})), nil
}
