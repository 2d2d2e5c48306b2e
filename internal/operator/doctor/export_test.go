package doctor

import "context"

// Webhook runs the check of webhooks alone.
func (n Node) Webhook(ctx context.Context) []Finding { return n.webhook(ctx) }
