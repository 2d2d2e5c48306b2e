package nodeinstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

const (
	callLimit    = 10 * time.Second
	compareTries = 10 // the runtime's answers change while the node works
	compareEvery = 300 * time.Millisecond
	maxAnswer    = 16 << 20
	examples     = 3 // of pods and containers whose status is compared
)

// A question is a read-only call, and what must be the same of its answer: what changes all the time is left out.
type question struct {
	name string
	ask  func(context.Context, cri) (proto.Message, error)
}

type cri struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// CompareCRI asks the CRI on listen, and the runtime, what only reads, and returns an error if one answer differs. All
// are answers that pullgated passes on as they are.
func CompareCRI(ctx context.Context, listen, runtime, image string) error {
	var all [3]*grpc.ClientConn
	for n, endpoint := range []string{listen, runtime, image} {
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // it was only read from
		all[n] = conn
	}
	through := cri{runtimeapi.NewRuntimeServiceClient(all[0]), runtimeapi.NewImageServiceClient(all[0])}
	past := cri{runtimeapi.NewRuntimeServiceClient(all[1]), runtimeapi.NewImageServiceClient(all[2])}
	pods, containers, err := some(ctx, past)
	if err != nil {
		return program.WithHint(fmt.Errorf("ask the runtime itself: %w", err), "see the state of the runtime")
	}
	for _, q := range questions(pods, containers) {
		if err := q.compare(ctx, through, past); err != nil {
			return err
		}
	}
	return nil
}

func (q question) compare(ctx context.Context, through, past cri) (err error) {
	for try := range compareTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return errors.Join(err, context.Cause(ctx))
			case <-time.After(compareEvery): //nolint:forbidigo // a few times, and ctx is looked at too
			}
		}
		want := q.answer(ctx, past)
		got := q.answer(ctx, through)
		if got == want {
			return nil
		}
		err = program.Hintf("report it with this message: the version answers otherwise than the runtime",
			"%s through pullgated answers otherwise than the runtime: %s", q.name, differing(got, want))
	}
	return err
}

// answer is the answer as text, or the code and the message of the error.
func (q question) answer(ctx context.Context, c cri) string {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	m, err := q.ask(ctx, c)
	if err != nil {
		return fmt.Sprintf("error %s", status.Code(err))
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fmt.Sprintf("error %v", err)
	}
	return string(content)
}

// differing names the answers without their content, which has what tenants wrote.
func differing(got, want string) string {
	short := func(s string) string {
		if strings.HasPrefix(s, "error ") {
			return s
		}
		return fmt.Sprintf("%d bytes", len(s))
	}
	if short(got) == short(want) {
		return "the same length, another content"
	}
	return short(got) + ", the runtime " + short(want)
}

// some returns a few pods and containers, whose status is compared.
func some(ctx context.Context, c cri) (pods, containers []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	p, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, err
	}
	l, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	for _, s := range p.GetItems()[:min(examples, len(p.GetItems()))] {
		pods = append(pods, s.GetId())
	}
	for _, s := range l.GetContainers()[:min(examples, len(l.GetContainers()))] {
		containers = append(containers, s.GetId())
	}
	return pods, containers, err
}

func questions(pods, containers []string) []question {
	all := []question{
		{"Version", func(ctx context.Context, c cri) (proto.Message, error) {
			return c.Version(ctx, &runtimeapi.VersionRequest{})
		}},
		{"Status", func(ctx context.Context, c cri) (proto.Message, error) {
			return c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{})
		}},
		{"RuntimeConfig", func(ctx context.Context, c cri) (proto.Message, error) {
			return c.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
		}},
		{"ListPodSandbox", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			sort(m.GetItems())
			return m, err
		}},
		{"ListContainers", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			sort(m.GetContainers())
			return m, err
		}},
		{"ListImages", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
			sort(m.GetImages())
			for _, i := range m.GetImages() { // in no order
				slices.Sort(i.RepoTags)
				slices.Sort(i.RepoDigests)
			}
			return m, err
		}},
		{"ImageFsInfo", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
			for _, f := range append(m.GetImageFilesystems(), m.GetContainerFilesystems()...) {
				f.Timestamp, f.UsedBytes, f.InodesUsed = 0, nil, nil
			}
			return m, err
		}},
	}
	for _, id := range pods {
		all = append(all, question{"PodSandboxStatus", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			return m.GetStatus(), err
		}})
	}
	for _, id := range containers {
		all = append(all, question{"ContainerStatus", func(ctx context.Context, c cri) (proto.Message, error) {
			m, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return m.GetStatus(), err
		}})
	}
	return all
}

func sort[T interface{ GetId() string }](all []T) {
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(a.GetId(), b.GetId()) })
}
