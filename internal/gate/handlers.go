package gate

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
)

// Handlers returns the calls that the gate judges or reads, by full method. Every other call is forwarded unchanged.
func (g *Gate) Handlers() map[string]criproxy.Handler {
	return map[string]criproxy.Handler{
		// Access to images.
		runtimeapi.ImageService_ImageStatus_FullMethodName:       decoded(g, g.imageStatus),
		runtimeapi.ImageService_PullImage_FullMethodName:         decoded(g, g.pullImage),
		runtimeapi.RuntimeService_CreateContainer_FullMethodName: decoded(g, g.createContainer),
		runtimeapi.RuntimeService_StartContainer_FullMethodName:  decoded(g, g.startContainer),
		runtimeapi.RuntimeService_RestorePod_FullMethodName:      decoded(g, g.restorePod),

		// Images on the node.
		runtimeapi.ImageService_RemoveImage_FullMethodName: decoded(g, g.removeImage),

		// Pods on the node.
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    decoded(g, g.runPodSandbox),
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: decoded(g, g.removePodSandbox),
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   decoded(g, g.listPodSandbox),
	}
}

// decoded returns a handler that decodes and holds the request for f. What cannot be decoded is refused.
func decoded[M any, P interface {
	*M
	proto.Message
}](g *Gate, f func(ctx context.Context, c *criproxy.Call, request P) ([]byte, error)) criproxy.Handler {
	return func(ctx context.Context, c *criproxy.Call) ([]byte, error) {
		request := P(new(M))
		if proto.Unmarshal(c.Request, request) != nil {
			return nil, errUndecodable()
		}
		release, ok := g.held.hold(holderOf(request), len(c.Request))
		if !ok {
			return nil, errTooManyBytes()
		}
		defer release()
		return f(ctx, c, request)
	}
}
