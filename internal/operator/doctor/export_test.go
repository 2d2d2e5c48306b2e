package doctor

import "context"

// Webhook runs the check of webhooks alone, Clusters that of kubeconfigs, Sandbox that of the unit.
func (n Node) Webhook(ctx context.Context) []Finding { return n.webhook(ctx) }

func (n Node) Clusters(ctx context.Context) []Finding { return n.clusters(ctx) }

func (n Node) Sandbox(ctx context.Context) []Finding { return n.startSandbox(ctx) }

// CredentialProgram is what doctor advises about the program of a kubeconfig.
func (n Node) CredentialProgram(ctx context.Context, kubeconfig string) string {
	return n.credentialProgram(ctx, kubeconfig)
}
