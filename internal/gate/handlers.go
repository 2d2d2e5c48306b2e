package gate

import (
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
