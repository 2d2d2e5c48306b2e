// Package signature implements the service that verifies image signatures for pullgated and for the webhook. It limits how many verifications run,
// and shares equal ones.
//
//	node server ──Verify──▶ Service ──turn of the registry──▶ verify.Verifier ──▶ registries, bundles
//	webhook ──────Judge───▶    └─ cache of results (webhook only)
//
// pullgated asks about an image on its node, with the credential of the pull, and gets each result; nothing is kept. The webhook asks about a
// name: the image is the one that the registry has under it, and results are cached, because the webhook only reports early what the nodes
// enforce. What it cannot determine is not denied there.
//
// Requests for the same verification share one. A registry that answers slowly delays only the images of this registry, until so many
// registries are slow that all verifications wait.
package signature
