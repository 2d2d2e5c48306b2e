package criproxy

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// handlers is the whole list of judged and read calls; every other one is forwarded as it is.
func (g *Gate) handlers() map[string]handler {
	return map[string]handler{
		// Who may use an image.
		runtimeapi.ImageService_ImageStatus_FullMethodName:       g.imageStatus,
		runtimeapi.ImageService_PullImage_FullMethodName:         g.pullImage,
		runtimeapi.RuntimeService_CreateContainer_FullMethodName: g.createContainer,
		runtimeapi.RuntimeService_StartContainer_FullMethodName:  g.startContainer,
		runtimeapi.RuntimeService_RestorePod_FullMethodName:      g.restorePod,

		// What is on the node.
		runtimeapi.ImageService_RemoveImage_FullMethodName: g.removeImage,

		// Which pods there are.
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    g.runPodSandbox,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: g.removePodSandbox,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   g.listPodSandbox,
	}
}
