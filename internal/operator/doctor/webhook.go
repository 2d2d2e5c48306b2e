package doctor

import (
	"context"
	"errors"
	"fmt"
)

// webhook checks that the webhooks of pullgate that are registered in the cluster can be reached.
func (n Node) webhook(ctx context.Context) []Finding {
	switch {
	case n.Kubeconfig == "":
		return nil
	case n.NoNetwork:
		return []Finding{unknown("run it without --no-network", "registered webhooks are not tested without a network")}
	}
	found, err := Prober{Kubeconfig: n.Kubeconfig, Dial: n.Dial}.Probe(ctx)
	if err != nil {
		return []Finding{unknown("check --kubeconfig: its API server must answer, and its identity may list validatingwebhookconfigurations", "registered webhooks are not known: %v", err)}
	}
	if len(found) == 0 {
		return []Finding{ok("no webhook of pullgate is registered, so nothing is judged in admission; the node enforces")}
	}
	var all []Finding
	for _, w := range found {
		name := fmt.Sprintf("%s of %s, %s", w.Name, w.Configuration, w.Target)
		switch {
		case w.Err == nil && w.Note != "":
			all = append(all, ok("%s: reached; %s", name, w.Note))
		case w.Err == nil:
			all = append(all, ok("%s: reached", name))
		case errors.Is(w.Err, ErrWebhookUntested):
			all = append(all, unknown("run it where services are reachable, with an identity that may get services and list endpointslices", "%s: %v", name, w.Err))
		default:
			all = append(all, fail("kubectl get pods of the service, and compare caBundle with the certificate; or delete the webhook", "%s: not reachable: %v: %s", name, w.Err, consequence(w.FailurePolicy)))
		}
	}
	return all
}

// consequence is what an API server does while a webhook is not reachable.
func consequence(failurePolicy string) string {
	if failurePolicy == "Ignore" {
		return "pods are admitted without it, and the node enforces"
	}
	return "no pod is created or changed (failurePolicy Fail)"
}
