package node

import (
	"context"
	"errors"
)

// A Policyd is pullgate-policyd.
type Policyd struct{ *daemon }

// StartPolicyd binds the socket for pullgated below dir, and starts pullgate-policyd on it with a policy folder.
// settings are lines of YAML that are added to its configuration.
func StartPolicyd(ctx context.Context, dir, policies string, settings ...string) (p *Policyd, err error) {
	d, err := newDaemon("pullgate-policyd", "policyd", dir)
	if err != nil {
		return nil, err
	}
	p = &Policyd{d}
	if err := p.configure("PolicydConfiguration", append([]string{"policies: " + policies}, settings...)...); err != nil {
		return nil, err
	}
	return p, p.Reopen(ctx)
}

// Reopen binds the socket again after Close, and starts it.
func (p *Policyd) Reopen(ctx context.Context) error {
	if err := p.bind("policy"); err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}

// Close ends it, and removes its socket.
func (p *Policyd) Close() error { return errors.Join(p.Stop(), p.release()) }

// Endpoint is admission.policydSocket of the pullgated that asks it.
func (p *Policyd) Endpoint() string { return "unix://" + p.path("policy.sock") }
