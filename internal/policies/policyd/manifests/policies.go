package manifests

import (
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// maxConfigMap is the limit of Kubernetes for the content of a ConfigMap.
const maxConfigMap = 1 << 20

// Policies are the policy files of a folder.
type Policies struct {
	contents   map[string]string // by the name of the file
	namespaces bool              // whether one of them selects namespaces by labels

	// Webhook is what they require of the webhook configuration.
	Webhook requirement.Webhook
}

// ReadPolicies reads a folder of policy files, regardless of who can write to it. The error joins all errors of all files.
func ReadPolicies(folder string, kinds []policyfiles.Kind) (*Policies, error) {
	p := &Policies{contents: map[string]string{}}
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
	p.namespaces, p.Webhook = webhook.NeedsNamespaces(policyfiles.Restrictions(set)), policyfiles.Webhook(set)
	return p, nil
}

// size returns the number of bytes in a ConfigMap.
func (p *Policies) size() int {
	n := 0
	if p != nil {
		for name, content := range p.contents {
			n += len(name) + len(content)
		}
	}
	return n
}
