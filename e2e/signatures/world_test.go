// Package signatures_test compares what pullgate-policyd says about the signatures of images with what cosign says, and
// has it ask registries that are not honest.
package signatures_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/imageref"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const namespace = "team"

// A world is a pullgate-policyd with policy files.
type world struct {
	testing.TB
	client *policyclient.Client
	set    *policyfiles.Set
	rules  *requirement.Set
}

// start starts a pullgate-policyd with policy files by their names. settings are more lines of its configuration.
func start(tb testing.TB, policies map[string]string, trustedRoot []byte, settings ...string) *world {
	tb.Helper()
	w, dir := &world{TB: tb}, criproxytest.SocketDir(tb)
	paths := policyfiles.Paths{Folder: filepath.Join(dir, "policies")}
	w.must(os.Mkdir(paths.Folder, 0o755))
	for name, text := range policies {
		w.must(os.WriteFile(filepath.Join(paths.Folder, name+".yaml"), []byte(text), 0o644))
	}
	if trustedRoot != nil {
		paths.TrustedRoot = filepath.Join(dir, "trusted_root.json")
		w.must(os.WriteFile(paths.TrustedRoot, trustedRoot, 0o644))
		settings = append(settings, "trustedRoot: "+paths.TrustedRoot)
	}
	w.set = testkit.Value(policyfiles.Read(paths))(w)
	w.rules = policyfiles.Requirements(w.set)
	policyd := node.StartPolicyd(tb, filepath.Join(dir, "policyd"), paths.Folder, settings...)
	w.client = testkit.Value(policyclient.New(policyd.Endpoint(), policyclient.Options{}))(w)
	host.AtEnd(tb, w.client.Close)
	return w
}

// verify asks whether an image meets the rules for it, and for all its signatures.
func (w *world) verify(ctx context.Context, image node.Pushed, login *node.Login) (requirement.Report, error) {
	applied := w.rules.For(namespace, imageref.New(image.Name))
	repository := image.Name[:strings.LastIndex(image.Name, ":")]
	request := policyclient.VerifyRequest{
		PolicyHash: w.set.Hash, TrustedRoot: policyfiles.TrustedRootID(w.set), Name: image.Name, ImageID: image.ID,
		Digests: []string{repository + "@" + image.Digest}, ListSignatures: true,
	}
	if login != nil {
		request.Credential = admission.Login{Username: login.Username, Password: login.Password}
	}
	for _, r := range applied.Rules {
		request.Requirements = append(request.Requirements, r.Hash)
	}
	slices.Sort(request.Requirements) // both dialects can say the same
	request.Requirements = slices.Compact(request.Requirements)
	if len(request.Requirements) == 0 {
		return requirement.Report{}, errors.New("no rule for " + image.Name)
	}
	return w.client.Verify(ctx, request)
}

func (w *world) must(err error) {
	w.Helper()
	testkit.Must(w, err)
}

func kyvernoPolicy(name, repository, attestors string) string {
	return fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %s}
spec:
  rules:
  - name: signed
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["%s*"]
      attestors: %s
`, name, repository, attestors)
}

func validatingPolicy(name, repository, public, expression string) string {
	return fmt.Sprintf(`apiVersion: policies.kyverno.io/v1
kind: ImageValidatingPolicy
metadata: {name: %s}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchImageReferences: [{glob: "%s*"}]
  validationConfigurations: {mutateDigest: false, verifyDigest: false}
  attestors: [{name: key, cosign: {key: {data: %q}, ctlog: {insecureIgnoreTlog: true}}}]
  attestations: [{name: scan, intoto: {type: %q}}]
  validations: [{expression: %q}]
`, name, repository, public, scanType, "images.containers.all(image, "+expression+")")
}

func sigstorePolicy(name, repository, authorities string) string {
	return fmt.Sprintf(`apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: %s}
spec:
  images: [{glob: "%s*"}]
  authorities: %s
`, name, repository, authorities)
}

// kyvernoKeys is a list of attestors of which so many must have signed, 0 for all.
func kyvernoKeys(count int, keys ...string) string {
	var entries []string
	for _, k := range keys {
		entries = append(entries, fmt.Sprintf("{keys: {publicKeys: %q}}", k))
	}
	return fmt.Sprintf("[{count: %d, entries: [%s]}]", count, strings.Join(entries, ", "))
}

func sigstoreKey(key string) string { return fmt.Sprintf("[{key: {data: %q}}]", key) }
