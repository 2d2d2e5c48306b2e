package gate_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// CRI-O resolves short names by its own list of registries, so the image has another name than the pod's name for it.
// The message says which name to use, and contains no name from the node.
func TestDenialOfANameThatTheImageDoesNotHave(t *testing.T) {
	const elsewhere = "quay.test/secret/pause:3.9"
	hex := strings.TrimPrefix(id1, "sha256:")
	p := newProxy(t, tracker.Options{}, exact())
	p.runtime.SetImages(img(id1, elsewhere))
	for name, want := range map[string]string{
		"pause:3.9":             "write the registry in the name of the image, as in REGISTRY/pause:3.9",
		"team/app":              "write the registry in the name of the image, as in REGISTRY/team/app",
		"repo.test/team/app:1":  "the image that the runtime resolved it to does not have this name",
		"sha256:" + hex[:12]:    "an image ID is not a name",
		hex[:12]:                "an image ID is not a name",
		hex:                     "an image ID is not a name",
		"docker.io/library/x:1": "does not have this name",
	} {
		_, err := p.Create(t.Context(), p.Pod("bob"), id1, name)
		text := status.Convert(err).Message()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(text, want) {
			t.Errorf("container of %q = %v; want PermissionDenied with %q", name, err, want)
		}
		if strings.Contains(text, "quay.test") || strings.Contains(strings.ReplaceAll(text, name, ""), hex[:12]) {
			t.Errorf("container of %q = %q, which names an image of the node", name, text)
		}
	}
}
