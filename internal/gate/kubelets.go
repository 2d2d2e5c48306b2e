package gate

import (
	"context"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
)

const (
	// kubeletCalls is how many Status calls make a connection that of a kubelet, which makes one every five seconds.
	kubeletCalls = 2
	// kubeletSilent is how long a kubelet may take for the next one, and for the next call for images, which it lists
	// every 30 seconds. A runtime may block a Status for two minutes.
	kubeletSilent = 3 * time.Minute
)

// kubelets shows by the connections of clients whether the node's kubelet uses pullgated. A kubelet that dials another
// endpoint is another process, so no pull bypasses pullgated while its connection lasts and calls for images come; its
// image endpoint may be another one. Whose connection has ended is not known, because other clients may ask for the
// status too: the end of any counts, until a new one is a kubelet's.
type kubelets struct {
	mu     sync.Mutex
	open   map[<-chan struct{}]int // the Status calls of each connection, which ends when the channel is closed
	gaps   uint64                  // how often pulls may have bypassed pullgated
	used   bool                    // since the last connection became a kubelet's, no such connection has ended
	asked  time.Time               // the last Status call on such a connection
	images time.Time               // the last call for images, on any connection
	absent time.Time               // since when no kubelet uses pullgated; zero if one does
}

// Called is called for each call of a client.
func (g *Gate) Called(ctx context.Context, method string) {
	switch {
	case method == runtimeapi.RuntimeService_Status_FullMethodName:
		if gone := criproxy.Gone(ctx); gone != nil {
			g.kubelets.called(gone)
		}
	case strings.HasPrefix(method, "/"+runtimeapi.ImageService_ServiceDesc.ServiceName+"/"):
		g.kubelets.calledForImages()
	}
}

func (k *kubelets) calledForImages() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.images = time.Now()
}

func (k *kubelets) called(gone <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropGone()
	if k.open == nil {
		k.open = map[<-chan struct{}]int{}
	}
	k.open[gone]++
	if k.open[gone] == kubeletCalls {
		k.gaps, k.used = k.gaps+1, true
	}
	if k.open[gone] >= kubeletCalls {
		k.asked = time.Now()
	}
}

func (k *kubelets) dropGone() {
	for gone, calls := range k.open {
		select {
		case <-gone:
			delete(k.open, gone)
			if calls >= kubeletCalls {
				k.gaps, k.used = k.gaps+1, false
			}
		default:
		}
	}
}

func (k *kubelets) gap() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gaps++
}

// Watched is the function of the same name in [tracker.Options].
func (g *Gate) Watched() (since uint64, ok bool) {
	since, ok, changed := g.kubelets.watched()
	switch {
	case !changed:
	case ok:
		g.c.Log.Info("A kubelet uses pullgated")
	default:
		g.c.Log.Info("No kubelet is seen to use pullgated: what pulls bring now needs proof")
	}
	return since, ok
}

// KubeletAbsent returns since when no kubelet is seen to use pullgated, zero if one is.
func (g *Gate) KubeletAbsent() time.Time {
	_, _ = g.Watched()
	g.kubelets.mu.Lock()
	defer g.kubelets.mu.Unlock()
	return g.kubelets.absent
}

func (k *kubelets) watched() (since uint64, ok, changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropGone()
	ok = k.used && time.Since(k.asked) < kubeletSilent && time.Since(k.images) < kubeletSilent
	if changed = ok != k.absent.IsZero(); changed && ok {
		k.absent = time.Time{}
	} else if changed {
		k.absent = time.Now()
	}
	return k.gaps, ok, changed
}
