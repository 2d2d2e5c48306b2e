package daemon

import (
	"context"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	adminStopLimit = time.Second     // how long calls of the admin API in progress may take when the daemon stops
	versionLimit   = 2 * time.Second // bounds the call that asks the runtime for its version
)

// inForce is the configuration that is in use, and the result of the last attempt to read it. It is immutable.
type inForce struct {
	config config.Config
	found  bool            // config is from a file, and not the defaults
	reload *adminv1.Reload // its Error is "" if the result is in force
}

func adminOf(o Options, p parts, store *records.Store, index *podindex.Index, runtime *gate.Runtime,
	feed *adminapi.Feed,
) *adminapi.Server {
	log, started := o.Log.WithName("admin"), time.Now()
	var source adminapi.PodSource
	if p.source != nil {
		source = p.source
	}
	return adminapi.New(adminapi.Config{
		Tracker:         p.tracker,
		Store:           store,
		Runtime:         runtime,
		Pods:            index,
		PodSource:       source,
		Gate:            p.gate,
		NodeCredentials: p.node,
		KeyFingerprint:  p.key.Fingerprint(),
		Decisions:       feed,
		Policies:        p.policies.list,
		Access:          p.policies.imageAccess,
		Signatures:      p.policies,
		EndorsementValidity: func() time.Duration {
			return p.inForce.Load().config.Admission.EndorsementValidity.Value()
		},
		Drift:                p.renewal.Drift,
		RevokingEndorsements: p.policies.endorsing.NoteRevocation,
		Trusted:              func() { p.metrics.StoreDistrusted(store.Distrusted() != nil) },
		Panic:                p.metrics.Panic,
		Settings: adminapi.Settings{
			Shadow:          o.Config.NoPullImageSecretRecheck,
			OutageFallback:  o.Config.RegistryOutageFallback,
			VerifyUntracked: o.Config.UntrackedImages == config.UntrackedVerify,
			PerNamespace:    o.Config.RuntimeCredentials == config.RuntimeCredentialsPerNamespace,
		},
		Log:       log,
		StorePath: filepath.Join(o.Config.StateDir, tracker.StoreFile),
		Status: func(ctx context.Context) *adminv1.GetStatusResponse {
			now := p.inForce.Load()
			c := now.config
			text, err := c.YAML()
			if err != nil {
				log.Info("Failed to render the configuration", "err", err)
			}
			s := &adminv1.GetStatusResponse{
				Version: o.Version, Commit: o.Commit, Started: timestamppb.New(started),
				Enforcing: c.Enforces(), Policy: string(c.Policy().Mode()), Configuration: string(text), Reload: now.reload,
				ConfigurationPath: o.ConfigPath, ConfigurationFound: now.found, NotListening: p.service.notListening(),
				Runtime: &adminv1.RuntimeStatus{Endpoint: c.RuntimeEndpoint, Up: p.conns.up()}, DecisionLog: p.decisions.status(),
				BypassedImages: int64(p.tracker.Bypassed()),
			}
			if since := p.gate.KubeletAbsent(); !since.IsZero() {
				s.KubeletAbsent = timestamppb.New(since)
			}
			if p.source != nil {
				s.PodSource = &adminv1.PodSourceStatus{
					Node: p.source.NodeName(), Synced: p.source.Synced(), Pods: int64(len(p.source.Pods())),
				}
			}
			limited, cancel := context.WithTimeout(ctx, versionLimit)
			defer cancel()
			if s.Runtime.Name, s.Runtime.Version, err = runtime.Version(limited); err != nil {
				log.V(2).Info("Failed to get the version of the runtime", "err", err)
			}
			return s
		},
	})
}

// serveAdmin serves the admin API until ctx ends. If it fails, the daemon continues: no pod waits for the admin API.
func serveAdmin(ctx context.Context, log klog.Logger, p parts) {
	listener := p.on.admin.wait(ctx)
	if listener == nil {
		return
	}
	done := make(chan error, 1)
	go func() { done <- p.admin.Serve(listener) }()
	select {
	case err := <-done:
		log.Error(err, "Admin API ended: pullgated still serves the CRI", "hint", "restart pullgated to have it back")
		<-ctx.Done()
		return
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStopLimit)
	defer cancel()
	p.admin.Shutdown(drain)
	if err := <-done; err != nil {
		log.Info("Admin API ended with an error", "err", err)
	}
}
