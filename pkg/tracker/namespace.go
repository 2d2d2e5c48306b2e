package tracker

import "github.com/pullgate/pullgate/pkg/credential"

// Sent is what the runtime sends to the registry in a pull for a pod, see [Tracker.Sent].
type Sent struct {
	id        credential.ID
	namespace string // whose credential the runtime may hold and send
	known     bool
}

// Sent returns what the runtime sends to the registry in a pull for a pod with a credential. Without a user name it
// sends the one that it may hold for the pod's namespace. A caller hashes a credential once, however often it asks.
func (t *Tracker) Sent(c credential.Credential, p Pod) Sent {
	if t.options.RuntimeCredentialsPerNamespace && p.Namespace != "" && !c.HasUsername() {
		return Sent{t.key.NamespaceID(p.Namespace), p.Namespace, true}
	}
	return Sent{t.key.ID(c), "", true}
}

// sent returns what is sent for a pod if the caller may not have worked it out.
func (t *Tracker) sent(s Sent, p Pod) Sent {
	if s.known {
		return s
	}
	return t.Sent(credential.Credential{}, p)
}
