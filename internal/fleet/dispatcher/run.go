package dispatcher

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
)

const programName = "pullgate-dispatcher"

// The times of the election. A request of the loop ends at most requestLimit after the lead is lost.
const (
	leaseDuration = 15 * time.Second
	renewLimit    = 9 * time.Second
	renewEvery    = 2 * time.Second
)

// Options are what the process is given.
type Options struct {
	API         *rest.Config
	Namespace   string   // of the process, its lease and its pods
	Identity    string   // unique among the replicas: the name of the pod
	Image       string   // that of the process, for pods of its version
	PullSecrets []string // names of Secrets in the namespace, with which kubelets pull it
	Listen      string   // for metrics and probes; "" for none
	Version     string
	Log         klog.Logger
}

// Run runs the process until ctx ends, and returns when everything that it started has ended. It does something only
// while it leads: replicas elect one of them by a Lease.
func Run(ctx context.Context, o Options) error {
	c, err := newClient(o.API)
	if err != nil {
		return err
	}
	m := newMetrics(o.Version)
	l, err := sockets.ListenTCP(ctx, "--metrics", o.Listen)
	if err != nil {
		return err
	}
	var asked atomic.Bool // the API server has answered about the lease
	all, ctx := errgroup.WithContext(ctx)
	if l != nil {
		all.Go(func() error {
			return sockets.ServeStatus(ctx, l, sockets.Status{
				Metrics: promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}),
				Ready: func() (string, bool) {
					if !asked.Load() {
						return "the API server has not answered about the Lease " + programName, false
					}
					return "ok", true
				},
				Panicked: m.panics.Inc, Log: o.Log.WithName("metrics"),
			})
		})
	}
	o.Log.Info("Waiting for the lead", "lease", klog.KRef(o.Namespace, programName), "identity", o.Identity,
		"version", o.Version)
	all.Go(func() error {
		for ctx.Err() == nil {
			if err := elect(ctx, o, c, m, &asked); err != nil {
				return err
			}
		}
		return nil
	})
	err = all.Wait()
	o.Log.Info("Stopped")
	return err
}

// elect leads once, and returns when the lead is lost or ctx ends.
func elect(ctx context.Context, o Options, c *client, m *metrics, asked *atomic.Bool) error {
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: programName}, Client: c.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}
	// The election outlives what it is for: the lease is released when nothing is written any more.
	election, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	over := make(chan struct{})
	began := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewLimit, RetryPeriod: renewEvery,
		ReleaseOnCancel: true, Name: programName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(began)
				defer close(over)
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				o.Log.Info("Leading", "identity", o.Identity)
				m.leads.Set(1)
				newLoop(o, c, m).run(leading)
				m.leads.Set(0)
				m.show(nil)
				release()
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(string) { asked.Store(true) },
		},
	})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-began: // the loop ends, and then releases the lease
		default:
			release()
		}
	})()
	elector.Run(election)
	select {
	case <-began:
		<-over
		o.Log.Info("Not leading any more", "identity", o.Identity)
	default:
	}
	return nil
}
