package tracker

import (
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/records"
)

// sent returns the ID of what the runtime sends to the registry in a pull for a pod. Without a user name it sends
// what it holds for the pod's namespace, if it may hold anything for one.
func (t *Tracker) sent(c credential.Credential, p Pod) (id credential.ID, from []records.SecretRef) {
	if t.perNamespace && p.Namespace != "" && !c.HasUsername() {
		return t.ofNamespace(p), []records.SecretRef{{Namespace: p.Namespace}}
	}
	return t.key.ID(c), nil
}

// ofNamespace returns the ID of what the runtime may hold for the pod's namespace, "" if it holds nothing for one.
func (t *Tracker) ofNamespace(p Pod) credential.ID {
	if !t.perNamespace {
		return ""
	}
	return t.key.NamespaceID(p.Namespace)
}
