// Package admission_test runs real API servers with pullgate-policyd as their webhook and as the backend of their
// plugin ImagePolicyWebhook, and compares what that plugin and pullgate-policyd send to an image review backend.
package admission_test

import (
	"os"
	"testing"

	"github.com/pullgate/pullgate/e2e/release"
)

// TestAPIServer runs the rows with kube-apiserver 1.37; with NODES=matrix those of 1.30, which are fewer.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	version := release.Kubernetes137
	if os.Getenv("NODES") == "matrix" {
		version = release.Kubernetes130
	}
	w := begin(t, version)
	// The plugin has one backend, in the place of which a pullgate-policyd runs here.
	t.Run("plugin-asks-policyd", func(t *testing.T) { pluginAsksPolicyd(w.row(t, "images")) })
	rows := map[string]func(*row){
		"bodies":           bodies,
		"plugin":           plugin,
		"two-clusters":     twoClusters,
		"several-clusters": severalClusters,
		"resources":        resources,
		"custom-resources": customResources,
		"tekton":           tekton,
		"argo":             argo,
		"ephemeral":        ephemeral,
		"deployment":       deployment,
		"unchanged":        unchanged,
		"mirror":           mirror,
		"dry-run":          dryRun,
		"audit-mode":       auditMode,
		"namespace-labels": namespaceLabels,
		"audit-log":        auditLog,
		"registration":     registration,
		"timeout":          timeout,
		"doctor":           doctor,
		"generated":        generated,
		"digests":          digests,
		"image-validating": imageValidating,
		"initialisers":     initialisers,
	}
	if version == release.Kubernetes137 { // which reads webhooks from its disk too, and needs no Endpoints
		rows["files"], rows["service"] = files, service
	}
	t.Run("rows", func(t *testing.T) {
		for name, run := range rows {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(w.row(t, name))
			})
		}
	})
	t.Run("canaries", func(t *testing.T) { canaries(w.row(t, "canaries")) })
}
