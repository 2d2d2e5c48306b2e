// Package daemon implements pullgated from its parts. Run is the list of its steps.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// drainLimit is how long unary calls in progress may take when the daemon stops (docs/design/0016).
const drainLimit = 10 * time.Second

// reconcileEvery is how often pullgated itself lists the sandboxes: it does not see every list of a kubelet.
const reconcileEvery = time.Minute

// syncRetry is the time after the first sync that fails. It doubles with each further one, up to reconcileEvery.
const syncRetry = time.Second

// Options are the flags of pullgated and its configuration.
type Options struct {
	Config      config.Config
	ConfigPath  string // the absolute path of the configuration file; without ConfigFound, Config has the defaults
	ConfigFound bool
	// AcceptPresentImages ends the distrust of a store and marks the images on the node preloaded, once.
	AcceptPresentImages bool
	Log                 klog.Logger
	// Each value of Reload reloads the configuration and reopens log files; nil: never.
	Reload <-chan os.Signal
	// Load reads the configuration again, and reports whether its file was found. It must be set if Reload is.
	Load func() (c config.Config, found bool, err error)
	// Version and GoVersion are in pullgate_build_info, Version and Commit in the admin API.
	Version, GoVersion, Commit string
	Ready                      func() // called once when clients can connect to the socket; nil is allowed
}

// Run runs the daemon until ctx ends and everything that it started has ended. An error is a program.HintError if an
// operator can act on it. The config package must have validated the configuration.
func Run(ctx context.Context, o Options) (err error) {
	m := metrics.New(o.Version, o.GoVersion, criproxy.Methods())
	m.ConfigRead(true, time.Now())

	// The lock on the store keeps a second daemon from using this node's state, so the store is opened before the socket.
	conns, err := dial(o.Config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.close()) }()
	runtime := gate.NewRuntime(conns.runtime(), conns.image())
	var node *nodecreds.Credentials
	var judge *gate.Gate
	trk, report, err := tracker.Open(o.Config.StateDir, runtime, tracker.Options{ //nolint:contextcheck // it is short
		Rules:           rules(o.Config),
		VerifyUntracked: o.Config.UntrackedImages == config.UntrackedVerify,
		NodeOffers:      func(repository string, id credential.ID) bool { return node.Offers(repository, id) },
		Watched:         func() (uint64, bool) { return judge.Watched() },
		NodeHolds:       func(ctx context.Context, id credential.ID) bool { return node.Holds(ctx, id) },
		AccountsOf: func(repository string, id credential.ID) []tracker.Secret {
			return node.AccountsOf(repository, id)
		},
		RuntimeCredentialsPerNamespace: o.Config.RuntimeCredentials == config.RuntimeCredentialsPerNamespace,
		Log:                            o.Log.WithName("tracker"),
		OnSync:                         m.StoreSync,
		OnPanic:                        panicked(o.Log, filepath.Join(o.Config.StateDir, tracker.StoreFile)),
	})
	if err != nil {
		return storeHint(err)
	}
	defer func() { err = errors.Join(err, trk.Close()) }()
	logReport(o.Log.WithName("records"), o.Config.StateDir, report)
	store, key := trk.Store(), trk.Key()
	node = nodecreds.New(klog.NewContext(ctx, o.Log.WithName("nodeCredentials")),
		NodeCredentialsPath(o.Config.StateDir), o.Config.NodeCredentials.DockerConfigFiles, key)
	node.Reserve(reservesNode(o.Config))
	if err := accept(o, store); err != nil {
		return err
	}

	admitting, err := openPolicies(o, m, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admitting.close()) }()
	admitting.enforceAccess(o.Config.StateDir, trk)
	log, err := openDecisions(o, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	feed := &adminapi.Feed{}

	var p parts
	reporting := openReport(o)
	source := openSource(o, key, m, func() bool { return node.HasAccounts() || trk.HasAccounts() },
		func(ctx context.Context) (podsource.Condition, bool) { return p.condition.judge(ctx, p) },
		reportOf(reporting, &p))
	facts, views, keep := forGate(source)
	keep(admitting.fields())
	index, to := podindex.New(), decided{log: log, report: reporting, feed: feed}
	judge = gate.New(gate.Config{
		Tracker: trk, Pods: index, Runtime: runtime, PodSource: facts, Metrics: m, Log: o.Log.WithName("gate"),
		Decisions: to, Shadow: o.Config.NoPullImageSecretRecheck,
		OutageFallback: o.Config.RegistryOutageFallback,
		AlwaysPrecheck: gate.AlwaysPrecheck(o.Config.KubeletSkipsAlwaysPrecheck), AllowRestores: o.Config.AllowRestores,
		Admission: admitting.forGate(views), Event: eventsOf(source, o.Config.PodSource),
	})
	admitting.publishTo(judge, views, keep)
	server := criproxy.New(criproxy.Config{
		Runtime: conns.runtime(), Image: conns.image(), Handlers: judge.Handlers(), Called: judge.Called, Metrics: m,
		Log: o.Log.WithName("proxy"),
	})
	observe(m, trk, o.Log)

	svc := newService(o.Log, o.Config)
	on, err := listenAll(ctx, o.Log, o.Config, svc.bound)
	if err != nil {
		return err
	}
	warnOfSettings(o.Log, o.Config)
	// The last step, because no later step can fail: after a failed start the grants remain for the next start.
	takeOver(o, trk)
	c := o.Config
	o.Log.Info("Serving", "listen", c.Listen, "runtimeEndpoint", c.RuntimeEndpoint, "imageEndpoint", c.ImageEndpoint,
		"policy", c.ImagePullCredentialsVerificationPolicy, "enforcing", !c.NoPullImageSecretRecheck, "version", o.Version)
	if o.Ready != nil {
		o.Ready()
	}
	svc.ready()
	p = parts{
		conns: conns, key: key, store: store, tracker: trk, node: node, source: source, decisions: log, gate: judge,
		server: server, metrics: m, on: on, inForce: &atomic.Pointer[inForce]{}, service: svc, policies: admitting,
		stopping: &atomic.Bool{}, renewal: admitting.newRenewal(store, judge, to),
		condition: &condition{version: o.Version},
	}
	p.inForce.Store(&inForce{c, o.ConfigFound, &adminv1.Reload{At: timestamppb.Now()}})
	m.SetInForce(p.inMetrics)
	m.SetDrift(p.driftByReason)
	p.admin = adminOf(o, p, store, index, runtime, feed)
	return serve(ctx, o, p)
}

func observe(m *metrics.Metrics, trk *tracker.Tracker, log klog.Logger) {
	m.SetStore(func() records.Stats {
		s, err := trk.Store().Stats()
		if err != nil {
			log.Error(err, "Failed to count the pull records")
		}
		return s
	})
	m.SetGrants(trk.Grants)
	m.StoreDistrusted(trk.Store().Distrusted() != nil)
}

// driftByReason counts drift; nil if nothing is rechecked.
func (p parts) driftByReason() map[string]int {
	if p.policies.signatures.Load().endorser == nil || p.inForce.Load().config.Admission.RecheckEndorsements.Value() == 0 {
		return nil
	}
	counts := map[string]int{}
	for _, d := range p.renewal.Drift() {
		counts[d.Reason]++
	}
	return counts
}

func (p parts) inMetrics() metrics.InForce {
	c := p.inForce.Load().config
	used := p.policies.list()
	return metrics.InForce{
		Shadow: c.NoPullImageSecretRecheck, Policy: c.ImagePullCredentialsVerificationPolicy,
		HasPolicies: used != nil, PoliciesEnforced: used.GetEnforcing(), PoliciesHash: used.GetHash(),
	}
}

// parts are what serve runs.
type parts struct {
	conns     connections
	key       credential.Key
	store     *records.Store
	tracker   *tracker.Tracker
	node      *nodecreds.Credentials
	source    *podsource.Source // nil if there is none
	decisions *decisionLog      // nil if there is none
	gate      *gate.Gate
	server    *criproxy.Server
	metrics   *metrics.Metrics
	admin     *adminapi.Server
	on        listeners
	inForce   *atomic.Pointer[inForce] // stored by reload
	service   *service
	policies  *policies    // used by reload
	stopping  *atomic.Bool // for /readyz
	renewal   *policyclient.Renewal
	condition *condition
}

// serve runs the parts until ctx ends or one fails. The CRI stops first, while all that its calls need still exists.
func serve(ctx context.Context, o Options, p parts) error {
	// behind is the context of everything that must run longer than the drained calls.
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var back errgroup.Group
	back.Go(func() error { p.tracker.Run(behind); return nil })
	back.Go(func() error { watch(behind, o.Log, p); return nil })
	back.Go(func() error { reload(behind, o, p); return nil })
	back.Go(func() error { p.policies.compareKubelet(behind, doctor.Host{}); return nil })
	if p.decisions != nil {
		back.Go(func() error { p.decisions.Run(behind); return nil })
	}
	if p.source != nil {
		back.Go(func() error {
			log := o.Log.WithName("podSource")
			if err := p.source.Run(klog.NewContext(behind, log)); err != nil { // the daemon continues
				log.Error(err, "Pod source ended: falling back to CRI data only",
					"hint", "set podSource.nodeName and restart pullgated")
			}
			return nil
		})
	}
	back.Go(func() error { return p.node.Run(klog.NewContext(behind, o.Log.WithName("nodeCredentials"))) })
	if p.on.web != nil {
		back.Go(func() error { return serveWeb(behind, o.Log.WithName("metrics"), p) })
	}

	if p.on.admin != nil {
		back.Go(func() error { serveAdmin(behind, o.Log.WithName("admin"), p); return nil })
	}

	front, ctx := errgroup.WithContext(ctx)
	front.Go(func() error { return p.server.Serve(p.on.cri) })
	front.Go(func() error { return runWatchdog(ctx, o, p) })
	p.admin.Serving(true)
	front.Go(func() error {
		<-ctx.Done()
		p.stopping.Store(true)
		p.admin.Serving(false)
		p.service.stop()
		o.Log.Info("Stopping, calls under way are drained", "limit", drainLimit)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
		defer cancel()
		p.server.Shutdown(drain)
		p.gate.Wait()
		return nil
	})
	err := front.Wait()
	stop()
	err = errors.Join(err, back.Wait())
	handOver(o, p.tracker)
	o.Log.Info("Stopped")
	return err
}

// watch keeps the gate synced with the runtime.
func watch(ctx context.Context, log klog.Logger, p parts) {
	var g sync.WaitGroup
	up := make(chan struct{}, 1)
	for _, u := range p.conns {
		changes := make(chan bool)
		g.Go(func() {
			logStates(ctx, changes, func(isUp bool, unlogged int) { logUpstream(ctx, log, u.endpoint, isUp, unlogged) })
		})
		g.Go(func() {
			u.Watch(ctx, func(isUp bool) {
				p.metrics.UpstreamUp(p.conns.up())
				p.service.reached(p.conns.up())
				select {
				case changes <- isUp:
				case <-ctx.Done():
				}
				if !isUp {
					p.gate.Disconnected()
					return
				}
				select {
				case up <- struct{}{}:
				default:
				}
			})
		})
	}
	g.Go(func() {
		var logged time.Time // when a failed sync was logged last
		wait := reconcileEvery
		next := time.NewTimer(wait)
		defer next.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-up:
			case <-next.C:
			}
			err := p.gate.Sync(ctx)
			if err == nil {
				err = p.gate.Reconcile(ctx)
			}
			switch { // a runtime that has just started may accept connections before it answers
			case err == nil:
				wait = reconcileEvery
			case wait == reconcileEvery:
				wait = syncRetry
			default:
				wait = min(2*wait, reconcileEvery)
			}
			next.Reset(wait)
			if err != nil && ctx.Err() == nil && time.Since(logged) >= stateLogInterval {
				logged = time.Now()
				log.Info("Failed to sync with the runtime: pullgated judges calls by the last sync", "err", err)
			}
		}
	})
	g.Wait()
}

// logUpstream logs the state of a connection. Many unlogged changes mean that the runtime closes what it accepts.
func logUpstream(ctx context.Context, log klog.Logger, endpoint string, isUp bool, unlogged int) {
	log = log.WithValues("endpoint", endpoint)
	if unlogged > 0 {
		log = log.WithValues("changesNotLogged", unlogged)
	}
	if isUp {
		log.Info("Runtime reached")
		return
	}
	log.Error(whyNotReached(ctx, endpoint), "Failed to reach the runtime: calls fail until it is back")
}

// whyNotReached returns the error of another connection to the socket of the runtime, such as that there is no file.
func whyNotReached(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, stateLogInterval)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return err
	}
	_ = conn.Close()
	return errors.New("the socket accepts connections, and the runtime closed the last one or does not answer")
}

func accept(o Options, store *records.Store) error {
	if !o.AcceptPresentImages {
		return nil
	}
	o.Log.Info("Present images are accepted as preloaded (--accept-present-images)",
		"distrusted", store.Distrusted() != nil, "hint", "start without the flag from the next time on")
	if err := store.Trust(); err != nil {
		return fmt.Errorf("accept present images: %w", err)
	}
	return nil
}

// reservesNode reports whether pods of some namespaces are denied the credentials of the node.
func reservesNode(c config.Config) bool {
	return c.NodeCredentials.Namespaces != nil && c.Enforces()
}

func rules(c config.Config) tracker.Rules {
	return tracker.Rules{
		Policy: c.Policy(), ExemptStaticPods: c.Exempt.StaticPods, ExemptNamespaces: c.Exempt.Namespaces,
		Validity: c.CredentialValidity.Value(), Spread: true, Grace: c.RegistryUnavailableGrace.Value(),
		NodeNamespaces: c.NodeCredentials.Namespaces,
	}
}

// connections are those to the RuntimeService, first, and to the ImageService, last; one if an endpoint serves both.
type connections []upstream

type upstream struct {
	*criproxy.Upstream
	endpoint string
}

func dial(c config.Config) (all connections, err error) {
	for _, endpoint := range slices.Compact([]string{c.RuntimeEndpoint, c.ImageEndpoint}) {
		u, err := criproxy.Dial(endpoint)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("dial the runtime: %w", err), all.close())
		}
		all = append(all, upstream{u, endpoint})
	}
	return all, nil
}

func (c connections) runtime() *criproxy.Upstream { return c[0].Upstream }

func (c connections) image() *criproxy.Upstream { return c[len(c)-1].Upstream }

func (c connections) up() bool { return c.runtime().Up() && c.image().Up() }

func (c connections) close() (err error) {
	for _, u := range c {
		err = errors.Join(err, u.Close())
	}
	return err
}

// serveWeb serves /metrics, /healthz and /readyz until ctx ends. It starts when its address can be bound.
func serveWeb(ctx context.Context, log klog.Logger, p parts) error {
	listener := p.on.web.wait(ctx)
	if listener == nil {
		return nil
	}
	return sockets.ServeStatus(ctx, listener, sockets.Status{
		Metrics: p.metrics.Handler(), Ready: p.ready,
		Panicked: p.metrics.Panic, Log: log,
	})
}

func (p parts) ready() (text string, ready bool) {
	switch {
	case p.stopping.Load():
		return "stopping", false
	case !p.conns.up():
		return "the runtime is not reached", false
	case !p.gate.Synced():
		return "not yet synced with the runtime", false
	default:
		return "ok" + sourceState(p.source), true
	}
}
