package gate

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
)

// CallForTest answers a call as the server does: by its handler if there is one, else by the runtime.
func (g *Gate) CallForTest(ctx context.Context, u *criproxy.Upstream, method string, req, resp proto.Message) error {
	request, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	c := &criproxy.Call{Method: method, Request: request, Upstream: u}
	h, judged := g.Handlers()[method]
	if !judged {
		h = func(ctx context.Context, c *criproxy.Call) ([]byte, error) { return c.Forward(ctx) }
	}
	response, err := h(ctx, c)
	if err != nil {
		return err
	}
	return proto.Unmarshal(response, resp)
}

// Kubelets is kubelets.
type Kubelets struct{ kubelets }

func (k *Kubelets) Called(gone <-chan struct{}) { k.called(gone) }

func (k *Kubelets) CalledForImages() { k.calledForImages() }

func (k *Kubelets) Watched() (since uint64, ok, changed bool) { return k.watched() }

// Containers is containers.
type Containers struct{ containers }

func (k *Containers) Compare(all []*runtimeapi.Container) bool {
	k.begin()
	return k.compare(all, time.Now())
}

func (k *Containers) Created(sandbox string) { k.add(keyOf(sandbox, nil)) }

func (k *Containers) Known() int { return len(k.known) }
