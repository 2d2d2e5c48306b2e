package gate

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// Handlers returns the calls that the gate answers, by their full method: those that it judges, and those that it reads. Every other call is
// forwarded unchanged.
func (g *Gate) Handlers() map[string]criproxy.Handler {
	return map[string]criproxy.Handler{
		// Access to images.
		runtimeapi.ImageService_ImageStatus_FullMethodName:       decoded(g.imageStatus),
		runtimeapi.ImageService_PullImage_FullMethodName:         decoded(g.pullImage),
		runtimeapi.RuntimeService_CreateContainer_FullMethodName: decoded(g.createContainer),
		runtimeapi.RuntimeService_StartContainer_FullMethodName:  decoded(g.startContainer),
		runtimeapi.RuntimeService_RestorePod_FullMethodName:      decoded(g.restorePod),

		// Images on the node.
		runtimeapi.ImageService_RemoveImage_FullMethodName: decoded(g.removeImage),

		// Pods on the node.
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    decoded(g.runPodSandbox),
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: observed(g.observeRemovePodSandbox),
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   observed(g.observeListPodSandbox),
	}
}

// decoded returns a handler that reads the request for f. A call that cannot be read cannot be judged, so it is refused.
func decoded[M any, P interface {
	*M
	proto.Message
}](f func(ctx context.Context, c *criproxy.Call, request P) ([]byte, error)) criproxy.Handler {
	return func(ctx context.Context, c *criproxy.Call) ([]byte, error) {
		request := P(new(M))
		if proto.Unmarshal(c.Request, request) != nil {
			return nil, errUndecodable()
		}
		return f(ctx, c, request)
	}
}

// Bypasses returns the faster ways of calls that have a handler: those that the gate only observes, such as RunPodSandbox without policies, and
// image statuses that it does not judge, are forwarded without it; pre-checks are sent ahead. A handler answers them in the same way, and is slower.
func (g *Gate) Bypasses() map[string]criproxy.Bypass {
	return map[string]criproxy.Bypass{
		runtimeapi.ImageService_ImageStatus_FullMethodName:        g.bypassImageStatus,
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    g.bypassRunPodSandbox,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: g.observeRemovePodSandbox,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   g.observeListPodSandbox,
	}
}

// bypassImageStatus passes what is certainly not a pre-check. The runtime is asked for the image of what may be one before the handler has read
// the request, unless the handler has to wait for the gate to be synced: then the answer could be out of date.
func (g *Gate) bypassImageStatus(request []byte) (way criproxy.Way, observe func(response []byte)) {
	if bytes.Contains(request, []byte(podindex.SeenAnnotation)) {
		if g.Synced() {
			return criproxy.HandledAhead, nil
		}
		return criproxy.Handled, nil
	}
	if proto.Unmarshal(request, &runtimeapi.ImageStatusRequest{}) != nil {
		return criproxy.Handled, nil
	}
	return criproxy.Forwarded, nil
}
