package daemon

import (
	"context"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

// reopenLimit bounds the wait for a disk that does not answer: the new policy must apply all the same.
const reopenLimit = 5 * time.Second

// reload reloads for each value of Options.Reload until ctx ends. In between it reads the policy files when they
// change.
func reload(ctx context.Context, o Options, p parts) {
	tick := time.NewTicker(policyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.policies.poll()
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
	at := time.Now()
	c, found, err := o.Load()
	p.metrics.ConfigRead(err == nil, at)
	if err != nil {
		err = safetext.OneLine(err) // it has a line for each invalid field
		p.inForce.refused(at, err)
		o.Log.Error(err, "Failed to reload the configuration: the previous one stays in use")
		return
	}
	p.tracker.SetRules(rules(c))
	p.gate.SetAllowRestores(c.AllowRestores)
	p.inForce.took(at, c, found)
	p.service.enforces(c.ImagePullCredentialsVerificationPolicy)
	o.Log.Info("Configuration reloaded", "policy", c.ImagePullCredentialsVerificationPolicy,
		"allowlist", len(c.PreloadedImagesVerificationAllowlist),
		"exemptStaticPods", c.Exempt.StaticPods, "exemptNamespaces", c.Exempt.Namespaces, "allowRestores", c.AllowRestores,
		"credentialValidity", c.CredentialValidity, "registryUnavailableGrace", c.RegistryUnavailableGrace)
	if fields := config.NeedRestart(o.Config, c); len(fields) > 0 {
		o.Log.Info("Configuration changed in fields that need a restart", "needARestart", fields,
			"hint", "systemctl restart pullgated")
	}
	p.policies.reload(c)
}
