// Package webhookprobe finds the webhooks of pullgate that are registered in a cluster, and connects to each of them as an API server does.
//
// It lists ValidatingWebhookConfigurations, resolves the services that they name, and sends one request without a review, which pullgate
// refuses. It changes nothing.
package webhookprobe
