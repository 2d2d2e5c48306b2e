package policyd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// Examine returns why the files that a configuration names cannot be used, all errors at once; nil if they can. Each
// warning is a sentence about a file that can be used and probably does not say what its author means. It binds no
// address and asks no server but systemd.
func Examine(ctx context.Context, c config.Policyd) (warnings []string, err error) {
	var errs []error
	if err := nodeSocketOf(c).CheckUnit(ctx, nil); err != nil {
		errs = append(errs, err)
	}
	set, err := policyfiles.Read(paths(c))
	if err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	backends := policyfiles.BackendsOf(set)
	var clients review.Set
	defer clients.Close()
	if err := clients.Replace(backends.All()); err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	named := []string{c.Policies, c.TrustedRoot, c.Kubeconfig, c.Bundles, c.HTTPS.CertFile, c.HTTPS.KeyFile, c.HTTPS.ClientCAFile}
	for _, b := range backends.All() {
		named = append(named, b.Kubeconfig)
	}
	unit := program.SandboxOf(ctx, nil, programName+".service")
	for _, path := range named {
		errs = append(errs, unit.Sees(path))
	}
	if c.HTTPS.Listen != "" && webhook.NeedsNamespaces(policyfiles.Restrictions(set)) {
		if _, err := apiServer(c.Kubeconfig); err != nil {
			errs = append(errs, err)
		}
	}
	notes, err := verify.Examine(c, set, time.Now())
	warnings = slices.Concat(backends.Warnings(), policyfiles.SignatureNotes(set), notes)
	return warnings, errors.Join(append(errs, err, examineHTTPS(c.HTTPS))...)
}
