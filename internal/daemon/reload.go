package daemon

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// reopenLimit bounds the wait for a disk that does not answer: the new policy must apply all the same.
const reopenLimit = 5 * time.Second

// reload reloads for each value of Options.Reload, and reads the policy files when they change, until ctx ends.
func reload(ctx context.Context, o Options, p parts) {
	tick := time.NewTicker(policyInterval)
	defer tick.Stop()
	defer p.renewal.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.policies.poll()
			if p.gate.Synced() { // before, it is not known which images are in use
				p.renewal.Tick(ctx, p.policies.signatures.Load().endorser)
			}
			continue
		case <-o.Reload:
		}
		p.service.reloading()
		reopen(ctx, o, p)
		reread(o, p)
		p.service.ready()
	}
}

func reopen(ctx context.Context, o Options, p parts) {
	if p.decisions == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, reopenLimit)
	defer cancel()
	if err := p.decisions.Reopen(limited); err != nil && ctx.Err() == nil {
		o.Log.Error(err, "Failed to reopen the decision log: still writing to the old file",
			"path", o.Config.DecisionLog.Path)
	}
}

// reread applies the fields of the configuration that may change, if the whole configuration is valid.
func reread(o Options, p parts) {
	now := *p.inForce.Load()
	c, found, err := o.Load()
	p.metrics.ConfigRead(err == nil, time.Now())
	now.reload = &adminv1.Reload{At: timestamppb.Now()}
	if err != nil {
		err = safetext.OneLine(err) // it has a line for each invalid field
		now.reload.Error = err.Error()
		p.inForce.Store(&now)
		o.Log.Error(err, "Failed to reload the configuration: the previous one stays in use")
		return
	}
	next := config.Reloaded(now.config, c) // only some fields can change while the daemon runs
	if reservesNode(next) {
		p.node.Reserve(true) // first, so that no answer of a plugin is unknown once it is enforced
	}
	p.tracker.SetRules(rules(c))
	p.gate.SetAllowRestores(c.AllowRestores)
	now.config, now.found = next, found
	p.inForce.Store(&now)
	p.node.Reserve(reservesNode(now.config))
	p.service.enforces(c.ImagePullCredentialsVerificationPolicy)
	o.Log.Info("Configuration reloaded", "policy", c.ImagePullCredentialsVerificationPolicy,
		"allowlist", len(c.PreloadedImagesVerificationAllowlist),
		"exemptStaticPods", c.Exempt.StaticPods, "exemptNamespaces", c.Exempt.Namespaces,
		"nodeCredentialNamespaces", c.NodeCredentials.Namespaces, "allowRestores", c.AllowRestores,
		"credentialValidity", c.CredentialValidity, "registryUnavailableGrace", c.RegistryUnavailableGrace)
	if fields := config.NeedRestart(o.Config, c); len(fields) > 0 {
		o.Log.Info("Configuration changed in fields that need a restart", "needARestart", fields,
			"hint", "systemctl restart pullgated")
	}
	p.policies.reload(c)
}
