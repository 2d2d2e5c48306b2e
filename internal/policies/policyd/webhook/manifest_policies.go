package webhook

import (
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// maxConfigMap is the limit of Kubernetes for the content of a ConfigMap.
const maxConfigMap = 1 << 20

// ManifestPolicies are the policy files of a folder.
type ManifestPolicies struct {
	contents   map[string]string // by the name of the file
	namespaces bool              // whether one of them selects namespaces by labels

	// Webhook is what they require of the webhook configuration.
	Webhook requirement.Webhook
}

// ReadManifestPolicies reads a folder of policy files, regardless of who can write to it. The error joins all errors of
// all files.
func ReadManifestPolicies(folder string) (*ManifestPolicies, error) {
	set, files, err := policyfiles.ReadFiles(policyfiles.Paths{Folder: folder, AnyOwner: true})
	if err != nil {
		return nil, err
	}
	p := &ManifestPolicies{contents: map[string]string{}}
	for _, f := range files {
		p.contents[filepath.Base(f.Name)] = string(f.Data)
	}
	for name := range p.contents {
		for _, detail := range validation.IsConfigMapKey(name) {
			return nil, fmt.Errorf("%s: not a key of a ConfigMap: %s; rename the file", filepath.Join(folder, name), detail)
		}
	}
	p.namespaces, p.Webhook = NeedsNamespaces(policyfiles.Restrictions(set)), policyfiles.Webhook(set)
	return p, nil
}

// size returns the number of bytes in a ConfigMap.
func (p *ManifestPolicies) size() int {
	n := 0
	if p != nil {
		for name, content := range p.contents {
			n += len(name) + len(content)
		}
	}
	return n
}
