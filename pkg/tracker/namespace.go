package tracker

import (
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// sent returns the ID of the credential that the runtime sends to the registry in a pull for a pod. Without a user name
// it sends the one that it may hold for the pod's namespace.
func (t *Tracker) sent(c credential.Credential, p Pod) (id credential.ID, from []records.SecretRef) {
	if t.perNamespace && p.Namespace != "" && !c.HasUsername() {
		return t.ofNamespace(p), []records.SecretRef{{Namespace: p.Namespace}}
	}
	return t.key.ID(c), nil
}

func (t *Tracker) ofNamespace(p Pod) credential.ID {
	if !t.perNamespace {
		return ""
	}
	return t.key.NamespaceID(p.Namespace)
}
