package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/criofiles"
)

// runtimeName returns the name that the runtime reports, "" if it cannot be determined.
func (n Node) runtimeName(ctx context.Context) string {
	if name := n.Status.GetRuntime().GetName(); name != "" {
		return name
	}
	p, err := n.peer(ctx, socketPath(n.Config.RuntimeEndpoint))
	if err != nil {
		return ""
	}
	if p.name == "crio" {
		return crio
	}
	return p.name
}

// crio is the name that CRI-O reports.
const crio = "cri-o"

// crioFiles checks the configuration of CRI-O: the credentials for pulls, and the resolution of short names. It also
// checks if the runtime is not known.
func (n Node) crioFiles(ctx context.Context) (all []Finding) {
	name := n.runtimeName(ctx)
	if name != "" && name != crio {
		return nil
	}
	files := criofiles.Node(n.Root)
	found, unread := files.NamespaceCredentials()
	perNamespace := n.Config.RuntimeCredentials == config.RuntimeCredentialsPerNamespace
	switch {
	case perNamespace:
		all = append(all, ok("runtimeCredentials is perNamespace: a pull without a credential opens no image to other namespaces"))
	case len(found) > 0:
		all = append(all, fail("set runtimeCredentials: perNamespace and restart pullgated; then close what was opened before with pullgatectl revoke --repository",
			"%s: CRI-O pulls with credentials of a namespace, and with runtimeCredentials: none such a pull opens the image to every pod", strings.Join(found, "; ")))
	case name == crio && len(unread) == 0:
		all = append(all, ok("CRI-O holds no credentials of namespaces"))
	}
	if !perNamespace {
		for _, err := range unread {
			all = append(all, unknown("run it as root", "whether CRI-O holds credentials of namespaces: %v", err))
		}
	}
	return append(all, shortNames(files)...)
}

// shortNames checks the registries that CRI-O searches for images without a registry in their name.
func shortNames(files criofiles.Node) (all []Finding) {
	registries, file, unread := files.SearchRegistries()
	for _, err := range unread {
		all = append(all, unknown("repair the file, or run it as root", "which registries CRI-O searches for short names: %v", err))
	}
	others := slices.DeleteFunc(slices.Clone(registries), func(r string) bool { return r == "docker.io" })
	if len(others) > 0 {
		all = append(all, warn("write the registry in the images of pods, as in "+others[0]+"/NAME:TAG, or set unqualified-search-registries to docker.io only",
			"%s has CRI-O look for short names in %s: pods whose image has no registry in its name are denied, unless docker.io has the image", file, strings.Join(others, ", ")))
	}
	return all
}
