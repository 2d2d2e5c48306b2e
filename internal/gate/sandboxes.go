package gate

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

func (g *Gate) runPodSandbox(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.RunPodSandboxRequest,
) ([]byte, error) {
	if own := g.newCall(ctx, "RunPodSandbox"); own.policies != nil {
		g.ready(ctx) // the chain admits a pod that ran before the node restarted
		if err := g.run(ctx, g.candidate(ctx, own, identify(req.GetConfig()), req.GetConfig(), nil), g.admit); err != nil {
			return nil, err
		}
	}
	raw, err := c.Forward(ctx)
	var resp runtimeapi.RunPodSandboxResponse
	if err != nil {
		return raw, err
	}
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		g.c.Log.Error(err, "Failed to decode the runtime's answer: the pod is unknown until the runtime lists its sandbox")
		return raw, nil
	}
	g.c.Pods.Add(sandbox(resp.GetPodSandboxId(), req.GetConfig()))
	return raw, nil
}

func (g *Gate) removePodSandbox(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.RemovePodSandboxRequest,
) ([]byte, error) {
	raw, err := c.Forward(ctx)
	if err == nil {
		g.endPods(g.c.Pods.Remove(req.GetPodSandboxId()))
	}
	return raw, err
}

// listPodSandbox reads a complete list, which a kubelet requests about once a second.
func (g *Gate) listPodSandbox(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.ListPodSandboxRequest,
) ([]byte, error) {
	since := g.c.Pods.Now()
	raw, err := c.Forward(ctx)
	// A newer CRI may add a field to the request that makes the list partial.
	if err != nil || proto.Size(req.GetFilter()) > 0 || len(req.ProtoReflect().GetUnknown()) > 0 {
		return raw, err
	}
	var resp runtimeapi.ListPodSandboxResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		g.c.Log.Error(err, "Failed to decode the list of sandboxes: keeping the index of pods")
		return raw, nil
	}
	if ended, ok := g.c.Pods.Reconcile(since, sandboxes(&resp)); ok {
		g.endPods(ended)
	}
	return raw, nil
}

func (g *Gate) removeImage(ctx context.Context, c *criproxy.Call, req *runtimeapi.RemoveImageRequest) ([]byte, error) {
	// The call removed an image that is present before and absent afterwards. Without an answer the records stay.
	img, _ := g.c.Runtime.Image(ctx, req.GetImage().GetImage())
	done := g.c.Tracker.BeginRemoval()
	defer done()
	raw, err := g.changes.forward(ctx, c)
	done()
	// The image may be gone even if the answer was lost. One that the runtime still has keeps its records.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownCallLimit)
	defer cancel()
	if err := g.c.Tracker.Removed(own, img.ID); err != nil {
		g.c.Log.Info("Failed to prune records of removed images, will retry in a minute", "err", err)
	}
	return raw, err
}

func (g *Gate) endPods(uids []string) {
	for _, uid := range uids {
		g.c.Tracker.EndPod(uid)
		g.chain().ForgetPod(uid)
	}
	if len(uids) > 0 {
		g.pods.end(uids)
	}
}

func sandboxes(r *runtimeapi.ListPodSandboxResponse) []podindex.Sandbox {
	list := make([]podindex.Sandbox, 0, len(r.GetItems()))
	for _, s := range r.GetItems() {
		list = append(list, sandbox(s.GetId(), s))
	}
	return list
}

func sandbox(id string, c described) podindex.Sandbox {
	return podindex.Sandbox{ID: id, Pod: identify(c), Seen: c.GetAnnotations()[podindex.SeenAnnotation]}
}
