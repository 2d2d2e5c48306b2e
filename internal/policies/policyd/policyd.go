package policyd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

const programName = "pullgate-policyd"

// nodeSocket is the name of the node's socket in pullgate-policyd.socket (FileDescriptorName=).
const nodeSocket = "policy"

const (
	pollInterval = 3 * time.Second  // how often the policy folder and the certificates are read
	stopLimit    = 10 * time.Second // how long requests in progress may take when the process stops
)

// Options are the configuration of the process and its parts.
type Options struct {
	Config config.Policyd // Config must have been validated by the package config
	Log    klog.Logger
	// Each value of Reload reads the policy folder and the certificates again; nil: never.
	Reload  <-chan os.Signal
	Version string      // Version is in pullgate_policyd_build_info
	Verify  verify.Func // Verify replaces the one that asks registries, for tests; nil means this one
	// Ready is called once when clients can connect; nil is allowed.
	Ready func(Addresses)
}

// Addresses are where a process listens; "" where it does not.
type Addresses struct{ Node, HTTPS, Metrics string }

// Run runs the process until ctx ends, and returns when everything that it started has ended: nil after an orderly
// stop, an error if it could not start or continue (a program.HintError if an operator can act on it).
func Run(ctx context.Context, o Options) error {
	m := newMetrics(o.Version)
	var labels clusters
	var err error
	if o.Config.HTTPS.Listen != "" {
		if labels, err = newClusters(context.WithoutCancel(ctx), o.Config); err != nil {
			return program.WithHint(err, "correct the files, or remove clusters from kubeconfigs")
		}
		defer labels.close()
	}
	signatures, err := newSignatures(o, m)
	if err != nil {
		return err
	}
	defer signatures.Close()
	policies, err := openPolicies(o.Config, labels, signatures, m, o.Log.WithName("policies"))
	if err != nil {
		return err
	}
	defer policies.close()
	var certs *certificates
	if o.Config.HTTPS.Listen != "" {
		if certs, err = openCertificates(o.Config.HTTPS, m, o.Log.WithName("https")); err != nil {
			return program.WithHint(err, "correct the files, or set https.listen to \"\" for no server")
		}
	}
	on, err := listenAll(ctx, o.Config)
	if err != nil {
		return err
	}
	text := func(l net.Listener) string {
		if l == nil {
			return ""
		}
		return l.Addr().String()
	}
	at := Addresses{Node: text(on.node), HTTPS: text(on.https), Metrics: text(on.metrics)}
	o.Log.Info("Serving", "node", at.Node, "https", at.HTTPS, "metrics", at.Metrics,
		"policies", o.Config.Policies, "version", o.Version)
	if o.Ready != nil {
		o.Ready(at)
	}
	return serve(ctx, o, on, policies, certs, m)
}

type listeners struct{ node, https, metrics net.Listener } // nil where nothing listens

func nodeSocketOf(c config.Policyd) sockets.Socket {
	return sockets.Socket{Program: programName, Field: "node.listen", Endpoint: c.Node.Listen, Name: nodeSocket}
}

func listenAll(ctx context.Context, c config.Policyd) (on listeners, err error) {
	defer func() {
		for _, l := range []net.Listener{on.node, on.https, on.metrics} {
			if err != nil && l != nil {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	if on.node, err = nodeSocketOf(c).Listen(ctx); err != nil {
		return on, err
	}
	if on.https, err = sockets.ListenTCP(ctx, "https.listen", c.HTTPS.Listen); err != nil {
		return on, err
	}
	if on.node == nil && on.https == nil {
		return on, program.Hintf("start pullgate-policyd.socket for pullgated, or set node.listen or https.listen",
			"nothing to serve: systemd passes on no socket, and neither node.listen nor https.listen is set")
	}
	on.metrics, err = sockets.ListenTCP(ctx, "metrics.listen", c.Metrics.Listen)
	return on, err
}

// serve runs the servers. When ctx ends or one fails, it drains those whose clients wait, and then ends the others.
func serve(ctx context.Context, o Options, on listeners, policies *policies, certs *certificates, m *metrics) error {
	var stopping atomic.Bool
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var back errgroup.Group
	back.Go(func() error { return reload(behind, o, policies, certs) })
	ctx, end := context.WithCancel(ctx)
	defer end()
	if on.metrics != nil { // stopped after the front; the process ends if it fails
		back.Go(func() error {
			defer end()
			return sockets.ServeStatus(behind, on.metrics, sockets.Status{
				Metrics:  promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}),
				Ready:    func() (string, bool) { return ready(&stopping, policies) },
				Panicked: m.panics.Inc, Log: o.Log.WithName("metrics"),
			})
		})
	}
	front, ctx := errgroup.WithContext(ctx)
	if on.node != nil {
		server := newNodeServer(policies, m, o.Log.WithName("node"))
		front.Go(func() error { return server.serve(ctx, on.node) })
	}
	if on.https != nil {
		front.Go(func() error { return serveHTTPS(ctx, o, on.https, policies, certs, m) })
	}
	front.Go(func() error {
		<-ctx.Done()
		stopping.Store(true)
		notify(o.Log, sd.SdNotifyStopping)
		o.Log.Info("Stopping, requests in progress are drained", "limit", stopLimit)
		return nil
	})
	notify(o.Log, sd.SdNotifyReady)
	err := front.Wait()
	stop()
	err = errors.Join(err, back.Wait())
	o.Log.Info("Stopped")
	return err
}

func reload(ctx context.Context, o Options, policies *policies, certs *certificates) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		signal := false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-o.Reload:
			signal = true
		}
		policies.refresh(signal)
		if certs != nil {
			certs.refresh(signal)
		}
		if signal {
			o.Log.Info("Read again: policies and certificates; other settings need a restart")
		}
	}
}

func serveHTTPS(ctx context.Context, o Options, l net.Listener, p *policies, certs *certificates, m *metrics) error {
	handler, err := newWebhook(o, p, certs, m)
	if err != nil {
		return err
	}
	err = sockets.ServeHTTP(ctx, l, sockets.HTTPOptions{ // whose clients may be anyone who reaches the address
		Handler: handler, TLS: certs.tlsConfig(), Connections: 512, Requests: 32, Waiting: 1024,
		MaxBody:   7 << 20,                                       // two objects of 3 MiB, the limit of an API server
		ReadLimit: 5 * time.Second, WriteLimit: 35 * time.Second, // a webhook may be given 30 s
		IdleLimit: 2 * time.Minute, StopLimit: stopLimit, // an API server keeps its connections
		Panicked: m.panics.Inc, Log: o.Log.WithName("https"),
	})
	if err != nil {
		return fmt.Errorf("serve https: %w", err)
	}
	return nil
}

func ready(stopping *atomic.Bool, p *policies) (text string, ready bool) {
	switch {
	case stopping.Load():
		return "stopping", false
	case !p.namespaces.ready():
		return "the namespaces are not listed yet", false
	}
	return "ok", true
}

func notify(log klog.Logger, state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		log.Info("Failed to notify systemd of the status", "status", state, "err", err)
	}
}

// Examine returns why the files that a configuration names cannot be used, all errors at once. Each warning is about a
// file that probably does not say what its author means. It binds no address and asks no server but systemd.
func Examine(ctx context.Context, c config.Policyd) (warnings []string, err error) {
	errs := []error{nodeSocketOf(c).CheckUnit(ctx, nil)}
	set, err := policyfiles.Read(paths(c))
	if err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	backends := policyfiles.BackendsOf(set)
	var clients review.Set
	defer clients.Close()
	if err := clients.Replace(backends); err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	if _, err := hook.Check(policyfiles.HooksOf(set)); err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	h := c.HTTPS
	named := []string{c.Policies, c.TrustedRoot, c.Kubeconfig, c.Bundles, h.CertFile, h.KeyFile, h.ClientCAFile}
	for _, b := range backends {
		named = append(named, b.Kubeconfig)
	}
	for _, h := range policyfiles.HooksOf(set) {
		named = append(named, h.Certificate, h.Socket)
	}
	for _, files := range []map[string]string{c.Kubeconfigs, h.ClientCAFiles} {
		named = slices.AppendSeq(named, maps.Values(files))
	}
	unit := program.SandboxOf(ctx, nil, programName+".service")
	for _, path := range named {
		errs = append(errs, unit.Sees(path))
	}
	if h.Listen != "" && policyfiles.NeedNamespaces(set) {
		_, err := apiServer(c.Kubeconfig)
		errs = append(errs, err)
	}
	notes, err := verify.Examine(c, set, time.Now())
	warnings = slices.Concat(backends.Warnings(), policyfiles.Notes(set), notes)
	return warnings, errors.Join(append(errs, err, examineKubeconfigs(c), examineHTTPS(h))...)
}
