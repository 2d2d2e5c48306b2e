// Package admission_test runs real API servers with pullgate-policyd as their webhook and as the backend of their
// plugin ImagePolicyWebhook, and compares what that plugin and pullgate-policyd send to an image review backend.
package admission_test

import "testing"

// TestAPIServer runs the rows.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	w := begin(t)
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
		"service":          service,
		"files":            files,
		"doctor":           doctor,
		"generated":        generated,
		"digests":          digests,
		"image-validating": imageValidating,
		"initialisers":     initialisers,
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
