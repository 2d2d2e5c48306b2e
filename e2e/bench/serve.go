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
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const limit = 16 << 20

const image = "repo.test/team/app:1"

const (
	seenAnnotation   = "kubernetes.io/config.seen"
	sourceAnnotation = "kubernetes.io/config.source"
)

// precheck returns a pre-check for one of the pods of the fake runtime.
func precheck() *runtimeapi.ImageStatusRequest {
	return &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image, Annotations: map[string]string{
		seenAnnotation: "2026-11-22T08:00:00.000000001", sourceAnnotation: "api",
	}}}
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(criproxytest.RawCodec{}), grpc.MaxCallRecvMsgSize(limit)))
}

func await(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", socket, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// serve is the program of the fake runtime, with a number of images, or of the splice, with the socket to copy to.
func serve(ctx context.Context, kind, listen, to string) error {
	l := host.Must((&net.ListenConfig{}).Listen(ctx, "unix", listen))
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if kind == "splice" {
		return splice(ctx, l, to)
	}
	if err := fakeRuntime(host.Must(strconv.Atoi(to))).Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

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

const events = 2000

// fakeRuntime answers each method with the same bytes. It lists so many images besides image 0.
func fakeRuntime(more int) *grpc.Server {
	i := &runtimeapi.Image{Id: imageID(0), RepoTags: []string{image}, Size: 1 << 20}
	images := &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{i}}
	for n := 1; n <= more; n++ {
		images.Images = append(images.Images,
			&runtimeapi.Image{Id: imageID(n), RepoTags: []string{repository(n) + ":1"}, Size: 1 << 20})
	}
	containers, sandboxes := &runtimeapi.ListContainersResponse{}, &runtimeapi.ListPodSandboxResponse{}
	labels := map[string]string{"io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "team"}
	for n := range 300 {
		id := fmt.Sprintf("%064d", n)
		containers.Containers = append(containers.Containers, &runtimeapi.Container{
			Id: id, PodSandboxId: id, Image: &runtimeapi.ImageSpec{Image: image}, ImageRef: i.GetId(), Labels: labels,
		})
	}
	for n := range 100 {
		id := fmt.Sprintf("%064d", n)
		sandboxes.Items = append(sandboxes.Items, &runtimeapi.PodSandbox{
			Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Uid: id, Name: "pod", Namespace: "team"}, Labels: labels,
			Annotations: map[string]string{seenAnnotation: "2026-11-22T08:00:00." + id[55:], sourceAnnotation: "api"},
		})
	}
	event := &runtimeapi.ContainerEventResponse{ContainerId: strings.Repeat("1", 64), CreatedAt: 1}
	status := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{}}
	answers := map[string][]byte{}
	for method, m := range map[string]proto.Message{
		runtimeapi.RuntimeService_Version_FullMethodName: &runtimeapi.VersionResponse{
			Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RuntimeApiVersion: "v1",
		},
		runtimeapi.RuntimeService_Status_FullMethodName:             status,
		runtimeapi.ImageService_ImageStatus_FullMethodName:          &runtimeapi.ImageStatusResponse{Image: i},
		runtimeapi.ImageService_ListImages_FullMethodName:           images,
		runtimeapi.RuntimeService_ListContainers_FullMethodName:     containers,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:     sandboxes,
		runtimeapi.RuntimeService_GetContainerEvents_FullMethodName: event,
	} {
		answers[method] = host.Must(proto.Marshal(m))
	}
	answer := func(_ any, s grpc.ServerStream) error {
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
	}
	return grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.MaxRecvMsgSize(limit),
		grpc.UnknownServiceHandler(answer))
}
