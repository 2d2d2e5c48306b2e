package podsecurity_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// The Deployment of pullgate-policyd manifests meets each version of the standard that its Namespace enforces.
func TestManifestsMeetTheStandard(t *testing.T) {
	data := testkit.Value(os.ReadFile("../../internal/policies/policyd/webhook/testdata/cluster.golden.yaml"))(t)
	var namespace corev1.Namespace
	var deployment appsv1.Deployment
	for document := range strings.SplitSeq(string(data), "---\n") {
		switch {
		case strings.Contains(document, "kind: Namespace\n"):
			testkit.Must(t, yaml.UnmarshalStrict([]byte(document), &namespace))
		case strings.Contains(document, "kind: Deployment\n"):
			testkit.Must(t, yaml.UnmarshalStrict([]byte(document), &deployment))
		}
	}
	level := api.Level(namespace.Labels[api.EnforceLevelLabel])
	if pod := deployment.Spec.Template.Spec; level != api.LevelRestricted || len(pod.Containers) != 1 {
		t.Fatalf("level %q, %d containers; want restricted and one", level, len(pod.Containers))
	}
	evaluator := testkit.Value(policy.NewEvaluator(policy.DefaultChecks(), nil))(t)
	for minor := 30; minor <= 37; minor++ {
		version := api.LevelVersion{Level: level, Version: api.MajorMinorVersion(1, minor)}
		pod := &deployment.Spec.Template
		for _, result := range evaluator.EvaluatePod(version, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				t.Errorf("1.%d: %s: %s", minor, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
	}
}
