package daemon

import (
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// warnOfRuntimeCredentials warns if CRI-O has credentials for namespaces, and the configuration says that it has none.
func warnOfRuntimeCredentials(log klog.Logger, c config.Config, root string) {
	if c.RuntimeCredentials == config.RuntimeCredentialsPerNamespace {
		return
	}
	found, unread := doctor.Host{Root: root}.NamespaceCredentials()
	if len(found) > 0 {
		log.Error(nil, "CRI-O pulls with credentials of namespaces, and runtimeCredentials is none: "+
			"such pulls open images to every pod; set runtimeCredentials: perNamespace", "found", found)
	}
	for _, err := range unread {
		log.Info("Failed to find out whether CRI-O has credentials of namespaces", "err", err)
	}
}
