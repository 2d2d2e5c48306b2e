package webhook

import (
	"fmt"
	"path/filepath"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"k8s.io/apimachinery/pkg/util/validation"
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

// ReadManifestPolicies reads a folder of policy files, regardless of who can write to it. The error joins all errors of all files.
func ReadManifestPolicies(folder string, kinds []policyfiles.Kind) (*ManifestPolicies, error) {
	p := &ManifestPolicies{contents: map[string]string{}}
	recorded := make([]policyfiles.Kind, len(kinds))
	for i, k := range kinds {
		recorded[i] = k
		recorded[i].Read = func(list []policyfiles.File) (policyfiles.Policies, error) {
			for _, f := range list {
				p.contents[filepath.Base(f.Name)] = string(f.Data)
			}
			return k.Read(list)
		}
	}
	set, err := policyfiles.Read(policyfiles.Paths{Folder: folder, AnyOwner: true}, recorded)
	if err != nil {
		return nil, err
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
