package gate

import (
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
)

// Handlers returns the calls that the gate answers, by their full method: those that it judges, and those that it reads. Every other call is
// forwarded unchanged.
func (g *Gate) Handlers() map[string]criproxy.Handler {
	return map[string]criproxy.Handler{
		// Access to images.
		runtimeapi.ImageService_ImageStatus_FullMethodName:       g.imageStatus,
		runtimeapi.ImageService_PullImage_FullMethodName:         g.pullImage,
		runtimeapi.RuntimeService_CreateContainer_FullMethodName: g.createContainer,
		runtimeapi.RuntimeService_StartContainer_FullMethodName:  g.startContainer,
		runtimeapi.RuntimeService_RestorePod_FullMethodName:      g.restorePod,

		// Images on the node.
		runtimeapi.ImageService_RemoveImage_FullMethodName: g.removeImage,

		// Pods on the node.
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    g.runPodSandbox,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: g.removePodSandbox,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   g.listPodSandbox,
	}
}

// Bypasses returns which calls that have a handler are forwarded without it: those that the gate only observes, and image
// statuses that it does not judge. A handler answers them in the same way, and is slower.
func (g *Gate) Bypasses() map[string]criproxy.Bypass {
	return map[string]criproxy.Bypass{
		runtimeapi.ImageService_ImageStatus_FullMethodName:        bypassImageStatus,
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    g.observeRunPodSandbox,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: g.observeRemovePodSandbox,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   g.observeListPodSandbox,
	}
}

// bypassImageStatus passes what is not a pre-check.
func bypassImageStatus(request []byte) (pass bool, observe func(response []byte)) {
	var req runtimeapi.ImageStatusRequest
	return proto.Unmarshal(request, &req) == nil && !isPrecheck(&req), nil
}
